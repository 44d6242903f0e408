"""The files that ``net`` reads: one line for each format. Detection looks at content, not at names.

A reader is a module with two functions::

    claims(head: bytes, path: Path | None) -> str | None     why the file is its own, or None
    census(path: Path, name: str, progress: Progress) -> Report
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from memcensus.model import Report
    from memcensus.subject import Progress, Target

READERS: tuple[str, ...] = ("checkpoint", "profiler_trace")
"""Modules of ``memcensus.net``; none imports torch."""


class Reader(Protocol):
    """A module that reads one format."""

    def claims(self, head: bytes, path: Path | None) -> str | None:
        """Say why a file that starts with ``head`` is of this format."""

    def census(self, path: Path, name: str, progress: Progress) -> Report:
        """Return whose the bytes are."""


def reader_of(target: Target) -> tuple[str, Reader, str] | None:
    """Return (name, reader, why) of the first format that claims ``target``."""
    if target.path is None:
        return None
    for name in READERS:
        reader = cast("Reader", import_module(f"memcensus.net.{name}"))
        because = reader.claims(target.head, target.path)
        if because is not None:
            return name, reader, because
    return None
