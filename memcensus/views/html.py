"""One HTML file that holds everything: treemap, tree, timeline, tables, gaps and verdict.

It needs no network and stores nothing. A Content-Security-Policy names the page's own style and
script by their SHA-256 and forbids all else, so that text from a target cannot run even if escaping
had a hole (CSP Level 3, section 8.3). Text from a report is escaped by the template, shown through
``text.printable``, and travels to the script as JSON in which no ``<`` is left. Without the script
the page still shows all but the rows that do not fit on it.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from memcensus import __version__, units
from memcensus.model import Absence
from memcensus.views.facts import EVIDENCE, clip
from memcensus.views.section import Section
from memcensus.views.table import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from memcensus.model import Report
    from memcensus.subject import Look
    from memcensus.views.facts import Json

MOST_ROWS = 50
"""Rows of a table in the page itself; the script has all of them."""

MOST_GAPS = 12
"""Gaps that are shown at once; the others open with a click."""

ABSENCE = {
    Absence.UNREADABLE: "the page, file or right to read it is not there",
    Absence.UNPARSABLE: "read, but not what the format promises",
    Absence.UNSUPPORTED: "memcensus does not know this operator, kernel or format",
    Absence.UNCOUNTED: "lies outside of what the figures are about",
    Absence.CONTRADICTORY: "two sources say different things",
    Absence.OUT_OF_TIME: "left out to keep the answer quick",
}


class HtmlView:
    """A page to keep, send and print."""

    name: ClassVar[str] = "html"
    suffix: ClassVar[str] = ".html"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write one page with all ``reports``; with ``look.table`` only that table of each.

        Raises:
            UsageError: if a report has no table of that name.
        """
        sections = [Section.of(report, at, look) for at, report in enumerate(reports)]
        rules = "\n".join(rule for section in sections for rule in section.rules())
        style = f"{_asset('report.css')}\n{rules}\n"
        script = _asset("report.js")
        page = _environment().get_template("report.html.j2")
        text = page.render(
            sections=sections,
            only_table=look.table is not None,
            style=Markup(style),  # noqa: S704  (our own file, and numbers)
            script=Markup(script),  # noqa: S704  (our own file)
            style_hash=_hash(style),
            script_hash=_hash(script),
            data=Markup(_embedded([section.data() for section in sections])),  # noqa: S704  (no "<")
            version=__version__,
        )
        out.write(text.lstrip())  # macros leave blank lines before the doctype


def _shown(value: object) -> object:
    """Clip every text that the template shows; what is marked safe is ours."""
    return clip(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _embedded(data: Json) -> str:
    """Return ``data`` as JSON that may stand in a script element: ASCII, without ``<``."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("memcensus.views").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression of a Content-Security-Policy that allows ``text``."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("memcensus", "views"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=units.size,
        both=units.both,
        exact=units.exact,
        percent=lambda share: f"{share:.1f} %",
    )
    environment.globals.update(
        in_words=in_words,
        safe=Markup,
        meanings=EVIDENCE,
        absences=ABSENCE,
        most_rows=MOST_ROWS,
        most_gaps=MOST_GAPS,
    )
    return environment
