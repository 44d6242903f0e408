"""A raw image compressed with Zstandard: unpacked into a file that has no name.

The unpacked image goes to a temporary file that is unlinked before the first byte is written, so
nothing is left behind however the run ends. Pages of zeros become holes: most of a RAM image is
zeros, and they cost neither disk nor time. Frame format: RFC 8878.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import zstandard

from memcensus import units
from memcensus.errors import Unreadable, unreadable
from memcensus.model import Absence, Gap
from memcensus.ram.image import Image
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memcensus.subject import Progress

MAGIC: Final = b"\x28\xb5\x2f\xfd"
_WINDOW: Final = 1 << 31  # bytes of look-back that a frame may ask for: what zstd --long=31 writes
_BLOCK: Final = 1 << 20  # bytes unpacked at a time
_HOLE: Final = 1 << 16  # a run of zeros of this size is not written
_ZEROS: Final = bytes(_HOLE)
# No RAM image packs to less: its array of struct pages is 1.6 % of it, and packs to a hundredth.
_EMPTY: Final = 10_000  # times
_FIRST: Final = 1 << 30  # bytes that may be as empty as they like
_RESERVE: Final = 256 << 20  # bytes of the disk that are left to others


def open_zstd(path: Path, name: str, progress: Progress) -> Image:
    """Return the image inside the compressed file at ``path``.

    A damaged or cut stream gives what could be unpacked, and a gap that says where it broke.

    Raises:
        Unreadable: if nothing could be unpacked, or it does not fit on the disk.
    """
    try:
        with path.open("rb") as packed, tempfile.TemporaryFile() as unpacked:
            stream = _Stream(packed, os.fstat(packed.fileno()).st_size, progress)
            damage = _unpack(stream, unpacked, name)
            unpacked.flush()
            if damage is not None and os.fstat(unpacked.fileno()).st_size == 0:
                raise Unreadable(f"{damage.why}: nothing could be unpacked; get the file again")
            gaps = () if damage is None else (damage,)
            return Image.map(unpacked.fileno(), name, gaps, "Zstandard")
    except OSError as error:
        raise unreadable(
            printable(name), error, f"unpacking needs room in {tempfile.gettempdir()}, or in TMPDIR"
        ) from error


@dataclass(frozen=True, slots=True)
class _Stream:
    packed: IO[bytes]
    size: int  # bytes of the compressed file
    progress: Progress

    def blocks(self) -> Iterator[bytes]:
        """Yield the unpacked bytes, all frames one after another."""
        reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
            self.packed, read_across_frames=True, closefd=False
        )
        while block := reader.read(_BLOCK):
            yield block
            self.progress("unpack", self.packed.tell(), self.size, "B")


def _unpack(stream: _Stream, out: IO[bytes], name: str) -> Gap | None:
    """Write what ``stream`` holds to ``out``; return the damage that ended it early."""
    written = 0
    free = _free(out)
    try:
        for block in stream.blocks():
            written += len(block)
            if written > _FIRST and written > _EMPTY * stream.packed.tell():
                raise Unreadable(
                    f"{printable(name)} unpacks to more than {_EMPTY:,} times its size, which is "
                    "no image of a machine's memory; get the file again"
                )
            free -= _write_sparse(out, block)
            if free < 0:
                raise Unreadable(
                    f"{printable(name)} unpacks to more than {units.size(written)}, which does not "
                    f"fit in {tempfile.gettempdir()}; set TMPDIR to a folder with more room"
                )
    except zstandard.ZstdError as error:
        out.truncate(written)
        return _damage(name, written, str(error))
    out.truncate(written)
    declared = _declared(stream.packed)
    if declared > written:
        return _damage(name, written, f"the frame promises {declared:,} B")
    return None


def _write_sparse(out: IO[bytes], block: bytes) -> int:
    """Write ``block``, leaving holes for zeros; return how many bytes were written."""
    written = 0
    for at in range(0, len(block), _HOLE):
        part = block[at : at + _HOLE]
        if part == _ZEROS[: len(part)]:
            out.seek(len(part), os.SEEK_CUR)
        else:
            written += out.write(part)
    return written


def _free(out: IO[bytes]) -> int:
    disk = os.fstatvfs(out.fileno())
    return disk.f_bavail * disk.f_frsize - _RESERVE


def _declared(packed: IO[bytes]) -> int:
    """Return the content size that the first frame's header states, 0 where it states none."""
    packed.seek(0)
    try:
        size: int = zstandard.frame_content_size(packed.read(18))
    except zstandard.ZstdError:
        return 0
    return max(size, 0)


def _damage(name: str, written: int, reason: str) -> Gap:
    return Gap(
        f"the rest of {printable(name)}",
        Absence.UNREADABLE,
        f"the compressed stream of {printable(name)} is cut short or damaged after {written:,} B "
        f"of the image ({reason}); what was unpacked until there is analysed",
    )
