"""The HTML report in a real browser: it opens, answers, stays inside, and is readable.

Oracle: Debian's Chromium. Colours, focus, layout and requests are what the browser says.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect, sync_playwright

from memcensus import units
from memcensus.live.subject import Live
from memcensus.model import Report
from memcensus.ram.subject import Ram
from memcensus.subject import Look, Target
from memcensus.views import json
from memcensus.views.html import HtmlView
from tests.views import censuses

REPOSITORY = Path(__file__).parent.parent.parent
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium fonts-dejavu-core"
)
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DESKTOP = ViewportSize(width=1400, height=900)
PHONE = ViewportSize(width=400, height=800)

# For each element that holds text of its own and is seen: its contrast by WCAG 2.1, 1.4.3, against
# the nearest background that is not transparent; and whether the text counts as large.
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim());
    if (!words.length || !element.checkVisibility({visibilityProperty: true})) continue;
    if (["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    let bed = [255, 255, 255];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) { bed = colour; break; }
    }
    const style = getComputedStyle(element);
    const opacity = Number(style.opacity);
    const ink = parse(style.color).map((c, at) => opacity * c + (1 - opacity) * bed[at]);
    const [a, b] = [light(ink), light(bed)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    found.push([(a + 0.05) / (b + 0.05), large, element.outerHTML.slice(0, 90)]);
  }
  return found;
}"""


class Visit:
    """A page under watch: what it asked for, and what went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: self.problems.append(f"a dialog: {dialog.message}"))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error(e.violatedDirective))"
        )

    def open(self, report: int = 0) -> Locator:
        self.page.goto(f"{self.address}#r{report}")
        return self.page.locator(f"#r{report}")

    def check(self) -> None:
        """The page asked for itself alone, nothing complained, and nothing foreign ran."""
        outside = [url for url in self.requests if not url.startswith((self.address, "data:"))]
        assert outside == []
        assert self.problems == []
        assert self.page.evaluate("window.owned") is None


def written(folder: Path, *several: Report) -> str:
    path = folder / "report.html"
    with path.open("w", encoding="utf-8") as out:
        HtmlView().render(several, out, Look())
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    several = (censuses.live(), censuses.net(), censuses.ram())
    return written(tmp_path_factory.mktemp("page"), *several)


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    page = browser.new_page(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    visited = Visit(page, address)
    yield visited
    visited.check()
    page.close()


def tip(visit: Visit) -> Locator:
    return visit.page.locator("#tip")


def test_hostile_names_are_shown_and_run_nothing(visit: Visit) -> None:
    article = visit.open(2)
    expect(article.locator("h2")).to_have_text(censuses.HOSTILE[2])
    names = article.locator("[data-table] tbody tr td:nth-child(3)").all_text_contents()
    assert names[: len(censuses.HOSTILE)] == [
        *censuses.HOSTILE[:6],
        r"\u202egpj.exe",
        r"a\x1b[31mb\x00c",
    ]
    for tile in article.locator(".tile").all()[:20]:
        tile.dispatch_event("pointermove")
    article.locator("th button").nth(2).click()  # rows are made again, by the script
    article.locator("input").fill("<script>")
    expect(article.locator("tbody tr td:nth-child(3)").last).to_contain_text("<script>")


def test_a_script_that_got_in_would_not_run(visit: Visit) -> None:
    visit.open()
    visit.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned=9\">')"
    )
    visit.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.owned=9'}))"
    )
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate("window.owned") is None
    assert [problem for problem in visit.problems if problem == "script-src-elem"]
    visit.problems.clear()  # these were ours
    visit.requests.clear()


def test_the_links_change_the_report(visit: Visit) -> None:
    visit.open()
    for at in (1, 2, 0):
        visit.page.locator(".reports a").nth(at).click()
        expect(visit.page.locator("article:visible")).to_have_count(1)
        expect(visit.page.locator(f"#r{at}")).to_be_visible()


def test_a_click_zooms_in_and_the_crumbs_and_escape_go_out(visit: Visit) -> None:
    article = visit.open()
    stage = article.locator(".stage")
    full = stage.bounding_box()
    group = stage.locator(".tile.group", has=visit.page.get_by_text("processes")).locator("nth=1")
    group.locator("> .label").click()
    expect(group).to_have_class(re.compile("zoomed"))
    assert group.bounding_box() == full
    inner = group.locator("> .inside > .tile.group").first
    inner.locator("> .label").click()
    assert inner.bounding_box() == full
    expect(article.locator(".crumbs")).to_have_text("this machine\u203ain use\u203aprocesses")
    visit.page.keyboard.press("Escape")
    expect(group).to_have_class(re.compile("zoomed"))
    article.locator(".crumbs button").first.click()
    expect(stage.locator(".zoomed")).to_have_count(0)
    assert stage.locator(".tile").first.bounding_box() == stage.bounding_box() == full


def test_the_map_works_by_keyboard_alone(visit: Visit) -> None:
    article = visit.open()
    article.locator(".stage .tile").first.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter", "ArrowDown"):
        visit.page.keyboard.press(key)
    expect(article.locator(".crumbs [aria-current]")).to_have_text("in use")
    expect(tip(visit)).to_contain_text("sum of PSS")
    assert article.locator(".tile[tabindex='0']").count() == 1  # one stop for the Tab key
    visit.page.keyboard.press("Escape")
    expect(article.locator(".crumbs [aria-current]")).to_have_text("this machine")
    visit.page.keyboard.press("Tab")
    assert article.locator(".stage :focus").count() == 0


def test_the_pointer_on_a_tile_shows_its_bytes_share_and_source(visit: Visit) -> None:
    article = visit.open()
    expect(tip(visit)).to_be_hidden()
    article.locator(".tile", has_text="page cache").last.hover()
    for words in (
        *("page cache", "3,040,870,400 B (2.83 GiB)", "35.4 %", "89.8 %"),
        *("measured", "/proc/meminfo:Cached"),
    ):
        expect(tip(visit)).to_contain_text(words)
    visit.page.keyboard.press("Escape")
    expect(tip(visit)).to_be_hidden()


def test_the_tree_opens_closes_and_shows_sources_by_keyboard(visit: Visit) -> None:
    article = visit.open(1)
    rows = article.locator(".accounts tbody tr:visible")
    assert rows.count() == 7  # the root and six kinds; below them 16 layers each
    rows.nth(1).focus()
    visit.page.keyboard.press("ArrowRight")
    assert rows.count() == 7 + 16
    visit.page.keyboard.press("ArrowDown")
    expect(tip(visit)).to_contain_text("N*C*H*W*4")
    visit.page.keyboard.press("ArrowLeft")
    visit.page.keyboard.press("ArrowLeft")
    assert rows.count() == 7
    article.get_by_role("button", name="expand all").click()
    assert rows.count() == 7 + 6 * 16
    article.get_by_role("button", name="collapse").click()
    assert rows.count() == 7


def test_a_table_sorts_by_numbers_by_words_and_keeps_the_unknown_last(visit: Visit) -> None:
    article = visit.open(2)
    report = censuses.ram()

    def column(at: int) -> list[str]:
        return article.locator(f"[data-table] tbody td:nth-child({at})").all_text_contents()

    article.get_by_role("button", name="show all 80").click()
    expect(article.locator("[data-table] tbody tr")).to_have_count(80)
    article.get_by_role("button", name="resident").click()
    article.get_by_role("button", name="show all 80").click()
    resident = sorted(row[4] for row in report.tables[0].rows if isinstance(row[4], int))
    assert column(5) == [units.size(size) for size in reversed(resident)]
    article.get_by_role("button", name="resident").click()
    assert column(5) == [units.size(size) for size in resident][:50]
    expect(article.locator("th[aria-sort=ascending]")).to_have_text("resident")
    article.get_by_role("button", name="started").click()
    article.get_by_role("button", name="show all 80").click()
    unknown = sum(row[5] is None for row in report.tables[0].rows)
    assert column(6)[-unknown:] == ["?"] * unknown
    article.get_by_role("button", name="name", exact=True).click()
    assert column(3) == sorted(column(3))


def test_a_table_is_filtered_by_cells_and_by_sources(visit: Visit) -> None:
    article = visit.open(2)
    box, rows = article.locator("input"), article.locator("[data-table] tbody tr")
    box.fill("WORKER-7")
    expect(article.locator("[data-table] .count")).to_have_text("10 of 80 rows")
    expect(rows).to_have_count(10)
    box.fill("0x1a498000")
    expect(rows).to_have_count(1)
    box.fill("no such thing")
    expect(article.locator("[data-table] .more")).to_have_text("No row matches.")
    box.fill("")
    expect(rows).to_have_count(50)
    rows.first.hover()
    expect(tip(visit)).to_contain_text("image.raw@0x1a498000")


def test_the_timeline_tells_each_series_at_the_pointer_and_by_keys(visit: Visit) -> None:
    article = visit.open(1)
    report = censuses.net()
    assert report.timeline is not None
    area = article.locator("[data-chart]")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    # The drawing ends one step after the last: step 55 begins at 55/200 of the width.
    visit.page.mouse.move(box["x"] + box["width"] * 55.5 / 200, box["y"] + 40)
    expect(tip(visit).locator("strong")).to_have_text("step 55")
    said = dict(
        zip(
            tip(visit).locator("dt").all_text_contents(),
            tip(visit).locator("dd").all_text_contents(),
            strict=True,
        )
    )
    assert said == {
        "all": units.both(report.timeline.total(55)),
        **{series.path[1]: units.both(series.at(55)) for series in report.timeline.series},
    }
    area.focus()
    visit.page.keyboard.press("ArrowRight")
    expect(area).to_have_attribute("aria-valuetext", re.compile("^step 56: all "))
    visit.page.keyboard.press("End")
    expect(tip(visit).locator("strong")).to_have_text("step 199")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_has_the_contrast_of_wcag_aa(visit: Visit, scheme: str) -> None:
    visit.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for report in range(3):
        visit.open(report)
        found = visit.page.evaluate(CONTRASTS)
        assert len(found) > 100
        assert [one for one in found if one[0] < (3 if one[1] else 4.5)] == []


def test_the_button_turns_light_to_dark_and_back_and_keeps_nothing(visit: Visit) -> None:
    visit.open()

    def bed() -> str:
        return str(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = bed()
    visit.page.locator(".theme").click()
    dark = bed()
    assert light != dark
    visit.page.emulate_media(color_scheme="dark")
    visit.page.locator(".theme").click()
    assert bed() == light
    assert visit.page.context.cookies() == []
    assert visit.page.context.storage_state()["origins"] == []


def test_on_paper_all_reports_stand_with_sources_and_without_controls(visit: Visit) -> None:
    visit.open()
    visit.page.emulate_media(media="print", color_scheme="dark")
    expect(visit.page.locator("article:visible")).to_have_count(3)
    for section in (".composition", ".stage", ".accounts", ".verdict", ".legend", "[data-chart]"):
        expect(visit.page.locator(section).first).to_be_visible()
    controls = "input, nav.reports, .theme, .bar-of-tools button, .more button, .twig button"
    assert [one for one in visit.page.locator(controls).all() if one.is_visible()] == []
    expect(visit.page.locator("#r1 .accounts .level0 .where")).to_be_visible()
    assert visit.page.evaluate("getComputedStyle(document.body).color") == "rgb(24, 33, 43)"


def test_a_phone_scrolls_down_and_never_sideways(visit: Visit) -> None:
    visit.page.set_viewport_size(PHONE)
    for report in range(3):
        visit.open(report)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]


def test_labels_stay_inside_their_tiles(visit: Visit) -> None:
    visit.open(1)
    clipped = visit.page.evaluate(
        "[...document.querySelectorAll('.tile')].every("
        "(tile) => getComputedStyle(tile).overflow === 'hidden')"
    )
    assert clipped


def test_without_scripts_the_page_shows_everything(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=DESKTOP)
    page = context.new_page()
    page.goto(address)
    expect(page.locator("article:visible")).to_have_count(3)
    expect(page.locator("#r1 .accounts tbody tr:visible")).to_have_count(7 + 6 * 16)
    expect(page.locator("#r2 [data-table] tbody tr:visible")).to_have_count(50)
    expect(page.locator("button:visible, input:visible")).to_have_count(0)
    expect(page.locator("#r0 .gaps")).to_contain_text("run as root")
    assert page.locator("#r0 .tile:visible").count() > 10
    context.close()


def test_a_large_report_opens_sorts_and_shows_every_row(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport=DESKTOP)
    visited = Visit(page, written(tmp_path, censuses.large()))
    article = visited.open()
    article.get_by_role("button", name="cached").click()
    article.get_by_role("button", name="show all 20,000").click()
    rows = article.locator("[data-table] tbody tr")
    expect(rows).to_have_count(20_000, timeout=30_000)
    assert rows.first.locator("td").nth(2).text_content() == "4 KiB"
    visited.check()
    page.close()


def test_the_three_real_censuses_open_zoom_and_show_sources(
    browser: Browser, tmp_path: Path
) -> None:
    """This machine, the saved VGG-16 and the shipped RAM image, whose guest has a hostile name."""
    saved = json.load(REPOSITORY / "samples" / "vgg16.json")
    image = Target.parse(str(REPOSITORY / "samples" / "linux.raw.zst"))
    several = (Live().inspect(Target("")), *saved, Ram().inspect(image))
    visit = Visit(browser.new_page(viewport=DESKTOP), written(tmp_path, *several))
    for number, name in enumerate(("standby", "parameters", "processes")):
        article = visit.open(number)
        owner = next(child for child in several[number].root.children if child.name == name)
        tile = article.locator(".stage .tile.group", has=visit.page.get_by_text(name)).nth(1)
        tile.locator("> .label").hover()
        expect(tip(visit)).to_contain_text(owner.source.where)
        tile.locator("> .label").click()
        expect(article.locator(".crumbs")).to_contain_text(name)
        visit.page.keyboard.press("Escape")
    row = visit.page.locator("#r2 .table tr", has=visit.page.get_by_text('\\x1b[2J<b>\\xff"'))
    expect(row.first).to_contain_text("<script>alert(1)</script>")
    visit.check()
    visit.page.close()
