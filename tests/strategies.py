"""Random model values for property tests: valid by the model's rules, with text meant to do harm.

Every strategy gives whole values. Text may hold control characters, bidirectional overrides,
quotes, markup and emoji, but no surrogates, as ``text.decode`` never lets one through.
"""

from __future__ import annotations

from hypothesis import strategies as st

from memcensus.fit import judge
from memcensus.model import (
    Absence,
    Account,
    Budget,
    Cell,
    Clock,
    Column,
    Evidence,
    Gap,
    Quantity,
    Report,
    Series,
    Source,
    Table,
    Timeline,
    Verdict,
)

MOST_BYTES = 2**50
"""Largest size drawn; sums of a few stay far below what any format holds."""

HOSTILE = (
    "",
    " ",
    "<script>window.owned=1</script>",
    "</script><script>window.owned=1</script>",
    "</title></style><b>",
    "<!--<script>",
    "--><img src=x onerror='window.owned=1'>",
    '"><img src=x onerror=window.owned=1>',
    "' onmouseover='window.owned=1",
    "javascript:window.owned=1",
    "{{ 7*7 }}{% raw %}",
    "&lt;b&gt;&amp;",
    "\x1b[2J\x1b]0;owned\x07",
    "a\x00b\tc\rd\ne\x7f\x9b",
    "\u202egpj.exe\u202c",
    "\u2028\u2029\u200b\ufeff",
    "[bold red]x[/bold red][link=http://x]",
    '=HYPERLINK("x")',
    "a/b\\c,d;e",
    "naïve 名前 🐧",
    "e\u0301" * 40,
    "x" * 300,
)

nasty: st.SearchStrategy[str] = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
sizes: st.SearchStrategy[int] = st.one_of(
    st.integers(0, 4096), st.integers(0, MOST_BYTES), st.just(0)
)
sources: st.SearchStrategy[Source] = st.builds(
    Source, st.sampled_from(Evidence), nasty, st.one_of(st.just(""), nasty)
)
gaps: st.SearchStrategy[Gap] = st.builds(Gap, nasty, st.sampled_from(Absence), nasty)
quantities: st.SearchStrategy[Quantity] = st.builds(
    Quantity, nasty, st.integers(-(2**62), 2**62), nasty
)
budgets: st.SearchStrategy[Budget] = st.builds(Budget, sizes, sources)
verdicts: st.SearchStrategy[Verdict] = st.builds(judge, sizes, sizes, budgets)
cells: st.SearchStrategy[Cell] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=False, allow_infinity=False),
    nasty,
)


@st.composite
def accounts(draw: st.DrawFn, levels: int = 2) -> Account:
    """Return an account with up to ``levels`` levels of accounts below it."""
    children: list[Account] = []
    if levels:
        names = draw(st.lists(nasty, max_size=3, unique=True))
        children = [_renamed(draw(accounts(levels - 1)), name) for name in names]
    return Account(
        draw(nasty),
        draw(sizes),
        draw(sources),
        tuple(children),
        error=draw(sizes),
        borrowed=draw(sizes),
        quantities=tuple(draw(st.lists(quantities, max_size=1))),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Return a timeline of up to four series, siblings below one root."""
    names = draw(st.lists(nasty, min_size=1, max_size=4, unique=True))
    return Timeline(
        draw(st.sampled_from(Clock)),
        tuple(_series(draw, ("root", name)) for name in names),
        _marks(draw),
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Return a table of up to three columns and four rows; a column may mix kinds of cells."""
    units = st.sampled_from((None, "B", "page", "<u>"))
    columns = draw(st.lists(st.builds(Column, nasty, units), max_size=3))
    row = st.tuples(*(cells for _ in columns))
    rows = draw(st.lists(row, max_size=4))
    return Table(
        draw(nasty), tuple(columns), tuple(rows), tuple(draw(sources) for _ in range(len(rows)))
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Return a whole report; if it has a timeline, it agrees with the tree at the instant."""
    root = draw(accounts())
    timed = draw(st.booleans())
    instant = draw(st.integers(-5, 1000)) if timed else None
    timeline = None if instant is None else _timeline_of(draw, root, instant)
    return Report(
        draw(st.sampled_from(("live", "net", "ram"))),
        draw(nasty),
        root,
        instant,
        timeline,
        tuple(draw(st.lists(tables(), max_size=2, unique_by=lambda table: table.name))),
        tuple(draw(st.lists(gaps, max_size=3))),
        draw(st.one_of(st.none(), verdicts)),
        draw(st.booleans()),
    )


def _timeline_of(draw: st.DrawFn, root: Account, instant: int) -> Timeline:
    """Return the children's bytes over time, passing through the tree's at ``instant``."""
    parts = [((root.name, child.name), child.total) for child in root.children]
    if root.own or not parts:
        held = root.total - sum(total for _, total in parts)
        names = {child.name for child in root.children}
        own = next(name for name in map("own{}".format, range(9)) if name not in names)
        parts.append(((root.name, own), held))
    series = tuple(_series(draw, path, (instant, size)) for path, size in parts)
    return Timeline(draw(st.sampled_from(Clock)), series, _marks(draw))


def _series(
    draw: st.DrawFn, path: tuple[str, ...], through: tuple[int, int] | None = None
) -> Series:
    """Return a series; with ``through`` = (time, bytes) it holds those bytes at that time."""
    points = sorted(draw(st.lists(st.tuples(st.integers(-20, 1100), sizes), max_size=5)))
    if through is not None:
        before = [point for point in points if point[0] < through[0]]
        points = [*before, through, *(point for point in points if point[0] > through[0])]
    return Series(path, tuple(time for time, _ in points), tuple(size for _, size in points))


def _marks(draw: st.DrawFn) -> tuple[tuple[int, str], ...]:
    return tuple(draw(st.lists(st.tuples(st.integers(-20, 1100), nasty), max_size=3)))


def _renamed(account: Account, name: str) -> Account:
    return Account(
        name,
        account.own,
        account.source,
        account.children,
        account.error,
        account.borrowed,
        account.quantities,
    )
