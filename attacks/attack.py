"""One hostile or damaged input: what it tries, how it is made, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], list[str]]
"""From an empty folder to the words of the command line; may write files there."""


@dataclass(frozen=True)
class Attack:
    """Run ``memcensus`` with what ``make`` returns."""

    tries: str  # one line: what this input wants to happen
    make: Make
    code: int  # the exit code that is right
    says: str  # a regular expression that stderr must match


def words(*given: str) -> Make:
    """Return a maker that needs no file."""
    return lambda _folder: list(given)


def file(name: str, content: bytes, *before: str) -> Make:
    """Return a maker that writes one file and names it last."""

    def make(folder: Path) -> list[str]:
        path = folder / name
        path.write_bytes(content)
        return [*before, str(path)]

    return make
