"""What of a report is shown: ``--depth N`` and ``--focus REGEX``. Totals never change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcensus.model import Account, Evidence, Source

if TYPE_CHECKING:
    import re

    from memcensus.model import Cell, Path

OUTSIDE = "outside the focus"


def prune(account: Account, depth: int) -> Account:
    """Return ``account`` with ``depth`` levels below it; deeper bytes are their parents' own."""
    if depth <= 0 and account.children:
        return replace(account, own=account.total, error=account.total_error, children=())
    children = tuple(prune(child, depth - 1) for child in account.children)
    return replace(account, children=children)


def focus(account: Account, pattern: re.Pattern[str]) -> Account:
    """Return ``account`` with only what ``pattern`` finds in a path, as pprof's -focus does.

    The rest becomes the one account "outside the focus" of each level, so that the parts still sum.
    """
    return _focus(account, pattern, ()) or replace(
        account, own=account.total, error=account.total_error, children=()
    )


def _focus(account: Account, pattern: re.Pattern[str], above: Path) -> Account | None:
    path = (*above, account.name)
    if above and pattern.search("/".join(path[1:])):
        return account
    kept = tuple(
        found for child in account.children if (found := _focus(child, pattern, path)) is not None
    )
    if not kept:
        return None
    rest = account.total - sum(child.total for child in kept)
    error = account.total_error - sum(child.total_error for child in kept)
    if not rest:
        return replace(account, own=0, error=error, children=kept)
    source = Source(Evidence.COMPUTED, "total - what is shown")
    outside = Account(OUTSIDE, rest, source, error=error)
    return replace(account, own=0, error=0, children=(*kept, outside))


def row_matches(row: tuple[Cell, ...], pattern: re.Pattern[str] | None) -> bool:
    """Say whether a table's row is in the focus: one of its words matches."""
    return pattern is None or any(isinstance(c, str) and pattern.search(c) for c in row)
