"""The ledger of a census: every page gets the first owner that claims it, and no second one.

Knows nothing about kernels: rules claim pages under a path of names, and what is claimed becomes a
tree of accounts whose sizes sum to the file's size, whatever the rules did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.model import Account, Evidence, Quantity, Source
from memcensus.ram.image import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from memcensus.model import Path
    from memcensus.ram.image import Words

NOBODY: Final = -1
_NOTHING: Final = -2  # no page's owner


class Ledger:
    """Who owns each page of an image."""

    def __init__(self, pages: int) -> None:
        self.owner = np.full(pages, NOBODY, np.int32)
        """(pages,): the number of each page's owner, or NOBODY."""
        self._numbers: dict[Path, int] = {}
        self._sources: list[Source] = []

    def claim(
        self, pages: NDArray[np.int64] | NDArray[np.bool_], path: Path, source: Source
    ) -> int:
        """Give the ``pages`` that nobody owns to ``path``; return how many those were.

        ``pages`` are page numbers, or a mask over all pages. Numbers outside are left out. The
        first source that is given for a path stays.
        """
        wanted: NDArray[np.int64] = (
            np.flatnonzero(pages) if pages.dtype == np.bool_ else np.unique(pages).astype(np.int64)
        )
        wanted = wanted[(wanted >= 0) & (wanted < len(self.owner))]
        wanted = wanted[self.owner[wanted] == NOBODY]
        if len(wanted):
            number = self._numbers.setdefault(path, len(self._numbers))
            if number == len(self._sources):
                self._sources.append(source)
            self.owner[wanted] = number
        return len(wanted)

    @property
    def unclaimed(self) -> NDArray[np.bool_]:
        """(pages,): which pages nobody owns."""
        free: NDArray[np.bool_] = self.owner == NOBODY
        return free

    def owner_of(self, page: int) -> Path:
        """Return the path that owns a page, () if nobody does."""
        number = int(self.owner[page])
        return next((path for path, known in self._numbers.items() if known == number), ())

    def number_of(self, path: Path) -> int:
        """Return the number that ``owner`` holds for ``path``, -2 if it owns nothing."""
        return self._numbers.get(path, _NOTHING)

    def under(self, *path: str) -> NDArray[np.bool_]:
        """(pages,): which pages are owned by ``path`` or by anything below it."""
        numbers = [number for own, number in self._numbers.items() if own[: len(path)] == path]
        return np.isin(self.owner, numbers)

    def count(self, *path: str) -> int:
        """Return how many pages ``path`` and all below it own."""
        return int(np.count_nonzero(self.under(*path)))

    def accounts(self, extra: Iterable[Entry] = ()) -> tuple[Account, ...]:
        """Return the tree of all owners, largest first; ``extra`` adds to it what is no page."""
        sizes = np.bincount(self.owner[self.owner >= 0], minlength=len(self._numbers))
        entries = {
            path: Entry(path, self._sources[number], int(sizes[number]) * PAGE)
            for path, number in self._numbers.items()
        }
        for entry in extra:
            known = entries.get(entry.path)
            entries[entry.path] = entry if known is None else known.with_borrowed(entry)
        root = _Node()
        for entry in entries.values():
            root.add(entry)
        return root.children()


def grouped(
    keys: Words | NDArray[np.int64], pages: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (key, its pages) of two arrays of one shape, by one sort instead of many masks."""
    order = np.argsort(keys, kind="stable")
    keys, pages = keys[order], pages[order]
    starts = np.flatnonzero(
        np.concatenate([np.ones(min(len(keys), 1), bool), keys[1:] != keys[:-1]])
    )
    yield from zip(keys[starts].tolist(), np.split(pages, starts[1:]), strict=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger: what ``path`` owns, and what it uses of others."""

    path: Path
    source: Source
    own: int  # bytes
    borrowed: int = 0  # bytes
    quantities: tuple[Quantity, ...] = ()

    def with_borrowed(self, other: Entry) -> Entry:
        """Return this entry with the other's bytes and numbers added."""
        return Entry(
            self.path,
            self.source,
            self.own + other.own,
            self.borrowed + other.borrowed,
            self.quantities + other.quantities,
        )


@dataclass(slots=True)
class _Node:
    """A branch while the tree is put together."""

    entry: Entry | None = None
    below: dict[str, _Node] = field(default_factory=dict)

    def add(self, entry: Entry) -> None:
        node = self
        for name in entry.path:
            node = node.below.setdefault(name, _Node())
        node.entry = entry

    def children(self) -> tuple[Account, ...]:
        accounts = (node.account(name) for name, node in self.below.items())
        return tuple(sorted(accounts, key=lambda account: (-account.total, account.name)))

    def account(self, name: str) -> Account:
        children = self.children()
        if self.entry is None:
            entry = Entry((name,), Source(Evidence.COMPUTED, "sum of the parts"), 0)
        else:
            entry = self.entry
        total = entry.own + sum(child.total for child in children)
        pages = (Quantity("pages", total // PAGE, "page"),) if total >= PAGE else ()
        return Account(
            name,
            entry.own,
            entry.source,
            children,
            borrowed=entry.borrowed,
            quantities=(*pages, *entry.quantities),
        )
