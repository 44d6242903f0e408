"""The kernel's virtual memory: where each of its addresses lies in the image.

Three ways, cheapest first: the kernel image and the direct map are linear, everything else
(vmalloc, modules, the array of struct pages) goes through the page tables. Layout: Linux
Documentation/arch/x86/x86_64/mm.rst.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from memcensus.ram import paging
from memcensus.ram.image import PAGE, NotThere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.ram.image import Image

ADDRESSES: Final = 1 << 64

_S32, _U32, _S64, _U64 = Struct("<i"), Struct("<I"), Struct("<q"), Struct("<Q")


@dataclass(frozen=True, slots=True)
class Memory:
    """Reads of the kernel's virtual addresses. Each raises ``NotThere`` where nothing is."""

    image: Image
    text: range  # virtual addresses of the kernel image
    delta: int  # physical = virtual + delta (modulo 2^64) within it
    direct: range  # virtual addresses that map all RAM in a row, from physical 0
    root: int  # physical address of the kernel's root table
    levels: int  # of paging: 4 or 5

    def physical(self, address: int) -> int:
        """Return where a virtual address lies; its byte is in the image, or ``NotThere``."""
        if address in self.text:
            found: int | None = (address + self.delta) % ADDRESSES
        elif address in self.direct:
            found = address - self.direct.start
        else:
            found = paging.translate(self.image.tables, self.root, self.levels, address)
        if found is None:
            raise NotThere(f"the kernel maps nothing at {address:#x}; the pointer is damaged")
        if found >= self.image.size:
            raise NotThere(
                f"{address:#x} lies at {found:#x}, behind the image's end at {self.image.size:#x}"
            )
        return found

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes, which may cross pages that lie apart."""
        if address in self.text or address in self.direct:
            return self.image.read(self.physical(address), count)
        parts = []
        while count > 0:
            size = min(count, PAGE - address % PAGE)
            parts.append(self.image.read(self.physical(address), size))
            address, count = address + size, count - size
        return b"".join(parts)

    def u32(self, address: int) -> int:
        """Return the unsigned 32-bit number at ``address``."""
        value: int = _U32.unpack(self.read(address, 4))[0]
        return value

    def s32(self, address: int) -> int:
        """Return the signed 32-bit number at ``address``."""
        value: int = _S32.unpack(self.read(address, 4))[0]
        return value

    def u64(self, address: int) -> int:
        """Return the unsigned 64-bit number or pointer at ``address``."""
        value: int = _U64.unpack(self.read(address, 8))[0]
        return value

    def s64(self, address: int) -> int:
        """Return the signed 64-bit number at ``address``."""
        value: int = _S64.unpack(self.read(address, 8))[0]
        return value

    def string(self, address: int, limit: int = 256) -> bytes:
        """Return the bytes up to the first NUL, or ``limit`` of them."""
        room = min(limit, PAGE - address % PAGE)
        text, found, _ = self.read(address, room).partition(b"\0")
        if found or room == limit:
            return text
        return text + self.read(address + room, limit - room).partition(b"\0")[0]

    def chain(self, head: int, limit: int) -> Iterator[int]:
        """Yield the links of a ``list_head`` list behind ``head``.

        Raises:
            NotThere: if it leaves the image, returns to a link that is not its head, or has more
                than ``limit`` links.
        """
        seen: set[int] = set()
        link = self.u64(head)
        while link != head:
            if link in seen or len(seen) >= limit:
                raise NotThere(
                    f"the list at {head:#x} does not close after {len(seen):,} links; "
                    "it is damaged, or changed while it was saved"
                )
            seen.add(link)
            following = self.u64(link)
            yield link
            link = following
