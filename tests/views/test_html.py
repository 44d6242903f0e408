"""The HTML report: whole, self-contained, and unable to run what a target put into it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from memcensus import units
from memcensus.errors import UsageError
from memcensus.fit import judge
from memcensus.model import (
    Absence,
    Account,
    Budget,
    Clock,
    Evidence,
    Gap,
    Quantity,
    Report,
    Series,
    Source,
    Timeline,
)
from memcensus.subject import Look
from memcensus.text import printable
from memcensus.views.html import HtmlView
from memcensus.views.treemap import MOST_PARTS
from memcensus.views.verdict import sentence
from tests.strategies import HOSTILE, reports
from tests.views import censuses

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "style", "body", "script"),
    *("header", "nav", "main", "article", "section", "footer", "div", "p", "span", "a", "button"),
    *("h2", "h3", "strong", "ul", "li", "dl", "dt", "dd", "details", "summary", "label", "input"),
    *("table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "line", "path"),
}
VOID = {"meta", "link", "input"}


@dataclass
class Page(HTMLParser):
    """What a browser's parser would make of the page; the standard library's parser, not ours."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    declarations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": self.styles}.get(inside, self.words).append(data)

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data}")

    def handle_decl(self, decl: str) -> None:
        self.declarations.append(decl)

    @property
    def text(self) -> str:
        return "".join(self.words)


def rendered(*several: Report, look: Look | None = None) -> str:
    out = io.StringIO()
    HtmlView().render(several, out, look or Look())
    return out.getvalue()


def check_harmless(html: str) -> Page:
    page = Page(html)
    assert not page.open
    assert page.declarations == ["doctype html"]
    assert {tag for tag, _ in page.elements} <= ELEMENTS
    assert [tag for tag, _ in page.elements].count("script") == len(page.scripts) == 2
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:,"))
    assert not CONTROL.search(html)
    assert "<" not in page.scripts[0]
    return page


@settings(max_examples=60)  # each makes a page
@given(reports())
def test_any_report_makes_a_page_in_which_nothing_foreign_is_markup(report: Report) -> None:
    page = check_harmless(rendered(report))
    assert sentence(report.verdict)[:300] in page.text
    assert ("Nothing is missing" in page.text) == (not report.gaps)
    for gap in report.gaps:
        assert printable(gap.why) in page.text
        assert printable(gap.what) in page.text
    for _, account in report.root.walk():
        assert printable(account.name) in page.text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_field_of_a_report_is_a_way_in(text: str) -> None:
    """Every text field of the model at once."""
    source = Source(Evidence.ASSUMED, text, text)
    part = Account(text, 8, source, quantities=(Quantity(text, 1, text),))
    root = Account(text, 0, source, (part,))
    report = censuses.live()
    table = report.tables[0]
    column = replace(table.columns[0], name=text, unit=text)
    rows = tuple((text, *row[1:]) for row in table.rows)
    hostile = replace(
        report,
        subject=text,
        target=text,
        root=root,
        timeline=Timeline(Clock.STEP, (Series((text, text), (0,), (8,)),), ((0, text),)),
        instant=0,
        gaps=(Gap(text, Absence.UNREADABLE, text),),
        verdict=judge(8, 0, Budget(9, source)),
        tables=(
            replace(
                table,
                name=text,
                columns=(column, *table.columns[1:]),
                rows=rows,
                sources=(source,) * len(rows),
            ),
        ),
    )
    check_harmless(rendered(hostile))


def test_the_policy_names_the_page_s_own_style_and_script_and_nothing_else() -> None:
    page = check_harmless(rendered(censuses.live(), censuses.net(), censuses.ram()))

    def name(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    (policy,) = (
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert dict(part.split(" ", 1) for part in policy.split("; ")) == {
        "default-src": "'none'",
        "style-src": name("".join(page.styles)),
        "script-src": name(page.scripts[1]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_page_names_no_address() -> None:
    html = rendered(censuses.live())
    assert "://" not in html
    assert "url(" not in html
    assert "@import" not in html


def test_three_reports_are_three_articles_with_their_totals_verdicts_and_sources() -> None:
    several = (censuses.live(), censuses.net(), censuses.ram())
    page = check_harmless(rendered(*several))
    assert [tag for tag, _ in page.elements].count("article") == 3
    for report in several:
        assert units.exact(report.root.total) in page.text
        assert sentence(report.verdict) in page.text
        for table in report.tables:
            assert printable(table.sources[0].where) in page.text
    assert "Partial:" in page.text


def test_without_the_script_each_tile_still_says_bytes_share_and_source() -> None:
    page = check_harmless(rendered(censuses.live()))
    (title,) = (
        attributes["title"]
        for _, attributes in page.elements
        if attributes.get("title", "").startswith("page cache · ")
    )
    assert "bytes: 3,040,870,400 B (2.83 GiB)" in title
    assert "share of all: 35.4 %" in title  # 2900 of 8192 MiB
    assert "share of standby: 89.8 %" in title  # 2900 of 3230 MiB
    assert "where: /proc/meminfo:Cached" in title


def test_the_script_is_given_every_row_exactly() -> None:
    report = censuses.ram()
    (data,) = json.loads(check_harmless(rendered(report)).scripts[0])
    (table,) = data["tables"]
    assert [row[0][0] for row in table["rows"]] == [row[0] for row in report.tables[0].rows]
    assert [row[4][2] for row in table["rows"]] == [
        f"{row[4]:,} B" for row in report.tables[0].rows
    ]
    assert [row[5] is None for row in table["rows"]] == [
        row[5] is None for row in report.tables[0].rows
    ]


def test_a_huge_report_draws_no_more_than_a_browser_bears() -> None:
    report = censuses.large()
    page = check_harmless(rendered(report))
    classes = [attributes.get("class", "").split() for _, attributes in page.elements]
    assert 100 < sum("tile" in names for names in classes) <= MOST_PARTS
    assert sum("data-row" in attributes for _, attributes in page.elements) == 50
    assert "The first 50 of 20,000 rows." in page.text
    (data,) = json.loads(page.scripts[0])
    assert len(data["tables"][0]["rows"]) == 20_000
    assert len(data["tables"][0]["sources"]) == 1


def test_depth_and_focus_and_table_choose_what_is_shown() -> None:
    live = censuses.live()
    shallow = Page(rendered(live, look=Look(depth=1))).text
    assert "standby" in shallow
    assert "page cache" not in shallow
    focused = Page(rendered(live, look=Look(focus=re.compile("postgres")))).text
    assert "outside the focus" in focused
    assert "sshd" not in focused
    alone = Page(rendered(live, look=Look(table="processes"))).text
    assert "chromium" in alone
    assert "page cache" not in alone
    with pytest.raises(UsageError, match="it has: processes"):
        rendered(live, look=Look(table="sockets"))


def test_a_name_without_end_is_cut_and_says_so() -> None:
    long = replace(censuses.live(), target="x" * 5000)
    assert "… (4,600 more letters)" in Page(rendered(long)).text


def test_what_is_unexplained_borrowed_or_uncertain_is_said() -> None:
    source = Source(Evidence.ESTIMATED, "a guess")
    part = Account("part", 1000, source, error=24, borrowed=512)
    text = Page(rendered(Report("ram", "x", Account.explain("all", 2048, source, (part,))))).text
    assert "unexplained" in text
    assert "+ 512 B borrowed" in text
    assert "± 24 B" in text
