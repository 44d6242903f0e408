"""The verdict as one sentence: the last line of every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus import units
from memcensus.model import Answer
from memcensus.text import printable

if TYPE_CHECKING:
    from memcensus.model import Verdict

NONE = "no verdict: no limit was given; --limit 24GiB names one, --limit auto takes what binds here"


def sentence(verdict: Verdict | None) -> str:
    """Return e.g. "fits: 6.1 GiB of 8 GiB (limit from --limit 8GiB), 1.9 GiB to spare"."""
    if verdict is None:
        return NONE
    peak, error, limit = verdict.peak, verdict.error, verdict.budget.limit
    bar = f" ± {units.size(error)}" if error else ""
    where = printable(verdict.budget.source.where)
    head = f"{verdict.answer}: {units.size(peak)}{bar} of {units.size(limit)} (limit from {where})"
    return f"{head}, {_margin(verdict.answer, limit - peak, error)}"


def _margin(answer: Answer, room: int, error: int) -> str:
    at_worst = " at worst" if error else ""
    if answer is Answer.FITS:
        return f"{units.size(room - error)} to spare{at_worst}"
    if answer is Answer.TOO_BIG:
        return f"{units.size(-room - error)} too much{' at best' if error else ''}"
    return f"the error of {units.size(error)} is larger than the {units.size(abs(room))} between"
