"""Code that reads numbers back: the peak is the highest of what a real step may come to."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from memcensus.errors import ModelFailed, UsageError
from memcensus.net import branches, reads
from memcensus.net.block import Trace
from memcensus.net.loss import default_loss
from memcensus.net.options import NetOptions
from memcensus.net.plan import Plan
from memcensus.net.subject import Net
from memcensus.net.target import Training
from memcensus.subject import Request, Target, silent
from tests.net import truth

X = torch.randn(50, 8)
TARGET = torch.zeros(50, dtype=torch.int64)


class Reading(nn.Module):
    """Subclasses read in ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 400)
        self.narrow = nn.Linear(400, 4)

    def more(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp().sin().exp()


class Branching(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(x)
        if x.sum() > 0:
            hidden = self.more(hidden)
        out: torch.Tensor = self.narrow(hidden)
        return out


class Otherwise(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(x)
        out: torch.Tensor = self.narrow(hidden if x.sum() > 0 else self.more(hidden))
        return out


class Guarded(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("not a number")
        out: torch.Tensor = self.narrow(self.wide(x))
        return out


class Logging(Reading):
    seen: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.narrow(self.wide(x))
        self.seen = out.norm().item()
        return out


class Cutting(Reading):
    """Keeps as many rows as the fullest column has positive numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = int((x > 0).sum(0).max().item())
        out: torch.Tensor = self.narrow(self.wide(x[:rows]))
        return out


class Equal(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(x)
        if not torch.equal(x, x.flip(0)):
            hidden = self.more(hidden)
        out: torch.Tensor = self.narrow(hidden)
        return out


class Looping(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.wide(x)
        while hidden.abs().max() > 0.5:
            hidden = hidden.sin()
        out: torch.Tensor = self.narrow(hidden)
        return out


class Broken(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise KeyError("one way")
        raise KeyError("or the other")


class Routed(nn.Module):
    """Two experts, each of which gets the rows that a gate sends it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        which = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out[which == number] = expert(x[which == number])
        return out


def _traced(make: Callable[[], nn.Module], told: tuple[str, ...] = ()) -> Trace:
    def training() -> Training:
        return Training(make(), (X,), {}, None, "")

    return branches.traced(training, Plan(), silent, reads.told(told))


def _real(make: Callable[[], nn.Module], x: torch.Tensor) -> int:
    target = TARGET[: make()(x).shape[0]]
    criterion = partial(default_loss, target=target)
    return truth.plain_peak(make(), "sgd", x, criterion, [target])


@pytest.mark.parametrize("make", [Branching, Otherwise, Equal])
def test_the_longer_way_is_shown_and_the_shorter_one_in_doubt(make: type[Reading]) -> None:
    one, other = _real(make, X.abs()), _real(make, torch.zeros_like(X))
    traced = _traced(make)
    assert traced.peak.size == max(one, other)
    assert traced.doubt == abs(one - other) > 0
    (branch,) = traced.branches
    assert re.fullmatch(r".*test_branches\.py:\d+", branch.place)
    assert branch.others == ((not branch.answer, min(one, other)),)


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("make", [Branching, Otherwise])
def test_what_is_told_is_taken(make: type[Reading], *, answer: bool) -> None:
    place = _traced(make).branches[0].place
    traced = _traced(make, (f"{place}={answer}",))
    assert traced.peak.size == _real(make, X.abs() if answer else -X.abs())
    assert traced.doubt == 0
    assert traced.branches[0].told


def test_an_answer_that_raises_does_not_come() -> None:
    traced = _traced(Guarded)
    assert traced.peak.size == _real(Guarded, X)
    assert traced.doubt == 0
    assert traced.branches[0].others == ((True, None),)


def test_a_number_that_is_only_looked_at_costs_nothing() -> None:
    traced = _traced(Logging)
    assert traced.peak.size == _real(Logging, X)
    assert traced.doubt == 0


def test_a_size_that_is_read_back_is_the_largest_it_can_be() -> None:
    traced = _traced(Cutting)
    assert traced.peak.size == _real(Cutting, X.abs())
    assert traced.branches[0].answer == 50
    few = X.clone()
    few[10:] = -1
    assert traced.peak.size - traced.doubt <= _real(Cutting, few) < traced.peak.size


def test_a_loop_that_ends_by_data_is_ended() -> None:
    traced = _traced(Looping)
    assert any(branch.ended for branch in traced.branches)
    assert traced.peak.size > 60 * 50 * 400 * 4  # 63 times around


def test_a_fault_on_both_ways_is_told_by_the_first() -> None:
    with pytest.raises(ModelFailed, match="one way"):
        _traced(Broken)


def test_rows_sent_to_experts_are_at_most_all() -> None:
    traced = _traced(Routed)
    assert traced.unknown == {"aten.index"}
    real = truth.plain_peak(Routed(), "sgd", X, partial(default_loss, target=TARGET), [TARGET])
    assert traced.peak.size - traced.doubt <= real <= traced.peak.size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models.py:3", "name the line"),
        ("=3", "name the line"),
        ("models.py=3", "name the line"),
        ("models.py:3=maybe", "name the line"),
        ("models.py:3=", "name the line"),
        ("nowhere.py:3=1", r"no number is read back there; .*test_branches\.py:\d+"),
    ],
)
def test_what_is_told_wrongly_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _traced(Branching, (text,))


def test_the_report_says_what_was_assumed_and_how_to_tell() -> None:
    target, options = (
        Target("tests.net.test_branches:Branching"),
        NetOptions(batch=50, input=("8",)),
    )
    report = Net().inspect(target, Request(), options)
    gap = next(gap for gap in report.gaps if "reads back" in gap.what)
    place = re.search(r"tests/net/test_branches\.py:\d+", gap.what)
    assert place is not None
    assert f"--read {place[0]}=VALUE tells" in gap.why
    assert "taken as True, with False it peaks at" in gap.why


held = Branching()


def test_a_module_that_the_code_holds_is_traced_again_as_it_is() -> None:
    options = NetOptions(batch=50, input=("8",))
    reports = [
        Net().inspect(Target(f"tests.net.test_branches:{name}"), Request(), options)
        for name in ("held", "Branching")
    ]
    assert reports[0].root.total == reports[1].root.total
    assert any("taken as True, with False" in gap.why for gap in reports[0].gaps)


def ctc(lengths: str) -> type[nn.Module]:
    class Ctc(nn.Module):
        """A CTC loss over ten steps and three labels."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.layer(x.view(-1, 10, 8)).log_softmax(-1).transpose(0, 1)
            samples = scores.shape[1]
            labels = torch.ones(samples, 3, dtype=torch.int64)
            steps: object = (10,) * samples
            sizes: object = (3,) * samples
            if lengths == "tensors":
                steps, sizes = torch.full((samples,), 10), torch.full((samples,), 3)
            loss = nn.functional.ctc_loss(scores, labels, steps, sizes)  # type: ignore[arg-type]  # torch takes both
            return {"loss": loss}

    return Ctc


@pytest.mark.parametrize("lengths", ["tensors", "tuples"])
def test_a_ctc_loss(lengths: str) -> None:
    make = ctc(lengths)
    traced = _traced(make)
    criterion = partial(default_loss, target=None)
    assert traced.peak.size == truth.plain_peak(make(), "sgd", X, criterion)
    assert traced.unknown == {"aten._ctc_loss"}
