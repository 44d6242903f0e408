"""One report on a page: what of its tree is shown, where, in which colour and with which facts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.model import UNEXPLAINED, Answer, Evidence
from memcensus.views.chart import HUES, Chart
from memcensus.views.csv import chosen
from memcensus.views.facts import clip, facts_of
from memcensus.views.grid import Grid
from memcensus.views.select import focus, prune
from memcensus.views.treemap import Kind, layout, parts
from memcensus.views.verdict import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memcensus.model import Report, Verdict
    from memcensus.subject import Look
    from memcensus.views.facts import Fact, Json
    from memcensus.views.treemap import Box, Cell, Part

STAGE = (1160.0, 560.0)
"""Pixels of the treemap on a desktop screen."""

MOST_PRINTED = 60
"""Accounts of the first two levels that are printed; of more, only the first level."""

MOST_SEGMENTS = 16
"""Parts of the bar that shows what the whole is made of."""

TITLES = {
    "live": "This machine's memory",
    "net": "A neural network",
    "ram": "A RAM image",
    "program": "A program",
    "web": "A web page",
    "game": "A game server",
}

TONES = {Answer.FITS: "good", Answer.TOO_BIG: "bad", Answer.TOO_CLOSE: "near"}


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the tree as it is shown: in the treemap, in the tree, in the bar."""

    number: int  # in the order of the page
    part: Part
    look: str  # CSS classes: colour of its top-level account, evidence, kind
    share: float  # percent of the root
    facts: tuple[Fact, ...]
    title: str  # the facts in one line, for readers without the script

    @property
    def evidence(self) -> Evidence:
        """How the bytes are known."""
        return _evidence(self.part)


@dataclass(frozen=True, slots=True)
class Tile:
    """A row's place in the treemap."""

    row: Row
    box: Box  # percent of the parent's inner box
    children: tuple[Tile, ...]

    def walk(self) -> Iterator[Tile]:
        """Yield this tile and all inside it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar that shows what the whole is made of."""

    name: str
    total: int  # bytes
    share: float  # percent of the root
    look: str
    row: Row | None  # None: several small ones together


@dataclass(frozen=True, slots=True)
class Meter:
    """A verdict as one bar, in percent of its length."""

    low: float  # peak - error
    high: float  # peak + error
    limit: float

    @classmethod
    def of(cls, verdict: Verdict) -> Meter:
        """Return the bar of ``verdict``; it is as long as the larger of the two sides."""
        whole = max(verdict.peak + verdict.error, verdict.budget.limit, 1)
        low, high = max(verdict.peak - verdict.error, 0), verdict.peak + verdict.error
        return cls(100 * low / whole, 100 * high / whole, 100 * verdict.budget.limit / whole)


@dataclass(frozen=True, slots=True)
class Section:
    """One report on the page."""

    number: int
    report: Report
    rows: tuple[Row, ...]
    stage: Tile
    segments: tuple[Segment, ...]
    chart: Chart | None
    grids: tuple[Grid, ...]

    @classmethod
    def of(cls, report: Report, number: int, look: Look) -> Section:
        """Return what the page shows of ``report``.

        Raises:
            UsageError: if it has no table called ``look.table``.
        """
        tables = report.tables if look.table is None else (chosen(report, look.table),)
        root = report.root if look.focus is None else focus(report.root, look.focus)
        root = root if look.depth is None else prune(root, look.depth)
        whole = parts(root)
        rows = tuple(_rows(whole))
        looks = {row.part.name: row.look for row in rows if row.part.level == 1}
        grids = tuple(Grid.of(table, look) for table in tables)
        stage = _tile(layout(whole, *STAGE), {id(row.part): row for row in rows})
        return cls(number, report, rows, stage, _segments(rows), Chart.of(report, looks), grids)

    @property
    def title(self) -> str:
        """The subject in words."""
        return TITLES.get(self.report.subject, self.report.subject)

    @property
    def target(self) -> str:
        """The target as the user named it."""
        return self.report.target or "this machine"

    @property
    def verdict(self) -> str:
        """The verdict as a sentence."""
        return sentence(self.report.verdict)

    @property
    def tone(self) -> str:
        """The CSS class of the verdict."""
        return "none" if self.report.verdict is None else TONES[self.report.verdict.answer]

    @property
    def is_long(self) -> bool:
        """Say whether two levels of the tree are too many to print."""
        return sum(row.part.level <= 2 for row in self.rows) > MOST_PRINTED

    @property
    def meter(self) -> Meter | None:
        """Peak, error and limit as one bar."""
        return None if self.report.verdict is None else Meter.of(self.report.verdict)

    def rules(self) -> Iterator[str]:
        """Yield the places of tiles, segments and labels as CSS; the policy forbids ``style=``."""
        for tile in self.stage.walk():
            box = tile.box
            yield (
                f":where(#p{self.number}-{tile.row.number}){{left:{box.x:.3f}%;top:{box.y:.3f}%;"
                f"width:{box.width:.3f}%;height:{box.height:.3f}%}}"
            )
        for at, segment in enumerate(self.segments):
            yield f"#s{self.number}-{at}{{width:{segment.share:.3f}%}}"
        if self.chart is not None:
            yield from self.chart.rules(self.number)

    def data(self) -> dict[str, Json]:
        """Return what the script needs of this report."""
        return {
            "parts": [[clip(row.part.name), row.facts] for row in self.rows],
            "chart": None if self.chart is None else self.chart.data(),
            "tables": [grid.data() for grid in self.grids],
        }


def _rows(whole: Part) -> Iterator[Row]:
    """Yield a row for each part, parents first, with the colour of its top-level account."""
    above: list[Part] = []
    hue = -1
    for number, part in enumerate(whole.walk()):
        del above[part.level :]
        hue += part.level == 1
        facts = tuple(_facts(part, above))
        share = 100 * part.total / whole.total if whole.total else 0.0
        title = " · ".join((clip(part.name), *(f"{name}: {value}" for name, value in facts)))
        yield Row(number, part, _look(part, hue), share, facts, title)
        above.append(part)


def _look(part: Part, hue: int) -> str:
    """Return the CSS classes of ``part``; those of the root have no hue."""
    plain = part.kind is Kind.ACCOUNT and part.name != UNEXPLAINED
    colour = f"h{hue % HUES}" if part.level and plain else "grey"
    kind = part.kind if part.kind is not Kind.ACCOUNT or plain else "unexplained"
    return f"{colour} l{min(part.level, 5)} e-{_evidence(part)} k-{kind}"


def _evidence(part: Part) -> Evidence:
    """Return how a part's bytes are known; a sum of several is computed."""
    return Evidence.COMPUTED if part.kind is Kind.SMALLER else part.account.source.evidence


def _facts(part: Part, above: Sequence[Part]) -> Iterator[Fact]:
    yield "bytes", units.both(part.total)
    if part.error:
        yield "may be off by", f"± {units.both(part.error)}"
    if above:
        yield "share of all", units.share(part.total, above[0].total)
    if len(above) > 1:
        yield f"share of {clip(above[-1].name, 60)}", units.share(part.total, above[-1].total)
    if part.kind is Kind.SMALLER:
        yield "stands for", f"{part.hidden:,} accounts, each smaller than those shown"
        yield from facts_of(replace(part.account.source, evidence=_evidence(part)))
        return
    if part.kind is Kind.OWN:
        yield "stands for", f"what {clip(part.account.name, 60)} holds in none of its parts"
    elif part.hidden:
        yield "parts not shown", f"{part.hidden:,}"
    if part.account.borrowed and part.kind is Kind.ACCOUNT:
        borrowed = units.both(part.account.borrowed)
        yield "borrowed", f"{borrowed} used here, owned elsewhere, not in the sum"
    if part.kind is Kind.ACCOUNT:
        for quantity in part.account.quantities:
            yield clip(quantity.name, 60), f"{quantity.value:,} {clip(quantity.unit, 60)}"
    yield from facts_of(part.account.source)


def _tile(cell: Cell, rows: Mapping[int, Row]) -> Tile:
    children = tuple(_tile(child, rows) for child in cell.children)
    return Tile(rows[id(cell.part)], cell.box, children)


def _segments(rows: Sequence[Row]) -> tuple[Segment, ...]:
    """Return the root's parts in their order, the smallest of many together at the end."""
    tops = [row for row in rows if row.part.level == 1] or list(rows[:1])
    ranked = sorted(tops, key=lambda row: (row.part.kind is Kind.SMALLER, -row.part.total))
    few = len(tops) <= MOST_SEGMENTS
    kept = {row.number for row in (ranked if few else ranked[: MOST_SEGMENTS - 1])}
    segments = [
        Segment(row.part.name, row.part.total, row.share, row.look, row)
        for row in tops
        if row.number in kept
    ]
    small = [row for row in tops if row.number not in kept]
    if small:
        number = sum(row.part.hidden if row.part.kind is Kind.SMALLER else 1 for row in small)
        total, share = sum(row.part.total for row in small), sum(row.share for row in small)
        segments.append(Segment(f"{number:,} smaller", total, share, "grey k-smaller", None))
    return tuple(segments)
