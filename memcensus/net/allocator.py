"""PyTorch's caching allocator for one GPU and one stream, to the address.

Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.13. A request is rounded, served by the
smallest free block that is large enough (the lowest address among equals), which is split if enough
is left; a freed block merges with free neighbours; segments go back to the driver only when memory
runs out. Replays of recorded runs land on the recorded addresses (tests/net/test_allocator.py).

Not covered: several streams (``record_stream``), private pools of CUDA graphs, and the garbage
collection that a process with a fraction of the GPU may switch on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.errors import MemcensusError
from memcensus.net.allocator_settings import MIB, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SMALLEST = 512
"""Bytes of the smallest block; all are multiples of it."""
LARGEST_SMALL = MIB
"""Requests up to this come from the pool of small blocks."""
SMALL_SEGMENT = 2 * MIB
_ROUND_LARGE = 2 * MIB
_OWN_SEGMENT_FROM = 10 * MIB

_FIRST_ADDRESS = 0x7F00_0000_0000
_ROOM = 1 << 46  # of addresses for the segment that grows, more than any GPU has
_DEFAULTS = Settings()


class OutOfDeviceMemory(MemcensusError):
    """The allocator got no segment from the driver, even after it gave back what was free."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment."""

    address: int
    size: int
    small: bool
    used: bool = False
    mapped: bool = True  # False: addresses of a segment that grows, without memory yet
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as somebody recorded it: where, and its blocks as (bytes, used) without holes."""

    address: int
    small: bool
    blocks: tuple[tuple[int, bool], ...]

    @property
    def size(self) -> int:
        """Bytes from the driver."""
        return sum(size for size, _ in self.blocks)


class Allocator:
    """What is free and what is used, after each request."""

    def __init__(
        self,
        settings: Settings = _DEFAULTS,
        capacity: int | None = None,
        place: Callable[[int], int] | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            settings: how it rounds, splits and takes.
            capacity: bytes that the driver can give; None: no end.
            place: bytes of a new segment -> its address; rising ones if not given.
        """
        self.allocated = 0  # bytes in used blocks
        self.reserved = 0  # bytes from the driver
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.retries = 0  # times at which free segments were given back to go on
        self._settings = settings
        self._capacity = capacity
        self._place = place or self._rising
        self._next = _FIRST_ADDRESS
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # (size, address)
        self._unmapped: dict[bool, list[int]] = {True: [], False: []}  # addresses
        self._bases: list[int] = []  # where the segments that grow begin; pages count from there
        self._blocks: dict[int, Block] = {}

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Begin with ``segments`` instead: a state that somebody recorded."""
        for segment in segments:
            before, address = None, segment.address
            for size, used in segment.blocks:
                block = Block(address, size, segment.small, used, before=before)
                self._blocks[address] = block
                if before is not None:
                    before.after = block
                if used:
                    self.allocated += size
                else:
                    self._offer(block)
                before, address = block, address + size
            self.reserved += segment.size
        self._note()

    def malloc(self, size: int) -> int:
        """Return the address of a block for ``size`` bytes.

        Raises:
            OutOfDeviceMemory: if the capacity does not do.
        """
        rounded = round_size(size, self._settings)
        small = rounded <= LARGEST_SMALL
        block = self._best_fit(rounded, small=small) or self._grown(rounded, small=small)
        self._split(block, rounded)
        block.used = True
        self.allocated += block.size
        self._note()
        return block.address

    def free(self, address: int) -> None:
        """Take back the block at ``address``; it merges with free neighbours."""
        block = self._blocks[address]
        block.used = False
        self.allocated -= block.size
        self._offer(self._merged(block))

    def release(self, address: int) -> None:
        """Give the whole free segment at ``address`` back to the driver.

        Raises:
            ValueError: if something in it is used.
        """
        block = self._blocks[address]
        if block.used or block.before is not None or block.after is not None:
            raise ValueError(f"the segment at {address:#x} has blocks in use")
        self._withdraw(block)
        del self._blocks[address]
        self.reserved -= block.size

    def size_at(self, address: int) -> int:
        """Return the bytes of the block at ``address``, slack included."""
        return self._blocks[address].size

    def segments(self) -> Iterator[Segment]:
        """Yield what is held now, by address."""
        starts = (block for block in self._blocks.values() if _opens(block))
        for start in sorted(starts, key=lambda block: block.address):
            yield Segment(start.address, start.small, tuple(_mapped_from(start)))

    def _note(self) -> None:
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _rising(self, size: int) -> int:
        address = self._next
        self._next += -(-size // _ROUND_LARGE) * _ROUND_LARGE + _ROUND_LARGE
        return address

    def _offer(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address))

    def _withdraw(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]

    def _best_fit(self, size: int, *, small: bool) -> Block | None:
        """Return the smallest free block that does, taken from its pool (``get_free_block``)."""
        pool = self._free[small]
        at = bisect_left(pool, (size, 0))
        if at == len(pool):
            return None
        if self._settings.expandable:
            at = self._rather_one_that_cannot_grow(pool, at)
        found, limit = pool[at], self._settings.max_split
        if limit is not None:
            oversize = size < limit <= found[0]
            too_loose = size >= limit and found[0] >= size + self._settings.max_non_split_rounding
            if oversize or too_loose:
                return None
        del pool[at]
        return self._blocks[found[1]]

    def _rather_one_that_cannot_grow(self, pool: list[tuple[int, int]], at: int) -> int:
        """Count a block at the end of what is mapped as large as it can become."""
        while at + 1 < len(pool) and self._room(pool[at + 1]) < self._room(pool[at]):
            at += 1
        return at

    def _room(self, entry: tuple[int, int]) -> int:
        size, address = entry
        after = self._blocks[address].after
        return size + (after.size if after is not None and not after.mapped else 0)

    def _grown(self, size: int, *, small: bool) -> Block:
        """Return a block from new memory; when there is none, what is free is given back first."""
        for attempt in (self._release_oversize, self._release_all, None):
            block = self._taken(size, small=small)
            if block is not None:
                return block
            if attempt is not None and attempt(size):
                self.retries += 1
        raise OutOfDeviceMemory(
            f"a tensor of {units.size(size)} found no room: of {units.size(self._capacity or 0)}, "
            f"{units.size(self.allocated)} are allocated and {units.size(self.reserved)} reserved; "
            "plan for a larger device or a smaller batch"
        )

    def _taken(self, size: int, *, small: bool) -> Block | None:
        if self._settings.expandable:
            return self._expanded(size, small=small)
        taken = segment_size(size, self._settings)
        if self._capacity is not None and self.reserved + taken > self._capacity:
            return None
        block = Block(self._place(taken), taken, small)
        self._blocks[block.address] = block
        self.reserved += taken
        return block

    def _split(self, block: Block, size: int) -> None:
        """Put the rest of ``block`` back if it is worth it (``should_split``)."""
        rest, settings = block.size - size, self._settings
        if block.small or settings.expandable:
            worth = rest >= SMALLEST
        else:
            splits = settings.max_split is None or size < settings.max_split
            worth = splits and rest > LARGEST_SMALL
        if worth:
            self._cut(block, size)
            assert block.after is not None  # noqa: S101  (_cut has just made it)
            self._offer(block.after)

    def _cut(self, block: Block, size: int) -> None:
        rest = Block(
            block.address + size, block.size - size, block.small, mapped=block.mapped, before=block
        )
        rest.after, block.after, block.size = block.after, rest, size
        if rest.after is not None:
            rest.after.before = rest
        self._blocks[rest.address] = rest

    def _merged(self, block: Block) -> Block:
        """Return ``block`` with its free neighbours swallowed; they leave their pool."""
        before, after = block.before, block.after
        if after is not None and not after.used and after.mapped:
            self._withdraw(after)
            self._swallow(block, after)
        if before is not None and not before.used and before.mapped:
            self._withdraw(before)
            self._swallow(before, block)
            return before
        return block

    def _swallow(self, block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block
        del self._blocks[after.address]

    def _release_oversize(self, size: int) -> bool:
        """Give back blocks that are never split, largest last (``release_available_cached``)."""
        limit = self._settings.max_split
        if limit is None:
            return False
        least, freed = max(size, limit), 0
        whole = [entry for entry in self._free[False] if self._is_whole(entry)]
        enough = next((entry for entry in whole if entry[0] >= least), None)
        for entry in [enough] if enough is not None else reversed(whole):
            if freed >= least or entry[0] < limit:
                break
            freed += entry[0]
            self.release(entry[1])
        return freed >= least

    def _release_all(self, _size: int) -> bool:
        """Give back every segment with nothing in use (``release_cached_blocks``)."""
        before = self.reserved
        for small in (False, True):
            for entry in list(self._free[small]):
                if self._settings.expandable:
                    self._unmap(self._blocks[entry[1]])
                elif self._is_whole(entry):
                    self.release(entry[1])
        return self.reserved < before

    def _is_whole(self, entry: tuple[int, int]) -> bool:
        block = self._blocks[entry[1]]
        return block.before is None and block.after is None

    def _page(self, *, small: bool) -> int:
        return SMALL_SEGMENT if small else self._settings.large_segment

    def _expanded(self, size: int, *, small: bool) -> Block | None:
        """Return a free block of at least ``size``, mapped as far as needed (``map_block``)."""
        block = self._growable(size, small=small)
        if not block.mapped:
            mapped = self._mapped(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            after = block.after
            if after is None:  # the addresses have no end, see _ROOM
                return None
            mapped = self._mapped(after, min(size - block.size, after.size))
            if mapped is None:
                return None
            block = mapped
        self._withdraw(block)
        return block

    def _growable(self, size: int, *, small: bool) -> Block:
        """Return the lowest free run with addresses for ``size`` that only lacks memory."""
        for address in self._unmapped[small]:
            block = self._blocks[address]
            if block.before is not None and not block.before.used:
                block = block.before
            if _run(block, size) >= size:
                return block
        start = Block(self._place(_ROOM), _ROOM, small, mapped=False)
        self._blocks[start.address] = start
        insort(self._bases, start.address)
        insort(self._unmapped[small], start.address)
        return start

    def _mapped(self, block: Block, size: int) -> Block | None:
        """Put memory behind the first pages of ``block``; return it, free and merged."""
        page = self._page(small=block.small)
        pages = min(-(-size // page) * page, block.size)  # what has no memory begins at a page
        if self._capacity is not None and self.reserved + pages > self._capacity:
            return None
        self._unmapped[block.small].remove(block.address)
        if pages < block.size:
            self._cut(block, pages)
            assert block.after is not None  # noqa: S101  (_cut has just made it)
            insort(self._unmapped[block.small], block.after.address)
        block.mapped = True
        self.reserved += pages
        self._note()
        merged = self._merged(block)
        self._offer(merged)
        return merged

    def _unmap(self, block: Block) -> None:
        """Give back the whole pages inside a free block (``unmap_block``)."""
        page = self._page(small=block.small)
        base = self._bases[bisect_right(self._bases, block.address) - 1]
        first = base - (base - block.address) // page * page
        last = base + (block.address + block.size - base) // page * page
        if last <= first:
            return
        self._withdraw(block)
        if block.address < first:
            self._cut(block, first - block.address)
            self._offer(block)
            assert block.after is not None  # noqa: S101  (_cut has just made it)
            block = block.after
        if last < block.address + block.size:
            self._cut(block, last - block.address)
            assert block.after is not None  # noqa: S101  (_cut has just made it)
            self._offer(block.after)
        block.mapped = False
        self.reserved -= block.size
        insort(self._unmapped[block.small], block.address)
        self._join_unmapped(block)

    def _join_unmapped(self, block: Block) -> None:
        addresses = self._unmapped[block.small]
        for left, right in ((block, block.after), (block.before, block)):
            if left is not None and right is not None and not (left.mapped or right.mapped):
                addresses.remove(right.address)
                self._swallow(left, right)


def round_size(size: int, settings: Settings = _DEFAULTS) -> int:
    """Return the bytes of a block for a request of ``size``."""
    if size < SMALLEST:
        return SMALLEST
    divisions = settings.divisions_of(size)
    if divisions > 1 and size > SMALLEST * divisions:
        step = (1 << (size.bit_length() - 1)) // divisions
        return -(-size // step) * step
    return -(-size // SMALLEST) * SMALLEST


def segment_size(size: int, settings: Settings = _DEFAULTS) -> int:
    """Return the bytes asked of the driver for a block of ``size``."""
    if size <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if size < _OWN_SEGMENT_FROM:
        return settings.large_segment
    return -(-size // _ROUND_LARGE) * _ROUND_LARGE


def _run(block: Block | None, size: int) -> int:
    room = 0
    while block is not None and not block.used and room < size:
        room += block.size
        block = block.after
    return room


def _opens(block: Block) -> bool:
    """Return whether a run of mapped memory begins with ``block``."""
    return block.mapped and (block.before is None or not block.before.mapped)


def _mapped_from(block: Block | None) -> Iterator[tuple[int, bool]]:
    while block is not None and block.mapped:
        yield block.size, block.used
        block = block.after
