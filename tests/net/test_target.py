"""The user's code: what it may return, and one sentence for whatever goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memcensus.errors import MemcensusError, ModelFailed, Unreadable, UsageError
from memcensus.model import Report
from memcensus.net.options import NetOptions
from memcensus.net.subject import Net
from memcensus.subject import Request, Target

CODE = """
import functools
import sys
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
    def forward(self, x, scale=None):
        print("inside forward")
        return self.layer(x)

def make():
    print("inside make")
    return Net()

def with_tensor():
    return Net(), torch.ones(4, 8)

def with_tuple():
    return Net(), (torch.ones(4, 8), None), None

def with_dict():
    return Net(), {"x": torch.ones(4, 8)}, lambda out: out.sum()

def with_target():
    target = torch.zeros(4, dtype=torch.int64)
    return Net(), torch.ones(4, 8), lambda out: F.cross_entropy(out, target)

def with_partial():
    target = torch.zeros(4, dtype=torch.int64)
    return Net(), torch.ones(4, 8), functools.partial(F.cross_entropy, target=target)

def needs_numbers():
    if torch.ones(3).sum().item() != 3:
        raise ValueError
    return Net()

module = Net()
number = 7
def wants(size): return Net()
def returns_text(): return "a net"
def returns_pair(): return Net(), torch.ones(4, 8), 7
def raises(): raise ValueError("no such\\nluck")
def leaves(): sys.exit(5)
def endless(): return endless()

class Bad(Net):
    def forward(self, x):
        return getattr(self, self.how)(self.layer(x))
    def item(self, x): return x * x.sum().item()
    def branch(self, x): return x if x.sum() > 0 else -x
    def count(self, x): return "three"
    def raises(self, x): raise KeyError("colour")
    def detached(self, x): return x.detach()
    def nonzero(self, x): return x[x > 0]
    def repeats(self, x): return x.repeat_interleave(x.sum(1).long(), dim=0)
    def quits(self, x): sys.exit("bye")

def bad(how):
    def make():
        net = Bad()
        net.how = how
        return net
    return make

item, branch, count, failing, detached, nonzero, quits, repeats = map(bad, (
    "item", "branch", "count", "raises", "detached", "nonzero", "quits", "repeats"))

def frozen():
    return Net().requires_grad_(False)
def lazy():
    return nn.LazyLinear(3)
def vector_loss():
    return Net(), torch.ones(4, 8), lambda out: out
def sparse():
    net = Net()
    net.register_buffer("s", torch.sparse_coo_tensor([[0]], [1.0], (3,)))
    return net
"""


@pytest.fixture
def _code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_code.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "user_typo.py").write_text("def make(:\n", encoding="utf-8")
    (tmp_path / "user_missing.py").write_text("import no_such_package\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("user_code", "user_typo", "user_missing"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def _look(text: str, **options: object) -> Report:
    chosen = NetOptions(**options)  # type: ignore[arg-type]  # the tests give what they mean
    return Net().inspect(Target(text), Request(), chosen)


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize(
    "name", ["with_tensor", "with_tuple", "with_dict", "with_target", "with_partial"]
)
def test_a_callable_may_bring_its_inputs_and_loss(name: str) -> None:
    report = _look(f"user_code:{name}")
    inputs = next(child for child in report.root.children if child.name == "inputs")
    targets = 0 if name == "with_dict" else 4 * 8  # class numbers, int64
    assert inputs.total == 4 * 8 * 4 + targets


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("name", ["make", "module", "Net", "needs_numbers"])
def test_a_callable_may_return_a_module_alone(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = _look(f"user_code:{name}", input=("8",), batch=4)
    parameters = next(child for child in report.root.children if child.name == "parameters")
    assert parameters.total == (8 * 3 + 3) * 4
    built = "for real" if name == "needs_numbers" else ("holds" if name == "module" else "meta")
    assert built in parameters.source.where
    printed = capsys.readouterr()
    assert not printed.out
    assert "inside forward" in printed.err


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("vgg61", UsageError, "vgg16.*package.module:callable"),
        ("a b:c", UsageError, "package.module:callable"),
        (
            "no_such_module:make",
            Unreadable,
            "import no_such_module: there is no.*run from the folder",
        ),
        ("user_code.deeper:make", (ModelFailed, Unreadable), "user_code"),
        ("user_typo:make", ModelFailed, r"SyntaxError.*user_typo.py:1"),
        ("user_missing:make", ModelFailed, r"no_such_package.* at user_missing.py:1"),
        ("user_code:nothing", Unreadable, "no 'nothing'"),
        ("user_code:number", UsageError, "int, which cannot be called"),
        ("user_code:wants", UsageError, "needs the argument 'size'"),
        ("user_code:returns_text", ModelFailed, r"returned str; it must return"),
        ("user_code:returns_pair", ModelFailed, "int for the loss"),
        ("user_code:raises", ModelFailed, r"ValueError: no such at user_code.py:\d+"),
        ("user_code:leaves", ModelFailed, r"ended the program at user_code.py:\d+ \(exit code 5\)"),
        ("user_code:endless", ModelFailed, "RecursionError"),
        ("user_code:repeats", ModelFailed, r"value of a tensor.*repeat_interleave.*user_code.py"),
        ("user_code:count", ModelFailed, "returned a str without a floating tensor"),
        ("user_code:failing", ModelFailed, r"KeyError: 'colour' at user_code.py:\d+"),
        ("user_code:quits", ModelFailed, r"ended the program at user_code.py:\d+"),
        ("user_code:detached", ModelFailed, "does not depend on any parameter"),
        ("user_code:frozen", ModelFailed, "no parameter .* requires a gradient"),
        ("user_code:lazy", ModelFailed, "no shape yet"),
        ("user_code:sparse", ModelFailed, "s is sparse_coo, and net counts dense"),
    ],
)
def test_what_goes_wrong_is_one_sentence(text: str, kind: type[MemcensusError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        _look(text, input=("8",))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize(
    ("text", "options", "kind", "says"),
    [
        ("user_code:make", {}, UsageError, "brings no inputs; .*--input 3x224x224"),
        ("user_code:make", {"input": ("9",)}, ModelFailed, r"RuntimeError.*user_code.py:\d+.*--in"),
        ("user_code:make", {"input": ("y:8",)}, UsageError, "no argument of that name.*x, scale"),
        ("user_code:with_tensor", {"batch": 3}, UsageError, "brings its own inputs"),
        ("user_code:vector_loss", {}, ModelFailed, r"the loss is \(4, 3\)"),
        ("vgg16", {"input": ("3x8x8",)}, ModelFailed, "RuntimeError"),
        ("vgg16", {"batch": 0}, UsageError, "--batch 0"),
    ],
)
def test_inputs_that_do_not_fit(
    text: str,
    options: dict[str, object],
    kind: type[MemcensusError],
    says: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(kind, match=says):
        _look(text, **options)
    assert "Traceback" not in capfd.readouterr().err  # torch logs one, if it is let


@pytest.mark.usefixtures("_code")
def test_a_named_input_reaches_its_argument() -> None:
    report = _look("user_code:make", input=("x:float32:8",), batch=2)
    layers = report.table("layers")
    assert layers is not None
    assert [row[2] for row in layers.rows] == ["2x3", "2x3"]
