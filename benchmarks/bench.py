"""Whole-process times of the commands that must be quick, with their spread, and as ratios.

``make bench`` prints the table; ``--write`` also puts it into docs/speed.md. Runs of the two
commands of a pair alternate, so that a slow moment of the machine hits both.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import zstandard

REPOSITORY = Path(__file__).parent.parent
MEMCENSUS = str(REPOSITORY / ".venv" / "bin" / "memcensus")
SAMPLE = REPOSITORY / "samples" / "linux.raw.zst"
RUNS = 7


@dataclass(frozen=True)
class Pair:
    """A command, what it is measured against, and the bound it must hold."""

    name: str
    command: tuple[str, ...]
    against: tuple[str, ...]
    promise: str


@dataclass(frozen=True)
class Times:
    """Seconds of one command's runs, warm-up left out."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def median(self) -> str:
        """Return "0.25 s (0.24-0.29)"."""
        middle, low, high = statistics.median(self.wall), min(self.wall), max(self.wall)
        return f"{middle:.2f} s ({low:.2f}-{high:.2f})"


def main() -> None:
    """Measure every pair and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row(pair) for pair in pairs(Path(folder))]
    head = (
        "command | wall, median (spread) | against | wall, median (spread) | CPU ratio | must hold"
    )
    table = "\n".join([f"| {head} |", "|---|---|---|---|---|---|", *rows])
    print(table)
    if "--write" in sys.argv:
        _write(table)


def pairs(folder: Path) -> list[Pair]:
    """Return what is measured; the sample image is unpacked into ``folder`` first."""
    raw = folder / "linux.raw"
    with SAMPLE.open("rb") as packed, raw.open("wb") as out:
        zstandard.ZstdDecompressor().copy_stream(packed, out)
    vgg = (MEMCENSUS, "net", "vgg16", "--as", "json")
    return [
        Pair("memcensus --help", (MEMCENSUS, "--help"), (sys.executable, "-c", ""), "under 0.4 s"),
        Pair(
            "memcensus ram processes linux.raw",
            (MEMCENSUS, "ram", "processes", str(raw)),
            (MEMCENSUS, "--help"),
            "under 3 s",
        ),
        Pair(
            "memcensus net vgg16 --batch 256",
            (*vgg, "--batch", "256"),
            (*vgg, "--batch", "1"),
            "the same cost: ratio 1",
        ),
        Pair("memcensus live", (MEMCENSUS, "live"), (MEMCENSUS, "--help"), ""),
    ]


def _row(pair: Pair) -> str:
    first, second = measure(pair.command, pair.against)
    ratios = [a / b for a, b in zip(first.cpu, second.cpu, strict=True)]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    words = [Path(word).name if "/" in word else word for word in pair.against]
    against = " ".join(word or "''" for word in words)
    cells = (f"`{pair.name}`", first.median, f"`{against}`", second.median, ratio, pair.promise)
    return f"| {' | '.join(cells)} |"


def measure(*commands: tuple[str, ...]) -> list[Times]:
    """Return the times of each command, run in turn ``RUNS`` times after one warm-up."""
    wall: list[list[float]] = [[] for _ in commands]
    cpu: list[list[float]] = [[] for _ in commands]
    for at in range(RUNS + 1):
        for which, command in enumerate(commands):
            seconds, used = _once(command)
            if at:
                wall[which].append(seconds)
                cpu[which].append(used)
    return [Times(tuple(w), tuple(c)) for w, c in zip(wall, cpu, strict=True)]


def _once(command: tuple[str, ...]) -> tuple[float, float]:
    """Return wall and CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "NO_COLOR": "1"})
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return wall, used


def _write(table: str) -> None:
    """Put the table into docs/speed.md."""
    text = (
        "# Speed\n\n"
        "Written by `make bench` with `--write`: 2 cores, Debian 12, "
        f"Python {platform.python_version()}, {RUNS} runs of each command in turn after one "
        "warm-up, whole processes.\n\n"
        f"{table}\n"
    )
    (REPOSITORY / "docs" / "speed.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
