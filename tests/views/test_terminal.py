"""What a terminal and a spreadsheet are given: right, whole, and harmless."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given

from memcensus import units
from memcensus.errors import UsageError
from memcensus.fit import judge
from memcensus.model import Account, Budget, Column, Evidence, Report, Source, Table
from memcensus.subject import VIEWS, Look, load_view
from memcensus.views import changes
from memcensus.views.diff import Difference, render_json
from memcensus.views.select import OUTSIDE, focus, prune
from memcensus.views.verdict import sentence
from tests.strategies import accounts, reports

HERE = Source(Evidence.MEASURED, "/proc/meminfo:MemTotal", "all of it")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")


def shown(report: Report, view: str, look: Look | None = None) -> str:
    out = io.StringIO()
    load_view(view).render([report], out, look or Look())
    return out.getvalue()


def sample(limit: int = 4096) -> Report:
    free = Account("free", 1024, HERE)
    used = Account("in use", 0, HERE, (Account("a", 2048, HERE, borrowed=512), free))
    root = Account("machine", 0, HERE, (used, Account("cache", 1024, HERE, error=16)))
    rows = ((1, "init", 4096), (2, "=cmd()", None))
    table = Table(
        "processes", (Column("pid"), Column("name"), Column("resident", "B")), rows, (HERE, HERE)
    )
    verdict = judge(root.total, 16, Budget(limit, Source(Evidence.MEASURED, "--limit 4KiB")))
    return Report("live", "", root, tables=(table,), verdict=verdict)


@pytest.mark.parametrize("view", ["table", "tree"])
@given(report=reports())
def test_hostile_names_never_reach_the_terminal_raw(view: str, report: Report) -> None:
    assert not CONTROL.search(shown(report, view))
    assert not CONTROL.search(shown(report, view, Look(explain=True)))


@pytest.mark.parametrize("view", ["table", "tree"])
@given(report=reports())
def test_the_last_line_is_the_verdict(view: str, report: Report) -> None:
    lines = shown(report, view, Look(width=60)).rstrip("\n").splitlines()
    assert lines[-1] == sentence(report.verdict)


def test_a_table_says_names_bytes_shares_and_evidence() -> None:
    text = shown(sample(), "table")
    assert text.startswith("live: this machine  4,096 B (4 KiB)\n")
    assert re.search(r"in use +3 KiB +75\.0 % +█+ +measured", text)
    assert re.search(r"a  \(\+ 512 B borrowed\) +2 KiB +50\.0 %", text)
    assert re.search(r"cache +1 KiB ± 16 B +25\.0 %", text)
    assert re.search(r"2 +=cmd\(\) +\?", text)


def test_explain_prints_each_source_and_meaning() -> None:
    text = shown(sample(), "table", Look(explain=True, width=160))
    assert "/proc/meminfo:MemTotal" in text
    assert "all of it" in text


def test_a_table_asked_for_by_name_stands_alone_and_a_wrong_name_lists_the_right_ones() -> None:
    text = shown(sample(), "table", Look(table="processes"))
    assert "in use" not in text
    assert "init" in text
    with pytest.raises(UsageError, match="it has: processes"):
        shown(sample(), "table", Look(table="sockets"))


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (8192, "fits: 4 KiB ± 16 B of 8 KiB (limit from --limit 4KiB), 3.98 KiB to spare at worst"),
        (
            1024,
            "too big: 4 KiB ± 16 B of 1 KiB (limit from --limit 4KiB), 2.98 KiB too much at best",
        ),
        (
            4100,
            (
                "too close to call: 4 KiB ± 16 B of 4 KiB (limit from --limit 4KiB), "
                "the error of 16 B is larger than the 4 B between"
            ),
        ),
    ],
)
def test_a_verdict_is_one_sentence_with_its_reason(limit: int, said: str) -> None:
    assert said == sentence(sample(limit).verdict)


@given(reports())
def test_csv_keeps_every_account_with_exact_bytes(report: Report) -> None:
    rows = list(csv.reader(io.StringIO(shown(report, "csv"), newline="")))
    assert [str(a.total) for _, a in report.root.walk()] == [row[1] for row in rows[1:]]
    assert report.root.total == sum(int(row[2]) for row in rows[1:])


def test_csv_of_a_table_runs_no_formula() -> None:
    text = shown(sample(), "csv", Look(table="processes"))
    assert ["2", "'=cmd()", "", "measured", "/proc/meminfo:MemTotal"] == list(
        csv.reader(io.StringIO(text))
    )[2]


@given(accounts())
def test_pruning_and_focusing_change_no_total(tree: Account) -> None:
    for depth in range(3):
        pruned = prune(tree, depth)
        assert (tree.total, tree.total_error) == (pruned.total, pruned.total_error)
        assert all(len(path) <= depth + 1 for path, _ in pruned.walk())
    for pattern in ("a", "no such account at all", "."):
        focused = focus(tree, re.compile(pattern))
        assert (tree.total, tree.total_error) == (focused.total, focused.total_error)


def test_focus_keeps_what_matches_and_sums_the_rest() -> None:
    focused = focus(sample().root, re.compile("free"))
    assert {
        "machine/in use/free": 1024,
        f"machine/in use/{OUTSIDE}": 2048,
        f"machine/{OUTSIDE}": 1024,
    } == {"/".join(path): a.own for path, a in focused.walk() if a.own}


def test_a_difference_names_what_grew_and_which_rows_came() -> None:
    before = sample()
    grown = Account("machine", 0, HERE, (Account("cache", 9 * 1024, HERE),))
    table = before.tables[0]
    after = Report(
        "live", "", grown, tables=(Table("processes", table.columns, table.rows[:1], (HERE,)),)
    )
    out = io.StringIO()
    changes.render(Difference.between(before, after), out, Look())
    text = out.getvalue()
    assert re.search(r"\+8 KiB +1 KiB +9 KiB +cache", text)
    assert re.search(r"-2 KiB +2 KiB +absent +in use / a", text)
    assert "- processes: 2  =cmd()  ?" in text
    assert text.splitlines()[-1].endswith("4 KiB before, 9 KiB after: +5 KiB")


@given(reports(), reports())
def test_a_difference_is_harmless_and_whole_in_both_forms(a: Report, b: Report) -> None:
    import json

    difference = Difference.between(a, b)
    out, lines = io.StringIO(), io.StringIO()
    changes.render(difference, out, Look())
    assert not CONTROL.search(out.getvalue())
    render_json(difference, lines)
    assert len(difference.accounts) == len(json.loads(lines.getvalue())["accounts"])


@given(reports())
def test_every_view_shows_any_report(report: Report) -> None:
    for name in VIEWS.keys() - {"pprof"}:  # is binary: test_profiles
        assert shown(report, name)
        assert shown(report, name, Look(depth=1, focus=re.compile("a"), width=40, colour=True))


def test_a_bar_is_as_long_as_its_share() -> None:
    text = shown(sample(), "tree")
    bars = {line.split()[0]: line.count("█") for line in text.splitlines() if "█" in line}
    assert 24 == bars["machine"]
    assert 18 == bars["in"]
    assert units.size(4096) in text
