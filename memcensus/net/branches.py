"""Branches on data, taken both ways: the step is traced again with other answers to its reads.

Code that reads a number back from a tensor (``reads``) may hang its memory on it. So each place
that reads is answered in turn with every other answer that makes sense, all else as before; the
highest peak of these steps is shown, and how far they lie apart is in doubt. An answer with which
the code raises (``if bad.any(): raise``) is taken to be one that does not come.

Not covered: combinations of several other answers at once, and more than ``MOST`` places.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcensus.errors import ModelFailed, UsageError
from memcensus.net.block import Branch
from memcensus.net.reads import Reads
from memcensus.net.step import trace
from memcensus.subject import silent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcensus.net.block import Trace
    from memcensus.net.plan import Plan
    from memcensus.net.reads import Number, Read, Site
    from memcensus.net.target import Training
    from memcensus.subject import Progress

MOST = 8
"""Places whose other answers are tried."""


def traced(
    make: Callable[[], Training],
    plan: Plan,
    progress: Progress,
    told: Mapping[str, Number] | None = None,
) -> Trace:
    """Return the step with the highest peak; its ``branches`` say what the others came to.

    ``make`` must build anew each time. ``told``: place -> what is read there.

    Raises:
        ModelFailed: if the model's code raises whatever it reads, or learns nothing.
        UsageError: if nothing is read at a place that was told.
    """
    told = told or {}
    turned, base, reads = _first(make, plan, progress, told)
    unread = told.keys() - {read.site.place for read in reads.seen.values()}
    if unread:
        places = sorted({read.site.place for read in reads.seen.values()})
        known = f"numbers are read at {', '.join(places)}" if places else "none is read anywhere"
        raise UsageError(f"--read {min(unread)}: no number is read back there; {known}")
    tried: dict[Site, dict[Number, Trace | None]] = {}
    for done, read in enumerate(list(reads.seen.values())[:MOST]):
        if read.told:
            continue
        progress("other branches", done, min(MOST, len(reads.seen)), "branch")
        which = turned.get(read.site, 0)
        answers: dict[Number, Trace | None] = dict.fromkeys(read.answers[:which])  # which raised
        answers[read.answers[which]] = base
        for other in range(which + 1, len(read.answers)):
            now = {**turned, read.site: other}
            answers[read.answers[other]] = _attempt(make, plan, told, now)
        tried[read.site] = answers
    steps = [base, *(step for found in tried.values() for step in found.values() if step)]
    highest = max(steps, key=_highest)
    apart = _highest(highest) - min(map(_highest, steps))
    shown = tuple(
        _branch(read, turned, tried.get(read.site, {}), highest, ended=reads.ended)
        for read in reads.seen.values()
    )
    return replace(highest, doubt=highest.doubt + apart, branches=shown)


def _first(
    make: Callable[[], Training], plan: Plan, progress: Progress, told: Mapping[str, Number]
) -> tuple[dict[Site, int], Trace, Reads]:
    """Return the first step that does not raise, and which reads had to be turned for that."""
    turned: dict[Site, int] = {}
    first: ModelFailed | None = None
    for _ in range(MOST):
        reads = Reads(told, turned)
        try:
            return turned, trace(make(), plan, progress, reads), reads
        except ModelFailed as error:
            first = first or error
            site = _last_to_turn(reads, turned)
            if site is None:
                break
            turned = {**turned, site: turned.get(site, 0) + 1}
    raise first or ModelFailed("the step was not traced")


def _last_to_turn(reads: Reads, turned: Mapping[Site, int]) -> Site | None:
    """Return the latest place that has an answer left: the one most likely to have led astray."""
    for site, read in reversed(reads.seen.items()):
        if turned.get(site, 0) + 1 < len(read.answers):
            return site
    return None


def _attempt(
    make: Callable[[], Training],
    plan: Plan,
    told: Mapping[str, Number],
    turned: Mapping[Site, int],
) -> Trace | None:
    try:
        return trace(make(), plan, silent, Reads(told, turned))
    except ModelFailed:
        return None


def _branch(
    read: Read,
    turned: Mapping[Site, int],
    tried: Mapping[Number, Trace | None],
    highest: Trace,
    *,
    ended: set[str],
) -> Branch:
    base = read.answers[turned.get(read.site, 0)]
    answer = next((each for each, step in tried.items() if step is highest), base)
    others = tuple(
        (each, None if step is None else _highest(step))
        for each, step in tried.items()
        if each is not answer
    )
    place = read.site.place
    return Branch(place, read.op, answer, others, told=read.told, ended=place in ended)


def _highest(step: Trace) -> int:
    return max(step.peak.size, step.first.size)
