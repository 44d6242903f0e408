"""What the memory in use is: the kernel's own counters, and what none of them holds.

Each counter counts pages that no other of these counts (fs/proc/meminfo.c and mm/vmstat.c, v6.18),
with two overlaps that are taken out by a lower bound, so that no byte has two owners:

* a page of AnonPages may be in the swap cache too, which is standby: anonymous is at least
  AnonPages - SwapCached;
* kernel stacks are in VmallocUsed where the kernel maps them (CONFIG_VMAP_STACK): the rest of
  vmalloc is at least VmallocUsed - KernelStack.

What the bounds leave out is in "unexplained".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.errors import Overcounted
from memcensus.live.arc import Arc
from memcensus.model import (
    UNEXPLAINED,
    Absence,
    Account,
    Evidence,
    Gap,
    Quantity,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcensus.live.compressed import Store
    from memcensus.live.meminfo import Meminfo

# (account, counter, meaning); "?": kernels without the counter have nothing of the kind to tell
_KERNEL = (
    (
        "unreclaimable slab",
        "SUnreclaim",
        "kernel objects that stay until their owner frees them. Windows: non-paged pool",
    ),
    ("kernel stacks", "KernelStack", "one stack for each thread. Windows: non-paged pool"),
    (
        "page tables",
        "PageTables",
        "the maps from each process's addresses to memory. Windows: in the kernel's working set",
    ),
    (
        "secondary page tables",  # since v6.1
        "SecPageTables?",
        "page tables of virtual machines and of devices (KVM, IOMMU)",
    ),
    ("per-CPU data", "Percpu?", "kernel data that each CPU has a copy of"),  # since v4.20
    ("FUSE write buffers", "WritebackTmp?", "pages that a user-space file system writes out"),
    ("bounce buffers", "Bounce?", "copies for devices that reach only part of the memory"),
)
_REST = (
    "in use and in no counter that meminfo has: pages that drivers and the network allocate for "
    "themselves, graphics memory, a balloon, and what the lower bounds of anonymous memory and "
    "vmalloc leave out"
)
_ANONYMOUS = (
    "memory that programs allocated: heaps, stacks, private copies. A page that is also in the "
    "swap cache counts as standby; how many are is not known, so this is the least it can be"
)
_VMALLOC = (
    "kernel memory mapped page by page: modules, eBPF programs, large buffers. Kernel stacks are "
    "told apart, so this is the least it can be"
)
_NO_ZFS = Arc()
_KERNEL_MEANING = "what the kernel holds for itself and cannot drop. Windows: mostly non-paged pool"


@dataclass(frozen=True, slots=True)
class Beside:
    """What is in use and told outside of meminfo."""

    arc: Arc = _NO_ZFS
    stores: Sequence[Store] = ()
    at_hand: Account | Gap | None = None  # free pages at each CPU, zoneinfo.py


def account(
    meminfo: Meminfo, total: int, source: Source, beside: Beside
) -> tuple[Account, Sequence[Gap]]:
    """Return the account "in use" of ``total`` bytes by its owners, and what is not known of them.

    Where the counters hold more than ``total``, it has no children and a Gap says so.
    """
    gaps: list[Gap] = []
    found = [*_programs(meminfo, gaps), _kernel(meminfo, gaps), *_huge(meminfo, gaps)]
    found += [Account(f"compressed: {s.name}", s.size, s.source) for s in beside.stores]
    if beside.arc.path is not None:
        where = Source(Evidence.COMPUTED, f"{beside.arc.path}:smaller of size and c_min")
        found.append(Account("ZFS cache that stays", beside.arc.kept, where))
    found += _at_hand(beside.at_hand, total - sum(part.total for part in found), gaps)
    rest = total - sum(part.total for part in found)
    if rest > 0:
        where = Source(Evidence.COMPUTED, f"{source.where} - parts", _REST)
        found.append(Account(UNEXPLAINED, rest, where))
    try:
        return Account.explain("in use", total, source, found), gaps
    except Overcounted as error:
        gaps.append(Gap("what is in use", Absence.UNPARSABLE, str(error).partition("; please")[0]))
        return Account("in use", total, source), gaps


def least_vmalloc(meminfo: Meminfo) -> int | None:
    """Return the bytes of vmalloc that are surely no kernel stacks; None where not counted."""
    used = meminfo.value("VmallocUsed")
    return None if used is None else max(0, used - (meminfo.value("KernelStack") or 0))


def _at_hand(found: Account | Gap | None, room: int, gaps: list[Gap]) -> list[Account]:
    """Return the pages that CPUs keep; they move fast, and zoneinfo is read after meminfo."""
    if isinstance(found, Gap):
        gaps.append(found)
    elif found is not None and found.total <= max(0, room):
        return [found]
    elif found is not None:
        why = f"{found.source.where} is {found.total:,} B, but only {max(0, room):,} B are left"
        gaps.append(Gap(found.name, Absence.UNREADABLE, f"{why}; the two files are of two moments"))
    return []


def _programs(meminfo: Meminfo, gaps: list[Gap]) -> Iterator[Account]:
    pages, swap_cache = meminfo.value("AnonPages"), meminfo.value("SwapCached") or 0
    if pages is None:
        gaps.append(_gap(meminfo, "anonymous memory", "AnonPages"))
    else:
        where = f"{meminfo.path}:AnonPages - SwapCached, at least 0"
        huge = meminfo.value("AnonHugePages")
        beside = (Quantity("AnonHugePages", huge, "B"),) if huge else ()
        source = Source(Evidence.COMPUTED, where, _ANONYMOUS)
        yield Account("anonymous", max(0, pages - swap_cache), source, quantities=beside)
    shared = meminfo.value("Shmem")
    if shared is not None:  # the composition has seen that it is there
        meaning = "tmpfs, /dev/shm, memfd and System V segments; counted as cached by the kernel"
        source = Source(Evidence.MEASURED, meminfo.where("Shmem"), meaning)
        yield Account("shared memory", shared, source)


def _kernel(meminfo: Meminfo, gaps: list[Gap]) -> Account:
    children = []
    for name, counter, meaning in _KERNEL:
        plain = counter.removesuffix("?")
        size = meminfo.value(plain)
        if size is not None:
            source = Source(Evidence.MEASURED, meminfo.where(plain), meaning)
            children.append(Account(name, size, source))
        elif plain == counter:
            gaps.append(_gap(meminfo, name, counter))
    vmalloc = least_vmalloc(meminfo)
    if vmalloc is not None:
        where = f"{meminfo.path}:VmallocUsed - KernelStack, at least 0"
        children.append(Account("vmalloc", vmalloc, Source(Evidence.COMPUTED, where, _VMALLOC)))
    source = Source(Evidence.COMPUTED, f"{meminfo.path}: sum of the parts", _KERNEL_MEANING)
    return Account("kernel", 0, source, tuple(children))


def _huge(meminfo: Meminfo, gaps: list[Gap]) -> Iterator[Account]:
    """Yield the pool of huge pages; free ones are in use too, for nobody else can have them."""
    where, size = f"{meminfo.path}:Hugetlb", meminfo.value("Hugetlb")  # all sizes; since v4.19
    if size is None:  # the default size only
        pages, page = meminfo.value("HugePages_Total"), meminfo.value("Hugepagesize")
        where = f"{meminfo.path}:HugePages_Total * Hugepagesize"
        size = None if pages is None or page is None else pages * page
    if size is not None:
        meaning = "pages reserved as huge, whether a program has them or not"
        yield Account("huge pages", size, Source(Evidence.MEASURED, where, meaning))
    elif "HugePages_Total" in meminfo.fields:  # a kernel without huge pages names neither
        gaps.append(_gap(meminfo, "huge pages", "Hugetlb or Hugepagesize"))


def _gap(meminfo: Meminfo, what: str, counter: str) -> Gap:
    why = f"{meminfo.path} has no {counter}; its bytes are in {UNEXPLAINED}"
    return Gap(what, Absence.UNPARSABLE, why)
