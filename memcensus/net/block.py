"""Blocks of memory and the trace of a training step: what ``trace`` records, what ``owners`` reads.

A block is one storage: the bytes behind a tensor and all its views. This module knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.model import Path

LOSS = "(loss)"
OPTIMIZER = "(optimizer)"
"""Where operators run that no module called; no module can have such a name by attribute."""
NETWORK = "(network)"
"""How the network itself is shown, which has no path."""


class Kind(StrEnum):
    """Why a block is held. A block has one kind for its whole life, found when the life is known.

    A tensor that forward makes and backward needs is a saved activation from its birth, though
    only the end of forward shows it; a gradient is one from the moment its operator made it.
    """

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    SAVED = "saved activations"  # what a forward left behind for the backward
    TEMPORARIES = "temporaries"
    INPUTS = "inputs"  # and the target of the loss
    BUFFERS = "buffers"  # and other tensors that the model's code keeps


class Phase(StrEnum):
    """The parts of a training step, in order; also the marks of the timeline."""

    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Made:
    """What made a block: an operator, or the name under which the model keeps it."""

    path: Path  # the module
    what: str  # "aten.convolution", "weight", "weight.exp_avg"
    shape: tuple[int, ...]
    dtype: str  # "float32"
    itemsize: int  # bytes

    def formula(self, size: int) -> str:
        """Return how ``size`` bytes come about, to check by hand."""
        shown = "x".join(map(str, self.shape)) or "1"
        if prod(self.shape) * self.itemsize == size:
            return f"{shown} x {self.itemsize} B ({self.dtype})"
        return f"storage of {size} B under {shown} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Block:
    """One storage from birth to death. Times are operators of the step, counted from 0.

    A size holds from its time on. What is freed before operator n starts is gone at time n.

    Raises:
        ValueError: if it has no size, a time falls, or it dies before its last size.
    """

    kind: Kind
    made: Made
    sizes: tuple[tuple[int, int], ...]  # (time, bytes), at least one; more where it was resized
    died: int | None  # None: alive at the step's end
    borrowers: tuple[Path, ...] = ()  # other names of a tied parameter, in full
    savers: tuple[str, ...] = ()  # autograd nodes that keep it: "layer.1: ReluBackward0 (result)"

    def __post_init__(self) -> None:
        """Check the order of the life's events."""
        times = [time for time, _ in self.sizes]
        last = times if self.died is None else [*times, self.died]
        if not times or last != sorted(last):
            raise ValueError(f"{self.made.what}: sizes {self.sizes} and death {self.died}")

    @property
    def born(self) -> int:
        """The time of birth; 0 for what was there before the step."""
        return self.sizes[0][0]

    def at(self, time: int) -> int:
        """Return the bytes held at ``time``."""
        if time < self.born or (self.died is not None and time >= self.died):
            return 0
        return next(size for since, size in reversed(self.sizes) if since <= time)

    def changes(self) -> Iterator[tuple[int, int]]:
        """Yield (time, bytes more or less)."""
        held = 0
        for time, size in self.sizes:
            yield time, size - held
            held = size
        if self.died is not None:
            yield self.died, -held


class Event(NamedTuple):
    """A storage's birth, its new size, or its death, in the order in which they happened."""

    time: int  # operators since the loop began; what was there before it has 0
    serial: int  # of the storage; no two have the same
    size: int  # bytes; 0 is the death


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest the running counter of live bytes went in a step, and where."""

    size: int  # bytes
    time: int  # operator of the step
    phase: Phase
    op: str
    path: Path


@dataclass(frozen=True, slots=True)
class Branch:
    """A place where the code reads a number back from a tensor, and what was assumed."""

    place: str  # "models.py:31"
    op: str
    answer: bool | int | float  # that the step was traced with
    others: tuple[tuple[bool | int | float, int | None], ...]  # (answer, peak); None: it raised
    told: bool  # the answer is the user's
    ended: bool  # a loop there was made to end


@dataclass(frozen=True, slots=True)
class Layer:
    """What is known of one module after a step."""

    path: Path
    kind: str  # the class's name
    output: str  # "1x64x224x224" of its first output tensor; "" if it was not called
    calls: int
    parameters: int  # numbers, not bytes; its own, without its children's


@dataclass(frozen=True, slots=True)
class Trace:
    """One measured step, and what the step before it peaked at."""

    first: Peak
    first_ops: int
    peak: Peak
    ops: int
    blocks: tuple[Block, ...]  # all that lived at any time of the step
    marks: tuple[tuple[int, Phase], ...]
    layers: tuple[Layer, ...]
    bound: int  # bytes at the peak with what kernels may hold beside tensors, see `scratch`
    kept: int  # bytes at the peak if the loop kept the output until the step's end
    unseen: frozenset[str] = field(default=frozenset())  # layouts of tensors that have no storage
    unknown: frozenset[str] = field(default=frozenset())  # operators whose memory nobody can tell
    doubt: int = 0  # bytes of the peak that are only assumed, see `unknown`
    results: int = 0  # bytes that the forward made in all, dead or alive
    events: tuple[Event, ...] = ()  # of the whole loop, from the first parameter on
    start: int = 0  # time at which the measured step begins in `events`
    libraries: frozenset[int] = field(default=frozenset())  # serials of what cuBLAS keeps
    branches: tuple[Branch, ...] = ()  # places that hang on data
