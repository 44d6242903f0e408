"""The ledger's laws: one owner for each page, and the parts are the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memcensus.model import Account, Evidence, Source
from memcensus.ram.census import Entry, Ledger
from memcensus.ram.image import PAGE

HERE = Source(Evidence.ASSUMED, "tests")
names = st.sampled_from(["a", "b", "c"])
claims = st.lists(
    st.tuples(
        st.lists(st.integers(-3, 25), max_size=12),
        st.lists(names, min_size=1, max_size=3).map(tuple),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(st.integers(0, 20), claims)
def test_the_first_owner_stays_and_parts_are_the_whole(
    pages: int, wanted: list[tuple[list[int], tuple[str, ...]]]
) -> None:
    ledger = Ledger(pages)
    first: dict[int, tuple[str, ...]] = {}
    for numbers, path in wanted:
        count = ledger.claim(np.array(numbers, np.int64), path, HERE)
        fresh = {n for n in numbers if 0 <= n < pages and n not in first}
        assert count == len(fresh)
        first |= dict.fromkeys(fresh, path)
    accounts = ledger.accounts()
    root = Account.explain("image", pages * PAGE, HERE, accounts)
    assert root.total == pages * PAGE
    owned = {path[1:]: account.own for path, account in root.walk()}
    for path in set(first.values()):
        assert owned[path] == PAGE * sum(owner == path for owner in first.values())
        assert ledger.count(*path) == sum(o[: len(path)] == path for o in first.values())
    assert int(np.count_nonzero(ledger.unclaimed)) == pages - len(first)


def test_a_mask_claims_the_pages_it_marks() -> None:
    ledger = Ledger(4)
    assert ledger.claim(np.array([True, False, True, False]), ("a",), HERE) == 2
    assert ledger.unclaimed.tolist() == [False, True, False, True]


def test_borrowed_bytes_are_never_in_the_total() -> None:
    ledger = Ledger(2)
    ledger.claim(np.array([0]), ("processes", "one"), HERE)
    extra = [Entry(("processes", name), HERE, 0, 7 * PAGE) for name in ("one", "two")]
    (processes,) = ledger.accounts(extra)
    assert processes.total == PAGE
    assert {child.name: child.borrowed for child in processes.children} == {
        "one": 7 * PAGE,
        "two": 7 * PAGE,
    }
