"""Accounts under construction: bytes that are put down under paths of names, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from memcensus.model import Account, Source

if TYPE_CHECKING:
    from memcensus.model import Evidence, Path

_MOST = 4
"""Pieces of one account whose places its source names."""


@dataclass(slots=True)
class Node:
    """A name, with what was put down under it and under the names below."""

    own: int = 0
    borrowed: int = 0
    wheres: list[str] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)

    def put(self, path: Path, own: int, where: str, *, borrowed: int = 0) -> None:
        """Add bytes under ``path``; ``where`` says how they are known."""
        node = self
        for name in path:
            node = node.children.setdefault(name, Node())
        node.own += own
        node.borrowed += borrowed
        node.wheres.append(where)

    def account(self, name: str, evidence: Evidence, source: Source | None = None) -> Account:
        """Return the account and all below it; ``source`` stands for this one's own."""
        children = self.accounts(evidence)
        source = source or Source(evidence, _joined(self.wheres))
        return Account(name, self.own, source, children, borrowed=self.borrowed)

    def accounts(self, evidence: Evidence) -> tuple[Account, ...]:
        """Return the accounts below."""
        return tuple(node.account(name, evidence) for name, node in self.children.items())


def _joined(wheres: list[str]) -> str:
    if not wheres:
        return "sum of its parts"
    distinct = Counter(wheres)  # in the order in which they came
    shown = [text if n == 1 else f"{n} x ({text})" for text, n in islice(distinct.items(), _MOST)]
    rest = len(distinct) - _MOST
    return " + ".join(shown) + (f" + {rest} more" if rest > 0 else "")
