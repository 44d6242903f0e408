"""Kernel pages without a mark: named by who points at them.

Drivers and the network take pages straight from the allocator, and the kernel notes nowhere whose
they are. But somebody holds a pointer: every word of the kernel's own memory that is the address of
such a page, in the direct map or as a struct page, gives it a name. A name found so is an estimate:
the pointer may be stale. What a named page itself points at is named in the next round.

Not covered: pages that nothing in the kernel's memory points at (their owner is a device), and
several owners of one page (the most telling pointer wins).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.ram.image import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memcensus.model import Path
    from memcensus.ram.image import Words
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.pages import Pages

UNMARKED: Final = "kernel pages without a mark"

_STRUCT_PAGE: Final = 64  # bytes
_AT_ONCE: Final = 2048  # pages scanned at a time: 8 MiB
_STACK_PAGES: Final = 4  # THREAD_SIZE of x86-64: 16 KiB


@dataclass(frozen=True, slots=True)
class Pointer:
    """A word of a kernel page that leads to a page without a mark."""

    target: int  # page number, the head of a compound page
    source: int  # page number that holds the word
    word: int  # which of its 512


def find(
    kernel: Kernel, pages: Pages, sources: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> Iterator[Pointer]:
    """Yield for each wanted page the first pointer in ``sources``, which come best first.

    ``wanted`` has shape (pages,); of a compound page the head stands for all.
    """
    seen: set[int] = set()
    for at in range(0, len(sources), _AT_ONCE):
        some = sources[at : at + _AT_ONCE]
        words = kernel.image.tables[some]
        for numbers, mask in _targets(kernel, words):
            row, column = np.nonzero(mask)
            target = pages.head[numbers[row, column]]
            good = wanted[target]
            target, row, column = target[good], row[good], column[good]
            first, index = np.unique(target, return_index=True)
            for number, where in zip(first.tolist(), index.tolist(), strict=True):
                if number not in seen:
                    seen.add(number)
                    yield Pointer(number, int(some[row[where]]), int(column[where]))


def _targets(kernel: Kernel, words: Words) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield (page number, is one) for every word, read as an address and as a struct page."""
    size = np.uint64(kernel.image.pages)
    number = (words - np.uint64(kernel.memory.direct.start)) // np.uint64(PAGE)
    mask = number < size
    yield np.where(mask, number, 0).astype(np.int64), mask
    offset = words - np.uint64(kernel.vmemmap)
    number = offset // np.uint64(_STRUCT_PAGE)
    mask = (number < size) & (offset % np.uint64(_STRUCT_PAGE) == 0)
    yield np.where(mask, number, 0).astype(np.int64), mask


def name(kernel: Kernel, pointer: Pointer, owner: Path) -> str:
    """Return what a page is called: by the variable that points at it, or by that one's owner."""
    address = pointer.source * PAGE + 8 * pointer.word
    virtual = (address - kernel.memory.delta) % (1 << 64)
    if virtual in kernel.memory.text:
        return f"pointed to by {kernel.symbols.nearest(virtual)}"
    return f"pointed to from {owner[-1] if owner[0] == UNMARKED else ': '.join(owner)}"


def block(pages: Pages, first: int, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the pages that were given away together with ``first``.

    A compound page says so itself. Else they follow it with a reference count of 0, because only
    the first page of a block is counted (mm/page_alloc.c, prep_new_page).
    """
    stop = first + 1
    while stop < len(wanted) and wanted[stop] and _belongs(pages, stop, first):
        stop += 1
    return np.arange(first, stop)


def exact_blocks(
    pages: Pages, named: NDArray[np.bool_], wanted: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (named page, pages behind it) of what alloc_pages_exact() gave away.

    It splits a block of 2^n pages, which starts at a multiple of 2^n, so that each page has a count
    of its own; only the first has somebody pointing at it.
    """
    rest = np.flatnonzero(wanted)
    for run in np.split(rest, np.flatnonzero(np.diff(rest) > 1) + 1):
        if not len(run) or run[0] == 0 or not named[run[0] - 1]:
            continue
        first = int(run[0]) - 1
        alignment = first & -first
        counted = pages.references[run[: alignment - 1]] == 1
        count = len(counted) if counted.all() else int(np.argmin(counted))
        if count:
            yield first, run[:count]


def boot_stack(kernel: Kernel) -> range:
    """Return the pages of the first task's stack: full of stale pointers from start-up."""
    names = ("init_stack", "__start_init_stack", "__start_init_task")
    start = next((found for name in names if (found := kernel.symbols.get(name))), None)
    if start is None:
        return range(0)
    first = (start + kernel.memory.delta) % (1 << 64) // PAGE
    return range(first, first + _STACK_PAGES)


def _belongs(pages: Pages, page: int, first: int) -> bool:
    head = int(pages.head[page])
    return head == first if head != page else int(pages.references[page]) == 0
