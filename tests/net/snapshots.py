"""CUDA memory snapshots recorded on real GPUs, and the allocator's state when recording began.

The files are ../shared/data/gpu/snapshots/*.pickle.zst: plain containers, read by a loader that
refuses every global. What they are is told in snapshots.csv beside them.
"""

from __future__ import annotations

import csv
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, TypedDict

import pytest
import zstandard

from memcensus.net.allocator import Segment

SMALL = 2 << 20
"""Bytes of a segment for small blocks; none of another kind is as small."""
DATA = Path(__file__).parents[3] / "shared" / "data" / "gpu"
MISSING = f"{DATA.parent.name}/{DATA.name} is not beside the checkout: recorded GPU data"


class Plain(pickle.Unpickler):
    """Builds containers, numbers and strings, and nothing else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is refused")


class Event(TypedDict):
    """One line of a recorded trace."""

    action: str
    addr: int
    size: int


class RecordedBlock(TypedDict):
    size: int
    state: str


class RecordedSegment(TypedDict):
    address: int
    total_size: int
    segment_type: str
    blocks: list[RecordedBlock]


@dataclass(frozen=True)
class Snapshot:
    """The events of one recording, and the segments at its end."""

    events: list[Event]
    segments: list[RecordedSegment]

    def at_start(self) -> tuple[Segment, ...]:
        """Return the segments before the first event: the last ones, walked backwards.

        Free blocks between used ones are not recorded, but follow: neighbours are merged.
        """
        wholes = {
            s["address"]: (s["total_size"], s["segment_type"] == "small") for s in self.segments
        }
        used = dict(_used(self.segments))
        for event in reversed(self.events):
            address, size = event["addr"], event["size"]
            if event["action"] == "alloc":
                used.pop(address, None)
            elif event["action"] == "free_completed":
                used[address] = size
            elif event["action"] == "segment_alloc":
                wholes.pop(address)
            elif event["action"] == "segment_free":
                wholes[address] = (size, size == SMALL)
        return tuple(
            Segment(address, small, tuple(_blocks(address, size, used)))
            for address, (size, small) in sorted(wholes.items())
        )


def _used(segments: list[RecordedSegment]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                yield address, block["size"]
            address += block["size"]


def _blocks(start: int, size: int, used: dict[int, int]) -> Iterator[tuple[int, bool]]:
    """Yield (bytes, used) over a segment; what lies between used blocks is free.

    But for what is too little to be split off in a large segment: that stays with its block.
    """
    least = 512 if size == SMALL else (1 << 20) + 512
    inside = sorted(address for address in used if start <= address < start + size)
    at = start
    for address, after in pairwise([*inside, start + size]):
        if address > at:
            yield address - at, False
        block = _rounded(used[address])
        if after - address - block < least:
            block = after - address
        yield block, True
        at = address + block
    if at < start + size:
        yield start + size - at, False


def _rounded(size: int) -> int:
    return max(512, -(-size // 512) * 512)


def names() -> list[str]:
    return [path.name for path in sorted((DATA / "snapshots").glob("*.pickle.zst"))]


def load(name: str) -> Snapshot:
    packed = (DATA / "snapshots" / name).read_bytes()
    content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read()
    read = Plain(io.BytesIO(content)).load()
    events = [event for device in read["device_traces"] for event in device]
    return Snapshot(events, read["segments"])


def told(name: str) -> dict[str, str]:
    """Return the row of snapshots.csv that tells of a file."""
    file = name.removesuffix(".zst")
    with (DATA / "snapshots.csv").open(encoding="utf-8", newline="") as table:
        return next(row for row in csv.DictReader(table) if row["file"] == file)


needed = pytest.mark.skipif(not names(), reason=MISSING)
