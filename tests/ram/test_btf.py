"""BTF written by hand from its documentation, and BTF of a real kernel that was damaged."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcensus.errors import MemcensusError, Unreadable
from memcensus.ram.linux.btf import NoSuchMember, Types
from tests.ram.test_image import image_of

if TYPE_CHECKING:
    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")

STRINGS = b"\0int\0outer\0a\0b\0inner\0colour\0RED\0BLUE\0"


def name(word: bytes) -> int:
    return STRINGS.index(b"\0" + word + b"\0") + 1


def blob(types: bytes) -> bytes:
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(STRINGS))
    return header + types + STRINGS + bytes(4096)


def info(kind: int, count: int, flag: int = 0) -> int:
    return flag << 31 | kind << 24 | count


# 1: int; 2: int[3]; 3: nameless struct {int inner; at byte 4}; 4: const of 1;
# 5: struct outer {const int a; struct {int pad, inner}; int b[3]} with bit-field encoding;
# 6: enum colour {RED = 5, BLUE = 7}
HAND = blob(
    struct.pack("<4I", name(b"int"), info(1, 0), 4, 32)
    + struct.pack("<6I", 0, info(3, 0), 0, 1, 1, 3)
    + struct.pack("<6I", 0, info(4, 1), 8, name(b"inner"), 1, 32)
    + struct.pack("<3I", 0, info(10, 0), 1)
    + struct.pack("<3I", name(b"outer"), info(4, 3, flag=1), 24)
    + struct.pack("<3I", name(b"a"), 4, 3 << 24 | 0)
    + struct.pack("<3I", 0, 3, 32)
    + struct.pack("<3I", name(b"b"), 2, 96)
    + struct.pack("<7I", name(b"colour"), info(6, 2), 4, name(b"RED"), 5, name(b"BLUE"), 7)
)


def test_offsets_sizes_arrays_and_enums() -> None:
    types = Types.parse(image_of(HAND), 0)
    assert types.size("outer") == 24
    assert [types.offset(f"outer.{m}") for m in ("a", "inner", "b")] == [0, 8, 12]
    assert types.array("outer.b") == 3
    assert types.enum("colour") == {"RED": 5, "BLUE": 7}
    assert types.enum("shape") == {}
    assert types.has("outer.a")
    assert not types.has("outer.c")
    with pytest.raises(NoSuchMember, match=r"outer\.c"):
        types.offset("outer.c")
    with pytest.raises(NoSuchMember, match="nothing"):
        types.size("nothing")


@settings(deadline=None)
@given(st.integers(0, len(HAND) - 4097), st.integers(0, 255))
def test_any_changed_byte_is_parsed_or_refused(at: int, value: int) -> None:
    changed = bytearray(HAND)
    changed[at] = value
    try:
        types = Types.parse(image_of(bytes(changed)), 0)
        types.offset("outer.inner")
        types.array("outer.b")
        types.enum("colour")
    except MemcensusError:
        pass


@settings(deadline=None)
@given(st.integers(1, len(HAND) - 4097))
def test_any_cut_is_refused(length: int) -> None:
    with pytest.raises(Unreadable):
        Types.parse(image_of(HAND[:length]), 0)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(0, 255)), max_size=40))
def test_a_real_kernels_types_with_changed_bytes(
    sample: Opened, changes: list[tuple[int, int]]
) -> None:
    region = bytearray(sample.image.read(sample.kernel.btf_place, 4_400_000))
    for at, value in changes:
        region[at] = value
    try:
        types = Types.parse(image_of(bytes(region)), 0)
        types.offset("task_struct.signal")
        types.size("page")
    except MemcensusError:
        pass
