"""The memory limit that binds here: this process's control group and all above it, v1 and v2.

Sources: Documentation/admin-guide/cgroup-v2.rst ("Memory") and cgroup-v1/memory.rst. A container
sees its own group as the root; a limit above that shows only in v1's hierarchical_memory_limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.budget import memory_cgroups
from memcensus.live import procfs
from memcensus.model import Absence, Budget, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from memcensus.budget import Cgroup

_NO_LIMIT = 1 << 60  # as in budget.py: what cgroup v1 writes for "none"

_LIMIT = "the group's processes are killed before they get more"
_USAGE = "charged to the group: its processes' memory, its file pages, kernel objects made for it"
_SWAP = "the group's memory that is out in swap"

# version -> ((name, file, meaning), ...)
_FILES = {
    2: (
        ("limit", "memory.max", _LIMIT),
        ("high", "memory.high", "above this the group is slowed down and made to give back"),
        ("usage", "memory.current", _USAGE),
        ("swap", "memory.swap.current", _SWAP),
        ("swap limit", "memory.swap.max", "the group gets no more swap than this"),
        ("compressed", "memory.zswap.current", "memory that zswap takes for the group's data"),
    ),
    1: (
        ("limit", "memory.limit_in_bytes", _LIMIT),
        ("usage", "memory.usage_in_bytes", _USAGE),
        ("memory and swap", "memory.memsw.usage_in_bytes", "usage and swap together"),
        ("memory and swap limit", "memory.memsw.limit_in_bytes", "limit of the two together"),
    ),
}

# version -> ((name, field of memory.stat, meaning), ...); v1's total_ ones include groups below
_STATS = {
    2: (
        ("inactive file", "inactive_file", "file pages that are given back first"),
        ("active file", "active_file", "file pages in use lately; given back after these"),
        ("reclaimable slab", "slab_reclaimable", "kernel objects that can be given back"),
    ),
    1: (
        ("inactive file", "total_inactive_file", "file pages that are given back first"),
        ("active file", "total_active_file", "file pages in use lately; given back after these"),
        ("swap", "total_swap", _SWAP),
        ("limit from above", "hierarchical_memory_limit", "the smallest limit up to the root"),
    ),
}
_STAT = {
    version: re.compile(
        rb"^(" + "|".join(field for _, field, _ in known).encode() + rb") (\d{1,19})$", re.MULTILINE
    )
    for version, known in _STATS.items()
}
_EVENTS = {2: "memory.events", 1: "memory.oom_control"}
_KILLED = re.compile(rb"^oom_kill (\d{1,18})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one group."""

    size: int  # bytes; for "killed" the processes
    source: Source


@dataclass(frozen=True, slots=True)
class Level:
    """One control group, with the figures that it has. A limit of "none" is no figure."""

    folder: Path
    figures: Mapping[str, Figure]
    killed: Figure | None  # processes killed at the limit

    def size(self, name: str) -> int | None:
        """Return the bytes of the figure ``name``."""
        figure = self.figures.get(name)
        return None if figure is None else figure.size

    @property
    def budget(self) -> Budget | None:
        """The group's own limit, or the one from above that its own group does not show."""
        own, above = self.figures.get("limit"), self.figures.get("limit from above")
        known = [figure for figure in (own, above) if figure is not None]
        tightest = min(known, key=lambda figure: figure.size, default=None)
        return None if tightest is None else Budget(tightest.size, tightest.source)


def read(proc: Path) -> tuple[Sequence[Level], Sequence[Gap]]:
    """Return the groups from this process's own to the root that is mounted, and what is hidden."""
    gaps: list[Gap] = []
    levels = [_level(group, gaps) for group in memory_cgroups(proc=proc)]
    found = [level for level in levels if level.figures]
    if not found and not gaps:
        why = f"{proc}/self/cgroup: no control group with the memory controller can be seen here"
        gaps.append(Gap("cgroup limit", Absence.UNREADABLE, why))
    return found, gaps


def binding(levels: Sequence[Level], host: int | None) -> Level | None:
    """Return the group with the smallest limit below ``host`` bytes; None if none binds."""
    limited = [(level.budget.limit, at) for at, level in enumerate(levels) if level.budget]
    limit, at = min(limited, default=(0, -1))
    return None if at < 0 or (host is not None and limit >= host) else levels[at]


def needs(level: Level) -> tuple[int, int] | None:
    """Return the bytes of a group that cannot be given back, and how far off that may be.

    usage - inactive file, as container managers count it; the kernel may win back the active file
    pages and reclaimable slab too, so that is the error. None where the figures are not there or,
    read one after the other, contradict each other.
    """
    usage, inactive = level.size("usage"), level.size("inactive file")
    if usage is None or inactive is None or inactive > usage:
        return None
    return usage - inactive, (level.size("active file") or 0) + (
        level.size("reclaimable slab") or 0
    )


def table(levels: Sequence[Level], binds: Level | None) -> Table:
    """Return the table ``cgroup``: each figure of each group; ``binds`` marks the one that decides.

    A limit that is not set has no row.
    """
    rows = [
        (str(level.folder), name, figure.size, level is binds, figure.source)
        for level in levels
        for name, figure in level.figures.items()
    ]
    return Table(
        "cgroup",
        (Column("cgroup"), Column("name"), Column("size", "B"), Column("binds")),
        tuple(row[:4] for row in rows),
        tuple(row[4] for row in rows),
    )


def kills(levels: Sequence[Level]) -> Table:
    """Return the table ``killed``: processes killed at each group's limit, where there were any."""
    found = [(level, level.killed) for level in levels if level.killed and level.killed.size]
    return Table(
        "killed",
        (Column("cgroup"), Column("processes", "process")),
        tuple((str(level.folder), figure.size) for level, figure in found),
        tuple(figure.source for _, figure in found),
    )


def _level(group: Cgroup, gaps: list[Gap]) -> Level:
    figures = {}
    for name, file, meaning in _FILES[group.version]:
        path = f"{group.folder}/{file}"
        raw = _content(path, gaps)
        if raw is None or raw == b"max":
            continue
        if not raw.isdigit() or len(raw) > 19:
            gaps.append(Gap(f"cgroup {name}", Absence.UNPARSABLE, f"{path} holds no size"))
        elif int(raw) < _NO_LIMIT:
            figures[name] = Figure(int(raw), Source(Evidence.MEASURED, f"cgroup {path}", meaning))
    figures.update(_stat(group, gaps))
    return Level(group.folder, figures, _killed(group, gaps))


def _stat(group: Cgroup, gaps: list[Gap]) -> Iterator[tuple[str, Figure]]:
    path = f"{group.folder}/memory.stat"
    found = dict(_STAT[group.version].findall(_content(path, gaps) or b""))
    for name, field, meaning in _STATS[group.version]:
        size = int(found.get(field.encode(), b"-1"))
        if 0 <= size < _NO_LIMIT:
            source = Source(Evidence.MEASURED, f"cgroup {path}:{field}", meaning)
            yield name, Figure(size, source)


def _killed(group: Cgroup, gaps: list[Gap]) -> Figure | None:
    path = f"{group.folder}/{_EVENTS[group.version]}"
    found = _KILLED.search(_content(path, gaps) or b"")
    if found is None:  # the root has none; v1 before Linux 4.13 does not count them
        return None
    meaning = "processes of the group that were killed because it had reached its limit"
    return Figure(int(found[1]), Source(Evidence.MEASURED, f"cgroup {path}:oom_kill", meaning))


def _content(path: str, gaps: list[Gap]) -> bytes | None:
    """Return a file's content; None where this group has no such file, as the root has none."""
    try:
        return procfs.read(path, 1 << 16).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        gaps.append(procfs.missing(f"cgroup {path.rpartition('/')[2]}", path, error))
        return None
