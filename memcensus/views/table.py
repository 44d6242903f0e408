"""The default view: the top of the account tree, the tables, and the verdict as the last line."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from memcensus import units
from memcensus.text import printable
from memcensus.views.csv import chosen
from memcensus.views.select import row_matches
from memcensus.views.tree import Brief, accounts, console, heading, provenance, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from rich.console import Console

    from memcensus.model import Cell, Column, Report, Table
    from memcensus.subject import Look

TOP = Brief(levels=2, most=9)
"""What of the tree is shown unless --depth says otherwise."""

ROWS = 25
"""Rows of a table that are shown unless it was asked for by name."""

GUTTER, LEAST, NAME = 2, 8, 26
"""Columns between two columns, the least that words are cut to, and the longest name or time."""


FORMS: dict[str | None, Callable[[int], str]] = {"B": units.size, "address": hex}
"""Unit of a column -> how its whole numbers are written."""


class TableView:
    """What a person wants to see first."""

    name: ClassVar[str] = "table"
    suffix: ClassVar[str] = ".txt"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write each report; with ``look.table`` only that table, all its rows.

        Raises:
            UsageError: if a report has no table of that name.
        """
        terminal = console(out, look)
        for at, report in enumerate(reports):
            if at:
                terminal.print()
            if look.table is not None:
                _print_table(terminal, chosen(report, look.table), look, most=None)
            else:
                _print_whole(terminal, report, look)
            terminal.print(verdict(report), soft_wrap=True)


def _print_whole(terminal: Console, report: Report, look: Look) -> None:
    terminal.print(heading(report))
    terminal.print(accounts(report, look, TOP))
    terminal.print()
    for table in report.tables:
        if table.rows:
            _print_table(terminal, table, look, most=ROWS)
            terminal.print()


def _print_table(terminal: Console, table: Table, look: Look, most: int | None) -> None:
    rows = [at for at, row in enumerate(table.rows) if row_matches(row, look.focus)]
    grid = Grid(box=None, padding=(0, GUTTER, 0, 0), pad_edge=False, header_style="bold")
    brief = most is not None and not look.explain
    room = look.width * 2 // 3 if look.explain else look.width
    widths = _widths(table, rows[:most], room)
    for at, (column, width) in enumerate(zip(table.columns, widths, strict=True)):
        grid.add_column(
            Text(printable(column.name)),
            justify="right" if _is_numeric(table, at) else "left",
            width=width,
            no_wrap=brief,
            overflow="ellipsis" if brief else "fold",
        )
    if look.explain:
        grid.add_column("source", overflow="fold", ratio=1)
    for at in rows[:most]:
        cells = [_cell(c, col) for c, col in zip(table.rows[at], table.columns, strict=True)]
        if look.explain:
            cells.append(provenance(table.sources[at], explain=True))
        grid.add_row(*cells)
    count = (
        f"{len(rows):,}" if len(rows) == len(table.rows) else f"{len(rows)} of {len(table.rows)}"
    )
    noun = "row" if count == "1" else "rows"
    terminal.print(Text.assemble((printable(table.name), "bold underline"), f"  {count} {noun}"))
    terminal.print(grid)
    if most is not None and len(rows) > most:
        hint = f"  ... {len(rows) - most:,} more: --table {printable(table.name)}"
        terminal.print(Text(hint, style="dim"))


def _widths(table: Table, rows: list[int], whole: int) -> list[int]:
    """Return each column's width: numbers whole, words share what ``whole`` leaves them.

    A column of words that needs less than its share leaves the rest to the others; names and times
    are served before sentences.
    """
    longest = [
        max(
            cell_len(text) for text in (c.name, *(in_words(table.rows[row][at], c) for row in rows))
        )
        for at, c in enumerate(table.columns)
    ]
    words = [at for at in range(len(longest)) if not _is_numeric(table, at)]
    left = whole - GUTTER * len(longest) - sum(longest) + sum(longest[at] for at in words)
    widths = [*longest]
    for done, at in enumerate(sorted(words, key=longest.__getitem__)):
        after = len(words) - done - 1
        share = left - LEAST * after if longest[at] <= NAME else left // (after + 1)
        widths[at] = min(longest[at], max(share, LEAST))
        left -= widths[at]
    return widths


def _is_numeric(table: Table, at: int) -> bool:
    """Say whether a column holds numbers; a process name "123" is text all the same."""
    cells = [row[at] for row in table.rows if row[at] is not None]
    return bool(cells) and all(
        isinstance(c, int | float) and not isinstance(c, bool) for c in cells
    )


def _cell(cell: Cell, column: Column) -> Text:
    return Text(in_words(cell, column), style="dim" if cell is None else "")


def in_words(cell: Cell, column: Column) -> str:
    """Return a cell as a person reads it: bytes in binary units, "?" for what is not known."""
    if cell is None:
        return "?"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int) and column.unit in FORMS:
        return FORMS[column.unit](cell)
    if isinstance(cell, float):
        return f"{cell:,.2f}"
    if isinstance(cell, int):
        return f"{cell:,}" if column.unit else str(cell)
    return printable(cell)
