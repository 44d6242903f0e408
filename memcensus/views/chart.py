"""A timeline on a page: the stack, its colours, and the words for each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.model import Clock
from memcensus.views.facts import clip
from memcensus.views.timeline import HEIGHT, WIDTH, stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memcensus.model import Report, Timeline
    from memcensus.views.facts import Json
    from memcensus.views.timeline import Stack

HUES = 10
"""Colours of top-level accounts in report.css; then they repeat."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A timeline as it is drawn."""

    timeline: Timeline
    stack: Stack
    instant: int
    limit: int | None  # bytes, where it is in sight
    looks: tuple[str, ...]  # CSS classes, one for each band

    @property
    def lanes(self) -> int:
        """How many rows of labels there are."""
        return max((mark.lane + 1 for mark in self.stack.marks if mark.lane is not None), default=0)

    def when(self, time: int) -> str:
        """Return ``time`` in words."""
        if self.timeline.clock is Clock.STEP:
            return f"step {time:,}"
        return f"{time / 1e9:,.3f} s"

    @classmethod
    def of(cls, report: Report, looks_of: Mapping[str, str]) -> Chart | None:
        """Return the report's timeline as a chart, None if it has none.

        ``looks_of`` has the CSS classes of each top-level account: a band looks like its account.
        """
        if report.timeline is None or report.instant is None or not report.timeline.series:
            return None
        limit = 0 if report.verdict is None else report.verdict.budget.limit
        drawn = stack(report.timeline, report.instant, limit=limit)
        names = [band.path[1] if band.path and len(band.path) > 1 else None for band in drawn.bands]
        alone = {name for name in names if names.count(name) == 1}
        looks = tuple(
            looks_of.get(name or "", f"h{at % HUES} l1") if name in alone else f"h{at % HUES} l1"
            for at, name in enumerate(names)
        )
        in_sight = limit if 0 < limit <= drawn.top else None
        return cls(report.timeline, drawn, report.instant, in_sight, looks)

    def data(self) -> dict[str, Json]:
        """Return what the script says at each time that is drawn; equal words are written once."""
        words: dict[str, int] = {}

        def number(size: int) -> int:
            return words.setdefault(units.both(size), len(words))

        drawn = self.stack
        bands = [[number(size) for size in band.sizes] for band in drawn.bands]
        totals = [number(total) for total in drawn.totals]
        return {
            "x": [round(100 * drawn.x(time) / WIDTH, 3) for time in drawn.times],
            "when": [self.when(time) for time in drawn.times],
            "names": [clip(band.name) for band in drawn.bands],
            "bands": bands,
            "totals": totals,
            "at": drawn.times.index(self.instant),
            "words": list(words),
        }

    def rules(self, number: int) -> Iterator[str]:
        """Yield the places of labels as CSS, for the page's report ``number``."""
        drawn = self.stack
        for at, mark in enumerate(drawn.marks):
            if mark.lane is not None:
                side = 100 * (mark.x if not mark.flipped else WIDTH - mark.x) / WIDTH
                yield (
                    f"#m{number}-{at}{{{'right' if mark.flipped else 'left'}:{side:.3f}%;"
                    f"top:{mark.lane * 1.25:.2f}rem;max-width:{100 * mark.room / WIDTH:.3f}%}}"
                )
        for tick in drawn.ticks():
            yield f"#y{number}-{tick}{{top:{100 * drawn.y(tick) / HEIGHT:.3f}%}}"
