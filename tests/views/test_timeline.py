"""The stacked timeline: what is drawn is exact where it is drawn, and no peak is lost."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memcensus.model import Clock, Report, Series, Timeline
from memcensus.views.timeline import (
    HEIGHT,
    LANES,
    MOST_MARKS,
    MOST_SERIES,
    MOST_TIMES,
    WIDTH,
    Stack,
    stack,
)
from tests.strategies import reports, timelines


def noisy(steps: int, seed: int, count: int = 3) -> Timeline:
    """Series that jump at times of their own, as an allocator's do."""
    chance = random.Random(seed)  # noqa: S311  (a recording to draw, not a secret)
    series = []
    for at in range(count):
        times = sorted(chance.randrange(10 * steps) for _ in range(steps))
        sizes = tuple(chance.randrange(1 << 30) for _ in times)
        series.append(Series(("all", f"{at}"), tuple(times), sizes))
    return Timeline(Clock.NANOSECONDS, tuple(series))


def every_time(timeline: Timeline) -> list[int]:
    return sorted({time for series in timeline.series for time in series.times})


def drawn_spans(stacked: Stack, x: float) -> list[tuple[float, float]]:
    """Read the edges at ``x`` of each band that has a height there back from the SVG paths."""
    spans = []
    for outline in stacked.outlines():
        numbers = [float(text) for text in re.findall(r"-?\d+\.\d+", outline)]
        points = list(zip(numbers[::2], numbers[1::2], strict=True))
        closed = zip(points, [*points[1:], points[0]], strict=True)
        ys = [a[1] for a, b in closed if a[1] == b[1] and min(a[0], b[0]) < x < max(a[0], b[0])]
        if ys and max(ys) > min(ys):
            spans.append((HEIGHT - max(ys), HEIGHT - min(ys)))
    return spans


@given(reports())
def test_at_the_instant_the_drawing_is_as_high_as_the_tree(report: Report) -> None:
    assume(report.timeline is not None and report.instant is not None)
    if report.timeline is None or report.instant is None:
        return
    drawn = stack(report.timeline, report.instant)
    at = drawn.times.index(report.instant)
    assert drawn.totals[at] == report.root.total
    nexts = [*drawn.times, drawn.end]
    left, right = drawn.x(nexts[at]), drawn.x(nexts[at + 1])
    assume(right - left > 0.1)
    spans = drawn_spans(drawn, (left + right) / 2)
    assert len(spans) <= sum(band.sizes[at] > 0 for band in drawn.bands)
    edges = [edge for span in spans for edge in span] or [0.0]
    assert edges[0] == 0
    assert edges[1:-1:2] == edges[2::2]  # each band stands on the one below
    assert edges[-1] == pytest.approx(HEIGHT * report.root.total / drawn.top, abs=0.01)


@given(timelines(), st.integers(-20, 1100), st.integers(4, 40))
def test_what_is_drawn_is_exact_and_peaks_stay(timeline: Timeline, now: int, most: int) -> None:
    drawn = stack(timeline, now, most)
    assert list(drawn.times) == sorted(set(drawn.times))
    assert list(drawn.totals) == [timeline.total(time) for time in drawn.times]
    assert list(drawn.totals) == [
        sum(band.sizes[at] for band in drawn.bands) for at in range(len(drawn.times))
    ]
    times = every_time(timeline)
    assert max(drawn.totals) == max([*map(timeline.total, times), timeline.total(now)])
    for band, series in zip(drawn.bands, timeline.series, strict=True):
        assert max(band.sizes) == max([series.at(time) for time in times], default=0)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_recording_keeps_its_extremes_in_few_times(seed: int) -> None:
    timeline = noisy(4000, seed)
    drawn = stack(timeline, 17)
    sums = [timeline.total(time) for time in every_time(timeline)]
    assert max(sums) == max(drawn.totals)
    assert min(sums) in drawn.totals
    assert len(drawn.times) <= MOST_TIMES + 1 + len(timeline.series)
    for band, series in zip(drawn.bands, timeline.series, strict=True):
        assert max(series.sizes) == max(band.sizes)


def test_a_peak_of_one_step_in_a_flat_million_is_seen() -> None:
    times = (0, 500_001, 500_002, 1_000_000)
    drawn = stack(Timeline(Clock.STEP, (Series(("a",), times, (5, 900, 5, 5)),)), 0, most=16)
    assert max(drawn.totals) == 900


def test_a_size_that_is_replaced_at_its_own_time_is_never_seen() -> None:
    drawn = stack(Timeline(Clock.STEP, (Series(("a",), (0, 1, 1), (5, 900, 7)),)), 1)
    assert drawn.totals == (5, 7)


def test_many_series_become_few_bands_that_still_sum() -> None:
    series = tuple(Series(("all", f"{at}"), (0, 10), (at, 2 * at)) for at in range(40))
    drawn = stack(Timeline(Clock.STEP, series), 10)
    assert len(drawn.bands) == MOST_SERIES
    assert drawn.bands[-1].name == "29 smaller"
    assert drawn.totals == (sum(range(40)), 2 * sum(range(40)))


def test_a_limit_near_the_peak_is_kept_in_sight_and_a_far_one_is_not() -> None:
    timeline = Timeline(Clock.STEP, (Series(("a",), (0,), (1000,)),))
    assert stack(timeline, 0, limit=1500).top >= 1500
    assert stack(timeline, 0, limit=10**9).top < 1500


@given(timelines(), st.integers(-20, 1100))
def test_scales_start_at_zero_are_few_and_round(timeline: Timeline, now: int) -> None:
    drawn = stack(timeline, now)
    ticks = list(drawn.ticks())
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 7
    assert ticks[-1] <= drawn.top
    assert ticks[1].bit_count() == 1  # a power of two, as KiB, MiB, GiB are


@given(st.lists(st.tuples(st.integers(0, 5000), st.text(max_size=40)), max_size=60))
def test_labels_never_touch(marks: list[tuple[int, str]]) -> None:
    timeline = Timeline(Clock.STEP, (Series(("a",), (0, 5000), (1, 1)),), tuple(marks))
    drawn = stack(timeline, 0)
    assert len(drawn.marks) == len(marks)
    for lane in range(LANES):
        taken = sorted(
            (mark.x - mark.room, mark.x) if mark.flipped else (mark.x, mark.x + mark.room)
            for mark in drawn.marks
            if mark.lane == lane
        )
        edges = [edge for span in taken for edge in span]
        assert edges == pytest.approx(sorted(edges))
        assert all(-1e-6 <= edge <= WIDTH + 1e-6 for edge in edges)


def test_more_marks_than_fit_are_counted() -> None:
    marks = tuple((at, "gc") for at in range(1000))
    timeline = Timeline(Clock.STEP, (Series(("a",), (0, 1000), (1, 1)),), marks)
    drawn = stack(timeline, 0)
    assert (len(drawn.marks), drawn.marks_left_out) == (MOST_MARKS, 1000 - MOST_MARKS)
