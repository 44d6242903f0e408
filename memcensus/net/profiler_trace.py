"""What torch's profiler saw being allocated, and by which operator.

Three files, all as torch 2.13 writes them, plain or in gzip:

- ``prof.export_chrome_trace`` of a run with ``profile_memory=True``: an event "[memory]" for each
  allocation and free, with the allocator's own running total, and an event for each operator.
- ``prof.export_memory_timeline`` to .json: times, and bytes by category at each.
- the same to .raw.json.gz: a row for each change, (time, action, bytes, category).

Source: ``torch/profiler/_memory_profiler.py`` of torch 2.13, and files that it wrote.

Not covered: modules and lines of Python (``with_stack``); events "[OutOfMemory]"; the .html form,
which is a picture.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections import Counter, defaultdict
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from memcensus import units
from memcensus.errors import LONGEST, Unreadable, unreadable
from memcensus.model import (
    Absence,
    Account,
    Clock,
    Column,
    Evidence,
    Gap,
    Quantity,
    Report,
    Series,
    Source,
    Table,
    Timeline,
)
from memcensus.net.accounts import Node
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memcensus.subject import Progress

    Owner = tuple[str, ...]

MOST_BYTES = 1 << 30
"""Of the JSON, unpacked."""
MOST_TIMES = 4096
"""Points of a timeline; longer ones are drawn at every n-th change, and at the peak."""
_MOST_SERIES = 20
_MOST_DEPTH = 16  # operators inside each other

BEFORE = "allocated before the recording"
NOWHERE = "(no operator)"
_OTHERS = "other operators"

_GZIP = b"\x1f\x8b"
_TRACE = re.compile(rb'\s*\{.*"schemaVersion".*"(deviceProperties|traceEvents)"', re.DOTALL)
_BY_TIME = re.compile(rb"\[\[\d{12,19}, \d{12,19}")  # microseconds since 1970
_BY_ROW = re.compile(rb"\[\[(-1|\d{15,19}), [1-4], -?\d{1,15}, [0-7]\]")
_OPERATORS = frozenset({"cpu_op", "Operator", "user_annotation"})  # categories of events
_HELPER = re.compile(r"aten::((new_)?empty\w*|resize_\w*)")  # allocates for the one that calls it
_STEP = "ProfilerStep#"
_DEVICES = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps"}  # c10/core/DeviceType.h
_CATEGORIES = (
    *("parameters", "optimizer state", "inputs", "temporaries", "activations", "gradients"),
    *("autograd detail", "unknown"),
)
"""In the order of _CATEGORY_TO_INDEX."""


class _Operator(NamedTuple):
    """An operator that ran."""

    thread: tuple[str, str]
    start: int  # ns
    end: int  # ns
    name: str


class _Memory(NamedTuple):
    """An allocation or a free."""

    thread: tuple[str, str]
    time: int  # ns
    device: tuple[int, int]  # type, number
    address: int
    size: int  # bytes; of a free, negative
    total: int  # bytes that the device's allocator counted after it
    reserved: int  # bytes


class _Change(NamedTuple):
    """Bytes that an owner has more or less from a time on."""

    time: int  # ns; 0 is before the recording
    owner: Owner
    size: int


def claims(head: bytes, path: Path | None) -> str | None:  # noqa: ARG001 (every reader's form)
    """Say why a file that starts with ``head`` is a trace of torch's profiler."""
    if head.startswith(_GZIP):
        head = _start_of(head)
    if _TRACE.match(head):
        return "a trace of torch.profiler (schemaVersion)"
    if _BY_TIME.match(head) or _BY_ROW.match(head):
        return "a memory timeline of torch.profiler"
    return None


def census(path: Path, name: str, progress: Progress) -> Report:
    """Return which operators, or categories of tensors, held the bytes at the highest moment.

    Raises:
        Unreadable: if it is damaged, too long, or has no events of memory in it.
    """
    place = printable(name)
    found = _loaded(path, name, place)
    progress("events", 1, 1, "file")
    if isinstance(found, dict):
        return _of_trace(found.get("traceEvents"), place)
    if isinstance(found, list) and found and isinstance(found[0], list):
        return _of_timeline(found, place)
    raise _damaged(place, "is JSON, but no trace of torch.profiler")


def _start_of(packed: bytes) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, 4096)
    except zlib.error:
        return b""


def _loaded(path: Path, name: str, place: str) -> object:
    """Return the JSON, of which only the events that count are kept."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            raw = gzip.GzipFile(fileobj=file).read(MOST_BYTES + 1) if packed else b""
            raw = raw or file.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(place, f"cannot be unpacked ({error})") from error
    except OSError as error:
        raise unreadable(name, error) from error
    if len(raw) > MOST_BYTES:
        raise Unreadable(
            f"{place}: more than {units.size(MOST_BYTES)} of JSON; record fewer steps "
            "(torch.profiler.schedule), or leave out with_stack and record_shapes"
        )
    try:
        text = raw.decode("utf-8", "replace")  # names of functions may be anything
        found: object = json.loads(text, object_hook=_slim, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # no JSON, nested too deep, or see _slim
        why = printable(str(error)[:LONGEST])
        raise _damaged(place, f"cannot be read as a trace ({why})") from error
    return found


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number of JSON")


def _damaged(place: str, what: str) -> Unreadable:
    return Unreadable(f"{place} {what}; it is damaged or cut off: export the trace again")


# --- the chrome trace


def _slim(found: dict[str, object]) -> object:
    """Return an event that counts, None for one that does not, and any other object as it is."""
    if "ph" not in found:
        return found
    if found.get("name") == "[memory]":
        return _memory(found)
    kind = found.get("cat")
    counts = found["ph"] == "X" and isinstance(kind, str) and kind in _OPERATORS
    return _operator(found) if counts else None


def _operator(event: dict[str, object]) -> _Operator:
    name = str(event.get("name"))[:LONGEST].encode("utf-8", "backslashreplace").decode()
    start = _nanoseconds(event.get("ts"))
    end = start + _nanoseconds(event.get("dur", 0))
    return _Operator(_thread(event), start, end, sys.intern(name))


def _memory(event: dict[str, object]) -> _Memory:
    given = event.get("args")
    args = given if isinstance(given, dict) else {}
    names = ("Device Type", "Device Id", "Addr", "Bytes", "Total Allocated", "Total Reserved")
    kind, number, address, size, total, reserved = (_whole(args.get(name), name) for name in names)
    time = _nanoseconds(event.get("ts"))
    return _Memory(_thread(event), time, (kind, number), address, size, total, reserved)


def _thread(event: dict[str, object]) -> tuple[str, str]:
    return sys.intern(str(event.get("pid"))[:LONGEST]), sys.intern(str(event.get("tid"))[:LONGEST])


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 64:
        raise ValueError(f"{name} is no whole number of 64 bits")
    return value


def _nanoseconds(value: object) -> int:
    """Return a time of the trace, which counts microseconds."""
    if not isinstance(value, (int, float)) or not abs(value) < 1 << 62:  # nor NaN
        raise ValueError("a time is no number")
    return round(value * 1000)


def _of_trace(events: object, place: str) -> Report:
    if not isinstance(events, list):
        raise _damaged(place, "has no list of events")
    memory = sorted((e for e in events if isinstance(e, _Memory)), key=lambda event: event.time)
    operators = [event for event in events if isinstance(event, _Operator)]
    if not memory:
        raise Unreadable(
            f"{place}: a trace without events of memory; record it with "
            "torch.profiler.profile(profile_memory=True)"
        )
    peaks: dict[tuple[int, int], int] = {}
    for event in memory:
        peaks[event.device] = max(peaks.get(event.device, 0), event.total)
    device = max(peaks, key=lambda each: peaks[each])
    owners = _owners(operators, memory)
    chosen = [
        (event, owner)
        for event, owner in zip(memory, owners, strict=True)
        if event.device == device
    ]
    gaps = [
        Gap(
            f"the memory of {_device(other)}",
            Absence.UNCOUNTED,
            f"at most {units.both(peaks[other])}; the tree is about {_device(device)}, which had "
            "the most",
        )
        for other in peaks
        if other != device
    ]
    return _on_device(chosen, _device(device), place, gaps)


def _device(device: tuple[int, int]) -> str:
    kind, number = device
    name = _DEVICES.get(kind, f"device type {kind}")
    return name if number < 0 else f"{name}:{number}"


def _owners(operators: list[_Operator], memory: list[_Memory]) -> list[Owner]:
    """Return for each event the operators around it on its thread, the outermost first."""
    by_thread = defaultdict[tuple[str, str], list[_Operator]](list)
    for operator in sorted(operators, key=lambda each: (each.start, -each.end), reverse=True):
        by_thread[operator.thread].append(operator)  # the earliest is the last
    running = defaultdict[tuple[str, str], list[_Operator]](list)
    found = []
    for event in memory:
        waiting, stack = by_thread[event.thread], running[event.thread]
        while waiting and waiting[-1].start <= event.time:
            _ended(stack, waiting[-1].start)
            stack.append(waiting.pop())
        _ended(stack, event.time)
        found.append(_owner([operator.name for operator in stack[:_MOST_DEPTH]]))
    return found


def _ended(stack: list[_Operator], time: int) -> None:
    while stack and stack[-1].end < time:
        stack.pop()


def _owner(names: list[str]) -> Owner:
    """Return the names without the helper that allocates for the one that called it."""
    names = [name for name in names if not name.startswith(_STEP)]
    while len(names) > 1 and _HELPER.fullmatch(names[-1]):
        names.pop()
    return tuple(name for name, _ in groupby(names)) or (NOWHERE,)


def _on_device(
    events: list[tuple[_Memory, Owner]], device: str, place: str, gaps: list[Gap]
) -> Report:
    """Return the report on the events of one device."""
    first, start = events[0][0], events[0][0].time
    before = first.total - first.size
    if before < 0 or min(event.total for event, _ in events) < 0:
        raise _damaged(place, f"counts less than nothing on {device}")
    changes, totals = [_Change(0, (BEFORE,), before)], [before]
    live: dict[int, tuple[int, Owner]] = {}
    held = before  # of what was there before
    for event, owner in events:
        time = event.time - start + 1
        old = live.pop(event.address, None)
        if old is not None:
            changes.append(_Change(time, old[1], -old[0]))
        elif event.size < 0:
            gone = min(held, -event.size)
            changes.append(_Change(time, (BEFORE,), -gone))
            held -= gone
        if event.size > 0:
            live[event.address] = event.size, owner
            changes.append(_Change(time, owner, event.size))
        totals += [event.total] * (len(changes) - len(totals))
    peak = totals.index(max(totals))
    counted = Source(
        Evidence.MEASURED,
        f'{place}: "Total Allocated" of {device}, {units.exact(totals[peak])} at change {peak} of '
        f"{len(changes) - 1}",
        "bytes that the allocator counted at the highest moment of the recording",
    )
    reserved = max(event.reserved for event, _ in events)
    quantities = (Quantity(f"most reserved on {device}", reserved, "B"),) if reserved else ()
    sums = list(accumulate(change.size for change in changes))
    if device == _DEVICES[0] and not before:
        gaps.append(_UNCOUNTED)
    if held_before := _held(changes[: peak + 1]).get((BEFORE,)):
        why = f"{units.both(held_before[0])} that the trace shows no allocation of"
        gaps.append(Gap(f"whose the bytes are that were {BEFORE}", Absence.UNREADABLE, why))
    if sums != totals:
        off = sum(one != other for one, other in zip(sums, totals, strict=True))
        why = f"after {off:,} of {len(sums):,} changes its total is not the sum of its blocks"
        gaps.append(Gap("some allocations or frees", Absence.CONTRADICTORY, why))
    root = _tree(place, changes, peak, counted, totals[peak])
    root = Account(root.name, root.own, root.source, root.children, quantities=quantities)
    timeline = _timeline(place, changes, peak) if sums == totals else None
    return Report(
        "net",
        place,
        root,
        instant=changes[peak].time if timeline else None,
        timeline=timeline,
        tables=(_sites(place, changes[: peak + 1]),),
        gaps=tuple(gaps),
    )


_UNCOUNTED = Gap(
    "what was allocated on the CPU before the recording",
    Absence.UNCOUNTED,
    "torch counts the CPU's bytes only while it records, so that weights made before are missing; "
    "record from before the model is made",
)


def _sites(place: str, changes: list[_Change]) -> Table:
    """Return which operators held how many bytes in how many blocks, the most first."""
    held = sorted(_held(changes).items(), key=lambda item: (-item[1][0], item[0]))
    rows = tuple(
        (" > ".join(owner), size, None if owner == (BEFORE,) else blocks)
        for owner, (size, blocks) in held
    )
    source = Source(Evidence.MEASURED, f"{place}: events [memory] until the peak, less the freed")
    columns = (Column("operator"), Column("bytes", "B"), Column("blocks", "block"))
    return Table("sites", columns, rows, (source,) * len(rows))


# --- the memory timeline


def _of_timeline(found: list[object], place: str) -> Report:
    second = found[1] if len(found) == 2 else None
    by_column = isinstance(second, list) and isinstance(next(iter(second), None), list)
    try:
        changes = _ordered(list(_columns(found) if by_column else _rows(found)))
        sums = list(accumulate(change.size for change in changes))
        peak = sums.index(max(sums))
        where = f"{place}: sum of the categories at change {peak} of {len(changes)}"
        counted = Source(Evidence.MEASURED, where, "bytes of tensors at the highest moment")
        root = _tree(place, changes, peak, counted, sums[peak])
        below = _below_zero(changes)
        timeline = None if below else _timeline(place, changes, peak)
    except ValueError as error:  # a row is not what it should be
        why = printable(str(error)[:LONGEST])
        raise _damaged(place, f"is no memory timeline ({why})") from error
    gaps = [Gap("operators", Absence.UNREADABLE, "a memory timeline names categories only")]
    if below:
        why = f"more is freed than was there of {', '.join(sorted(below))}"
        gaps.append(Gap("the timeline", Absence.CONTRADICTORY, why))
    instant = changes[peak].time if timeline else None
    return Report("net", place, root, instant=instant, timeline=timeline, gaps=tuple(gaps))


def _below_zero(changes: list[_Change]) -> set[str]:
    """Return the categories that hold less than nothing at some time."""
    now, found = Counter[str](), set[str]()
    for change in changes:
        now[change.owner[0]] += change.size
        if now[change.owner[0]] < 0:
            found.add(change.owner[0])
    return found


def _ordered(changes: list[_Change]) -> list[_Change]:
    if not changes or any(one.time > other.time for one, other in pairwise(changes)):
        raise ValueError("its times fall, or it has none")
    return changes


def _rows(found: list[object]) -> Iterator[_Change]:
    """Yield the changes of the raw form; what was there before the recording has the time -1."""
    start = None
    for row in found:
        if not isinstance(row, list) or len(row) != 4:
            raise ValueError("a row has not four numbers")
        time, _, size, category = (_whole(cell, "a cell") for cell in row)
        if not 0 <= category < len(_CATEGORIES):
            raise ValueError(f"there is no category {category}")
        start = time if start is None and time >= 0 else start
        since = 0 if time < 0 or start is None else time - start + 1
        yield _Change(since, (_CATEGORIES[category],), size)


def _columns(found: list[object]) -> Iterator[_Change]:
    """Yield the changes of the other form; the first of each row's sizes is always 0."""
    times, sizes = (each if isinstance(each, list) else [] for each in found[:2])
    if len(found) != 2 or len(times) != len(sizes) or not times:
        raise ValueError("there is not one row of sizes for each time")
    last = [0] * (len(_CATEGORIES) + 1)
    start = _whole(times[0], "a time")
    for time, row in zip(times, sizes, strict=True):
        if not isinstance(row, list) or len(row) != len(last):
            raise ValueError("a row has not one size for each category")
        now = [_whole(size, "a size") for size in row]
        changed = sorted((now[i] - last[i], i) for i in range(1, len(now)) if now[i] != last[i])
        for size, category in changed:  # what falls comes first: no sum is above both rows'
            since = (_whole(time, "a time") - start) * 1000
            yield _Change(since, (_CATEGORIES[category - 1],), size)
        last = now


# --- what both have


def _held(changes: list[_Change]) -> dict[Owner, tuple[int, int]]:
    """Return each owner's bytes and blocks after all ``changes``; those with none are left out."""
    sizes, blocks = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for change in changes:
        sizes[change.owner] += change.size
        blocks[change.owner] += 1 if change.size > 0 else -1
    return {owner: (size, blocks[owner]) for owner, size in sizes.items() if size}


def _tree(place: str, changes: list[_Change], peak: int, counted: Source, total: int) -> Account:
    """Return what each owner held after change ``peak``, owners inside their callers.

    Raises:
        Unreadable: if they hold more than ``total``.
    """
    held = {owner: size for owner, (size, _) in _held(changes[: peak + 1]).items()}
    if sum(held.values()) > total or min(held.values(), default=0) < 0:
        raise _damaged(
            place,
            f"contradicts itself: at the peak its blocks hold {sum(held.values()):,} B and its own "
            f"counter says {total:,} B",
        )
    where = f"{place}: blocks allocated until the peak and not freed"
    whole = Node()
    for owner, size in held.items():
        whole.put(owner, size, where)
    return Account.explain(place, total, counted, whole.accounts(Evidence.MEASURED))


def _timeline(place: str, changes: list[_Change], peak: int) -> Timeline:
    """Return the bytes of the owners with the most at the peak, and of all others together."""
    most = Counter({owner: size for owner, (size, _) in _held(changes[: peak + 1]).items()})
    tops = Counter[str]()
    for owner, size in most.items():
        tops[owner[0]] += size
    named = {name for name, _ in tops.most_common(_MOST_SERIES)}
    every = max(1, -(-len(changes) // MOST_TIMES))
    now, drawn = Counter[str](), defaultdict[str, list[tuple[int, int]]](list)
    for number, change in enumerate(changes):
        name = change.owner[0] if change.owner[0] in named else _OTHERS
        now[name] += change.size
        after = number > peak and change.time == changes[peak].time  # would hide the peak
        if number == peak or (not after and (number % every == 0 or number == len(changes) - 1)):
            _draw(drawn, now, change.time)
    series = (_series((place, name), points) for name, points in drawn.items())
    return Timeline(Clock.NANOSECONDS, tuple(series))


def _draw(drawn: dict[str, list[tuple[int, int]]], now: Counter[str], time: int) -> None:
    for name, size in now.items():
        points = drawn[name]
        if size != (points[-1][1] if points else 0):
            points.append((time, size))


def _series(path: tuple[str, str], points: list[tuple[int, int]]) -> Series:
    return Series(path, tuple(time for time, _ in points), tuple(size for _, size in points))
