"""No number of a tensor is larger than its bound says, whatever the data."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memcensus.net.largest import UNTOLD
from memcensus.net.reads import Reads
from memcensus.net.trace import Tracker

STEPS = {
    "sum of a row": lambda t: t.sum(-1, keepdim=True),
    "running sum": lambda t: t.cumsum(0),
    "argmax": lambda t: t.argmax(-1, keepdim=True),
    "where it is": lambda t: (t > 0).nonzero() if t.numel() else t,
    "ten more": lambda t: t + 10,
    "in place": lambda t: t.clone().add_(3),
    "half": lambda t: t / 2,
    "whole half": lambda t: t // 2,
    "rest": lambda t: t % 5,
    "twice": lambda t: torch.cat([t, t]),
    "at most 7": lambda t: t.clamp(max=7),
    "the larger": lambda t: torch.maximum(t, torch.full_like(t, 4)),
    "as floats": lambda t: t.float(),
    "a mask": lambda t: t > 1,
    "counted": lambda t: (t != 0).sum(),
    "product": lambda t: t * t,
    "first row": lambda t: t[:1],
    "sorted": lambda t: t.sort(0)[0],
    "up": lambda t: t.float().mul(1.5).ceil(),
    "chosen": lambda t: torch.where(t > 2, t, torch.ones_like(t)),
    "put": lambda t: t.clone().fill_(6),
}
"""Name -> what is done to a tensor of whole numbers."""


def _bound(steps: list[str], start: torch.Tensor) -> float:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(start)
        tracker = Tracker(nn.Identity(), Reads())
        with tracker:
            tensor = fake > 0  # at most 1, whatever the data
            for step in steps:
                tensor = STEPS[step](tensor)  # type: ignore[no-untyped-call]
        bound = tracker._values(tensor)
        tracker.close()
    return bound


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    numbers=st.lists(st.integers(-5, 5), min_size=6, max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_a_bound_holds_for_real_numbers(steps: list[str], numbers: list[int]) -> None:
    start = torch.tensor(numbers).view(2, 3)
    try:
        real = start > 0
        for step in steps:
            real = STEPS[step](real)  # type: ignore[no-untyped-call]
    except (RuntimeError, IndexError):
        return  # torch does not do this to masks, to none at all, or to a single number
    if real.numel():
        assert float(real.max()) <= _bound(steps, start)


@pytest.mark.parametrize(
    ("steps", "bound"),
    [
        ([], 1),
        (["sum of a row"], 3),
        (["sum of a row", "running sum"], 6),
        (["argmax"], 2),
        (["where it is"], 2),
        (["counted", "ten more"], 16),
        (["sum of a row", "as floats", "half", "at most 7"], 1.5),
        (["product", "twice"], 1),
    ],
)
def test_bounds_are_as_small_as_the_operators_allow(steps: list[str], bound: float) -> None:
    assert _bound(steps, torch.zeros(2, 3)) == bound


def test_nothing_is_told_of_numbers_that_come_from_outside() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(2, 3))
        tracker = Tracker(nn.Identity(), Reads())
        with tracker:
            product = fake * torch.zeros_like(fake)
        assert tracker._values(fake) == UNTOLD
        assert math.isinf(tracker._values(product))
        tracker.close()
