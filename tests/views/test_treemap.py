"""The treemap: area is bytes, every box lies inside its parent, and nothing is dropped."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.model import Account, Evidence, Source
from memcensus.views.treemap import (
    MOST_LEVELS,
    MOST_PARTS,
    MOST_SIBLINGS,
    Box,
    Cell,
    Kind,
    Part,
    layout,
    parts,
    squarify,
)
from tests.strategies import accounts

HERE = Source(Evidence.ASSUMED, "tests")
falling = st.lists(st.integers(1, 10**9), min_size=1, max_size=25).map(
    lambda sizes: sorted(sizes, reverse=True)
)
lengths = st.floats(1, 5000)


def overlap(a: Box, b: Box) -> float:
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    return max(width, 0.0) * max(height, 0.0)


def check_tiling(boxes: list[Box], sizes: list[int], whole: Box) -> None:
    area, slack = whole.width * whole.height, 1e-6
    for box, size in zip(boxes, sizes, strict=True):
        assert box.width * box.height == pytest.approx(
            area * size / sum(sizes), rel=1e-6, abs=area * 1e-9
        )
        assert whole.x - slack <= box.x
        assert whole.y - slack <= box.y
        assert box.x + box.width <= whole.x + whole.width + slack
        assert box.y + box.height <= whole.y + whole.height + slack
    overlaps = [overlap(a, b) for at, a in enumerate(boxes) for b in boxes[at + 1 :]]
    assert max(overlaps, default=0.0) <= area * 1e-9


class TestSquarify:
    def test_the_example_of_the_paper(self) -> None:
        """Bruls, Huizing, van Wijk 2000, figure 4: sizes 6 6 4 3 2 2 1 in a box of 6 by 4."""
        boxes = squarify([6, 6, 4, 3, 2, 2, 1], Box(0, 0, 6, 4))
        assert boxes[:2] == [Box(0, 0, 3, 2), Box(0, 2, 3, 2)]
        assert boxes[2].width == pytest.approx(12 / 7)
        assert boxes[2].height == boxes[3].height == pytest.approx(7 / 3)
        assert (boxes[4].width, boxes[4].height) == pytest.approx((6 / 5, 5 / 3))

    @given(falling, lengths, lengths, lengths, lengths)
    def test_areas_are_bytes_and_boxes_tile(
        self, sizes: list[int], x: float, y: float, width: float, height: float
    ) -> None:
        whole = Box(x, y, width, height)
        check_tiling(squarify(sizes, whole), sizes, whole)

    @given(st.integers(1, 40), st.integers(1, 1000))
    def test_equal_sizes_are_never_slivers(self, count: int, size: int) -> None:
        boxes = squarify([size] * count, Box(0, 0, 100, 100))
        worst = max(max(b.width / b.height, b.height / b.width) for b in boxes)
        assert worst <= min(count, 3)  # cut into strips it would be count

    def test_sizes_further_apart_than_a_float_can_tell(self) -> None:
        boxes = squarify([2**60, 1, 1], Box(0, 0, 100, 50))
        assert boxes[0] == Box(0, 0, 100, 50)
        assert boxes[1].width * boxes[1].height == pytest.approx(0)


class TestLayout:
    @given(accounts())
    def test_children_tile_their_parent_in_proportion(self, tree: Account) -> None:
        def check(cell: Cell) -> None:
            if cell.children:
                sizes = [child.part.total for child in cell.children]
                assert sum(sizes) == cell.part.total
                check_tiling([child.box for child in cell.children], sizes, Box(0, 0, 100, 100))
            for child in cell.children:
                check(child)

        cell = layout(parts(tree), 1000, 500)
        assert cell.box == Box(0, 0, 100, 100)
        check(cell)

    @given(accounts())
    def test_all_that_has_bytes_has_a_place(self, tree: Account) -> None:
        def shown(cell: Cell) -> int:
            return 1 + sum(map(shown, cell.children))

        whole = parts(tree)
        holding = sum(part.total > 0 for part in whole.walk() if part.level)
        assert shown(layout(whole, 800, 600)) == 1 + holding


class TestParts:
    @given(accounts())
    def test_at_each_level_the_parts_sum_to_the_total(self, tree: Account) -> None:
        for part in parts(tree).walk():
            if part.children:
                assert part.total == sum(child.total for child in part.children)

    @given(accounts())
    def test_a_small_tree_is_shown_whole_and_in_its_order(self, tree: Account) -> None:
        shown = [part.account for part in parts(tree).walk() if part.kind is Kind.ACCOUNT]
        assert shown == [account for _, account in tree.walk()]

    @given(accounts(), st.integers(1, 12))
    def test_there_are_at_most_as_many_as_asked_for(self, tree: Account, most: int) -> None:
        whole = parts(tree, most)
        assert sum(1 for _ in whole.walk()) <= most
        assert whole.total == tree.total

    def test_the_small_ones_of_many_are_one_part_that_says_how_many(self) -> None:
        many = tuple(Account(f"{at}", at % 500 + 1, HERE) for at in range(500))
        whole = parts(Account("whole", 7, HERE, many))
        *large, rest, own = whole.children
        assert [part.total for part in large] == list(range(401, 501))
        assert (rest.kind, rest.name, rest.hidden) == (Kind.SMALLER, "400 smaller", 400)
        assert rest.total == sum(range(1, 401))
        assert (own.kind, own.total) == (Kind.OWN, 7)
        assert len(large) == MOST_SIBLINGS

    def test_the_largest_are_opened_first(self) -> None:
        def group(name: str, size: int) -> Account:
            halves = (Account("a", size, HERE), Account("b", size, HERE))
            return Account(name, 0, HERE, halves)

        tree = Account("whole", 0, HERE, (group("small", 1), group("large", 9), group("mid", 5)))
        small, large, mid = parts(tree, 8).children
        assert [len(part.children) for part in (small, large, mid)] == [0, 2, 2]
        assert small.hidden == 2

    def test_a_tree_without_end_is_shown_in_part(self) -> None:
        """Each level holds the one below twice: 2^60 accounts in 60 objects."""
        below: tuple[Account, ...] = (Account("leaf", 1, HERE),)
        for _ in range(60):
            below = tuple(Account(name, 0, HERE, below) for name in "ab")
        whole = parts(Account("whole", 0, HERE, below))
        assert whole.total == 2**60
        found = list(whole.walk())
        assert MOST_PARTS - 2 <= len(found) <= MOST_PARTS
        assert all(before.level + 1 >= after.level for before, after in pairwise(found))

    def test_a_tree_of_great_depth_is_cut(self) -> None:
        deep = Account("leaf", 1, HERE)
        for at in range(300):
            deep = Account(f"{at}", 0, HERE, (deep,))
        found: list[Part] = list(parts(deep).walk())
        assert len(found) == MOST_LEVELS + 1
        assert found[-1].hidden == 1
