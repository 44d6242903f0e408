"""CSV for spreadsheets and scripts: one table, or the accounts, one row each (RFC 4180)."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, ClassVar

from memcensus.errors import UsageError
from memcensus.text import printable
from memcensus.views.select import focus, prune, row_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from memcensus.model import Cell, Report, Source, Table
    from memcensus.subject import Look

ACCOUNT_COLUMNS = ("path", "total [B]", "own [B]", "error [B]", "borrowed [B]")
SOURCE_COLUMNS = ("evidence", "where")

# A spreadsheet runs a cell that starts like this as a formula (CWE-1236); an apostrophe stops it.
_FORMULA = ("=", "+", "-", "@")


class CsvView:
    """The chosen table of each report, or its accounts when none was chosen."""

    name: ClassVar[str] = "csv"
    suffix: ClassVar[str] = ".csv"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write each report's rows under a header; numbers are exact, units stand in the header.

        Raises:
            UsageError: if a report has no table of the chosen name.
        """
        writer = csv.writer(out, lineterminator="\r\n")
        for report in reports:
            rows = _accounts(report, look) if look.table is None else _rows(report, look)
            writer.writerows([guarded(cell) for cell in row] for row in rows)


def chosen(report: Report, name: str) -> Table:
    """Return the report's table called ``name``.

    Raises:
        UsageError: if it has none.
    """
    table = report.table(name)
    if table is None:
        names = ", ".join(table.name for table in report.tables) or "none"
        raise UsageError(f"{report.subject} reported no table {name!r}; it has: {names}")
    return table


def guarded(cell: Cell) -> Cell:
    """Return ``cell`` harmless: control characters escaped, an apostrophe before a formula."""
    if not isinstance(cell, str):
        return cell
    shown = printable(cell)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def _source(source: Source) -> tuple[Cell, ...]:
    return source.evidence.value, source.where


def _accounts(report: Report, look: Look) -> Iterator[tuple[Cell, ...]]:
    yield (*ACCOUNT_COLUMNS, *SOURCE_COLUMNS)
    root = report.root if look.focus is None else focus(report.root, look.focus)
    root = root if look.depth is None else prune(root, look.depth)
    for path, account in root.walk():
        sizes = account.total, account.own, account.total_error, account.borrowed
        yield ("/".join(path), *sizes, *_source(account.source))


def _rows(report: Report, look: Look) -> Iterator[tuple[Cell, ...]]:
    table = chosen(report, look.table or "")
    names = (f"{c.name} [{c.unit}]" if c.unit else c.name for c in table.columns)
    yield (*names, *SOURCE_COLUMNS)
    for row, source in zip(table.rows, table.sources, strict=True):
        if row_matches(row, look.focus):
            yield (*row, *_source(source))
