"""The composition bar: in use | modified | standby | free, which sum to MemTotal by construction.

=========  ========================================================================
free       MemFree
modified   Dirty + Writeback
standby    Buffers + Cached + SwapCached - Shmem - modified, + KReclaimable, + evictable ZFS cache
in use     MemTotal - free - modified - standby
=========  ========================================================================

Shmem is inside Cached but cannot be dropped, so it is in use (fs/proc/meminfo.c: Cached is
NR_FILE_PAGES without swap cache and Buffers, and tmpfs pages are file pages). Nothing is clamped:
counters that make a part negative give a Gap. The kernel sums them per CPU without a lock, so one
such reading may be a race; the machine is then read again.

Not exact: file pages that are mapped, locked or otherwise unevictable stand in standby, because no
counter tells how many of the clean pages they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.errors import Unreadable
from memcensus.live import inuse
from memcensus.model import Absence, Account, Evidence, Gap, Quantity, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcensus.live.arc import Arc
    from memcensus.live.inuse import Beside
    from memcensus.live.meminfo import Meminfo

MODIFIED = "Dirty + Writeback"
CLEAN = "Buffers + Cached + SwapCached - Shmem - Dirty - Writeback"
RECLAIMABLE = "KReclaimable|SReclaimable"  # KReclaimable since v4.20
NEEDED = f"MemTotal - MemFree - {CLEAN.replace(' - ', ' + ')} - {RECLAIMABLE}"

_NOTHING = inuse.Beside()

_TOTAL = (
    "all memory that the kernel manages: the machine's less what firmware and the kernel's own "
    "image took before it counted. Windows: installed memory less hardware reserved"
)
_IN_USE = (
    "what programs and the kernel hold and cannot drop. Windows: in use, which also counts mapped "
    "file pages; here these are standby, so 'mapped files' is the most the two can differ by"
)
_MODIFIED = (
    "file pages that must be written to disk before they can be used otherwise. Windows: modified, "
    "which also holds program memory on its way to the page file; Linux has no counter for that"
)
_STANDBY = (
    "copies that can be dropped at once: file pages, swap cache, reclaimable kernel objects, ZFS "
    "cache above its minimum. Windows: standby"
)
_FREE = "pages that nothing uses. Windows: free, with the zeroed pages"


@dataclass(frozen=True, slots=True)
class Parts:
    """The four parts in bytes; none is negative and they sum to ``total``."""

    total: int
    in_use: int
    modified: int
    standby: int
    free: int


def split(meminfo: Meminfo, arc: Arc) -> Parts | Gap:
    """Return the four parts, or the Gap that says why these counters cannot be split."""
    total, free = meminfo.value("MemTotal"), meminfo.value("MemFree")
    modified, clean = meminfo.value(MODIFIED), meminfo.value(CLEAN)
    reclaimable = meminfo.value(RECLAIMABLE)
    if total is None or free is None or modified is None or clean is None or reclaimable is None:
        lacks = ", ".join(dict.fromkeys(meminfo.lacks(NEEDED)))
        return Gap("composition", Absence.UNPARSABLE, f"{meminfo.path} has no {lacks}")
    if clean < 0:
        return _impossible(meminfo, f"{meminfo.where(CLEAN)} comes to {clean:,} B")
    standby = clean + reclaimable + arc.evictable
    in_use = total - free - modified - standby
    if in_use < 0:
        zfs = f" and {arc.path} {arc.evictable:,} B that can be dropped" if arc.path else ""
        return _impossible(
            meminfo,
            f"MemTotal is {total:,} B, but free, modified and standby hold "
            f"{total - in_use:,} B{zfs}",
        )
    return Parts(total, in_use, modified, standby, free)


def account(
    meminfo: Meminfo, beside: Beside = _NOTHING
) -> tuple[Account, Parts | None, Sequence[Gap]]:
    """Return the account "machine", whose total is MemTotal, its parts, and what is not known.

    Where the counters cannot be split, only "free" (if that is possible) and "unexplained" are told
    apart, and the first Gap says why.

    Raises:
        Unreadable: if there is no MemTotal, so no total to account for.
    """
    total = meminfo.value("MemTotal")
    if total is None:
        raise Unreadable(
            f"{meminfo.path} has no line MemTotal in kB; live needs the /proc of a Linux machine"
        )
    source = Source(Evidence.MEASURED, f"{meminfo.path}:MemTotal", _TOTAL)
    arc = beside.arc
    parts = split(meminfo, arc)
    if isinstance(parts, Gap):
        free = meminfo.value("MemFree")
        known = () if free is None or free > total else (_free(meminfo, free),)
        return Account.explain("machine", total, source, known), None, [parts]
    used, gaps = inuse.account(meminfo, parts.in_use, _used_source(meminfo, arc), beside)
    children = (used, _modified(meminfo), _standby(meminfo, arc), _free(meminfo, parts.free))
    return Account("machine", 0, source, children), parts, gaps


def used_formula(meminfo: Meminfo, arc: Arc) -> str:
    """Return the place and formula of "in use"."""
    formula = f"MemTotal - MemFree - Buffers - Cached - SwapCached + Shmem - {RECLAIMABLE}"
    return meminfo.where(formula) + (f" - ({arc.path}:size - c_min)" if arc.evictable else "")


def standby_formula(meminfo: Meminfo, arc: Arc) -> str:
    """Return the place and formula of "standby"."""
    place = meminfo.where(f"{CLEAN} + {RECLAIMABLE}")
    return place + (f" + ({arc.path}:size - c_min)" if arc.evictable else "")


def _used_source(meminfo: Meminfo, arc: Arc) -> Source:
    return Source(Evidence.COMPUTED, used_formula(meminfo, arc), _IN_USE)


def _modified(meminfo: Meminfo) -> Account:
    children = (
        _part(meminfo, "dirty", "Dirty", "changed and not yet on their way to disk"),
        _part(meminfo, "being written", "Writeback", "on their way to disk or swap now"),
    )
    source = Source(Evidence.COMPUTED, meminfo.where(MODIFIED), _MODIFIED)
    return Account("modified", 0, source, children)


def _standby(meminfo: Meminfo, arc: Arc) -> Account:
    children = [
        _part(
            meminfo,
            "file cache",
            CLEAN,
            "clean pages of files, disk blocks and swap; includes mapped, locked and other pages "
            "that no counter tells apart and that cannot be dropped at once",
            ("Mapped", "Mlocked", "Unevictable", "SwapCached"),
        ),
        _part(
            meminfo,
            "reclaimable kernel objects",
            RECLAIMABLE,
            "kernel caches such as names and inodes that are freed when memory is short. Windows: "
            "by analogy the paged pool, but nothing of it is written to the page file",
        ),
    ]
    if arc.path is not None:
        meaning = "what ZFS gives back when memory is short; the kernel shows it as used"
        source = Source(Evidence.COMPUTED, f"{arc.path}:size - c_min, at least 0", meaning)
        children.append(Account("ZFS cache above its minimum", arc.evictable, source))
    source = Source(Evidence.COMPUTED, standby_formula(meminfo, arc), _STANDBY)
    return Account("standby", 0, source, tuple(children))


def _free(meminfo: Meminfo, size: int) -> Account:
    return Account("free", size, Source(Evidence.MEASURED, meminfo.where("MemFree"), _FREE))


def _part(
    meminfo: Meminfo, name: str, formula: str, meaning: str, beside: tuple[str, ...] = ()
) -> Account:
    """Return an account of a formula that ``split`` has found there and not negative."""
    evidence = Evidence.COMPUTED if " " in formula else Evidence.MEASURED
    source = Source(evidence, meminfo.where(formula), meaning)
    found = ((counter, meminfo.value(counter)) for counter in beside)
    quantities = tuple(Quantity(counter, value, "B") for counter, value in found if value)
    return Account(name, meminfo.value(formula) or 0, source, quantities=quantities)


def _impossible(meminfo: Meminfo, why: str) -> Gap:
    hint = "the counters contradict each other (a race, or a container's own meminfo)"
    return Gap("composition", Absence.CONTRADICTORY, f"{meminfo.path}: {why}; {hint}")
