"""The numbers of a task manager's memory page, each with its formula and what it means.

The formulas follow Windows' notions (Task Manager, "Windows Internals" chapter 5) as far as Linux
counts them; each row says in words what the twin is, and where there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.live import procfs
from memcensus.live.composition import (
    MODIFIED,
    RECLAIMABLE,
    standby_formula,
    used_formula,
)
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from memcensus.live.arc import Arc
    from memcensus.live.composition import Parts
    from memcensus.live.compressed import Store
    from memcensus.live.meminfo import Meminfo

NONPAGED = "SUnreclaim + KernelStack + PageTables + SecPageTables? + Percpu?"

_ENFORCED = "promised to programs; the kernel refuses to promise more than the limit"
_ADVISORY = (
    "promised to programs, whether used or not; the limit is advisory here, because "
    "vm.overcommit_memory is not 2"
)
_COLUMNS = (Column("name"), Column("size", "B"), Column("definition"), Column("windows"))
_RAM = re.compile(rb"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) : System RAM$", re.MULTILINE)

# (name, formula over meminfo, definition, the twin in Windows)
_PLAIN = (
    ("committed", "Committed_AS", "", "committed, first number"),
    (
        "commit limit",
        "CommitLimit",
        "what could be promised: swap, and the share of memory that vm.overcommit_ratio names",
        "committed, second number; there always enforced",
    ),
    (
        "paged pool",
        RECLAIMABLE,
        "kernel objects that can be freed when memory is short: names, inodes",
        "paged pool by analogy: there it may be written to the page file, here it is freed",
    ),
    (
        "non-paged pool",
        NONPAGED,
        "kernel memory that must stay in RAM: objects, stacks, page tables, per-CPU data",
        "non-paged pool",
    ),
    ("shared memory", "Shmem", "tmpfs, /dev/shm, memfd, System V segments", "shareable, in use"),
    (
        "mapped files",
        "Mapped",
        "file pages, and shared memory, that some program has mapped; most of it is in standby",
        "in use: the most that the two ways of counting can differ by",
    ),
    ("locked", "Mlocked", "pages that programs forbade to swap or drop", "locked, in use"),
    ("swap used", "SwapTotal - SwapFree", "program memory that is out in swap", "page file usage"),
    ("swap size", "SwapTotal", "all swap there is", "page file size"),
)


@dataclass(frozen=True, slots=True)
class Number:
    """One row: ``size`` in bytes, None with a Gap where it is not known."""

    name: str
    size: int | None
    definition: str
    windows: str
    source: Source


@dataclass(frozen=True, slots=True)
class Machine:
    """One look at a machine: what the numbers are computed from."""

    proc: Path
    meminfo: Meminfo
    arc: Arc
    stores: Sequence[Store]
    parts: Parts | None
    all_stores: bool = True  # False: a compressed store could not be read

    @property
    def available(self) -> int | None:
        """MemAvailable, and what ZFS gives back beyond it."""
        known = self.meminfo.value("MemAvailable")  # since v3.14
        return None if known is None else known + self.arc.evictable

    @property
    def available_formula(self) -> str:
        """Place and formula of ``available``."""
        zfs = f" + ({self.arc.path}:size - c_min)" if self.arc.evictable else ""
        return self.meminfo.where("MemAvailable") + zfs

    @property
    def droppable(self) -> int | None:
        """Standby + free: the other sense of available."""
        return None if self.parts is None else self.parts.standby + self.parts.free


def table(machine: Machine) -> tuple[Table, Sequence[Gap]]:
    """Return the table ``memory``, and a Gap for each number that is not known."""
    reserved, why = _hardware_reserved(machine)
    numbers = [*_bar(machine), *_available(machine), *_compressed(machine), *_plain(machine)]
    numbers.append(reserved)
    gaps = [why] if why else []
    gaps += [
        Gap(
            n.name,
            Absence.UNPARSABLE,
            f"{n.source.where}: missing here, or the counters contradict",
        )
        for n in numbers
        if n.size is None and n.name not in _TOLD and (machine.parts or n.name not in _OF_PARTS)
    ]
    found = Table(
        "memory",
        _COLUMNS,
        tuple((n.name, n.size, n.definition, n.windows) for n in numbers),
        tuple(n.source for n in numbers),
    )
    return found, gaps


_TOLD = {"hardware reserved", "in use (compressed)", "compressed data"}
"""Numbers whose Gap is made where their files are read."""

_OF_PARTS = {"in use", "modified", "standby", "cached", "available (standby + free)"}
"""Numbers that the Gap "composition" already speaks for."""


def _number(name: str, size: int | None, where: str, definition: str, windows: str) -> Number:
    evidence = Evidence.COMPUTED if " " in where else Evidence.MEASURED
    return Number(name, size, definition, windows, Source(evidence, where, definition))


def _bar(machine: Machine) -> Iterator[Number]:
    meminfo, arc, parts = machine.meminfo, machine.arc, machine.parts
    yield _number(
        "in use",
        parts.in_use if parts else None,
        used_formula(meminfo, arc),
        "held by programs and the kernel, and not to be dropped",
        "in use, which also counts mapped file pages",
    )
    yield _number(
        "modified",
        parts.modified if parts else None,
        meminfo.where(MODIFIED),
        "file pages to be written to disk first",
        "modified, which also holds pages on their way to the page file",
    )
    yield _number(
        "standby",
        parts.standby if parts else None,
        standby_formula(meminfo, arc),
        "copies that can be dropped at once",
        "standby",
    )
    yield _number(
        "free", meminfo.value("MemFree"), meminfo.where("MemFree"), "used by nothing", "free"
    )
    yield _number(
        "cached",
        parts.modified + parts.standby if parts else None,
        f"{standby_formula(meminfo, arc)} + Dirty + Writeback",
        "modified + standby; free(1) also counts shared memory as cached",
        "cached",
    )
    yield _number(
        "usable",
        meminfo.value("MemTotal"),
        meminfo.where("MemTotal"),
        "all that the kernel manages: the full height of the graph",
        "usable: installed less hardware reserved",
    )


def _available(machine: Machine) -> Iterator[Number]:
    yield _number(
        "available",
        machine.available,
        machine.available_formula,
        "what the kernel thinks new programs can have without swapping: free pages above the "
        "reserve, and the part of the caches that it expects to win back",
        "available, there standby + free",
    )
    yield _number(
        "available (standby + free)",
        machine.droppable,
        f"{standby_formula(machine.meminfo, machine.arc)} + MemFree",
        "the same in Windows' sense: all copies and free pages, reserves and mapped pages included",
        "available",
    )


def _compressed(machine: Machine) -> Iterator[Number]:
    places = ", ".join(store.source.where for store in machine.stores)
    place = places or f"{machine.proc}/meminfo:no zswap and no zram"
    yield _number(
        "in use (compressed)",
        sum(store.size for store in machine.stores) if machine.all_stores else None,
        f"sum over stores of the memory taken: {place}",
        "memory taken by compressed stores (zswap, zram)",
        "in use (compressed)",
    )
    yield _number(
        "compressed data",
        sum(store.held for store in machine.stores) if machine.all_stores else None,
        f"sum over stores of the data held: {place}",
        "what these stores hold, before compression",
        "the estimate of what compression saved, plus the above",
    )


def _plain(machine: Machine) -> Iterator[Number]:
    for name, formula, definition, windows in _PLAIN:
        meaning = definition or _commitment(machine.proc)
        size = machine.meminfo.value(formula)
        where = machine.meminfo.where(formula)
        # swap and other differences: counters that race may make one negative, which is no size
        yield _number(name, None if size is None or size < 0 else size, where, meaning, windows)


def _commitment(proc: Path) -> str:
    """Return what Committed_AS means under this kernel's policy (vm/overcommit-accounting)."""
    try:
        policy = procfs.read(proc / "sys/vm/overcommit_memory", 16).strip()
    except OSError:
        return "promised to programs, whether used or not; the policy could not be read"
    return _ENFORCED if policy == b"2" else _ADVISORY


def _hardware_reserved(machine: Machine) -> tuple[Number, Gap | None]:
    """Return the memory that the firmware offers and the kernel does not manage.

    Source: /proc/iomem, whose addresses are zero for all but root (kernel/resource.c). Memory that
    the firmware keeps to itself is not in it.
    """
    name, path = "hardware reserved", machine.proc / "iomem"
    total, size, why = machine.meminfo.value("MemTotal"), None, None
    try:
        ranges = [(int(a, 16), int(b, 16)) for a, b in _RAM.findall(procfs.read(path))]
        ram = sum(last - first + 1 for first, last in ranges if last > first)
        if ram and total is not None and ram >= total:
            size = ram - total
        else:
            why = Gap(name, Absence.UNREADABLE, f"{path} hides its addresses; run as root")
    except OSError as error:
        why = procfs.missing(name, path, error)
    definition = "memory that the kernel took at boot, before it counted: its own image, page maps"
    windows = "hardware reserved, which also counts what the firmware keeps to itself"
    where = f"{path}: sum of System RAM - meminfo:MemTotal"
    return _number(name, size, where, definition, windows), why
