"""A timeline as stacked areas: which times are drawn, and the outline of each series.

A recording may hold a million steps and a screen a thousand columns. Each column keeps its highest
and lowest sum, so a peak of one step stays visible, and every height drawn is exact at its time.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcensus.model import Path, Series, Timeline

MOST_TIMES = 1000
"""Times that are drawn, about one for each column of a screen."""

MOST_SERIES = 12
"""Series that are drawn one by one; the smaller ones are one, "n smaller"."""

WIDTH, HEIGHT = 1000.0, 300.0
"""The drawing's own units."""

LANES = 4
"""Rows of labels above the chart."""

MOST_MARKS = 200
"""Marks that are drawn."""

_LETTER = 7.0  # width of a letter of a label in drawing units, on a chart 1000 pixels wide


@dataclass(frozen=True, slots=True)
class Band:
    """One series of a stack."""

    name: str
    path: Path | None  # None: several small series together
    sizes: tuple[int, ...]  # shape (len(Stack.times),), bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """A label at a time."""

    time: int
    label: str
    x: float  # drawing units from the left
    lane: int | None  # row above the chart; None: no room, so it is only listed
    room: float = 0.0  # drawing units that the label may take
    flipped: bool = False  # it stands left of its time


@dataclass(frozen=True, slots=True)
class Stack:
    """What is drawn of a timeline: bands known at the same times, each size held until the next."""

    times: tuple[int, ...]  # rising
    end: int  # until when the last sizes are drawn; above the last time
    bands: tuple[Band, ...]  # from the bottom up
    totals: tuple[int, ...]  # shape (len(times),), bytes
    marks: tuple[Mark, ...]
    marks_left_out: int
    top: int  # bytes at the upper edge

    def x(self, time: int) -> float:
        """Return where ``time`` stands, in drawing units from the left, held within the drawing."""
        share = (time - self.times[0]) / (self.end - self.times[0])
        return WIDTH * min(max(share, 0.0), 1.0)

    def y(self, size: int) -> float:
        """Return the height of ``size`` bytes, in drawing units from the top."""
        return HEIGHT * (1 - size / self.top)

    def outlines(self) -> Iterator[str]:
        """Yield each band's area as the ``d`` of an SVG path."""
        base = [0] * len(self.times)
        for band in self.bands:
            above = [low + size for low, size in zip(base, band.sizes, strict=True)]
            yield self._outline(base, above)
            base = above

    def ticks(self) -> Iterator[int]:
        """Yield two to six round sizes in bytes for the scale, from 0 up."""
        power = 1 << max(self.top.bit_length() - 3, 0)
        step = power * 2 if self.top // power > 5 else power
        yield from range(0, self.top + 1, step)

    def _outline(self, base: Sequence[int], above: Sequence[int]) -> str:
        """Go right along the upper edge and back along the lower one, in steps."""
        xs = [*(self.x(time) for time in self.times), WIDTH]
        there = [(xs[at + n], self.y(size)) for at, size in enumerate(above) for n in (0, 1)]
        back = [(xs[at + n], self.y(size)) for at, size in enumerate(base) for n in (0, 1)]
        points = _without_repeats([*there, *reversed(back)])
        return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points) + "Z"


def stack(timeline: Timeline, instant: int, most: int = MOST_TIMES, limit: int = 0) -> Stack:
    """Return what is drawn of ``timeline``: at most about ``most`` times.

    Kept are the first and last time, the instant, the marks, each series' maximum, and in each of
    ``most`` / 4 equal spans the first, last, highest and lowest sum. A ``limit`` in bytes, if not
    far above the peak, is kept in sight.
    """
    bands = _bands(timeline, instant)
    kept = _times(timeline, instant, most)
    totals = tuple(map(timeline.total, kept))
    peak = max(totals)
    seen = limit if peak <= limit <= 2 * peak else peak
    end = kept[-1] + max((kept[-1] - kept[0]) // 200, 1)
    return Stack(
        kept,
        end,
        tuple(_band(name, path, series, kept) for name, path, series in bands),
        totals,
        _in_lanes(timeline.marks, kept[0], end),
        max(len(timeline.marks) - MOST_MARKS, 0),
        max(seen + seen // 16, 1),
    )


def _bands(timeline: Timeline, instant: int) -> list[tuple[str, Path | None, list[Series]]]:
    """Group the series into bands: the largest at their peak alone, the others together."""
    series = list(timeline.series)
    if len(series) > MOST_SERIES:
        ranked = sorted(
            range(len(series)),
            key=lambda at: (-max(series[at].sizes, default=0), -series[at].at(instant)),
        )
        kept = set(ranked[: MOST_SERIES - 1])
        small = [one for at, one in enumerate(series) if at not in kept]
        large = [one for at, one in enumerate(series) if at in kept]
    else:
        large, small = series, []
    bands: list[tuple[str, Path | None, list[Series]]] = [
        ("/".join(one.path[1:]) or one.path[0] if one.path else "", one.path, [one])
        for one in large
    ]
    if small:
        bands.append((f"{len(small):,} smaller", None, small))
    return bands


def _band(name: str, path: Path | None, series: Sequence[Series], times: Sequence[int]) -> Band:
    return Band(name, path, tuple(sum(one.at(time) for one in series) for time in times))


def _times(timeline: Timeline, instant: int, most: int) -> tuple[int, ...]:
    """Choose the times that are drawn."""
    kept = {instant, *(time for time, _ in timeline.marks[: most // 4])}
    for series in timeline.series:
        if series.times:
            # As a mapping, because a size that is replaced at the same time is never seen.
            seen = dict(zip(series.times, series.sizes, strict=True))
            kept.add(max(seen, key=seen.__getitem__))
    sums = list(_sums(timeline.series))
    if not sums:
        return tuple(sorted(kept))
    first, span = sums[0][0], sums[-1][0] - sums[0][0] + 1
    spans = max(most // 4, 1)
    for _, inside in groupby(sums, key=lambda point: (point[0] - first) * spans // span):
        points = list(inside)
        kept |= {points[0][0], points[-1][0]}
        kept.add(max(points, key=lambda point: point[1])[0])
        kept.add(min(points, key=lambda point: point[1])[0])
    return tuple(sorted(kept))


def _sums(series: Sequence[Series]) -> Iterator[tuple[int, int]]:
    """Yield (time, bytes of all series from then on) for each time at which one changes."""
    changes = heapq.merge(
        *(
            [(time, at, size) for time, size in zip(one.times, one.sizes, strict=True)]
            for at, one in enumerate(series)
        ),
        key=lambda change: change[:2],
    )
    now = [0] * len(series)
    total = 0
    for time, together in groupby(changes, key=lambda change: change[0]):
        for _, at, size in together:
            total += size - now[at]
            now[at] = size
        yield time, total


def _in_lanes(marks: Sequence[tuple[int, str]], start: int, end: int) -> tuple[Mark, ...]:
    """Give each label the first row in which it does not touch another.

    Its room reaches to its neighbours in that row, so on a narrow page labels are cut and never
    cover each other.
    """
    lanes: list[list[tuple[float, float]]] = [[] for _ in range(LANES)]  # (left, right), rising
    placed: list[tuple[int, str, float, float, int | None]] = []
    for time, label in sorted(marks)[:MOST_MARKS]:
        x = min(max(WIDTH * (time - start) / (end - start), 0.0), WIDTH)
        width = min(_LETTER * (len(label) + 2), WIDTH / 4)
        left = x - width if x + width > WIDTH else x
        lane = next((at for at in range(LANES) if _is_free(lanes[at], left, left + width)), None)
        placed.append((time, label, x, left, lane))
        if lane is not None:
            insort(lanes[lane], (left, left + width))
    return tuple(
        Mark(time, label, x, lane, _room(lanes[lane], x, left), left < x)
        if lane is not None
        else Mark(time, label, x, None)
        for time, label, x, left, lane in placed
    )


def _is_free(lane: Sequence[tuple[float, float]], left: float, right: float) -> bool:
    return all(right <= taken_from or taken_to <= left for taken_from, taken_to in lane)


def _room(lane: Sequence[tuple[float, float]], x: float, left: float) -> float:
    """Return how far a label at ``x`` may reach: half way to its neighbour in the row."""
    at = next(at for at, taken in enumerate(lane) if taken[0] == left)
    if left < x:  # it reaches to the left
        return x - ((lane[at - 1][1] + left) / 2 if at else 0.0)
    return ((lane[at][1] + lane[at + 1][0]) / 2 if at + 1 < len(lane) else WIDTH) - x


def _without_repeats(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out points on a level line between their neighbours: steps that change nothing."""
    inner = (
        at
        for at in range(1, len(points) - 1)
        if not points[at - 1][1] == points[at][1] == points[at + 1][1]
    )
    return [points[0], *(points[at] for at in inner), points[-1]]
