"""What of the physical addresses is RAM: the kernel's resource tree, as /proc/iomem shows it.

``iomem_resource`` (kernel/resource.c) is a tree of ranges with a name. A page counts as RAM only
if it lies whole inside "System RAM": the kernel never uses one that a range's border cuts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable
from memcensus.ram.image import PAGE
from memcensus.text import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcensus.ram.linux.kernel import Kernel

RAM: Final = "System RAM"
_LIMIT: Final = 1 << 16  # resources; a large server has a few thousand
_MEMBERS: Final = ("start", "end", "name", "sibling", "child")


@dataclass(frozen=True, slots=True)
class Resource:
    """One range of physical addresses."""

    depth: int
    start: int
    end: int  # the last byte
    name: str

    def pages(self, limit: int) -> NDArray[np.int64]:
        """Return the numbers below ``limit`` of all pages that it touches."""
        return np.arange(min(self.start // PAGE, limit), min(self.end // PAGE + 1, limit))


def read(kernel: Kernel) -> list[Resource]:
    """Return all resources, parents before children.

    Raises:
        Unreadable: if the tree leaves the image or never ends.
    """
    at = {name: kernel.types.offset(f"resource.{name}") for name in _MEMBERS}
    memory = kernel.memory
    found: list[Resource] = []
    seen: set[int] = set()
    waiting = [(memory.u64(kernel.symbols.address("iomem_resource") + at["child"]), 0)]
    while waiting:
        place, depth = waiting.pop()
        if not place:
            continue
        if place in seen or len(seen) >= _LIMIT:
            raise Unreadable(
                f"the tree of physical ranges runs in a circle at {kernel.place(place)}; "
                "the image is damaged"
            )
        seen.add(place)
        start, end, name, sibling, child = (memory.u64(place + at[key]) for key in _MEMBERS)
        text = decode(memory.string(name)) if name else "without a name"
        found.append(Resource(depth, start, end, text))
        waiting += [(sibling, depth), (child, depth + 1)]
    return found


def ram_pages(resources: list[Resource], pages: int) -> NDArray[np.bool_]:
    """Return which of the first ``pages`` pages are RAM."""
    mask = np.zeros(pages, np.bool_)
    for resource in resources:
        if resource.name == RAM:
            mask[min(-(-resource.start // PAGE), pages) : (resource.end + 1) // PAGE] = True
    return mask


def ram_size(resources: list[Resource]) -> int:
    """Return the bytes of RAM that the kernel can use, in whole pages, in the image or not."""
    sizes = (
        (resource.end + 1) // PAGE - -(-resource.start // PAGE)
        for resource in resources
        if resource.name == RAM
    )
    return PAGE * sum(max(size, 0) for size in sizes)


def ram_end(kernel: Kernel) -> int:
    """Return the address behind the last byte of RAM, or raise ``Unreadable``.

    ``max_pfn`` (arch/x86/kernel/e820.c) is the number behind the highest page of RAM. It lies in
    the kernel image, so it is known also where the resource tree is not in the image.
    """
    return kernel.pointer("max_pfn") * PAGE
