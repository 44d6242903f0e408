"""kallsyms of real kernels: all of it against the guest's, and damaged in any way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memcensus.ram.linux import kallsyms
from tests.ram.test_image import image_of

if TYPE_CHECKING:
    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")

DIGITS = b"".join(b"%d\0" % digit for digit in range(10))
SPAN = 3 << 20  # bytes before and after the names that hold the whole table


def test_names_are_found_both_ways(guest: Opened) -> None:
    symbols = guest.kernel.symbols
    for name in ("init_task", "linux_banner", "init_top_pgt", "page_offset_base"):
        address = symbols.address(name)
        assert symbols.nearest(address + 1) == name
    assert symbols.get("no_such_symbol") is None
    assert symbols.get("nit_task") is None  # the end of a name is not the name


def test_vmcoreinfo_knows_where_the_table_stands(guest: Opened) -> None:
    note, memory = guest.kernel.note, guest.kernel.memory
    assert note is not None
    names = note.address("SYMBOL(kallsyms_names)")
    count = note.address("SYMBOL(kallsyms_num_syms)")
    assert names is not None
    assert count is not None
    assert memory.physical(names) == guest.kernel.symbols.place
    assert memory.u32(count) == len(guest.kernel.symbols)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2 * SPAN - 1), st.integers(0, 255)), max_size=30))
def test_a_table_with_changed_bytes_is_read_or_refused(
    sample: Opened, changes: list[tuple[int, int]]
) -> None:
    start = sample.kernel.symbols.place - SPAN
    region = bytearray(sample.image.read(start, 2 * SPAN))
    for at, value in changes:
        region[at] = value
    for symbols in kallsyms.search(image_of(bytes(region)), 0, len(region)):
        assert symbols.get("_text") is not None or symbols.get("_stext") is not None
        symbols.nearest(symbols.base)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.large_base_example])
@given(st.binary(max_size=4000), st.binary(max_size=4000), st.integers(0, 300))
def test_random_bytes_around_the_digits_are_refused(
    before: bytes, after: bytes, tokens: int
) -> None:
    content = before + b"a\0" * tokens + DIGITS + b"b\0" * tokens + after
    image = image_of(content.ljust(8192, b"\0"))
    assert list(kallsyms.search(image, 0, image.size)) == []
