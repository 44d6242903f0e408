"""The array walk of page tables against a slow and obvious one, on tables of all kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcensus.ram import paging
from memcensus.ram.paging import FRAME, HUGE, NO_ACCESS, PRESENT

if TYPE_CHECKING:
    from memcensus.ram.image import Words

PAGES = 8  # of the pretended image
MASK = (1 << 64) - 1

flags = st.sampled_from([0, PRESENT, PRESENT, PRESENT | HUGE, NO_ACCESS, NO_ACCESS | HUGE, HUGE])
frames = st.integers(0, PAGES + 1) | st.integers(0, (1 << 40) - 1)


@st.composite
def entries(draw: st.DrawFn) -> int:
    """An entry as hardware and Linux write it: inverted where it is not present."""
    frame, bits = draw(frames) << 12, draw(flags)
    if bits & PRESENT:
        return frame | bits | draw(st.sampled_from([0, 1 << 63, 1 << 9]))
    return (~frame & FRAME) | bits


images = st.dictionaries(
    st.tuples(st.integers(0, PAGES - 1), st.integers(0, 511) | st.sampled_from([0, 255, 256, 511])),
    entries(),
    max_size=40,
)


def build(cells: dict[tuple[int, int], int]) -> Words:
    tables = np.zeros((PAGES, 512), np.uint64)
    for (page, index), entry in cells.items():
        tables[page, index] = entry
    return tables


def reference(tables: Words, page: int, shifts: tuple[int, ...], base: int = 0) -> list[
    tuple[int, int, int]
]:  # fmt: skip
    """(virtual address without its sign, physical address, shift) by recursion."""
    found = []
    for index in range(512):
        entry = int(tables[page, index])
        address = base | index << shifts[0]
        present = bool(entry & PRESENT)
        frame = (entry if present else ~entry) & FRAME
        may_be_leaf = shifts[0] in {12, 21, 30}
        leaf = shifts[0] == 12 or (may_be_leaf and bool(entry & HUGE))
        if leaf and (present or entry & NO_ACCESS):
            found.append((address, frame >> shifts[0] << shifts[0], shifts[0]))
        elif present and not leaf and frame >> 12 < PAGES:
            found += reference(tables, frame >> 12, shifts[1:], address)
    return found


def signed(address: int, levels: int) -> int:
    top = paging.SHIFTS[levels][0] + 9
    return address | (MASK ^ ((1 << top) - 1)) if address >> (top - 1) & 1 else address


@settings(max_examples=60, deadline=None)
@given(
    images,
    st.sampled_from([4, 5]),
    st.sampled_from([paging.USER, paging.KERNEL]),
    st.sampled_from([1, 2, 2048]),
)
@example({(0, 0): 1 << 12 | PRESENT, (1, 0): HUGE | PRESENT}, 4, paging.USER, 1)
@example(
    {(0, 511): 1 << 12 | PRESENT, (1, 0): ~(3 << 30) & FRAME | HUGE | NO_ACCESS},
    4,
    paging.KERNEL,
    2048,
)
def test_the_walk_is_the_obvious_walk(
    cells: dict[tuple[int, int], int], levels: int, half: slice, at_once: int
) -> None:
    # A table that leads back to itself has too many ways through it for the slow walk.
    cells = {
        (page, index): entry
        for (page, index), entry in cells.items()
        if not entry & PRESENT or entry & HUGE or (entry & FRAME) >> 12 > page
    }
    tables = build(cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_AT_ONCE", at_once)  # tables gathered at a time
        walk = paging.walk(tables, [0], levels, half)
    ours = list(
        zip(
            walk.leafs.address.tolist(),
            walk.leafs.physical.tolist(),
            walk.leafs.shift.tolist(),
            strict=True,
        )
    )
    top = paging.SHIFTS[levels][0]
    theirs = [
        (signed(address, levels), physical, shift)
        for address, physical, shift in reference(tables, 0, paging.SHIFTS[levels])
        if half.start <= address >> top < half.stop
    ]
    assert sorted(ours) == sorted(theirs)
    assert not walk.cut
    for address, physical, shift in theirs:
        inside = (1 << shift) - 1
        assert paging.translate(tables, 0, levels, address + inside) == physical + inside


@settings(max_examples=30, deadline=None)
@given(images, st.sampled_from([4, 5]), st.integers(0, MASK))
def test_any_tables_end_and_stay_inside(
    cells: dict[tuple[int, int], int], levels: int, address: int
) -> None:
    tables = build(cells)
    walk = paging.walk(tables, [0, PAGES << 12, 0], levels)
    assert set(walk.tables[:, 0].tolist()) <= set(range(PAGES))
    assert walk.lost >= 1  # the root outside of the image
    pages, leaf = paging.frames_of(walk.leafs, PAGES)
    assert len(pages) == len(leaf)
    assert all(0 <= page < PAGES for page in pages.tolist())
    found = paging.translate(tables, 0, levels, address)
    assert found is None or found & 0xFFF == address & 0xFFF


@pytest.mark.parametrize("at_once", [1, 2, 3, 2048])
def test_spaces_walked_together_are_each_walked_alone(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    # Three roots with 1, 2 and 3 tables below them.
    tables = build(
        {
            (0, 0): 4 << 12 | PRESENT,
            (1, 0): 4 << 12 | PRESENT,
            (1, 1): 5 << 12 | PRESENT,
            (2, 3): 4 << 12 | PRESENT,
            (2, 4): 5 << 12 | PRESENT,
            (2, 5): 6 << 12 | PRESENT,
            (4, 0): 5 << 30 | PRESENT | HUGE,
            (5, 7): 6 << 30 | PRESENT | HUGE,
            (6, 1): 7 << 30 | PRESENT | HUGE,
        }
    )
    roots = [0, 1 << 12, 2 << 12]
    alone = [paging.walk(tables, [root], 4).leafs.address.tolist() for root in roots]
    assert [len(addresses) for addresses in alone] == [1, 2, 3]
    monkeypatch.setattr(paging, "_AT_ONCE", at_once)
    leafs = paging.walk(tables, roots, 4).leafs
    together = [leafs.address[leafs.space == space].tolist() for space in range(3)]
    assert together == alone


def test_tables_that_lead_to_themselves_are_cut() -> None:
    tables = np.full((2, 512), PRESENT, np.uint64)  # every entry leads to page 0, a full table
    walk = paging.walk(tables, [0], 5)
    assert walk.cut
    assert len(walk.leafs) < 10_000_000


def test_huge_leafs_of_damaged_tables_are_cut() -> None:
    tables = np.zeros((1 << 12, 512), np.uint64)  # 16 MiB
    tables[0], tables[1] = 1 << 12 | PRESENT, 2 << 12 | PRESENT
    tables[2] = PRESENT | HUGE  # every entry maps the first 2 MiB of the image
    walk = paging.walk(tables, [0], 4)
    assert paging.too_many(walk.leafs, len(tables))
    pages, leaf = paging.frames_of(walk.leafs, len(tables))
    assert 0 < len(pages) == len(leaf) <= 32 * len(tables) + 65536


def test_frames_are_shared_between_spaces() -> None:
    tables = build({(0, 0): 2 << 12 | PRESENT, (1, 0): 2 << 12 | PRESENT, (2, 0): 3 << 12 | PRESENT,
                    (3, 1): 4 << 12 | PRESENT, (4, 2): 5 << 12 | PRESENT})  # fmt: skip
    walk = paging.walk(tables, [0, 1 << 12], 4)
    assert walk.leafs.space.tolist() == [0, 1]
    assert walk.leafs.physical.tolist() == [5 << 12] * 2
    assert walk.leafs.address.tolist() == [(1 << 21) + (2 << 12)] * 2
