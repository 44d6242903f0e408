"""One process as /proc shows it: who it is, and the bytes it has in memory.

Sources: proc_pid_stat(5) (name, parent, start), proc_pid_status(5) (user, resident, swap),
proc_pid_cmdline(5). The folder is opened once and its files are read through it, so that all of
them are of one process even if its number is given to another meanwhile.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memcensus import text
from memcensus.errors import Unreadable
from memcensus.live import procfs, smaps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memcensus.live.smaps import Mapped

LONGEST = 1 << 15
"""Bytes of a command line that are kept; the text says where it was cut."""

_STATUS = re.compile(
    rb"^(Tgid|Uid|VmRSS|VmSwap):\s+(\d{1,15})(?:\s+(\d{1,10}))?[^\n]{0,64}$", re.MULTILINE
)
_TICKS_AT, _STATE_AT, _PARENT_AT = 19, 0, 1  # fields 22, 3, 4 of stat, counted after the name
_ENDED = {"Z", "X", "x"}
_BTIME = re.compile(rb"^btime (\d{1,12})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Process:
    """A process; sizes are bytes."""

    pid: int
    group: int  # pid of the process that this is a thread of: its own, if it is none
    ppid: int
    uid: int  # effective, as ps shows it
    name: str
    arguments: str
    ticks: int  # start, in clock ticks after the machine's
    state: str  # one letter, proc_pid_stat(5)
    resident: int | None  # None: no memory map, as kernel threads and zombies
    swap: int | None

    @property
    def ended(self) -> bool:
        """Say that it has ended and only its exit code waits to be read."""
        return self.state in _ENDED


@contextmanager
def folder(proc: Path, pid: int) -> Iterator[int]:
    """Open a process's folder.

    Raises:
        OSError: if there is no such process.
    """
    opened = os.open(proc / str(pid), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


def read(opened: int, pid: int) -> Process:
    """Return the process behind the open folder ``opened``.

    Raises:
        OSError: if it ends while it is read, or is not ours to see.
        Unreadable: if its stat or status is not what the manual promises.
    """
    name, fields = _stat(procfs.read("stat", 4096, opened), pid)
    found = {key: (first, second) for key, first, second in _status(opened)}
    if not found.keys() >= {b"Tgid", b"Uid"}:
        raise Unreadable(f"/proc/{pid}/status has no Tgid and Uid; check that /proc is procfs")
    resident, swap = found.get(b"VmRSS"), found.get(b"VmSwap")
    return Process(
        pid,
        int(found[b"Tgid"][0]),
        int(fields[_PARENT_AT]),
        int(found[b"Uid"][1] or found[b"Uid"][0]),
        name,
        _arguments(procfs.read("cmdline", LONGEST + 1, opened)),
        int(fields[_TICKS_AT]),
        fields[_STATE_AT].decode("ascii", "replace"),
        None if resident is None else int(resident[0]) * 1024,
        None if swap is None else int(swap[0]) * 1024,
    )


def start(opened: int, pid: int) -> int:
    """Return when the process behind ``opened`` started, in clock ticks: who it is, with its pid.

    Raises:
        OSError: if it has ended.
        Unreadable: if its stat is not what the manual promises.
    """
    return int(_stat(procfs.read("stat", 4096, opened), pid)[1][_TICKS_AT])


def rollup(opened: int, path: Path) -> Mapped:
    """Return the sums over all mappings: one short file, or smaps before Linux 4.14.

    Raises:
        OSError: if the process has ended, has no memory map (ESRCH), or is not ours to see.
        Unreadable: if the file is not smaps.
    """
    try:
        raw = procfs.read("smaps_rollup", procfs.LIMIT, opened)
    except FileNotFoundError:
        return _sum(list(mappings(opened, path)))
    found = list(smaps.parse(raw.splitlines(keepends=True), path))
    if len(found) != 1:
        raise Unreadable(f"{path}/smaps_rollup holds {len(found)} mappings instead of one")
    return found[0]


def mappings(opened: int, path: Path) -> Iterator[Mapped]:
    """Yield the process's mappings, read as they are written.

    Raises:
        OSError: as ``rollup``.
        Unreadable: if the file is not smaps.
    """
    file = os.open("smaps", os.O_RDONLY | os.O_NONBLOCK, dir_fd=opened)
    with os.fdopen(file, "rb", buffering=1 << 18) as lines:
        yield from smaps.parse(iter(lambda: lines.readline(1 << 16), b""), path / "smaps")


def boot_time(proc: Path) -> int | None:
    """Return when the machine started, in seconds since 1970; None where it is not told."""
    try:
        found = _BTIME.search(procfs.read(proc / "stat"))
    except OSError:
        return None
    return None if found is None else int(found[1])


def started(process: Process, boot: int | None) -> str | None:
    """Return when the process started, RFC 3339 in UTC to the second."""
    if boot is None:
        return None
    seconds = boot + process.ticks // os.sysconf("SC_CLK_TCK")
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # a date beyond the year 9999
        return None


def _stat(raw: bytes, pid: int) -> tuple[str, list[bytes]]:
    """Return the name and the fields after it; the name may hold any bytes, ") (" too."""
    before, _, after = raw.rpartition(b")")
    fields = after.split()
    numbers = fields[1 : _TICKS_AT + 1]
    if len(fields) <= _TICKS_AT or not all(
        word.removeprefix(b"-").isdigit() and len(word) <= 20 for word in numbers
    ):
        raise Unreadable(f"/proc/{pid}/stat is not as proc_pid_stat(5) says; is /proc procfs?")
    return text.decode(before.partition(b"(")[2]), fields


def _status(opened: int) -> list[tuple[bytes, bytes, bytes]]:
    found: list[tuple[bytes, bytes, bytes]] = _STATUS.findall(
        procfs.read("status", 1 << 16, opened)
    )
    return found


def _arguments(raw: bytes) -> str:
    words = raw[:LONGEST].rstrip(b"\0").replace(b"\0", b" ")
    cut = f" [cut after {LONGEST:,} bytes]" if len(raw) > LONGEST else ""
    return text.decode(words) + cut


def _sum(mapped: list[Mapped]) -> Mapped:
    return smaps.Mapped(
        min((m.start for m in mapped), default=0),
        max((m.end for m in mapped), default=0),
        "---p",
        b"[rollup]",
        sum(m.resident for m in mapped),
        sum(m.pss for m in mapped),
        sum(m.private for m in mapped),
        sum(m.shared for m in mapped),
        sum(m.swap for m in mapped),
    )
