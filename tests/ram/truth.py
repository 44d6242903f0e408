"""The guest's own account of itself, as samples/recipe/guest/account.py wrote it."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Row:
    pid: int
    ppid: int
    uid: int
    ticks: int  # start, since boot
    threads: int
    state: str
    name: bytes
    cmdline: bytes


@dataclass(frozen=True)
class Truth:
    sections: dict[str, str]

    @classmethod
    def load(cls, path: Path) -> Truth:
        raw = path.read_bytes()
        if path.suffix == ".zst":
            raw = zstandard.ZstdDecompressor().stream_reader(raw).readall()
        parts = re.split(r"^=== (\w+)\n", raw.decode("ascii"), flags=re.MULTILINE)
        return cls(dict(zip(parts[1::2], parts[2::2], strict=True)))

    def lines(self, name: str) -> list[str]:
        lines = self.sections[name].splitlines()
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def collector(self) -> int:
        """The process that wrote this; it goes on changing until the machine stops."""
        return int(self.lines("collector")[0])

    @property
    def btime(self) -> int:
        return int(self.lines("btime")[0])

    @property
    def processes(self) -> dict[int, Row]:
        rows = [line.split() for line in self.lines("ps") if "unreadable" not in line]
        return {
            int(row[0]): Row(
                pid=int(row[0]),
                ppid=int(row[1]),
                uid=int(row[2]),
                ticks=int(row[6]),
                threads=int(row[7]),
                state=row[8],
                name=_hex(row[9]),
                cmdline=_hex(row[10]),
            )
            for row in rows
        }

    @property
    def symbols(self) -> dict[str, int]:
        rows = (line.split() for line in self.lines("kallsyms"))
        return {row[2]: int(row[0], 16) for row in rows}

    @property
    def iomem(self) -> list[tuple[int, int, int, str]]:
        """Depth, first byte, last byte, name."""
        found = []
        for line in self.sections["iomem"].splitlines():
            match = re.fullmatch(r"( *)([0-9a-f]+)-([0-9a-f]+) : (.*)", line)
            if match:
                blanks, start, end, name = match.groups()
                found.append((len(blanks) // 2, int(start, 16), int(end, 16), name))
        return found

    def numbers(self, name: str) -> dict[int, list[int]]:
        """Lines of numbers: the first is the pid; lines with words in them are left out."""
        rows = (line.split() for line in self.lines(name))
        good = [row for row in rows if all(word.isdigit() for word in row)]
        return {int(row[0]): [int(word) for word in row[1:]] for row in good}

    @property
    def rollup(self) -> dict[int, dict[str, int]]:
        """smaps_rollup of each process, in kB."""
        found: dict[int, dict[str, int]] = {}
        for line in self.lines("smaps_rollup"):
            if match := re.fullmatch(r"(\d+) (\w+): (\d+)", line):
                found.setdefault(int(match[1]), {})[match[2]] = int(match[3])
        return found

    @property
    def meminfo(self) -> dict[str, int]:
        """In kB."""
        rows = (line.replace(":", "").split() for line in self.lines("meminfo"))
        return {row[0]: int(row[1]) for row in rows}

    @property
    def pagemap(self) -> dict[int, NDArray[np.uint64]]:
        """(present pages, 2): virtual page, entry of /proc/PID/pagemap."""
        rows = (line.split() for line in self.lines("pagemap"))
        return {int(row[0]): _words(row[2]).reshape(-1, 2) for row in rows if len(row) == 3}

    def states(self, name: str) -> NDArray[np.uint64]:
        """One word for each page: /proc/kpageflags or /proc/kpagecount."""
        return _words("".join(self.lines(name)))


def _hex(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def _words(text: str) -> NDArray[np.uint64]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u8")
