"""The subject ``ram``: a RAM image, and whose is every page of it.

Reads raw physical images of x86-64 Linux, plain or compressed with Zstandard, and needs no symbol
files. Not covered yet: other containers and other systems; what was typed, opened or viewed.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, ClassVar, Final

from memcensus.errors import Unreadable, unreadable
from memcensus.subject import Certainty, Claim, Request
from memcensus.text import decode, printable

if TYPE_CHECKING:
    from memcensus.model import Report
    from memcensus.subject import Target

_ZSTD: Final = b"\x28\xb5\x2f\xfd"  # RFC 8878, section 3.1.1
_SUFFIXES: Final = frozenset({".raw", ".mem", ".vmem", ".dd", ".img", ".bin", ".dmp"})
_LEAST: Final = 1 << 20  # bytes; no machine that runs Linux has less
_VECTORS: Final = 256  # of the real-mode interrupt table, 4 bytes each, at physical 0
_BIOS: Final = 0xF000  # its segment
_IN_BIOS: Final = 32  # vectors that it leaves pointing to itself; SeaBIOS: 100 and more


class Ram:
    """A RAM image."""

    name: ClassVar[str] = "ram"
    summary: ClassVar[str] = "Whose is every page of a RAM image, and what was running."

    def claim(self, target: Target) -> Claim:
        """Say how sure it is that ``target`` is a RAM image: a raw one has no signature."""
        if target.path is None or not target.head:
            return Claim(Certainty.NO, "not a RAM image: no file with content")
        suffixes = [suffix.lower() for suffix in target.path.suffixes]
        if target.head.startswith(_ZSTD):
            named = suffixes[-1:] == [".zst"] and bool(_SUFFIXES & set(suffixes[-2:-1]))
            if named:
                return Claim(Certainty.SHAPE, "Zstandard, and named as a RAM image")
            return Claim(Certainty.NO, "not a RAM image: Zstandard, but no name like x.raw.zst")
        return _claim_raw(target, suffixes[-1:])

    def inspect(self, target: Target, request: Request = Request()) -> Report:  # noqa: B008  (frozen)
        """Look at an image: its kernel, its processes, and the owner of every page.

        Raises:
            NoKernel: if no kernel was found in it.
            Unreadable: if it cannot be read at all, or no process can.
        """
        # numpy costs 100 ms, which no other verb should pay.
        from memcensus.ram import report  # noqa: PLC0415
        from memcensus.ram.compressed import open_zstd  # noqa: PLC0415
        from memcensus.ram.image import Image  # noqa: PLC0415

        path = target.path
        if path is None:
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            raise unreadable(
                printable(target.text) or "''", missing, "name an image: memcensus ram dump.raw"
            )
        if path.is_dir():
            folder = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            raise unreadable(printable(target.text), folder, "name a file inside it")
        if not path.is_file():
            raise Unreadable(
                f"{printable(target.text)} is no regular file; copy what it holds into one"
            )
        name = decode(os.fsencode(path.name))
        if target.head.startswith(_ZSTD):
            image = open_zstd(path, name, request.progress)
        else:
            image = Image.open(path, name)
        return report.make(image, target.text, request)


def _claim_raw(target: Target, suffix: list[str]) -> Claim:
    size = _size(target)
    if size < _LEAST:
        return Claim(Certainty.NO, f"not a RAM image: {size:,} B, less than 1 MiB")
    if _interrupt_table(target.head):
        return Claim(Certainty.SHAPE, "starts with the interrupt table that a BIOS left")
    if _SUFFIXES & set(suffix) and not _is_text(target.head):
        return Claim(Certainty.NAME, f"named {suffix[0]}, as raw RAM images are")
    return Claim(Certainty.NO, "not a RAM image: no interrupt table, no name like x.raw")


def _size(target: Target) -> int:
    if target.path is None:
        return 0
    try:
        return target.path.stat().st_size
    except OSError:  # it went away since its head was read
        return 0


def _interrupt_table(head: bytes) -> bool:
    """Say whether vectors point to the BIOS, as it leaves them at physical 0.

    Each is an offset and a segment, little-endian (Intel SDM volume 3B, section 20.1.4).
    """
    segments = (head[at + 2] | head[at + 3] << 8 for at in range(0, min(len(head), 1024) - 3, 4))
    return sum(segment == _BIOS for segment in segments) >= _IN_BIOS and len(head) >= 4 * _VECTORS


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        text = head[: error.start].decode("utf-8") if error.start >= len(head) - 3 else "\0"
    return "\0" not in text
