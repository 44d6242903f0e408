"""The kernel's own record of every page: the array of ``struct page``.

Each page of RAM has one (include/linux/mm_types.h), at ``vmemmap_base`` + number * size
(SPARSEMEM_VMEMMAP, which all distributions for x86-64 use). Where a bit or a type stands is taken
from the image's BTF and VMCOREINFO, because it moves between versions.

Not covered: kernels without vmemmap; struct pages of another size than 64 bytes; page types of
Linux 6.10 and 6.11, which were numbered in a way of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable
from memcensus.ram import paging
from memcensus.ram.image import PAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcensus.ram.image import Words
    from memcensus.ram.linux.kernel import Kernel

_SIZE: Final = 64  # bytes of a struct page
_PER_PAGE: Final = PAGE // _SIZE

# Types before Linux 6.10: bits of page_type that are cleared while the page has the type
# (include/linux/page-flags.h: PG_buddy, PG_offline, PG_table, PG_guard).
_OLD_TYPES: Final = {"buddy": 0x80, "offline": 0x100, "table": 0x200, "guard": 0x400}
_ALL_ONES: Final = 0xFFFF_FFFF
_TOP_BYTE: Final = 0xFF00_0000  # where the type stands since 6.12 (enum pagetype)


@dataclass(frozen=True, slots=True)
class KernelMap:
    """The kernel's own half of the addresses: its leafs in order of address."""

    address: Words
    physical: NDArray[np.int64]
    size: NDArray[np.int64]  # bytes
    tables: NDArray[np.int64]  # page numbers of the tables themselves

    @classmethod
    def read(cls, kernel: Kernel) -> KernelMap:
        """Walk the kernel's page tables."""
        memory = kernel.memory
        walk = paging.walk(kernel.image.tables, [memory.root], memory.levels, paging.KERNEL)
        order = np.argsort(walk.leafs.address, kind="stable")
        leafs = walk.leafs
        size = np.int64(1) << leafs.shift[order]
        tables = np.unique(walk.tables[:, 0])
        return cls(leafs.address[order], leafs.physical[order], size, tables)

    def physical_of(self, address: Words) -> NDArray[np.int64]:
        """Return the physical address behind each virtual one, -1 where nothing is mapped."""
        if not len(self.address):
            return np.full(len(address), -1, np.int64)
        leaf = np.maximum(np.searchsorted(self.address, address, "right") - 1, 0)
        into = (address - self.address[leaf]).astype(np.int64)
        mapped = (address >= self.address[leaf]) & (into >= 0) & (into < self.size[leaf])
        return np.where(mapped, self.physical[leaf] + into, -1)

    def pages_of(self, start: int, end: int) -> NDArray[np.int64]:
        """Return the page numbers that are mapped from ``start`` up to ``end``."""
        low, high = np.searchsorted(self.address, np.array([start, end], np.uint64))
        first, count = self.physical[low:high] >> 12, self.size[low:high] >> 12
        leaf = np.repeat(np.arange(len(first)), count)
        start_of = np.cumsum(count) - count
        numbers: NDArray[np.int64] = first[leaf] + np.arange(len(leaf)) - start_of[leaf]
        return numbers


@dataclass(frozen=True, slots=True)
class Pages:
    """One row for each page of the image; all arrays have shape (pages,)."""

    known: NDArray[np.bool_]  # has a struct page; where not, the other fields are 0
    flags: Words
    mapping: Words  # of the page itself
    private: Words
    kind: NDArray[np.uint32]  # page_type, or _mapcount of a page without a type
    references: NDArray[np.int32]
    head: NDArray[np.int64]  # number of the compound page's first page; a single page's is its own
    words: Words  # (pages, 8): the struct pages themselves
    array: NDArray[np.int64]  # page numbers that hold the array
    bits: dict[str, int]  # enum pageflags
    types: dict[str, int]  # "buddy" -> the value of page_type
    type_mask: int  # the bits of page_type that hold the type

    @classmethod
    def read(cls, kernel: Kernel, mapped: KernelMap) -> Pages:
        """Gather the struct pages of all pages of the image.

        Raises:
            Unreadable: if none of them is in the image, or they have a form not known here.
        """
        size = kernel.types.size("page")
        if size != _SIZE:
            raise Unreadable(f"a struct page of this kernel has {size} B, not {_SIZE}")
        pages = kernel.image.pages
        offsets = np.arange(-(-pages // _PER_PAGE), dtype=np.uint64) * np.uint64(PAGE)
        place = mapped.physical_of(np.uint64(kernel.vmemmap) + offsets)
        place[place >= pages * PAGE] = -1
        here = place >= 0
        if not here.any():
            raise Unreadable(
                f"the array of struct pages at {kernel.vmemmap:#x} is not in "
                f"{kernel.image.name}, which ends at {kernel.image.size:#x}: "
                "the image was cut short or is damaged"
            )
        words = np.zeros((len(place), PAGE // 8), np.uint64)
        words[here] = kernel.image.tables[place[here] >> 12]
        rows = words.reshape(-1, _SIZE // 8)[:pages]
        known = np.repeat(here, _PER_PAGE)[:pages]
        flags, mapping, private = (
            rows[:, kernel.types.offset(f"page.{name}") // 8]
            for name in ("flags", "mapping", "private")
        )
        types, mask = _types(kernel)
        return cls(
            known,
            flags,
            mapping,
            private,
            _half(rows, kernel.types.offset("page._mapcount")),
            _half(rows, kernel.types.offset("page._refcount")).view(np.int32),
            _heads(kernel, rows),
            rows,
            np.unique(place[here] >> 12),
            kernel.types.enum("pageflags"),
            types,
            mask,
        )

    def flag(self, name: str) -> NDArray[np.bool_]:
        """Return which pages have the flag PG_``name``; none where this kernel has no such flag."""
        bit = self.bits.get(f"PG_{name}")
        if bit is None:
            return np.zeros(len(self.flags), np.bool_)
        return (self.flags >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)

    def typed(self, name: str) -> NDArray[np.bool_]:
        """Return which pages carry the page type ``name``."""
        value = self.types.get(name)
        if value is None:
            return np.zeros(len(self.kind), np.bool_)
        mask = np.uint32(self.type_mask)
        found: NDArray[np.bool_] = self.known & (
            (self.kind & mask) == np.uint32(value & self.type_mask)
        )
        return found

    @property
    def compound(self) -> NDArray[np.bool_]:
        """Which pages belong to a block of several pages that is kept as one."""
        numbers = np.arange(len(self.head))
        mask: NDArray[np.bool_] = self.head != numbers
        mask[self.head[mask]] = True
        return mask


def _half(rows: Words, offset: int) -> NDArray[np.uint32]:
    """Return the 32-bit field at a byte offset of every struct page."""
    return np.ascontiguousarray(rows).view(np.uint32)[:, offset // 4].copy()


def _heads(kernel: Kernel, rows: Words) -> NDArray[np.int64]:
    """Return the first page of each page's compound page.

    ``compound_head`` of a tail holds the address of the head's struct page plus 1.
    """
    word = rows[:, kernel.types.offset("page.compound_head") // 8]
    heads = np.arange(len(rows))
    tail = (word & np.uint64(1)) != 0
    distance = word[tail] - np.uint64(1) - np.uint64(kernel.vmemmap)
    head = (distance // np.uint64(_SIZE)).astype(np.int64)
    fits = (head >= 0) & (head < len(rows))
    heads[np.flatnonzero(tail)[fits]] = head[fits]
    return heads


def _types(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Return the values of page_type, and the bits of it that hold them."""
    listed = kernel.types.enum("pagetype")
    if "PGTY_buddy" in listed:
        found = {name.removeprefix("PGTY_"): value << 24 for name, value in listed.items()}
        return found, _TOP_BYTE
    found = {name: _ALL_ONES ^ bit for name, bit in _OLD_TYPES.items()}
    if kernel.note is not None:
        for name in ("buddy", "offline"):
            told = kernel.note.number(f"NUMBER(PAGE_{name.upper()}_MAPCOUNT_VALUE)")
            found[name] = found[name] if told is None else told & _ALL_ONES
    return found, _ALL_ONES
