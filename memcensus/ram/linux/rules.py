"""The census of a Linux image: the rules by which every page gets its owner.

The rules run in order and the first owner stays. Free memory comes first, because struct pages of
free blocks keep the marks of what was there before. What a rule cannot read is a gap, and its pages
stay for the rules behind it; what nobody claims is "unexplained".

Not covered: owners of kernel pages that carry no mark (buffers of drivers, network packets);
hugetlb, zsmalloc, and memory that a hypervisor took back are told apart by their page type only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable
from memcensus.model import Absence, Evidence, Gap, Source
from memcensus.ram.census import grouped
from memcensus.ram.image import PAGE
from memcensus.ram.linux import page_cache, pointers, resources, vmalloc, zones
from memcensus.ram.linux.survey import FREE, LARGE, NOT_RAM, SHARED, SLAB, TABLES
from memcensus.text import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from memcensus.ram.linux.survey import Survey
    from memcensus.subject import Progress

# What the low two bits of page.mapping say: include/linux/page-flags.h, PAGE_MAPPING_FLAGS.
_KINDS, _ANONYMOUS, _MOVABLE, _MERGED = 3, 1, 2, 3

# Sections of the kernel image: name, and the symbols where it starts and ends.
_SECTIONS: Final = (
    ("code", "_text", "_etext"),
    ("read-only data", "__start_rodata", "__end_rodata"),
    ("data", "_sdata", "_edata"),
    ("start-up code and data", "__init_begin", "__init_end"),
    ("zeroed data", "__bss_start", "__bss_stop"),
    ("early heap", "__brk_base", "__brk_limit"),
    ("gaps between sections", "_text", "_end"),
)
_FREED: Final = frozenset({"start-up code and data", "gaps between sections"})  # in part
# Where pointers to pages without a mark are looked for, the most telling first; and how often.
_POINTING: Final = (
    "kernel image",
    "kernel modules",
    "per-cpu data",
    SLAB,
    "vmalloc",
    LARGE,
    vmalloc.STACKS,
)
_ROUNDS: Final = 4
# Page types that have an account of their own.
_TYPED: Final = (
    ("offline", "taken back by the hypervisor"),
    ("guard", "guard pages"),
    ("hugetlb", "huge pages (hugetlb)"),
    ("zsmalloc", "compressed memory (zsmalloc)"),
    ("unaccepted", "not accepted yet"),
)


def run(survey: Survey, progress: Progress) -> None:
    """Apply all rules. What one cannot read becomes a gap of the survey."""
    for number, (what, needs_marks, rule) in enumerate(RULES, 1):
        if needs_marks and survey.pages is None:
            continue
        try:
            rule(survey)
        except Unreadable as error:
            survey.gaps.append(Gap(what, Absence.UNREADABLE, str(error)))
        progress("census", number, len(RULES), "rule")


def _not_ram(survey: Survey) -> None:
    found = resources.read(survey.kernel)
    survey.ram = resources.ram_pages(found, survey.kernel.image.pages)
    survey.ram_size = resources.ram_size(found)
    for resource in sorted(found, key=lambda one: -one.depth):
        if resource.name != resources.RAM:
            pages = resource.pages(len(survey.ram))
            source = survey.measured(f"iomem_resource {resource.start:#x}-{resource.end:#x}")
            survey.ledger.claim(pages[~survey.ram[pages]], (NOT_RAM, resource.name), source)
    rest = survey.measured("in no range of iomem_resource, or cut by a range's border")
    survey.ledger.claim(~survey.ram, (NOT_RAM, "holes"), rest)


def _free(survey: Survey) -> None:
    found = zones.buddy(survey.marks)
    source = survey.measured("page type buddy, order in page.private")
    survey.ledger.claim(found, (FREE, "buddy blocks"), source)


def _free_lists(survey: Survey) -> None:
    survey.zones = zones.read(survey.kernel)
    found = zones.per_cpu(survey.kernel, survey.zones)
    source = survey.measured("zone.per_cpu_pageset lists")
    survey.ledger.claim(found, (FREE, "lists of each processor"), source)


def _kernel_image(survey: Survey) -> None:
    """Claim the sections; what only start-up needed was freed and has other owners.

    Only the struct pages tell which of those pages that is: without them they stay unexplained.
    """
    kernel, pages = survey.kernel, survey.pages
    for name, first, last in _SECTIONS:
        start, end = kernel.symbols.get(first), kernel.symbols.get(last)
        if start is None or end is None or (pages is None and name in _FREED):
            continue
        low, high = ((address + kernel.memory.delta) % (1 << 64) for address in (start, end))
        numbers = np.arange(low // PAGE, min(-(-high // PAGE), kernel.image.pages))
        if pages is not None:
            numbers = numbers[pages.flag("reserved")[numbers]]
        source = survey.measured(f"{first} to {last}, PG_reserved")
        survey.ledger.claim(numbers, ("kernel image", name), source)


def _struct_pages(survey: Survey) -> None:
    source = survey.measured(f"frames behind vmemmap_base {survey.kernel.vmemmap:#x}")
    survey.ledger.claim(survey.marks.array, ("struct pages",), source)


def _per_cpu(survey: Survey) -> None:
    """Claim the first chunk: its units, up to where the kernel uses them.

    A unit is as large as a huge page; what is behind the static, reserved and dynamic part went
    back to the allocator (mm/percpu.c, pcpu_embed_first_chunk).
    """
    kernel, memory, offset = survey.kernel, survey.kernel.memory, survey.kernel.types.offset
    base = kernel.pointer("pcpu_base_addr")
    chunk = kernel.pointer("pcpu_first_chunk")
    units = min(memory.u32(kernel.symbols.address("pcpu_nr_units")), 8192)
    table = kernel.pointer("pcpu_unit_offsets")
    dynamic = memory.u64(chunk + offset("pcpu_chunk.base_addr")) - base
    used = -(-dynamic // PAGE) + memory.u32(chunk + offset("pcpu_chunk.nr_pages"))
    used = min(max(used, 0), kernel.image.pages)
    source = survey.measured("pcpu_base_addr, pcpu_unit_offsets, pcpu_first_chunk")
    for unit in range(units):
        first = memory.physical(base + memory.u64(table + 8 * unit)) // PAGE
        survey.ledger.claim(np.arange(first, first + used), ("per-cpu data", "first chunk"), source)


def _slab(survey: Survey) -> None:
    """Claim the pages of each slab cache; caches that were merged show the first one's name."""
    kernel, pages = survey.kernel, survey.marks
    tail = pages.head != np.arange(len(pages.head))
    heads = (pages.flag("slab") | pages.typed("slab")) & pages.known & ~tail
    cache = pages.words[:, kernel.types.offset("slab.slab_cache") // 8]
    slab = np.flatnonzero(heads[pages.head] & survey.ram & survey.ledger.unclaimed)
    name_at = kernel.types.offset("kmem_cache.name")
    for address, numbers in grouped(cache[pages.head[slab]], slab):
        try:
            name = decode(kernel.memory.string(kernel.memory.u64(address + name_at), 64))
        except Unreadable:
            name = "cache without a name"
        source = survey.measured(f"slab mark, slab_cache {address:#x}")
        survey.ledger.claim(numbers, (SLAB, name), source)


def _page_tables(survey: Survey) -> None:
    tables = survey.processes.spaces.walk.tables
    for space, root in enumerate(survey.processes.spaces.roots):
        label = survey.processes.owner(space).label
        own = tables[tables[:, 1] == space, 0]
        source = survey.measured(f"reached from the root table at {root:#x}")
        survey.ledger.claim(own, (TABLES, label), source)
        pair = root // PAGE + 1
        if survey.pages is not None and pair % 2 and pair < len(survey.ram):
            # Two pages together, the second one for user mode (PTI): arch/x86/mm/pgtable.c.
            second = np.array([pair])
            second = second[survey.pages.references[second] == 0]
            survey.ledger.claim(second, (TABLES, label), source)
    root = survey.kernel.memory.root
    source = survey.measured(f"reached from init_top_pgt at {root:#x}")
    survey.ledger.claim(survey.map.tables, (TABLES, "kernel"), source)
    if survey.pages is not None:
        source = survey.measured("page type table, in no tree of tables")
        survey.ledger.claim(survey.pages.typed("table"), (TABLES, "in no tree"), source)


def _anonymous(survey: Survey) -> None:
    """Claim what belongs to no file: one user owns it, several share it."""
    pages = survey.marks
    kind = pages.mapping[pages.head] & np.uint64(_KINDS)
    open_ = survey.ledger.unclaimed & survey.ram & pages.known
    anonymous = open_ & (kind == np.uint64(_ANONYMOUS))
    users = survey.mappings.users
    source = survey.measured("page.mapping anonymous, in the page tables of one address space")
    _own(survey, anonymous & (users == 1), source)
    source = survey.measured("page.mapping anonymous, in the page tables of several")
    survey.ledger.claim(anonymous & (users > 1), (SHARED,), source)
    source = survey.measured("page.mapping anonymous, in no page table")
    survey.ledger.claim(anonymous, ("anonymous, not mapped",), source)
    merged = open_ & (kind == np.uint64(_MERGED))
    survey.ledger.claim(merged, (SHARED, "merged (KSM)"), survey.measured("page.mapping KSM"))
    movable = open_ & (kind == np.uint64(_MOVABLE))
    source = survey.measured("page.mapping movable")
    survey.ledger.claim(movable, ("movable pages of drivers",), source)


def _own(survey: Survey, mask: NDArray[np.bool_], source: Source) -> None:
    """Give the pages in ``mask`` to the process in whose page tables they are."""
    for space, frames in survey.mappings.by_space(mask):
        survey.ledger.claim(frames, survey.path(space), source)


def _page_cache(survey: Survey) -> None:
    pages = survey.marks
    mapping = pages.mapping[pages.head]
    open_ = survey.ledger.unclaimed & survey.ram & pages.known & (mapping != 0)
    open_ &= (mapping & np.uint64(_KINDS)) == 0
    numbers = np.flatnonzero(open_)
    source = survey.measured("page.mapping -> inode -> file system")
    for address, of_file in grouped(mapping[numbers], numbers):
        path = page_cache.owner(survey.kernel, address)
        if path is not None:
            survey.ledger.claim(of_file, path, source)


def _vmalloc(survey: Survey) -> None:
    for area in vmalloc.read(survey.kernel, survey.processes.all):
        source = survey.measured(f"vmap_area {area.start:#x}-{area.end:#x} and others")
        survey.ledger.claim(survey.map.pages_of(area.start, area.end), area.owner, source)


def _typed(survey: Survey) -> None:
    for name, owner in _TYPED:
        source = survey.measured(f"page type {name}")
        survey.ledger.claim(survey.marks.typed(name), (owner,), source)


def _reserved(survey: Survey) -> None:
    mask = survey.marks.flag("reserved") & survey.marks.known
    source = survey.measured("PG_reserved: taken while the machine started, never freed")
    survey.ledger.claim(mask, ("reserved at boot",), source)


def _large_kmalloc(survey: Survey) -> None:
    """Claim what kmalloc took straight from the page allocator: compound, unmarked, one user."""
    pages = survey.marks
    one = pages.references[pages.head] == 1
    source = survey.estimated("compound page without a mark, reference count 1")
    survey.ledger.claim(pages.compound & one & survey.ram, (LARGE,), source)


def _pointed_at(survey: Survey) -> None:
    """Name what is left by who points at it; what was named may point further.

    Pages without a reference of their own lie behind another one and get its name; only what is
    left at the very end is named by itself.
    """
    pages, ledger, kernel = survey.marks, survey.ledger, survey.kernel
    everything = np.concatenate([np.flatnonzero(ledger.under(owner)) for owner in _POINTING])
    everything = everything[~np.isin(everything, list(pointers.boot_stack(kernel)))]
    first_pages = pages.references != 0
    sources = everything
    for _ in range(_ROUNDS):
        sources = _name_targets(survey, sources, first_pages)
        if not len(sources):
            break
    _name_targets(survey, everything, ~first_pages)
    named = ledger.under(pointers.UNMARKED)
    source = survey.estimated("behind a named page, in its aligned block")
    for first, rest in pointers.exact_blocks(pages, named, _left(survey)):
        ledger.claim(rest, ledger.owner_of(first), source)


def _name_targets(
    survey: Survey, sources: NDArray[np.int64], among: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Name the pages ``among`` those left that ``sources`` point at; return what was named."""
    kernel, ledger, left = survey.kernel, survey.ledger, _left(survey)
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for pointer in pointers.find(kernel, survey.marks, sources, left & among):
        title = pointers.name(kernel, pointer, ledger.owner_of(pointer.source))
        where = kernel.image.place(pointer.source * PAGE + 8 * pointer.word)
        block = pointers.block(survey.marks, pointer.target, left)
        ledger.claim(block, (pointers.UNMARKED, title), Source(Evidence.ESTIMATED, where))
        found.append(block)
    return np.concatenate(found)


def _left(survey: Survey) -> NDArray[np.bool_]:
    return survey.ledger.unclaimed & survey.ram & survey.marks.known


def _mapped_only(survey: Survey) -> None:
    """Without struct pages: a page that one process maps is taken for its own."""
    if survey.pages is not None:
        return
    users = survey.mappings.users
    source = survey.estimated("mapped by one process; whether it is a file's page is not known")
    _own(survey, users == 1, source)
    source = survey.estimated("mapped by several processes; whether files' pages is not known")
    survey.ledger.claim(users > 1, (SHARED,), source)


RULES: Final[tuple[tuple[str, bool, Callable[[Survey], None]], ...]] = (
    ("ranges that are not RAM", False, _not_ram),
    ("free blocks", True, _free),
    ("free lists of each processor", True, _free_lists),
    ("kernel image", False, _kernel_image),
    ("struct pages", True, _struct_pages),
    ("per-cpu data", False, _per_cpu),
    ("slab", True, _slab),
    ("page tables", False, _page_tables),
    ("anonymous memory", True, _anonymous),
    ("page cache", True, _page_cache),
    ("vmalloc space", False, _vmalloc),
    ("page types", True, _typed),
    ("memory reserved at boot", True, _reserved),
    ("large kmalloc", True, _large_kmalloc),
    ("kernel pages without a mark", True, _pointed_at),
    ("mapped memory", False, _mapped_only),
)
"""What -> whether it needs the struct pages -> the rule, in order."""
