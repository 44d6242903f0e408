"""A report's timeline for ui.perfetto.dev and chrome://tracing: one counter for each series.

The format is the trace event format's JSON, which both open. Its times are microseconds; a clock of
steps counts each step as one, so that operator 138 stands at 138 us. Reports without a timeline are
drawn as one moment.

Not covered: tables, gaps and the verdict.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from memcensus.model import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO, TypeAlias

    from memcensus.model import Report, Timeline
    from memcensus.subject import Look

    Event: TypeAlias = dict[str, object]

_NANOSECONDS = 1000  # in a microsecond


class PerfettoView:
    """The timelines as counters."""

    name: ClassVar[str] = "perfetto"
    suffix: ClassVar[str] = ".perfetto-trace.json"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write ``reports`` as one trace, a process for each."""
        events = [
            event
            for number, report in enumerate(reports, 1)
            for event in _events(number, report, look)
        ]
        json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, out, ensure_ascii=True)
        out.write("\n")


def _events(process: int, report: Report, look: Look) -> Iterator[Event]:
    name = f"{report.subject} {report.target}"
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    if report.timeline is None:
        for child in report.root.children:
            if look.focus is None or look.focus.search(child.name):
                yield _counter(process, child.name, 0, child.total)
        return
    yield from _drawn(process, report.timeline, look)


def _drawn(process: int, timeline: Timeline, look: Look) -> Iterator[Event]:
    unit = 1 if timeline.clock is Clock.STEP else _NANOSECONDS
    for series in timeline.series:
        shown = "/".join(series.path[1:]) or series.path[0]
        if look.focus is None or look.focus.search("/".join(series.path)):
            for time, size in zip(series.times, series.sizes, strict=True):
                yield _counter(process, shown, time / unit, size)
    last = max((time for series in timeline.series for time in series.times[-1:]), default=0)
    ends = [time for time, _ in timeline.marks[1:]] + [last]
    for (time, label), end in zip(timeline.marks, ends, strict=False):
        slice_ = {"ph": "X", "pid": process, "tid": 1, "name": label}
        yield {**slice_, "ts": time / unit, "dur": max(0, end - time) / unit}


def _counter(process: int, name: str, time: float, size: int) -> Event:
    return {"ph": "C", "pid": process, "name": name, "ts": time, "args": {"bytes": size}}
