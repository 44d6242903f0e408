"""ZFS's own cache (ARC), which the kernel's counters show as used memory.

Source: OpenZFS module/zfs/arc.c, kstat "arcstats": ``size`` is what the cache holds, ``c_min`` what
it keeps however short memory gets. Not covered: which part of it lies in slabs that meminfo already
counts as reclaimable; where that makes the sums impossible, the composition says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memcensus.live import procfs
from memcensus.model import Absence, Gap

if TYPE_CHECKING:
    from collections.abc import Sequence

_LINE = re.compile(rb"^(size|c_min)[ \t]+\d+[ \t]+(\d{1,18})[ \t]*$", re.MULTILINE)
_PLACE = Path("spl/kstat/zfs/arcstats")


@dataclass(frozen=True, slots=True)
class Arc:
    """What the cache holds and how much of it stays, in bytes. Zero: there is no ZFS here."""

    size: int = 0
    minimum: int = 0
    path: Path | None = None  # None: no ZFS

    @property
    def evictable(self) -> int:
        """Bytes that the cache gives back when they are needed."""
        return max(0, self.size - self.minimum)  # a cache below its minimum gives nothing

    @property
    def kept(self) -> int:
        """Bytes that stay."""
        return self.size - self.evictable


def read(proc: Path) -> tuple[Arc, Sequence[Gap]]:
    """Return the cache; a machine without ZFS has an empty one and no Gap."""
    path = proc / _PLACE
    try:
        found = {name: int(value) for name, value in _LINE.findall(procfs.read(path))}
    except FileNotFoundError:
        return Arc(), ()
    except OSError as error:
        return Arc(), [procfs.missing("ZFS cache", path, error)]
    if found.keys() < {b"size", b"c_min"}:
        return Arc(), [Gap("ZFS cache", Absence.UNPARSABLE, f"{path} has no size and c_min")]
    return Arc(found[b"size"], found[b"c_min"], path), ()
