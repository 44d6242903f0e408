"""What is RAM: whole pages inside the ranges that are called so."""

from __future__ import annotations

import pytest

from memcensus.ram.image import PAGE
from memcensus.ram.linux.resources import RAM, Resource, ram_pages, ram_size


@pytest.mark.parametrize(
    ("start", "end", "pages"),
    [
        (0, 4 * PAGE - 1, [0, 1, 2, 3]),
        (1, 4 * PAGE - 1, [1, 2, 3]),
        (PAGE, 4 * PAGE - 2, [1, 2]),  # as 0x1000-0x9fbff of a BIOS
        (PAGE, PAGE, []),
        (3 * PAGE, 100 * PAGE, [3, 4, 5]),  # the image has six pages
        (100 * PAGE, 200 * PAGE, []),
    ],
)
def test_a_page_that_a_border_cuts_is_no_ram(start: int, end: int, pages: list[int]) -> None:
    mask = ram_pages([Resource(0, start, end, RAM), Resource(0, 0, 9 * PAGE, "Reserved")], 6)
    assert [number for number, is_ram in enumerate(mask.tolist()) if is_ram] == pages


def test_the_size_of_ram_does_not_end_with_the_image() -> None:
    ranges = [Resource(0, PAGE, 4 * PAGE - 2, RAM), Resource(0, 10 * PAGE, 20 * PAGE - 1, RAM)]
    assert ram_size(ranges) == 12 * PAGE
    assert ram_size([Resource(0, 5, 6, RAM)]) == 0
