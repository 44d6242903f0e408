"""Numbers that are known are the real ones, and are forgotten when something unknown is put in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memcensus.net.reads import Reads
from memcensus.net.trace import Tracker
from tests.net.test_largest import STEPS

Code = Callable[[torch.Tensor], object]


def _read(code: Code) -> tuple[object, Reads]:
    """Return what ``code`` returns for a fake input, and what it was not sure of."""
    reads = Reads()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.zeros(2, 3, dtype=torch.int64))
        tracker = Tracker(nn.Identity(), reads)
        with tracker:
            result = code(fake)
        tracker.close()
    return result, reads


def _position(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[1])


@given(
    steps=st.lists(st.sampled_from(sorted(set(STEPS) - {"as floats", "half", "up"})), max_size=6)
)
@settings(max_examples=80, deadline=None)
def test_what_is_read_from_constants_is_what_they_hold(steps: list[str]) -> None:
    def code(x: torch.Tensor) -> list[object]:
        tensor = _position(x).view(1, -1)
        for step in steps:
            tensor = STEPS[step](tensor)  # type: ignore[no-untyped-call]
        numbers: list[object] = tensor.tolist()
        return numbers

    try:
        real = code(torch.zeros(2, 3, dtype=torch.int64))
    except (RuntimeError, IndexError):
        return  # torch does not do this to masks, or to a single number
    read, reads = _read(code)
    assert read == real
    assert not reads.seen


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (lambda x: bool((_position(x).diff() == 1).all()), True),
        (lambda x: len(_position(x).gt(0).nonzero()), 2),
        (lambda x: _position(x)[_position(x) > 0].tolist(), [1, 2]),
        (lambda x: torch.equal(_position(x), torch.tensor([0, 1, 2])), True),
        (lambda x: torch.zeros_like(x).sum().item(), 0),
        (lambda x: x.new_full((2,), 7).max().item(), 7),
        (lambda x: torch.ones(x.shape, dtype=torch.bool).all().item(), True),
        (lambda _: torch.unique(torch.tensor([4, 4, 5])).tolist(), [4, 5]),
    ],
)
def test_code_that_asks_constants_gets_no_guess(code: Code, answer: object) -> None:
    read, reads = _read(code)
    assert read == answer
    assert not reads.seen


def _overwritten(x: torch.Tensor) -> int:
    position = _position(x)
    first = position[:1]
    position.copy_(x[0])
    return int(first.item())


def _added_to(x: torch.Tensor) -> int:
    position = _position(x)
    position[1:] += 10
    return int(position.max().item())


def test_numbers_that_data_overwrote_are_known_no_longer_in_any_view() -> None:
    _, reads = _read(_overwritten)
    assert len(reads.seen) == 1
    read, reads = _read(_added_to)
    assert read == 12
    assert not reads.seen


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x.sum().item(),
        lambda x: (_position(x) + x[0]).sum().item(),
        lambda x: torch.randint_like(_position(x), 9).sum().item(),
        lambda x: torch.arange(1 << 17).sum().item() + x.shape[0],
    ],
)
def test_data_chance_and_large_tensors_stay_unknown(code: Code) -> None:
    _, reads = _read(code)
    assert reads.seen


def test_real_numbers_of_the_code_change_as_they_would() -> None:
    count = torch.tensor(3)

    def code(_x: torch.Tensor) -> int:
        count.add_(1)
        return int(count.item())

    read, reads = _read(code)
    assert read == 4
    assert not reads.seen
