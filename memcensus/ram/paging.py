"""x86-64 page tables: many of them walked at once.

Geometry and bits: Intel SDM volume 3A chapter 4 ("Paging"); the bits that the hardware leaves to
the kernel: Linux arch/x86/include/asm/pgtable_types.h. Each level of all address spaces is one
gather of an array, so a machine with a hundred processes costs a few array operations.

Not covered: swapped-out pages, AMD memory encryption (the C bit is taken for part of the frame),
and the nested tables of a hypervisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcensus.ram.image import Words

SHIFTS: Final = {4: (39, 30, 21, 12), 5: (48, 39, 30, 21, 12)}
"""Levels of paging -> the lowest address bit that each level's index takes, from the root down."""

PRESENT: Final = 1 << 0
HUGE: Final = 1 << 7  # at 1 GiB and 2 MiB: a leaf, not a table
NO_ACCESS: Final = 1 << 8  # with PRESENT clear: _PAGE_PROTNONE, a page in RAM that none may touch
SPECIAL: Final = 1 << 9  # _PAGE_SPECIAL: no struct page behind it (zero page, device memory)
FRAME: Final = 0x000F_FFFF_FFFF_F000  # bits 12 to 51
LEAF_SHIFTS: Final = frozenset({30, 21})  # levels where HUGE means leaf
USER, KERNEL = slice(0, 256), slice(256, 512)  # entries of a root table

_AT_ONCE: Final = 2048  # tables gathered at a time: 8 MiB
_ENTRIES_PER_PAGE: Final = 32  # of RAM, summed over all processes: more is damage, not sharing


@dataclass(frozen=True, slots=True)
class Leafs:
    """The mapped pages of several address spaces; all arrays have shape (leafs,)."""

    space: NDArray[np.int64]  # index into the roots that were walked
    address: Words  # virtual, canonical
    physical: NDArray[np.int64]  # of the first byte; may lie outside of the image
    shift: NDArray[np.int64]  # log2 of the bytes mapped: 12, 21 or 30
    entry: Words  # as it stands in the table

    def __len__(self) -> int:
        """Return how many leafs there are."""
        return len(self.space)


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk of several address spaces met."""

    leafs: Leafs
    tables: NDArray[np.int64]  # (tables, 2): page number, space; the roots are among them
    lost: int  # entries that point to tables outside of the image
    cut: bool  # the tables were more than the image could hold, so some were left out


def walk(tables: Words, roots: list[int], levels: int, half: slice = USER) -> Walk:
    """Walk the page tables at ``roots`` (physical addresses) through ``half`` of the addresses.

    ``tables`` is the image as (pages, 512). Page numbers of roots outside of the image count as
    lost. The work is bounded by the image: damaged tables that refer to each other in circles end.
    """
    limit = 2 * len(tables) + 1024
    found: list[Leafs] = []
    met: list[NDArray[np.int64]] = []
    cut = False
    page = np.asarray(roots, np.int64) >> 12
    space = np.arange(len(roots), dtype=np.int64)
    inside = (page >= 0) & (page < len(tables))
    lost = int(np.count_nonzero(~inside))
    page, space = page[inside], space[inside]
    address = np.zeros(len(page), np.uint64)
    for shift in SHIFTS[levels]:
        if len(page) > limit:
            page, space, address, cut = page[:limit], space[:limit], address[:limit], True
        limit -= len(page)
        met.append(np.stack([page, space], axis=1))
        columns = half if shift == SHIFTS[levels][0] else slice(0, 512)
        level, whole = _level(tables, page, address, shift, columns)
        cut |= not whole
        if not level:
            break
        row = np.concatenate([step.row + at * _AT_ONCE for at, step in enumerate(level)])
        entry = np.concatenate([step.entry for step in level])
        below = np.concatenate([step.address for step in level])
        frame = _frames(entry)
        leaf = _are_leafs(entry, shift)
        found.append(
            Leafs(
                space[row[leaf]],
                canonical(below[leaf], levels),
                (frame[leaf] >> shift) << shift,
                np.full(int(np.count_nonzero(leaf)), shift, np.int64),
                entry[leaf],
            )
        )
        inner = ~leaf
        inside = inner & (frame >> 12 < len(tables))
        lost += int(np.count_nonzero(inner & ~inside))
        page, space, address = frame[inside] >> 12, space[row[inside]], below[inside]
    return Walk(_joined(found), np.concatenate(met), lost, cut)


def translate(tables: Words, root: int, levels: int, address: int) -> int | None:
    """Return the physical address behind one virtual ``address``; None if it is not mapped.

    ``root`` is the physical address of the root table. The result may lie outside of the image.
    """
    page = root >> 12
    for shift in SHIFTS[levels]:
        if not 0 <= page < len(tables):
            return None
        entry = int(tables[page, address >> shift & 511])
        present = bool(entry & PRESENT)
        leaf = shift == 12 or (shift in LEAF_SHIFTS and bool(entry & HUGE))
        frame = (entry if present else ~entry) & FRAME  # as in _frames
        if leaf and (present or entry & NO_ACCESS):
            return (frame >> shift << shift) | (address & (1 << shift) - 1)
        if leaf or not present:
            return None
        page = frame >> 12
    return None


def canonical(address: Words, levels: int) -> Words:
    """Copy the highest translated bit of each address into all bits above it."""
    top = SHIFTS[levels][0] + 9
    upper = np.uint64((1 << 64) - (1 << top))
    high = (address >> np.uint64(top - 1)) & np.uint64(1)
    return address | (high * upper)


def frames_of(leafs: Leafs, pages: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (page number, index of the leaf) for every 4 KiB page of ``leafs`` in the image.

    ``pages`` is the number of pages in the image; what lies beyond is left out. So is the end of
    what damaged tables map: more than any sharing between processes explains.
    """
    first, count = leafs.physical >> 12, _pages_in_image(leafs, pages)
    whole = int(np.searchsorted(np.cumsum(count), _most(pages), "right"))
    first, count = first[:whole], count[:whole]
    leaf = np.repeat(np.arange(whole), count)
    start = np.cumsum(count) - count
    return first[leaf] + np.arange(len(leaf)) - start[leaf], leaf


def too_many(leafs: Leafs, pages: int) -> bool:
    """Say whether ``frames_of`` leaves out the end of ``leafs``."""
    return int(_pages_in_image(leafs, pages).sum()) > _most(pages)


def _pages_in_image(leafs: Leafs, pages: int) -> NDArray[np.int64]:
    size = np.int64(1) << (leafs.shift - 12)
    inside: NDArray[np.int64] = np.minimum(size, np.maximum(pages - (leafs.physical >> 12), 0))
    return inside


def _most(pages: int) -> int:
    """Return the most entries that the page tables of a machine of this size can have."""
    return _ENTRIES_PER_PAGE * pages + 65536


def _level(
    tables: Words, page: NDArray[np.int64], address: Words, shift: int, columns: slice
) -> tuple[list[_Step], bool]:
    """Expand all tables of one level, some at a time; False if there were too many entries."""
    limit = _most(len(tables))
    steps: list[_Step] = []
    for at in range(0, len(page), _AT_ONCE):
        step = _expand(
            tables, page[at : at + _AT_ONCE], address[at : at + _AT_ONCE], shift, columns
        )
        steps.append(step)
        limit -= len(step.row)
        if limit < 0:
            return steps, False
    return steps, True


@dataclass(frozen=True, slots=True)
class _Step:
    row: NDArray[np.int64]  # which of the tables
    entry: Words
    address: Words  # virtual, of the entry's first byte, without the sign


def _expand(
    tables: Words, page: NDArray[np.int64], address: Words, shift: int, columns: slice
) -> _Step:
    """Return the entries of some tables of one level that lead anywhere."""
    entries = tables[page, columns]
    live = (entries & np.uint64(PRESENT)) != 0
    if shift in LEAF_SHIFTS or shift == 12:
        forbidden = PRESENT | NO_ACCESS if shift == 12 else PRESENT | NO_ACCESS | HUGE
        live |= (entries & np.uint64(forbidden)) == np.uint64(forbidden & ~PRESENT)
    row, column = np.nonzero(live)
    index = (column + (columns.start or 0)).astype(np.uint64)
    return _Step(row, entries[row, column], address[row] | (index << np.uint64(shift)))


def _are_leafs(entry: Words, shift: int) -> NDArray[np.bool_]:
    if shift == 12:
        return np.ones(len(entry), np.bool_)
    if shift not in LEAF_SHIFTS:
        return np.zeros(len(entry), np.bool_)
    huge: NDArray[np.bool_] = (entry & np.uint64(HUGE)) != 0
    return huge


def _frames(entry: Words) -> NDArray[np.int64]:
    """Return the physical address in each entry.

    Linux inverts the frame of an entry that is not present, so that the L1TF flaw of processors
    cannot follow it (arch/x86/include/asm/pgtable-invert.h, since 4.19).
    """
    hidden = (entry & np.uint64(PRESENT)) == 0
    plain = np.where(hidden, ~entry, entry) & np.uint64(FRAME)
    return plain.astype(np.int64)


def _joined(parts: list[Leafs]) -> Leafs:
    if not parts:
        none = np.zeros(0, np.int64)
        return Leafs(none, none.astype(np.uint64), none, none, none.astype(np.uint64))
    return Leafs(
        np.concatenate([part.space for part in parts]),
        np.concatenate([part.address for part in parts]),
        np.concatenate([part.physical for part in parts]),
        np.concatenate([part.shift for part in parts]),
        np.concatenate([part.entry for part in parts]),
    )
