"""The six laws of the model, for every report and not for chosen ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.model import (
    UNEXPLAINED,
    Account,
    Clock,
    Column,
    Evidence,
    Overcounted,
    Report,
    Series,
    Source,
    Table,
    Timeline,
)
from memcensus.views import json
from memcensus.views.diff import Difference
from tests.strategies import accounts, reports, timelines

HERE = Source(Evidence.ASSUMED, "tests")
SIZES = st.integers(0, 2**40)


def leaf(name: str, own: int) -> Account:
    return Account(name, own, HERE)


class TestEveryByteHasOneOwner:
    @given(accounts())
    def test_a_total_is_the_sum_of_what_each_account_owns(self, tree: Account) -> None:
        assert tree.total == sum(account.own for _, account in tree.walk())
        assert tree.total_error == sum(account.error for _, account in tree.walk())

    @given(accounts())
    def test_what_is_borrowed_is_in_no_total(self, tree: Account) -> None:
        whole = Account("whole", 0, HERE, (tree,), borrowed=5)
        assert tree.total == whole.total

    @given(SIZES, st.lists(st.integers(0, 2**38), max_size=5))
    def test_explain_never_loses_or_invents_a_byte(self, total: int, sizes: list[int]) -> None:
        parts = [leaf(f"{at}", size) for at, size in enumerate(sizes)]
        if sum(sizes) > total:
            with pytest.raises(Overcounted, match=f"{sum(sizes) - total:,} B have two owners"):
                Account.explain("whole", total, HERE, parts)
            return
        whole = Account.explain("whole", total, HERE, parts)
        assert total == whole.total
        rest = [child.own for child in whole.children if child.name == UNEXPLAINED]
        assert rest == ([total - sum(sizes)] if total > sum(sizes) else [])

    @given(accounts())
    def test_siblings_cannot_share_a_name(self, tree: Account) -> None:
        with pytest.raises(ValueError, match="share a name"):
            Account("whole", 0, HERE, (tree, tree))

    @pytest.mark.parametrize(("own", "error", "borrowed"), [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
    def test_no_size_is_negative(self, own: int, error: int, borrowed: int) -> None:
        with pytest.raises(ValueError, match="negative"):
            Account("x", own, HERE, error=error, borrowed=borrowed)


class TestEveryNumberHasASource:
    @given(reports())
    def test_accounts_and_rows_say_where_they_are_from(self, report: Report) -> None:
        assert all(isinstance(account.source, Source) for _, account in report.root.walk())
        assert all(len(table.rows) == len(table.sources) for table in report.tables)

    def test_a_row_without_a_source_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1 rows, 0 sources"):
            Table("t", (), ((),), ())


class TestWhatIsMissingIsAGap:
    @given(reports())
    def test_gaps_survive_every_way_out(self, report: Report) -> None:
        (back,) = json.loads(json.dumps(report))
        assert report.gaps == back.gaps

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_what_is_not_known_cannot_hide_as_a_number(self, number: float) -> None:
        with pytest.raises(ValueError, match="unknown is None"):
            Table("t", (Column("c"),), ((number,),), (HERE,))


class TestTimelineAndTreeAgree:
    @given(reports())
    def test_the_series_sum_to_the_root_at_the_instant(self, report: Report) -> None:
        if report.timeline is not None and report.instant is not None:
            assert report.root.total == report.timeline.total(report.instant)

    @given(timelines(), st.integers(1, 2**30))
    def test_a_tree_that_disagrees_is_refused(self, timeline: Timeline, more: int) -> None:
        instant = max((time for s in timeline.series for time in s.times), default=0)
        root = leaf("root", timeline.total(instant) + more)
        with pytest.raises(ValueError, match="the series sum to"):
            Report("net", "x", root, instant, timeline)

    def test_a_series_inside_another_would_count_twice(self) -> None:
        outer, inner = Series(("a",), (), ()), Series(("a", "b"), (), ())
        with pytest.raises(ValueError, match="lies inside"):
            Timeline(Clock.STEP, (inner, outer))

    @given(st.lists(SIZES, min_size=1, max_size=9), st.integers(-3, 12))
    def test_a_series_holds_each_size_until_the_next(self, sizes: list[int], time: int) -> None:
        series = Series(("a",), tuple(range(len(sizes))), tuple(sizes))
        expected = 0 if time < 0 else sizes[min(time, len(sizes) - 1)]
        assert expected == series.at(time)


class TestAReportSurvivesJson:
    @given(reports())
    def test_there_and_back_nothing_changes(self, report: Report) -> None:
        assert [report] == json.loads(json.dumps(report))

    @given(st.lists(reports(), min_size=2, max_size=3))
    def test_several_travel_as_lines(self, several: list[Report]) -> None:
        assert several == json.loads("\n".join(json.dumps(report) for report in several))


class TestDiffOfASelfIsEmpty:
    @given(reports())
    def test_nothing_differs_from_itself(self, report: Report) -> None:
        assert Difference.between(report, report).empty

    @given(reports(), reports())
    def test_the_changes_sum_to_the_change_of_the_whole(self, a: Report, b: Report) -> None:
        changes = Difference.between(a, b).accounts
        assert b.root.total - a.root.total == sum(change.delta for change in changes)

    @given(reports(), reports())
    def test_back_is_the_opposite_of_there(self, a: Report, b: Report) -> None:
        there = {change.path: change.delta for change in Difference.between(a, b).accounts}
        back = {change.path: -change.delta for change in Difference.between(b, a).accounts}
        assert there == back
