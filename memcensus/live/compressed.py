"""Memory that holds other memory in compressed form: zswap and zram.

Sources: Documentation/admin-guide/blockdev/zram.rst (mm_stat: the first column is the data held,
the third the memory it takes with all overhead) and fs/proc/meminfo.c (Zswap, Zswapped; since
v5.19). Not covered: zram before mm_stat (Linux 4.1).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus import text
from memcensus.live import procfs
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from memcensus.live.meminfo import Meminfo

_MEANING = (
    "memory that holds other memory in compressed form, with its overhead. Windows: Task Manager's "
    '"in use (compressed)"'
)


@dataclass(frozen=True, slots=True)
class Store:
    """One compressed store, in bytes."""

    name: str  # "zswap", "zram0"
    held: int  # data as it was before compression
    size: int  # memory that it takes
    source: Source


def read(meminfo: Meminfo, sys: Path) -> tuple[Sequence[Store], Sequence[Gap]]:
    """Return the stores of this machine, and what could not be read."""
    stores: list[Store] = []
    gaps: list[Gap] = []
    for found in (*_zswap(meminfo, sys), *_zram(sys)):
        if isinstance(found, Gap):
            gaps.append(found)
        else:
            stores.append(found)
    return stores, gaps


def table(stores: Sequence[Store]) -> Table:
    """Return the table ``compressed``: the stores that hold something."""
    full = [store for store in stores if store.size]
    return Table(
        "compressed",
        (Column("name"), Column("held", "B"), Column("store", "B"), Column("ratio")),
        tuple((s.name, s.held, s.size, round(s.held / s.size, 2)) for s in full),
        tuple(store.source for store in full),
    )


def _zswap(meminfo: Meminfo, sys: Path) -> Iterator[Store | Gap]:
    held, size = meminfo.value("Zswapped"), meminfo.value("Zswap")
    if held is not None and size is not None:
        where = f"{meminfo.path}:Zswap, Zswapped"
        yield Store("zswap", held, size, Source(Evidence.MEASURED, where, _MEANING))
        return
    switch = sys / "module/zswap/parameters/enabled"
    try:
        enabled = procfs.read(switch).strip() == b"Y"
    except OSError:  # a kernel without zswap has no such file
        return
    if enabled:
        why = f"{switch} is Y, but kernels before 5.19 do not say in {meminfo.path} what it holds"
        yield Gap("zswap", Absence.UNSUPPORTED, why)


def _zram(sys: Path) -> Iterator[Store | Gap]:
    folder = sys / "block"
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith("zram"))  # noqa: PTH208  (ten times as quick as iterdir)
    except OSError as error:
        yield procfs.missing("zram", folder, error)
        return
    for name in names:
        yield _zram_device(text.printable(name), folder / name / "mm_stat")


def _zram_device(name: str, path: Path) -> Store | Gap:
    try:
        columns = procfs.read(path, 4096).split()[:3]
    except OSError as error:
        return procfs.missing(name, path, error)
    if len(columns) < 3 or not all(word.isdigit() and len(word) <= 18 for word in columns):
        return Gap(name, Absence.UNPARSABLE, f"{path} does not begin with three sizes")
    where = f"{path}: columns 1 (orig_data_size) and 3 (mem_used_total)"
    source = Source(Evidence.MEASURED, where, _MEANING)
    return Store(name, int(columns[0]), int(columns[2]), source)
