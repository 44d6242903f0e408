"""From the tensors of a step to the bytes of a GPU: allocated, reserved, and the device's total.

The loop's births and deaths, in their order and from the first parameter on, go through the caching
allocator (``allocator``). So four sums of the same moment come about::

    live        bytes of tensors
    allocated   blocks in use: live + rounding + what libraries keep (``kernels``)
    reserved    segments taken from the driver: allocated + free blocks
    device      reserved + the CUDA context, which the driver takes for itself

Exact are live, and, as far as the order of events is the GPU's, allocated and reserved; the context
is estimated, with an error. Not covered: what other programs hold on the same GPU, and NCCL.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.model import Account, Clock, Evidence, Quantity, Series, Source, Timeline
from memcensus.net import owners
from memcensus.net.allocator import Allocator, OutOfDeviceMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcensus.net.allocator_settings import Settings
    from memcensus.net.block import Trace
    from memcensus.net.device import Device

CONTEXT = "CUDA context"
FREE = "free in segments"
ROUNDING = "rounding to blocks"
LIBRARIES = "library workspaces"

PERCENT = 10
"""Percent of the reserved bytes allowed for what kernels take unseen; not established yet."""
_SEGMENT = 2 << 20

_MEANINGS = {
    CONTEXT: "code and tables that the driver and the libraries put on the GPU, outside of torch",
    FREE: "cached by the allocator, and given back only when memory runs out",
    ROUNDING: "blocks are multiples of 512 B, and a block's rest that is too small stays with it",
    LIBRARIES: "kept by cuBLAS between calls, one for each thread that multiplies matrices",
}


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator held over the measured step, after all events of a time."""

    times: tuple[int, ...]  # operators of the step; only where something changed
    allocated: tuple[int, ...]  # bytes
    reserved: tuple[int, ...]
    libraries: tuple[int, ...]
    peak_allocated: int  # of the whole loop, inside operators too
    peak_reserved: int
    retries: int = 0  # times at which free segments were given back to go on

    def at(self, time: int) -> tuple[int, int, int]:
        """Return (allocated, reserved, kept by libraries) at ``time``."""
        known = max(0, bisect_right(self.times, time) - 1)
        return self.allocated[known], self.reserved[known], self.libraries[known]


def replay(trace: Trace, settings: Settings, capacity: int | None = None) -> Replay:
    """Return what the caching allocator makes of the trace's events.

    Raises:
        OutOfDeviceMemory: if ``capacity`` bytes do not do.
    """
    allocator = Allocator(settings, capacity)
    addresses: dict[int, int] = {}
    points: dict[int, tuple[int, int, int]] = {}
    libraries = 0
    for event in trace.events:
        if event.serial in addresses:
            allocator.free(addresses.pop(event.serial))
        if event.size:
            addresses[event.serial] = allocator.malloc(event.size)
            libraries += event.size if event.serial in trace.libraries else 0
        now = max(0, event.time - trace.start)
        points[now] = (allocator.allocated, allocator.reserved, libraries)
    allocated, reserved, kept = zip(*points.values(), strict=True)
    peaks = allocator.peak_allocated, allocator.peak_reserved
    return Replay(tuple(points), allocated, reserved, kept, *peaks, allocator.retries)


def judged(
    trace: Trace, replayed: Replay, device: Device, settings: Settings, limit: int | None
) -> tuple[int, int]:
    """Return (bytes that the step needs of the device, error).

    An allocator that finds nothing left gives back what is free and goes on. So where all that it
    would like to reserve is more than ``limit``, the least with which the step still runs counts.
    """
    context = device.context
    error = context.error + replayed.peak_reserved * PERCENT // 100
    wanted = replayed.peak_reserved + context.size
    if limit is None or not replayed.peak_allocated + context.size <= limit < wanted + error:
        return wanted, error
    return least(trace, replayed, settings) + context.size, error


def least(trace: Trace, replayed: Replay, settings: Settings) -> int:
    """Return the least capacity in bytes with which the step runs, to 0.5 % of it."""
    enough = replayed.peak_reserved
    if replayed.retries:
        raise ValueError("the replay was squeezed already")
    too_little = replayed.peak_allocated - 1
    while enough - too_little > max(_SEGMENT, enough // 200):
        tried = (enough + too_little) // 2
        try:
            enough = min(tried, replay(trace, settings, tried).peak_reserved)
        except OutOfDeviceMemory:
            too_little = tried
    return enough


def tree(name: str, trace: Trace, replayed: Replay, device: Device, built: str) -> Account:
    """Return whose the device's bytes are at the tensors' peak."""
    allocated, reserved, libraries = replayed.at(trace.peak.time)
    total = Source(
        Evidence.ESTIMATED,
        f"segments of the simulated caching allocator at operator {trace.peak.time} of {trace.ops} "
        f"+ the context of {device.name}",
        "bytes taken on the device at the step's highest moment",
    )
    rest = {
        LIBRARIES: libraries,
        ROUNDING: allocated - libraries - trace.peak.size,
        FREE: reserved - allocated,
    }
    where = "simulated caching allocator (PyTorch 2.13, CUDACachingAllocator.cpp)"
    parts = [
        Account(part, size, Source(Evidence.COMPUTED, where, _MEANINGS[part]))
        for part, size in rest.items()
        if size
    ]
    context = device.context
    parts.append(
        Account(
            CONTEXT,
            context.size,
            Source(Evidence.ESTIMATED, context.source, _MEANINGS[CONTEXT]),
            error=context.error,
        )
    )
    root = Account.explain(
        name, reserved + context.size, total, [*owners.kinds(trace, built), *parts]
    )
    quantities = (
        Quantity("live tensors at the peak", trace.peak.size, "B"),
        Quantity("peak allocated", replayed.peak_allocated, "B"),
        Quantity("peak reserved", replayed.peak_reserved, "B"),
        Quantity("peak of the device", replayed.peak_reserved + context.size, "B"),
    )
    return Account(root.name, root.own, root.source, root.children, quantities=quantities)


def timeline(name: str, trace: Trace, replayed: Replay, device: Device) -> Timeline:
    """Return the same parts over the operators of the step."""
    times = owners.times_of(trace)
    kinds = tuple(owners.kinds_over_time(name, trace))

    def rounding(time: int) -> int:
        allocated, _, libraries = replayed.at(time)
        return allocated - libraries - sum(series.at(time) for series in kinds)

    parts: dict[str, Callable[[int], int]] = {
        LIBRARIES: lambda time: replayed.at(time)[2],
        ROUNDING: rounding,
        FREE: lambda time: replayed.at(time)[1] - replayed.at(time)[0],
        CONTEXT: lambda _time: device.context.size,
    }
    drawn = tuple(_series((name, part), size, times) for part, size in parts.items())
    return Timeline(Clock.STEP, (*kinds, *drawn), owners.marks(trace))


def _series(path: tuple[str, ...], size: Callable[[int], int], times: Sequence[int]) -> Series:
    points = list(_changes(size, times))
    return Series(path, tuple(time for time, _ in points), tuple(size for _, size in points))


def _changes(size: Callable[[int], int], times: Sequence[int]) -> Iterator[tuple[int, int]]:
    last = None
    for time in times:
        now = size(time)
        if now != last:
            yield time, now
            last = now
