"""The page cache: which file system's pages lie in memory.

A cached page's ``mapping`` is the address of an ``address_space``, whose host is the inode; the
inode's superblock names the file system (include/linux/fs.h).

Not covered: the path of each file, pages of the swap cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memcensus.ram.image import NotThere
from memcensus.text import decode

if TYPE_CHECKING:
    from memcensus.model import Path
    from memcensus.ram.linux.kernel import Kernel

CACHE: Final = "page cache"
SHARED: Final = "shared memory and tmpfs"
FILES: Final = "files"
DEVICES: Final = "block devices"

# File systems that live in memory only: their pages cannot be dropped.
_IN_MEMORY: Final = frozenset({"tmpfs", "devtmpfs", "ramfs", "rootfs", "hugetlbfs"})
_DEVICES: Final = "bdev"


def owner(kernel: Kernel, address_space: int) -> Path | None:
    """Return whose the pages of an address_space are; None if it leads to no inode."""
    try:
        system = _file_system(kernel, address_space)
    except NotThere:
        return None
    if system in _IN_MEMORY:
        return (CACHE, SHARED)
    if system == _DEVICES:
        return (CACHE, DEVICES)
    return (CACHE, FILES, f"on {system}")


def _file_system(kernel: Kernel, address_space: int) -> str:
    """Return the file system's name: address_space -> inode -> super_block -> type -> name."""
    memory, offset = kernel.memory, kernel.types.offset
    inode = memory.u64(address_space + offset("address_space.host"))
    block = memory.u64(inode + offset("inode.i_sb"))
    kind = memory.u64(block + offset("super_block.s_type"))
    return decode(memory.string(memory.u64(kind + offset("file_system_type.name")), 64))
