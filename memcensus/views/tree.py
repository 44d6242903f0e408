"""The account tree in a terminal: names, bytes, share, a bar, and how each number is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NoReturn

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from memcensus import units
from memcensus.text import printable
from memcensus.views.select import focus, prune
from memcensus.views.verdict import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from memcensus.model import Account, Report, Source
    from memcensus.subject import Look

BAR = 24
"""Columns of a full bar."""

SMALLER_THAN = 512
"""A level shows its largest accounts; those below total/512 are summed in one line."""

FEW = 3
"""Fewer small accounts than this are shown one by one."""


@dataclass(frozen=True, slots=True)
class Brief:
    """How much of a tree is drawn."""

    levels: int | None = None  # below the root
    most: int | None = None  # children of one account; the rest is summed
    floor: int = 0  # bytes; smaller accounts are summed


STYLES = {
    "measured": "green",
    "computed": "cyan",
    "estimated": "yellow",
    "assumed": "magenta",
    "fits": "bold green",
    "too big": "bold red",
    "too close to call": "bold yellow",
}


class TreeView:
    """All accounts of each report, as deep as they go or ``--depth`` says."""

    name: ClassVar[str] = "tree"
    suffix: ClassVar[str] = ".txt"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write each tree and its verdict."""
        terminal = console(out, look)
        for report in reports:
            terminal.print(heading(report))
            terminal.print(accounts(report, look))
            terminal.print(verdict(report), soft_wrap=True)


class Paper(Console):
    """A console that leaves it to the command line what a reader that has gone means."""

    def on_broken_pipe(self) -> NoReturn:
        """Raise, where rich would exit with 1: that code says "does not fit"."""
        raise BrokenPipeError


def console(out: TextIO, look: Look) -> Paper:
    """Return a console that writes to ``out`` and interprets nothing in what it is given."""
    return Paper(
        file=out,
        width=look.width,
        color_system="standard" if look.colour else None,
        force_terminal=look.colour,
        no_color=not look.colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def heading(report: Report) -> Text:
    """Return the title line: subject, target, total."""
    partial = "  (partial: interrupted)" if report.partial else ""
    title = f"{printable(report.subject)}: {printable(report.target) or 'this machine'}"
    total = f"  {units.both(report.root.total)}{partial}"
    return Text.assemble((title, "bold"), total, overflow="fold")


def verdict(report: Report) -> Text:
    """Return the last line."""
    style = STYLES[report.verdict.answer] if report.verdict else "dim"
    return Text(sentence(report.verdict), style=style)


def accounts(report: Report, look: Look, brief: Brief | None = None) -> Grid:
    """Return the grid of the report's accounts; all of them, unless ``brief`` or --depth bounds."""
    grid = Grid(box=None, padding=(0, 1, 0, 0), show_header=False, pad_edge=False)
    grid.add_column(overflow="fold", ratio=1 if look.explain else None)
    for _ in range(2):
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True, width=BAR)
    grid.add_column(no_wrap=not look.explain, overflow="fold" if look.explain else "ellipsis")
    root = report.root if look.focus is None else focus(report.root, look.focus)
    brief = Brief() if brief is None or look.depth is not None else brief
    levels = brief.levels if look.depth is None else look.depth
    root = root if levels is None else prune(root, levels)
    for level, account in _shown(root, 0, replace(brief, floor=root.total // SMALLER_THAN)):
        grid.add_row(*_row(account, level, root.total, look))
    return grid


def provenance(source: Source, *, explain: bool) -> Text:
    """Return how a number is known; with ``explain`` also where from and what it means."""
    words: list[tuple[str, str]] = [(source.evidence.value, STYLES[source.evidence])]
    if explain:
        words.append((f"  {printable(source.where)}", ""))
        if source.meaning:
            words.append((f"\n{printable(source.meaning)}", "dim"))
    return Text.assemble(*words)


def _row(
    account: Account, level: int, whole: int, look: Look
) -> tuple[Text, Text, Text, Text, Text]:
    name = Text("  " * level + printable(account.name))
    error = f" ± {units.size(account.total_error)}" if account.total_error else ""
    borrowed = f"  (+ {units.size(account.borrowed)} borrowed)" if account.borrowed else ""
    name.append(borrowed, style="dim")
    filled = account.total / whole if whole else 0.0
    return (
        name,
        Text(units.size(account.total) + error),
        Text(units.share(account.total, whole)),
        Text(bar(filled), style="blue"),
        provenance(account.source, explain=look.explain),
    )


def bar(filled: float) -> str:
    """Return a bar for a share of 0 to 1, in eighths of a column."""
    eighths = round(filled * BAR * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _shown(account: Account, level: int, brief: Brief) -> Iterator[tuple[int, Account]]:
    """Yield the accounts to draw, largest first; the small ones of a level as one line."""
    yield level, account
    children = sorted(account.children, key=lambda child: -child.total)
    tall = [c for c in children if c.total >= brief.floor or c.borrowed][: brief.most]
    names = {child.name for child in tall}  # siblings have unique names
    small = [child for child in children if child.name not in names]
    if len(small) < FEW:
        tall, small = children, []
    for child in tall:
        yield from _shown(child, level + 1, brief)
    if small:
        yield level + 1, _together(small)


def _together(small: list[Account]) -> Account:
    total, error = sum(c.total for c in small), sum(c.total_error for c in small)
    return replace(
        small[0], name=f"{len(small)} smaller", own=total, error=error, children=(), quantities=()
    )
