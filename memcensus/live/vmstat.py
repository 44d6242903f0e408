"""Events since the machine started: hard faults, swapping, processes killed for memory.

Source: kernel mm/vmstat.c. Not covered: rates, which take two looks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memcensus.live import procfs
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LINE = re.compile(rb"^(pgmajfault|pswpin|pswpout|oom_kill) (\d{1,20})$", re.MULTILINE)

# counter -> (name, meaning); kernels without swap lack the pswp ones, those before v4.13 oom_kill
_EVENTS = {
    "pgmajfault": (
        "hard faults",
        "times a program waited for a page from disk. Windows: hard faults, there per second",
    ),
    "pswpin": ("pages swapped in", "pages read back from swap. Windows: pages input"),
    "pswpout": ("pages swapped out", "pages written to swap. Windows: pages output"),
    "oom_kill": ("processes killed", "processes killed because memory ran out. Windows: none"),
}


def read(proc: Path) -> tuple[Table, Sequence[Gap]]:
    """Return the table ``events`` (counts since the start), and a Gap for what is missing."""
    path = proc / "vmstat"
    try:
        raw = procfs.read(path)
    except OSError as error:
        return table(b"", path), [procfs.missing("events", path, error)]
    found = table(raw, path)
    if any(row[0] == "hard faults" for row in found.rows):
        return found, ()
    return found, [Gap("hard faults", Absence.UNPARSABLE, f"{path} has no pgmajfault")]


def table(raw: bytes, path: Path) -> Table:
    """Return the events in ``raw``; a kernel that does not count one has no row for it."""
    counts = {name.decode(): int(count) for name, count in _LINE.findall(raw)}
    known = [name for name in _EVENTS if name in counts]
    return Table(
        "events",
        (Column("name"), Column("count", "event"), Column("definition")),
        tuple((_EVENTS[name][0], counts[name], _EVENTS[name][1]) for name in known),
        tuple(Source(Evidence.MEASURED, f"{path}:{name}", _EVENTS[name][1]) for name in known),
    )
