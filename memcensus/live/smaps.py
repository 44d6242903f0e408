r"""smaps and smaps_rollup: what each mapping of a process has in memory.

Source: proc_pid_smaps(5), kernel fs/proc/task_mmu.c. Both are written while the process runs, so
two readings are two moments. Not covered: the text of a path beyond what the kernel writes (a
newline in it is \012, a file that was removed ends in " (deleted)").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

MOST = 1 << 22
"""Mappings of one process that are read: 64 times the kernel's default vm.max_map_count."""

_LONGEST = 1 << 14  # bytes of a line: a path has at most 4096, each written in at most 4
_HEADER = re.compile(
    rb"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-][x-][sp]) [0-9a-f]{1,16} "
    rb"[0-9a-f]{1,8}:[0-9a-f]{1,8} \d{1,20} *([^\n]*)\n?"
)
_FIELD = re.compile(rb"([A-Z]\w{1,40}): +(\d{1,15}) kB\n?")
_KIB = 1024

# what is summed -> the fields; each must be there, but for those that came later (v4.4, v2.6.27)
_PRIVATE = ("Private_Clean", "Private_Dirty", "Private_Hugetlb")
_SHARED = ("Shared_Clean", "Shared_Dirty", "Shared_Hugetlb")
_LATER = {"Private_Hugetlb", "Shared_Hugetlb", "Swap"}


@dataclass(frozen=True, slots=True)
class Mapped:
    """One mapping, or all of a process's in a rollup. Sizes are bytes."""

    start: int
    end: int
    permissions: str  # "r-xp"; the last letter: p private, s shared
    path: bytes  # as the kernel writes it; "" for anonymous memory
    resident: int  # in memory; huge pages of hugetlbfs are not in it
    pss: int  # each page divided by the number of processes that have it, rounded down
    private: int  # pages that no other process has
    shared: int  # pages that others have too
    swap: int

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return self.end - self.start


def parse(lines: Iterable[bytes], path: Path) -> Iterator[Mapped]:
    """Yield the mappings in the lines of smaps or smaps_rollup.

    Raises:
        Unreadable: if a line is neither a mapping nor a field of one, or a field is missing.
    """
    header: re.Match[bytes] | None = None
    fields: dict[str, int] = {}
    count = 0
    for line in lines:
        if field := _FIELD.fullmatch(line):
            fields[field[1].decode()] = int(field[2]) * _KIB
        elif found := _HEADER.fullmatch(line):
            if header is not None:
                yield _mapped(header, fields, path)
            header, fields, count = found, {}, count + 1
            if count > MOST:
                raise Unreadable(f"{path} has more than {MOST:,} mappings, which is no process")
        elif len(line) > _LONGEST:
            raise Unreadable(f"{path} has a line of {len(line):,} bytes, which no kernel writes")
    if header is not None:
        yield _mapped(header, fields, path)


def _mapped(header: re.Match[bytes], fields: Mapping[str, int], path: Path) -> Mapped:
    start, end = int(header[1], 16), int(header[2], 16)
    needed = {"Rss", "Pss", *_PRIVATE, *_SHARED} - _LATER
    lacks = sorted(needed - fields.keys())
    if lacks or end < start:
        raise Unreadable(
            f"{path}: the mapping at {start:#x} has no {', '.join(lacks) or 'size'}; "
            f"live needs smaps as Linux has written it since 2.6.25"
        )
    return Mapped(
        start,
        end,
        header[3].decode(),
        header[4],
        fields["Rss"],
        fields["Pss"],
        sum(fields.get(name, 0) for name in _PRIVATE),
        sum(fields.get(name, 0) for name in _SHARED),
        fields.get("Swap", 0),
    )
