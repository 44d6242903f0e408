"""A treemap of accounts: what of a large tree is drawn, and where.

``parts`` chooses what a page can show of a tree of any size; ``squarify`` and ``layout`` place it.
The layout is the squarified one: Bruls, Huizing, van Wijk, "Squarified Treemaps" (2000).

Places are percentages of the parent's inner box, so a page zooms by letting one cell fill its stage
and nothing is ever laid out twice. Among siblings, area is in proportion to bytes; between a parent
and its children it is a little off, because the parent's frame and heading take room.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcensus.model import Account

MOST_PARTS = 1500
"""Parts of a tree that one picture holds: more are smaller than a finger and slow a browser."""

MOST_SIBLINGS = 100
"""Children of one account that are shown; the others are one part, "n smaller"."""

MOST_LEVELS = 12
"""Levels below the root that are shown."""

HEADING, FRAME = 20.0, 3.0
"""Pixels that a part with children keeps for its name and its border (as in report.css)."""


class Kind(StrEnum):
    """What a part stands for."""

    ACCOUNT = "account"
    OWN = "own"  # the bytes that an account holds in none of its children
    SMALLER = "smaller"  # several small accounts together


@dataclass(frozen=True, slots=True)
class Part:
    """What is shown of an account: itself, its larger children in their order, the rest as one."""

    kind: Kind
    account: Account  # the account itself; for OWN and SMALLER their parent
    name: str
    total: int  # bytes
    error: int  # bytes either way
    level: int  # 0 for the root
    children: tuple[Part, ...] = ()
    hidden: int = 0  # accounts that this part stands for and does not show

    def walk(self) -> Iterator[Part]:
        """Yield this part and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle, y downwards; in pixels, or in percent of what it lies in."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A part and its place."""

    part: Part
    box: Box  # percent of the inner box of the parent; of the stage for the root
    children: tuple[Cell, ...] = ()


def parts(root: Account, most: int = MOST_PARTS) -> Part:
    """Return what a page shows of ``root``: at most about ``most`` parts, the largest first.

    An account is opened before every smaller one, so a page spends its room where the bytes are.
    Nothing is dropped: at each level the parts, hidden ones included, sum to the total.
    """
    draft = _Draft(root, 0)
    order = count()  # so that the heap never compares drafts
    waiting = [(-root.total, next(order), draft)]
    room = most - 1
    while waiting and room > 0:
        _, _, opened = heapq.heappop(waiting)
        shown, small = _largest(opened.account.children)
        cost = len(shown) + bool(small) + bool(opened.account.own)
        if not opened.account.children or opened.level == MOST_LEVELS or cost > room:
            continue
        room -= cost
        opened.shown = [_Draft(child, opened.level + 1) for child in shown]
        opened.small = small
        for child in opened.shown:
            heapq.heappush(waiting, (-child.account.total, next(order), child))
    return _finish(draft)


def squarify(sizes: Sequence[int], box: Box) -> list[Box]:
    """Tile ``box`` by areas in proportion to ``sizes``, which must fall and be above zero.

    Returns one box for each size, in their order; one below 2^-52 of the whole may have no area.
    """
    boxes: list[Box] = []
    left = sum(sizes)  # bytes of the rows to come
    start = 0
    while start < len(sizes):
        scale = box.width * box.height / left
        side = min(box.width, box.height)
        if not scale:  # what is left is less than a float can tell from nothing
            return boxes + [box] * (len(sizes) - start)
        end, held = start + 1, sizes[start]
        worst = _worst(sizes[start], sizes[start], held, side, scale)
        while end < len(sizes):
            wider = _worst(sizes[start], sizes[end], held + sizes[end], side, scale)
            if wider > worst:
                break
            worst, held, end = wider, held + sizes[end], end + 1
        row, box = _lay(sizes[start:end], held, box, held / left)
        boxes += row
        left -= held
        start = end
    return boxes


def layout(part: Part, width: float, height: float) -> Cell:
    """Return the cells of ``part`` on a stage that is ``width`` x ``height`` pixels at first.

    The stage's shape only decides how square the cells are. Parts of zero bytes have no cell.
    """
    return _cell(part, Box(0.0, 0.0, 100.0, 100.0), width, height)


@dataclass(slots=True)
class _Draft:
    """An account on its way to be a part: not yet known whether it is opened."""

    account: Account
    level: int
    shown: list[_Draft] = field(default_factory=list)
    small: list[Account] = field(default_factory=list)


def _largest(children: Sequence[Account]) -> tuple[list[Account], list[Account]]:
    """Split into the largest, in their order, and the small rest; one left over is shown too."""
    if len(children) <= MOST_SIBLINGS + 1:
        return list(children), []
    ranked = sorted(range(len(children)), key=lambda at: -children[at].total)
    kept = set(ranked[:MOST_SIBLINGS])
    shown = [child for at, child in enumerate(children) if at in kept]
    return shown, [child for at, child in enumerate(children) if at not in kept]


def _finish(draft: _Draft) -> Part:
    account = draft.account
    children = [_finish(child) for child in draft.shown]
    level = draft.level + 1
    if draft.small:
        total = sum(child.total for child in draft.small)
        error = sum(child.total_error for child in draft.small)
        number = len(draft.small)
        name = f"{number:,} smaller"
        children.append(Part(Kind.SMALLER, account, name, total, error, level, hidden=number))
    if draft.shown and account.own:
        children.append(Part(Kind.OWN, account, "in no part", account.own, account.error, level))
    hidden = 0 if draft.shown else len(account.children)
    return Part(
        Kind.ACCOUNT,
        account,
        account.name,
        account.total,
        account.total_error,
        draft.level,
        tuple(children),
        hidden,
    )


def _worst(largest: int, smallest: int, held: int, side: float, scale: float) -> float:
    """Return the longest aspect ratio in a row of ``held`` bytes laid along ``side``."""
    # With s = held * scale (area): max(side^2 * max / s^2, s^2 / (side^2 * min)), section 3.2 of
    # the paper. Ratios of bytes first: products of areas would leave the range of a float.
    square = side * side / (held * scale)
    return max(square * (largest / held), (held / smallest) / square)


def _lay(row: Sequence[int], held: int, box: Box, share: float) -> tuple[list[Box], Box]:
    """Lay a row along the shorter side of ``box``; return its boxes and the box that is left."""
    upright = box.width >= box.height
    depth = (box.width if upright else box.height) * share
    side = box.height if upright else box.width
    boxes: list[Box] = []
    done = 0
    for size in row:
        at, run = side * (done / held), side * (size / held)
        boxes.append(
            Box(box.x, box.y + at, depth, run) if upright else Box(box.x + at, box.y, run, depth)
        )
        done += size
    if upright:
        return boxes, Box(box.x + depth, box.y, max(box.width - depth, 0.0), box.height)
    return boxes, Box(box.x, box.y + depth, box.width, max(box.height - depth, 0.0))


def _cell(part: Part, box: Box, width: float, height: float) -> Cell:
    ranked = sorted((child for child in part.children if child.total), key=lambda c: -c.total)
    if not ranked:
        return Cell(part, box)
    inner_width, inner_height = width - 2 * FRAME, height - HEADING - FRAME
    if min(inner_width, inner_height) < HEADING:  # too small for a heading: seen only when zoomed
        inner_width, inner_height = width, height
    places = squarify([child.total for child in ranked], Box(0, 0, inner_width, inner_height))
    cells = tuple(
        _cell(
            child,
            Box(
                100 * place.x / inner_width,
                100 * place.y / inner_height,
                100 * place.width / inner_width,
                100 * place.height / inner_height,
            ),
            place.width,
            place.height,
        )
        for child, place in zip(ranked, places, strict=True)
    )
    return Cell(part, box, cells)
