"""A table on a page: the rows that the focus leaves, and what sorts and filters them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.views.facts import clip, facts_of
from memcensus.views.select import row_matches
from memcensus.views.table import in_words

if TYPE_CHECKING:
    from memcensus.model import Cell, Column, Source, Table
    from memcensus.subject import Look
    from memcensus.views.facts import Json


NAME = 26
"""The longest name or time in characters: such a column is not wrapped."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table, with the rows that the focus leaves."""

    table: Table
    rows: tuple[int, ...]  # positions in the table
    kinds: tuple[str, ...]  # one for each column: "number", "brief" or "words"

    @classmethod
    def of(cls, table: Table, look: Look) -> Grid:
        """Return ``table`` with the rows in ``look.focus``."""
        rows = tuple(at for at, row in enumerate(table.rows) if row_matches(row, look.focus))
        return cls(table, rows, tuple(_kind(table, at) for at in range(len(table.columns))))

    def data(self) -> dict[str, Json]:
        """Return the table as the script sorts and filters it; equal sources are written once."""
        table = self.table
        sources: dict[Source, int] = {}
        for at in self.rows:
            sources.setdefault(table.sources[at], len(sources))
        return {
            "rows": [
                [_value(c, column) for c, column in zip(table.rows[at], table.columns, strict=True)]
                for at in self.rows
            ],
            "kinds": self.kinds,
            "sources": [tuple(facts_of(source)) for source in sources],
            "from": [sources[table.sources[at]] for at in self.rows],
        }


def _kind(table: Table, at: int) -> str:
    """Say whether a column holds numbers alone, short names that are not wrapped, or words."""
    cells = [row[at] for row in table.rows if row[at] is not None]
    if cells and all(type(cell) in {int, float} for cell in cells):
        return "number"
    short = all(len(in_words(cell, table.columns[at])) <= NAME for cell in cells)
    return "brief" if short else "words"


def _value(value: Cell, column: Column) -> Json:
    """Return a cell: text as it is; numbers as [to sort by, short, exact if that differs]."""
    shown = clip(in_words(value, column))
    if isinstance(value, str) or value is None:
        return None if value is None else shown
    exact = _exactly(value, column)
    return [value, shown] if exact == shown else [value, shown, exact]


def _exactly(value: Cell, column: Column) -> str:
    """Return a cell with every byte: "4,096 B" where ``in_words`` says "4 KiB"."""
    is_bytes = isinstance(value, int) and not isinstance(value, bool) and column.unit == "B"
    return units.exact(value) if is_bytes and isinstance(value, int) else in_words(value, column)
