"""Does it fit? One pure function from a peak and a budget to a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus.model import Answer, Verdict

if TYPE_CHECKING:
    from memcensus.model import Budget


def judge(peak: int, error: int, budget: Budget) -> Verdict:
    """Return the verdict on ``peak`` give or take ``error`` bytes against ``budget``.

    "Fits" and "too big" are said only where the whole error bar is on one side of the limit.
    """
    if peak + error <= budget.limit:
        answer = Answer.FITS
    elif peak - error > budget.limit:
        answer = Answer.TOO_BIG
    else:
        answer = Answer.TOO_CLOSE
    return Verdict(answer, peak, error, budget)
