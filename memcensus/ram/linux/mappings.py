"""Who maps each page: the page tables of all processes turned around.

Only what the kernel counts as resident is kept: not the zero page, not device memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memcensus.ram import paging
from memcensus.ram.census import grouped
from memcensus.ram.linux import mm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.mm import Spaces


@dataclass(frozen=True, slots=True)
class Mappings:
    """Every resident page of every address space."""

    entries: NDArray[np.int64]  # (entries,): page number behind each entry of a page table
    entry_spaces: NDArray[np.int64]  # (entries,): in whose address space
    frames: NDArray[np.int64]  # (pairs,): page number, once for each space that maps it
    spaces: NDArray[np.int64]  # (pairs,): that space
    users: NDArray[np.int64]  # (pages,): how many spaces map each page

    @classmethod
    def read(cls, kernel: Kernel, spaces: Spaces) -> Mappings:
        """Turn the page tables of ``spaces`` around."""
        pages, leafs = kernel.image.pages, spaces.walk.leafs
        frames, leaf = paging.frames_of(leafs, pages)
        here = mm.resident(kernel, leafs)[leaf]
        frames, space = frames[here], leafs.space[leaf][here]
        several = max(len(spaces.roots), 1)
        pairs = np.sort(frames * several + space)
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        once = pairs // several
        users = np.bincount(once, minlength=pages)
        return cls(frames, space, once, pairs % several, users)

    def by_space(self, mask: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield (space, page numbers) of the pages in ``mask``, which has shape (pages,)."""
        here = mask[self.frames]
        yield from grouped(self.spaces[here], self.frames[here])
