"""Images of any size and damage: read as far as they go, never beyond."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from memcensus.errors import Unreadable
from memcensus.ram.compressed import open_zstd
from memcensus.ram.image import PAGE, Image, NotThere
from memcensus.subject import silent

if TYPE_CHECKING:
    from pathlib import Path


def image_of(content: bytes) -> Image:
    data = mmap.mmap(-1, len(content))
    data.write(content)
    return Image("x", data)


@settings(deadline=None)
@given(st.integers(-(2**70), 2**70), st.integers(-5, 2 * PAGE))
def test_a_read_is_whole_or_refused(address: int, count: int) -> None:
    content = os.urandom(PAGE + 100)
    image = image_of(content)
    if 0 <= count and 0 <= address <= len(content) - count:
        assert image.read(address, count) == content[address : address + count]
    else:
        with pytest.raises(NotThere):
            image.read(address, count)


@pytest.mark.parametrize("size", [PAGE, PAGE + 1, 3 * PAGE - 1])
def test_sizes_that_are_no_whole_pages(tmp_path: Path, size: int) -> None:
    path = tmp_path / "odd.raw"
    path.write_bytes(b"\1" * size)
    image = Image.open(path, "odd.raw")
    assert (image.size, image.pages) == (size, size // PAGE)
    assert image.tables.shape == (size // PAGE, 512)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.raw"
    path.touch()
    with pytest.raises(Unreadable, match=r"empty\.raw is empty"):
        Image.open(path, "empty.raw")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.raw.zst"
    path.write_bytes(zstandard.compress(bytes(64 << 20)) * 1024)  # 64 GiB
    with pytest.raises(Unreadable, match=r"bomb\.raw\.zst unpacks to more than"):
        open_zstd(path, path.name, silent)


@pytest.mark.parametrize("size", [1, PAGE - 1])
def test_less_than_a_page_is_refused_with_the_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "small.raw"
    path.write_bytes(b"x" * size)
    with pytest.raises(Unreadable, match=rf"holds {size:,} B"):
        Image.open(path, "small.raw")


def test_what_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"gone\.raw: no such file"):
        Image.open(tmp_path / "gone.raw", "gone.raw")


CONTENT = b"".join(bytes([page % 251]) * PAGE for page in range(700)) + bytes(200 * PAGE) + b"end"


@pytest.mark.parametrize("frames", [1, 3])
def test_zstd_gives_the_bytes_back(tmp_path: Path, frames: int) -> None:
    step = -(-len(CONTENT) // frames)
    parts = [CONTENT[at : at + step] for at in range(0, len(CONTENT), step)]
    path = tmp_path / "x.raw.zst"
    path.write_bytes(b"".join(zstandard.compress(part) for part in parts))
    image = open_zstd(path, path.name, silent)
    assert image.data[:] == CONTENT
    assert image.gaps == ()
    assert list(tmp_path.iterdir()) == [path]


def test_a_tail_of_zeros_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.raw.zst"
    path.write_bytes(zstandard.compress(b"\1" * PAGE + bytes(5_000_000)))
    assert open_zstd(path, path.name, silent).size == PAGE + 5_000_000


@settings(deadline=None)
@given(st.data())
def test_damaged_zstd_is_a_gap_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    # Bytes that hardly compress, so that the frame has many blocks.
    whole = bytearray(zstandard.compress(PACKED))
    if data.draw(st.booleans(), "cut"):
        del whole[data.draw(st.integers(5, len(whole) - 5)) :]
    else:
        whole[data.draw(st.integers(4, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("zstd") / "x.raw.zst"
    path.write_bytes(whole)
    try:
        image = open_zstd(path, path.name, silent)
    except Unreadable:
        return
    # Without a checksum in the frame a flipped bit may go unseen; a cut never does.
    assert image.gaps or image.size == len(PACKED)
    assert all("x.raw.zst" in gap.why for gap in image.gaps)


PACKED = os.urandom(400_000)
