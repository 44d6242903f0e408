"""Every storage of a loop from birth to death: the bytes behind a tensor and all its views.

A storage is born when it is first seen, and dies when its last tensor does; views, in-place
operators, dead outputs, tied weights and ``resize_`` need no rules of their own. Works on fake
tensors (no data, no computing) and on real ones alike.

Not seen: storages of tensor subclasses other than torch's fake ones, and of layouts that have none
(``Storages.unseen`` names them).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import torch

from memcensus.net.block import Block, Event, Kind, Made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memcensus.model import Path
    from memcensus.net.block import Phase

PASSING = frozenset({Kind.TEMPORARIES, Kind.SAVED})
"""Kinds that a storage has until the code turns out to keep it."""


@dataclass(slots=True)
class Storage:
    """A storage alive, or dead in this step. Times count the operators of all steps."""

    serial: int
    made: Made
    sizes: list[tuple[int, int]]
    phase: Phase | None  # of its birth; None: it was there before
    kind: Kind = Kind.TEMPORARIES
    died: int | None = None
    borrowers: list[Path] = field(default_factory=list)
    savers: list[str] = field(default_factory=list)
    assumed: bool = False  # its size is only a bound
    largest: float = inf  # value of its numbers, see `largest`; inf: nothing tells

    @property
    def size(self) -> int:
        """Bytes now."""
        return self.sizes[-1][1]

    def save(self) -> None:
        """Say that the backward needs it, unless the code keeps it anyhow."""
        if self.kind is Kind.TEMPORARIES:
            self.kind = Kind.SAVED


class Storages:
    """Counts live bytes.

    Attributes:
        live: bytes of all storages alive now: the running counter, kept apart from the blocks.
        assumed: those of them whose size is only a bound.
        time: operators seen so far, in all steps.
        start: the time at which the step began.
        events: every birth, new size and death since the beginning.
        unseen: layouts of tensors met that have no storage to count.
    """

    def __init__(
        self, local: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    ) -> None:
        """Know none yet; ``local`` returns the tensor that holds the bytes of another one."""
        self.live = 0
        self.assumed = 0
        self.time = 0
        self.start = 0
        self.events: list[Event] = []
        self.unseen: set[str] = set()
        self._local = local
        self._serials = count()
        self._alive: dict[int, Storage] = {}
        self._dead: list[Storage] = []

    def begin(self) -> None:
        """Begin a step: forget what is dead, count from here; what is left is kept by the code."""
        self.start = self.time
        for storage in self.alive():
            if storage.kind in PASSING:
                storage.kind = Kind.BUFFERS
        self._dead = []

    def alive(self) -> list[Storage]:
        """Return all that are alive."""
        return list(self._alive.values())

    def of(self, tensor: torch.Tensor) -> Storage | None:
        """Return the storage behind ``tensor``, None if it is not known or has no bytes."""
        return self._alive.get(key_of(tensor))

    def parts(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the dense tensors that hold the bytes of ``tensor``."""
        tensor = self._local(tensor)
        if _device(tensor).type == "meta":
            return
        if tensor.layout == torch.strided:
            yield tensor
        elif tensor.layout == torch.sparse_coo:
            yield tensor._indices()  # noqa: SLF001  (the public ones refuse what is not coalesced)
            yield tensor._values()  # noqa: SLF001  (as above)
        else:
            self.unseen.add(str(tensor.layout).removeprefix("torch."))

    def see(self, part: torch.Tensor, path: Path, what: str, phase: Phase | None) -> int:
        """Count the storage behind ``part`` or its new size; return the bytes of a new one."""
        untyped = part.untyped_storage()
        key, size = key_of(part), untyped.nbytes()
        known = self._alive.get(key)
        if known is not None:
            self.resize(untyped)
            return 0
        if not size:
            return 0
        storage = Storage(self.serial(), made(part, path, what), [(self.time, size)], phase)
        self._alive[key] = storage
        self.events.append(Event(self.time, storage.serial, size))
        self.live += size
        weakref.finalize(untyped, partial(self._die, key)).atexit = False
        return size

    def serial(self) -> int:
        """Return the number of what comes next."""
        return next(self._serials)

    def resize(self, untyped: torch.UntypedStorage) -> None:
        """Count the new size of a storage, if it is known and has one."""
        known = self._alive.get(untyped._cdata)  # noqa: SLF001  (as in key_of)
        if known is None or known.size == untyped.nbytes():
            return
        grown = untyped.nbytes() - known.size
        self.live += grown
        self.assumed += grown if known.assumed else 0
        known.sizes.append((self.time, untyped.nbytes()))
        self.events.append(Event(self.time, known.serial, untyped.nbytes()))

    def doubt(self, tensor: torch.Tensor) -> None:
        """Say that the size of what is behind ``tensor`` is only a bound."""
        storage = self.of(tensor)
        if storage is not None and not storage.assumed:
            storage.assumed = True
            self.assumed += storage.size

    def backdate(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Count ``tensor``, made in this step, as if it had been there when the step began.

        Returns its bytes, and the time at which it was really made.
        """
        storage = self._alive[key_of(tensor)]
        (born, size) = storage.sizes[0]
        storage.sizes[0] = (self.start, size)
        self.events.remove(Event(born, storage.serial, size))
        before = next(at for at, event in enumerate(self.events) if event.time >= self.start)
        self.events.insert(before, Event(self.start, storage.serial, size))
        return size, born

    def keys(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """Return the serials of the storages behind ``tensors``."""
        found = map(self.of, tensors)
        return frozenset(storage.serial for storage in found if storage is not None)

    def blocks(self) -> tuple[Block, ...]:
        """Return all that lived since the step began, times counted from there."""
        return tuple(map(self._block, self._all()))

    def kept_peak(self, serials: frozenset[int]) -> int:
        """Return the peak in bytes if the storages of ``serials`` lived to the end of the step."""
        changes: dict[int, int] = {}
        for storage in self._all():
            block = self._block(storage)
            for time, change in block.changes():
                if not (storage.serial in serials and time == block.died and change < 0):
                    changes[time] = changes.get(time, 0) + change
        live = highest = 0
        for time in sorted(changes):
            live += changes[time]
            highest = max(highest, live)
        return highest

    def _all(self) -> Iterator[Storage]:
        yield from self._dead
        yield from self._alive.values()

    def _die(self, key: int) -> None:
        storage = self._alive.pop(key)
        storage.died = self.time
        self.live -= storage.size
        self.assumed -= storage.size if storage.assumed else 0
        self.events.append(Event(self.time, storage.serial, 0))
        self._dead.append(storage)

    def _block(self, storage: Storage) -> Block:
        sizes = {max(0, time - self.start): size for time, size in storage.sizes}
        died = None if storage.died is None else storage.died - self.start
        savers = tuple(dict.fromkeys(storage.savers))
        borrowers = tuple(storage.borrowers)
        return Block(storage.kind, storage.made, tuple(sizes.items()), died, borrowers, savers)


def key_of(tensor: torch.Tensor) -> int:
    """Return the identity of the storage behind ``tensor`` and its views, while it lives."""
    key: int = tensor.untyped_storage()._cdata  # noqa: SLF001  (data_ptr is 0 for all fakes)
    return key


def made(tensor: torch.Tensor, path: Path, what: str) -> Made:
    """Return what made ``tensor``."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Made(path, what, tuple(map(int, tensor.shape)), dtype, tensor.element_size())


def _device(tensor: torch.Tensor) -> torch.device:
    """Return where ``tensor`` is; to ask a fake for its ``device`` goes through the dispatcher."""
    device: torch.device = getattr(tensor, "fake_device", None) or tensor.device
    return device
