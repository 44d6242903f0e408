"""The verdict: said only where the whole error bar is on one side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.fit import judge
from memcensus.model import Answer, Budget, Evidence, Source

HERE = Source(Evidence.ASSUMED, "tests")


@pytest.mark.parametrize(
    ("peak", "error", "answer"),
    [
        (100, 0, Answer.FITS),
        (101, 0, Answer.TOO_BIG),
        (90, 10, Answer.FITS),
        (91, 10, Answer.TOO_CLOSE),
        (110, 10, Answer.TOO_CLOSE),
        (111, 10, Answer.TOO_BIG),
    ],
)
def test_the_error_bar_decides_at_a_limit_of_100(peak: int, error: int, answer: Answer) -> None:
    assert answer is judge(peak, error, Budget(100, HERE)).answer


@given(st.integers(0, 2**40), st.integers(0, 2**30), st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_room_never_makes_it_worse(peak: int, error: int, limit: int, more: int) -> None:
    order = [Answer.TOO_BIG, Answer.TOO_CLOSE, Answer.FITS]
    small = judge(peak, error, Budget(limit, HERE)).answer
    large = judge(peak, error, Budget(limit + more, HERE)).answer
    assert order.index(small) <= order.index(large)
