"""What nobody can tell is a gap with its name, and part of the verdict's error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pytest
import torch
from torch import nn

from memcensus import budget
from memcensus.model import Report
from memcensus.net.block import Kind, Phase, Trace
from memcensus.net.loss import default_loss
from memcensus.net.options import NetOptions
from memcensus.net.plan import Plan
from memcensus.net.step import trace
from memcensus.net.subject import Net
from memcensus.net.target import Training
from memcensus.net.unknown import COMPILED, RECURRENT
from memcensus.subject import Request, Target, silent
from tests.net import truth

Operator: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

Compiled = TypeVar("Compiled", bound=Callable[..., object])

X = torch.randn(50, 8)


def compiled(what: Compiled) -> Compiled:
    """Compile, without a code generator."""
    done: Any = torch.compile(what, backend="eager")
    made: Compiled = done
    return made


class Applied(nn.Module):
    """A layer, and an operator on what it returns."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(self.layer(x))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.narrow(self.wide(x).relu())
        return out


@compiled
def curved(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos()


class Method(Plain):
    """One of its methods is compiled."""

    @compiled
    def curve(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.curve(super().forward(x))
        return out


class Global(Plain):
    """Its forward calls a function that is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = curved(super().forward(x))
        return out


class Around(nn.Module):
    """One of its parts is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.part = compiled(Plain())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.part(x)
        return out


def in_place() -> nn.Module:
    module = Plain()
    module.compile(backend="eager")
    return module


def whole() -> nn.Module:
    module: nn.Module = compiled(Plain())
    return module


@pytest.fixture(scope="module")
def theirs() -> Iterator[dict[str, Operator]]:
    """Operators of the user's, two without a fake kernel and one with it."""
    make: Any = torch.library.Library  # torch leaves it untyped
    library = make("theirs", "DEF")
    for name in ("twice", "thrice"):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, torch.clone, "CPU")
    library.impl("thrice", torch.empty_like, "Meta")

    @torch.library.custom_op("theirs::fourfold", mutates_args=())
    def fourfold(x: torch.Tensor) -> torch.Tensor:
        return x * 4

    operators = torch.ops.theirs
    yield {"twice": operators.twice, "thrice": operators.thrice, "fourfold": fourfold}
    library._destroy()


def _traced(module: nn.Module, plan: Plan | None = None) -> Trace:
    return trace(Training(module, (X,), {}, None, ""), plan or Plan(), silent)


@pytest.mark.parametrize("name", ["twice", "thrice", "fourfold"])
def test_an_operator_of_the_users_is_named_and_doubted_by_what_it_may_hold(
    theirs: dict[str, Operator], name: str
) -> None:
    plan = Plan(mode="infer")
    traced = _traced(Applied(theirs[name]), plan)
    assert traced.unknown == {f"theirs.{name}"}
    assert traced.peak.size == truth.inference_peak(Applied(theirs[name]), [X])
    assert traced.doubt >= 2 * 50 * 4 * 4  # its argument and its result once more


@pytest.mark.parametrize("make", [whole, in_place, Around, Method, Global])
def test_what_is_compiled_is_traced_as_if_it_were_not(make: Callable[[], nn.Module]) -> None:
    traced = _traced(make())
    assert traced.unknown == {COMPILED}
    start = next(time for time, phase in traced.marks if phase is Phase.BACKWARD)
    saved = sum(b.at(start) for b in traced.blocks if b.kind is Kind.SAVED)
    assert traced.doubt == saved > 0
    if make not in {Method, Global}:
        target = torch.zeros(50, dtype=torch.int64)
        criterion = partial(default_loss, target=target)
        assert traced.peak.size == truth.plain_peak(Plain(), "sgd", X, criterion, [target])


def test_what_is_not_compiled_is_not_doubted() -> None:
    assert not _traced(Plain()).unknown


def _report(name: str, **options: object) -> Report:
    given = NetOptions(input=("8",), batch=50, **options)  # type: ignore[arg-type]  # as the test says
    target = Target(f"tests.net.test_unknown:{name}")
    return Net().inspect(target, Request(budget.parse("1GiB")), given)


def test_the_report_has_a_gap_and_a_wider_error() -> None:
    plain, whole_ = _report("Plain"), _report("whole")
    gap = next(gap for gap in whole_.gaps if gap.what == COMPILED)
    assert "the compiler may save other tensors" in gap.why
    assert plain.verdict is not None
    assert whole_.verdict is not None
    assert whole_.verdict.error > plain.verdict.error
    assert not any(gap.what == COMPILED for gap in plain.gaps)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.cells(x.unsqueeze(0))[0].sum(0)
        return out


def test_recurrent_layers_on_a_gpu_are_a_gap_and_on_a_cpu_none() -> None:
    on_gpu = _report("Recurrent", device="rtx3060")
    assert any(gap.what == RECURRENT and "cuDNN" in gap.why for gap in on_gpu.gaps)
    assert not any(gap.what == RECURRENT for gap in _report("Recurrent").gaps)
