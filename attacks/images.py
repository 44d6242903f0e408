"""Attacks on the reader of RAM images: damaged, cut, and dressed up as one."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import zstandard

from attacks.attack import Attack, Make, file, words

MIB = 1 << 20
BTF_MAGIC = 0x0001_EB9F


def _image(content: bytes) -> Make:
    """Return a maker of an image of 4 MiB of zeros with ``content`` at 1 MiB."""
    return file("m.raw", bytes(MIB) + content + bytes(3 * MIB - len(content)), "ram")


def _random_bytes(folder: Path) -> list[str]:
    path = folder / "random.raw"
    path.write_bytes(random.Random(7).randbytes(4 * MIB))  # noqa: S311  (not a secret)
    return ["ram", str(path)]


def _btf_bomb(folder: Path) -> list[str]:
    """Thousands of headers, each promising gigabytes of types."""
    header = struct.pack("<IIIIII", BTF_MAGIC, 24, 0, 0xFFFF_FFF0, 0xFFFF_FFF0, 0xFFFF_FFFF)
    return _image(header * 40_000)(folder)


def _btf_loop(folder: Path) -> list[str]:
    """A plausible header whose types all refer to themselves."""
    types = struct.pack("<III", 1, 0x0800_0000, 1) * 60_000
    strings = b"\0task_struct\0" + b"x" * 300_000
    header = struct.pack("<IIIIII", BTF_MAGIC, 24, 0, len(types), len(types), len(strings))
    return _image(header + types + strings)(folder)


def _tokens_everywhere(folder: Path) -> list[str]:
    """The anchor of kallsyms, over and over, with nothing around it."""
    return _image(b"".join(b"%d\0" % n for n in range(10)) * 50_000)(folder)


def _zstd_cut(folder: Path) -> list[str]:
    path = folder / "cut.raw.zst"
    whole = zstandard.ZstdCompressor().compress(random.Random(7).randbytes(MIB))  # noqa: S311
    path.write_bytes(whole[: len(whole) // 2])
    return ["ram", str(path)]


def _zstd_bomb(folder: Path) -> list[str]:
    """A few kilobytes that unpack to 64 GiB of zeros."""
    path = folder / "bomb.raw.zst"
    frame = zstandard.ZstdCompressor(level=19).compress(bytes(64 * MIB))
    path.write_bytes(frame * 1024)
    return ["ram", str(path)]


def _symlink_loop(folder: Path) -> list[str]:
    path = folder / "a.raw"
    path.symlink_to(path)
    return ["ram", str(path)]


NONE_FOUND = "memcensus: .*(no |not )"

ATTACKS = {
    "ram: an empty file": Attack("divide by zero", file("e.raw", b"", "ram"), 3, "empty"),
    "ram: a text file": Attack(
        "be scanned", file("t.raw", b"hello\n" * 9000, "ram"), 3, NONE_FOUND
    ),
    "ram: random bytes": Attack("look like a kernel", _random_bytes, 3, NONE_FOUND),
    "ram: zeros": Attack("match everything", _image(b""), 3, NONE_FOUND),
    "ram: one byte": Attack("be a page", file("b.raw", b"x", "ram"), 3, NONE_FOUND),
    "ram: BTF headers that promise gigabytes": Attack("exhaust memory", _btf_bomb, 3, NONE_FOUND),
    "ram: BTF types that refer to themselves": Attack("loop for ever", _btf_loop, 3, NONE_FOUND),
    "ram: kallsyms anchors everywhere": Attack("take hours", _tokens_everywhere, 3, NONE_FOUND),
    "ram: a zstd frame cut in half": Attack("be taken as whole", _zstd_cut, 3, "cut.raw.zst"),
    "ram: a zstd bomb": Attack("fill the disk", _zstd_bomb, 3, "bomb.raw.zst"),
    "ram: no such file": Attack("raise", lambda _f: ["ram", "/nowhere/x.raw"], 3, "no such file"),
    "ram: a folder": Attack("be mapped", lambda f: ["ram", str(f)], 3, "directory|folder"),
    "ram: an endless device": Attack("be mapped", words("ram", "/dev/zero"), 3, "no regular file"),
    "ram: a link to itself": Attack("loop", _symlink_loop, 3, "a.raw"),
}
