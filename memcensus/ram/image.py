"""A physical memory image: bytes that stand at physical addresses.

A raw image has no header: the physical address is the offset in the file, and holes of the machine
(ROM, PCI) are in it as they were saved. The file is mapped read-only and shared, so that reading it
costs page cache and hardly any memory of our own.

Not covered: images with a header (LiME, ELF core, kdump, VMware), and raw images that left out the
hole below 4 GiB.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from memcensus.errors import Unreadable, unreadable
from memcensus.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from memcensus.model import Gap

PAGE: Final = 4096
"""Bytes of a page; all of x86-64 counts in it."""

Words: TypeAlias = "NDArray[np.uint64]"

_U32, _U64 = Struct("<I"), Struct("<Q")


class NotThere(Unreadable):
    """An address that is mapped nowhere, or whose page is not in the image."""


@dataclass(frozen=True, slots=True)
class Image:
    """The bytes of a raw image. Reads outside of it raise ``NotThere``, never return short."""

    name: str  # as the user named the file
    data: mmap.mmap
    gaps: tuple[Gap, ...] = ()  # what went wrong on the way to these bytes
    packing: str = ""  # how the file holds them, if not as they are: "Zstandard"
    size: int = field(init=False)  # bytes
    pages: int = field(init=False)  # whole pages
    tables: Words = field(init=False)  # (pages, 512): every page as if it were a page table

    def __post_init__(self) -> None:
        """Derive the sizes and the view of the whole pages."""
        size = len(self.data)
        words = np.frombuffer(self.data, "<u8", count=size // PAGE * (PAGE // 8))
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "pages", size // PAGE)
        object.__setattr__(self, "tables", words.reshape(-1, PAGE // 8))

    @classmethod
    def open(cls, path: Path, name: str) -> Image:
        """Map the raw file at ``path``.

        Raises:
            Unreadable: if it cannot be opened or mapped, or holds less than one page.
        """
        try:
            with path.open("rb") as file:
                return cls.map(file.fileno(), name)
        except OSError as error:
            raise unreadable(printable(name), error) from error

    @classmethod
    def map(
        cls, descriptor: int, name: str, gaps: tuple[Gap, ...] = (), packing: str = ""
    ) -> Image:
        """Map the open file ``descriptor``.

        Raises:
            Unreadable: if it holds less than one page.
            OSError: if it cannot be mapped.
        """
        try:
            data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # mmap(2) refuses what is empty
            raise _too_small(name, 0) from error
        if len(data) < PAGE:
            raise _too_small(name, len(data))
        return cls(name, data, gaps, packing)

    def read(self, address: int, count: int) -> bytes:
        """Return ``count`` bytes at a physical address.

        Raises:
            NotThere: if any of them is outside of the image.
        """
        if address < 0 or count < 0 or address + count > self.size:
            raise NotThere(
                f"{self.place(address)} is not in the image, which ends at {self.size:#x}"
            )
        return self.data[address : address + count]

    def u32(self, address: int) -> int:
        """Return the little-endian 32-bit word at a physical address, or raise ``NotThere``."""
        value: int = _U32.unpack(self.read(address, 4))[0]
        return value

    def u64(self, address: int) -> int:
        """Return the little-endian 64-bit word at a physical address, or raise ``NotThere``."""
        value: int = _U64.unpack(self.read(address, 8))[0]
        return value

    def place(self, address: int) -> str:
        """Return how a physical address is shown, so that it can be looked up by hand."""
        return f"{self.name}@{address:#x}"


def _too_small(name: str, size: int) -> Unreadable:
    holds = f"holds {size:,} B, not even one page of memory" if size else "is empty"
    return Unreadable(f"{printable(name)} {holds}; check that the image was saved whole")
