"""What changed from one report to another: accounts by path, rows of tables by their words.

``diff(a, a)`` is empty. Two reports of different subjects may be compared where their accounts have
the same names; the roots' own names (a file, a machine) are left out of the paths.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from memcensus.model import Account, Cell, Path, Report, Table


@dataclass(frozen=True, slots=True)
class Change:
    """An account whose own bytes differ. None: the account is not in that report."""

    path: Path  # below the root
    before: int | None  # own bytes
    after: int | None

    @property
    def delta(self) -> int:
        """Bytes gained; negative where fewer."""
        return (self.after or 0) - (self.before or 0)


@dataclass(frozen=True, slots=True)
class RowChange:
    """Rows of a table that only one of the two reports has."""

    table: Table
    row: tuple[Cell, ...]
    sign: str  # "-": only before, "+": only after


@dataclass(frozen=True, slots=True)
class Difference:
    """All that differs between two reports."""

    before: Report
    after: Report
    accounts: tuple[Change, ...]  # largest change first
    rows: tuple[RowChange, ...]

    @classmethod
    def between(cls, before: Report, after: Report) -> Difference:
        """Return what differs; by own bytes, so that the changes sum to that of the whole."""
        old, new = dict(_own(before.root)), dict(_own(after.root))
        paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
        changes = [Change(path, old.get(path), new.get(path)) for path in paths]
        changes.sort(key=lambda change: (-abs(change.delta), change.path))
        return cls(before, after, tuple(changes), tuple(_rows(before, after)))

    @property
    def empty(self) -> bool:
        """Say whether nothing differs."""
        return not self.accounts and not self.rows


def _own(root: Account) -> Iterator[tuple[Path, int]]:
    for path, account in root.walk():
        if account.own or not account.children:
            yield path[1:], account.own


def _rows(before: Report, after: Report) -> Iterator[RowChange]:
    for table in after.tables:
        other = before.table(table.name)
        if other is None or other.columns != table.columns:
            continue
        gone, come = Counter(other.rows), Counter(table.rows)
        yield from (RowChange(table, row, "-") for row in (gone - come).elements())
        yield from (RowChange(table, row, "+") for row in (come - gone).elements())


def render_json(difference: Difference, out: TextIO) -> None:
    """Write the difference as one JSON document."""
    document = {
        "schema": 1,
        "before": difference.before.target,
        "after": difference.after.target,
        "accounts": [
            {"path": list(c.path), "before": c.before, "after": c.after, "delta": c.delta}
            for c in difference.accounts
        ],
        "rows": [
            {"table": c.table.name, "sign": c.sign, "row": list(c.row)} for c in difference.rows
        ],
    }
    out.write(json.dumps(document, allow_nan=False) + "\n")
