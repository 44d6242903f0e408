"""Address spaces: each process's ``struct mm_struct``, its page tables, and what it counts.

Resident memory is counted from the page tables themselves: every mapped page that has a struct
page, as the kernel's RSS does (mm/memory.c: pages that are "special", such as the zero page, do not
count). The kernel's own counters are read too, so that each can be checked against the other.

Not covered: swapped-out pages, huge pages of hugetlbfs (the kernel keeps those out of RSS).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable
from memcensus.ram import paging
from memcensus.ram.image import PAGE, NotThere

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.paging import Leafs, Walk

# include/linux/mm_types_task.h: an enum without a name. Number 2 counts swap entries.
RESIDENT_COUNTERS: Final = (0, 1, 3)  # MM_FILEPAGES, MM_ANONPAGES, MM_SHMEMPAGES
_ARGUMENTS_LIMIT: Final = 2 << 20  # bytes; a process starts with at most a quarter of its stack
_CPU_LIMIT: Final = 8192  # CONFIG_NR_CPUS of the largest builds
_THREAD_LIMIT: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Spaces:
    """Every address space of the image once, with all its mapped pages."""

    addresses: tuple[int, ...]  # virtual addresses of the mm_structs
    roots: tuple[int, ...]  # physical addresses of the root tables, in the same order
    walk: Walk  # `space` counts into these
    resident: tuple[int, ...]  # bytes

    def number(self, mm: int) -> int | None:
        """Return the index of an mm_struct, None if its tables could not be read."""
        return self.addresses.index(mm) if mm in self.addresses else None


def walk(kernel: Kernel, addresses: list[int]) -> Spaces:
    """Walk the page tables of the mm_structs at ``addresses``; those unreadable are left out."""
    found: dict[int, int] = {}
    pgd = kernel.types.offset("mm_struct.pgd")
    for address in addresses:
        try:
            found[address] = kernel.memory.physical(kernel.memory.u64(address + pgd))
        except NotThere:
            continue
    roots = tuple(found.values())
    met = paging.walk(kernel.image.tables, list(roots), kernel.memory.levels)
    counted = resident(kernel, met.leafs)
    size = (np.int64(1) << met.leafs.shift[counted]).astype(np.float64)  # exact below 2^53
    totals = np.bincount(met.leafs.space[counted], size, len(roots)).astype(np.int64)
    return Spaces(tuple(found), roots, met, tuple(totals.tolist()))


def resident(kernel: Kernel, leafs: Leafs) -> NDArray[np.bool_]:
    """Return which ``leafs`` the kernel counts as resident memory."""
    special = (leafs.entry & np.uint64(paging.SPECIAL)) != 0
    # The huge zero page is mapped without the mark: mm/huge_memory.c, set_huge_zero_folio.
    zero = _huge_zero_frame(kernel)
    huge_zero = (leafs.shift == 21) & (leafs.physical >> 12 == zero) if zero else False
    counts: NDArray[np.bool_] = ~special & ~np.asarray(huge_zero)
    return counts


def _huge_zero_frame(kernel: Kernel) -> int | None:
    """Return the frame of the huge zero page, None if there is none or the image ends before."""
    variable = kernel.symbols.get("huge_zero_pfn")
    try:
        return None if variable is None else kernel.memory.u64(variable)
    except NotThere:
        return None


def arguments(kernel: Kernel, mm: int, root: int) -> bytes:
    """Return the command line of a process as ``/proc/PID/cmdline`` would: NUL-separated.

    A process that wrote over its arguments (setproctitle) is shown with what it wrote, as
    fs/proc/base.c does: if the last byte is no NUL, the text goes on into the environment.

    Raises:
        NotThere: if a page of it is not in RAM.
        Unreadable: if the addresses are no command line.
    """
    offset, memory = kernel.types.offset, kernel.memory
    start, end, environment_start, environment_end = (
        memory.u64(mm + offset(f"mm_struct.{name}"))
        for name in ("arg_start", "arg_end", "env_start", "env_end")
    )
    if not start <= end <= start + _ARGUMENTS_LIMIT:
        raise Unreadable(f"its arguments would go from {start:#x} to {end:#x}; that is damaged")
    text = user_read(kernel, root, start, end - start)
    if not text or text[-1] == 0 or environment_start != end:
        return text
    size = min(environment_end - start, _ARGUMENTS_LIMIT)
    return user_read(kernel, root, start, size).partition(b"\0")[0]


def user_read(kernel: Kernel, root: int, address: int, count: int) -> bytes:
    """Return ``count`` bytes of a process's memory through its page tables, or ``NotThere``."""
    parts: list[bytes] = []
    while count > 0:
        size = min(count, PAGE - address % PAGE)
        place = paging.translate(kernel.image.tables, root, kernel.memory.levels, address)
        if place is None:
            raise NotThere(f"its page at {address:#x} is not in RAM (swapped out, or never used)")
        parts.append(kernel.image.read(place, size))
        address, count = address + size, count - size
    return b"".join(parts)


def counted(kernel: Kernel, mm: int, task: int) -> int:
    """Return the resident bytes that the kernel's counters of an mm_struct add up to.

    Until Linux 6.2 each thread kept up to 64 pages that are not yet in the sum (``rss_stat`` of
    task_struct); since then each CPU does (f1a7941243c1, "mm: convert mm's rss stats into
    percpu_counter").
    """
    types, memory = kernel.types, kernel.memory
    start = mm + types.offset("mm_struct.rss_stat")
    if types.has("mm_rss_stat.count"):
        pages = sum(memory.s64(start + 8 * number) for number in RESIDENT_COUNTERS)
        return (pages + _not_yet_summed(kernel, task)) * PAGE
    size = types.size("percpu_counter")
    return PAGE * sum(_per_cpu(kernel, start + size * number) for number in RESIDENT_COUNTERS)


def per_cpu_offsets(kernel: Kernel) -> list[int]:
    """Return what to add to a per-cpu pointer for each CPU that has an area."""
    count = min(kernel.memory.u32(kernel.symbols.address("nr_cpu_ids")), _CPU_LIMIT)
    table = kernel.symbols.address("__per_cpu_offset")
    return [kernel.memory.u64(table + 8 * cpu) for cpu in range(count)]


def threads(kernel: Kernel, task: int) -> list[int]:
    """Return the virtual addresses of the task_structs of all threads of a process."""
    offset = kernel.types.offset
    signal = kernel.memory.u64(task + offset("task_struct.signal"))
    head = signal + offset("signal_struct.thread_head")
    node = offset("task_struct.thread_node")
    return [link - node for link in kernel.memory.chain(head, _THREAD_LIMIT)]


def _not_yet_summed(kernel: Kernel, task: int) -> int:
    if not kernel.types.has("task_struct.rss_stat"):
        return 0
    start = kernel.types.offset("task_struct.rss_stat") + kernel.types.offset("task_rss_stat.count")
    return sum(
        kernel.memory.s32(thread + start + 4 * number)
        for thread in threads(kernel, task)
        for number in RESIDENT_COUNTERS
    )


def _per_cpu(kernel: Kernel, counter: int) -> int:
    """Return the value of a ``struct percpu_counter``: its sum and what each CPU has not added."""
    offset, memory = kernel.types.offset, kernel.memory
    pointer = memory.u64(counter + offset("percpu_counter.counters"))
    cpus = (memory.s32((pointer + cpu) % (1 << 64)) for cpu in per_cpu_offsets(kernel))
    return memory.s64(counter + offset("percpu_counter.count")) + sum(cpus)
