"""Files of /proc and /sys: each read once, whole, bounded, and named in a Gap where that fails.

The kernel makes such a file while it is read, so a second read is a second moment (proc(5)).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from memcensus.model import Absence, Gap

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1 << 20
"""Bytes of a file that are read at most: the largest that has a bound, slabinfo, stays below."""

_CHUNK = 1 << 16


def read(path: Path | str, limit: int = LIMIT, folder: int | None = None) -> bytes:
    """Return at most ``limit`` bytes of ``path``, seen from the open directory ``folder`` if given.

    Raises:
        OSError: if it cannot be opened or read. ESRCH: the process has ended meanwhile.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    try:
        chunks = []
        while limit > 0 and (chunk := os.read(file, min(limit, _CHUNK))):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    finally:
        os.close(file)


def missing(what: str, path: Path | str, error: OSError, way_out: str = "") -> Gap:
    """Return the Gap for a file that could not be read."""
    reason = (error.strerror or type(error).__name__).lower()
    hint = way_out or ("run as root" if isinstance(error, PermissionError) else "")
    return Gap(what, Absence.UNREADABLE, f"{path}: {reason}" + (f"; {hint}" if hint else ""))
