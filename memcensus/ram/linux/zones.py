"""Zones: what is free, and what the kernel itself counts.

Free memory is in two places (mm/page_alloc.c): blocks of 2^order pages of the buddy allocator,
marked on their first page, and single lists of each CPU, which carry no mark and are not part of
MemFree. The counters (include/linux/mmzone.h) have a sum and, for each CPU, what it has not added.

Not covered: pages under isolation, memory that is hot-plugged at this very moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.ram.image import NotThere
from memcensus.ram.linux import mm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.pages import Pages

PER_CPU: Final = "per_cpu_pages.count"
"""The counter of pages in the lists of the CPUs, under the name that ``counters`` gives it."""

_LARGEST: Final = 10  # MAX_PAGE_ORDER: blocks of 4 MiB
_NODES: Final = 1024  # MAX_NUMNODES of the largest builds
_ZONES: Final = 8
_COSTLY: Final = 3  # PAGE_ALLOC_COSTLY_ORDER: above it, per-CPU lists hold only huge pages
_HUGE: Final = 9  # order of a 2 MiB page
_STRUCT_PAGE: Final = 64  # bytes


@dataclass(frozen=True, slots=True)
class Zones:
    """Virtual addresses of the structs of all memory nodes, and the CPUs' offsets."""

    nodes: tuple[int, ...]  # pglist_data
    zones: tuple[int, ...]  # zone
    cpus: tuple[int, ...]  # what to add to a per-cpu pointer


def read(kernel: Kernel) -> Zones:
    """Return the nodes and zones, or raise ``Unreadable``."""
    memory, types = kernel.memory, kernel.types
    table = kernel.symbols.get("node_data")
    if table is None:  # a kernel for one node: CONFIG_NUMA off
        nodes = [kernel.symbols.address("contig_page_data")]
    else:
        possible = types.array("nodemask_t.bits") * 64 if types.has("nodemask_t.bits") else 1
        pointers = (memory.u64(table + 8 * node) for node in range(min(possible, _NODES)))
        nodes = [pointer for pointer in pointers if pointer in memory.direct]
    size, first = types.size("zone"), types.offset("pglist_data.node_zones")
    count = types.offset("pglist_data.nr_zones")
    zones = [
        node + first + size * number
        for node in nodes
        for number in range(min(memory.u32(node + count), _ZONES))
    ]
    return Zones(tuple(nodes), tuple(zones), tuple(mm.per_cpu_offsets(kernel)))


def buddy(pages: Pages) -> NDArray[np.int64]:
    """Return the numbers of all pages in free blocks of the buddy allocator."""
    first = np.flatnonzero(pages.typed("buddy"))
    order = np.minimum(pages.private[first], np.uint64(_LARGEST)).astype(np.int64)
    return _blocks(first, order)


def per_cpu(kernel: Kernel, zones: Zones) -> NDArray[np.int64]:
    """Return the numbers of all pages in the free lists of the CPUs.

    List i holds blocks of order i // MIGRATE_PCPTYPES; the lists behind those for orders up to
    PAGE_ALLOC_COSTLY_ORDER hold 2 MiB pages (mm/page_alloc.c, order_to_pindex). A page is linked
    by its ``pcp_list``, or ``lru`` in older kernels, at the same place.
    """
    types = kernel.types
    kinds = types.enum("migratetype").get("MIGRATE_PCPTYPES", 3)
    link = types.offset("page.lru")
    first = types.offset("per_cpu_pages.lists")
    lists = types.array("per_cpu_pages.lists")
    limit = kernel.image.pages
    numbers: list[int] = []
    orders: list[int] = []
    for pageset in _pagesets(kernel, zones):
        for index in range(lists):
            order = index // kinds if index < kinds * (_COSTLY + 1) else _HUGE
            for place in kernel.memory.chain(pageset + first + 16 * index, limit):
                numbers.append((place - link - kernel.vmemmap) // _STRUCT_PAGE)
                orders.append(order)
    return _blocks(np.array(numbers, np.int64), np.array(orders, np.int64))


def counters(kernel: Kernel, zones: Zones) -> dict[str, int]:
    """Return the kernel's counters by name (NR_FREE_PAGES ...), as it would add them up now."""
    offset, memory = kernel.types.offset, kernel.memory
    found = _stats(
        kernel,
        ("zone_stat_item", "NR_VM_ZONE_STAT_ITEMS"),
        [zone + offset("zone.vm_stat") for zone in zones.zones],
        [
            _at(memory.u64(zone + offset("zone.per_cpu_zonestats")), cpu)
            + offset("per_cpu_zonestat.vm_stat_diff")
            for zone in zones.zones
            for cpu in zones.cpus
        ],
    )
    found |= _stats(
        kernel,
        ("node_stat_item", "NR_VM_NODE_STAT_ITEMS"),
        [node + offset("pglist_data.vm_stat") for node in zones.nodes],
        [
            _at(memory.u64(node + offset("pglist_data.per_cpu_nodestats")), cpu)
            + offset("per_cpu_nodestat.vm_node_stat_diff")
            for node in zones.nodes
            for cpu in zones.cpus
        ],
    )
    for name in ("managed_pages", "present_pages"):
        found[name] = sum(memory.u64(zone + offset(f"zone.{name}")) for zone in zones.zones)
    count = offset("per_cpu_pages.count")
    found[PER_CPU] = sum(memory.u32(pageset + count) for pageset in _pagesets(kernel, zones))
    return found


def _stats(
    kernel: Kernel, names: tuple[str, str], sums: list[int], differences: list[int]
) -> dict[str, int]:
    """Add sums (s64 arrays) and the CPUs' differences (s8 arrays), item by item."""
    items = kernel.types.enum(names[0])
    count = min(items.get(names[1], 0), 512)
    total = np.zeros(count, np.int64)
    for start in sums:
        total += np.frombuffer(kernel.memory.read(start, 8 * count), "<i8")
    for start in differences:
        try:
            total += np.frombuffer(kernel.memory.read(start, count), np.int8)
        except NotThere:  # a zone without pages has no area for each CPU: boot_zonestats
            continue
    return {name: int(total[item]) for name, item in items.items() if 0 <= item < count}


def _pagesets(kernel: Kernel, zones: Zones) -> Iterator[int]:
    """Yield the virtual addresses of the per_cpu_pages of each zone and CPU."""
    member = kernel.types.offset("zone.per_cpu_pageset")
    for zone in zones.zones:
        pointer = kernel.memory.u64(zone + member)
        for cpu in zones.cpus:
            place = _at(pointer, cpu)
            try:
                kernel.memory.physical(place)
            except NotThere:
                continue
            yield place


def _at(pointer: int, cpu: int) -> int:
    return (pointer + cpu) % (1 << 64)


def _blocks(first: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all page numbers of the blocks of 2^order pages at ``first``."""
    count = np.int64(1) << order
    block = np.repeat(np.arange(len(first)), count)
    start = np.cumsum(count) - count
    numbers: NDArray[np.int64] = first[block] + np.arange(len(block)) - start[block]
    return numbers
