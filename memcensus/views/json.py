"""A report as JSON and back; the format is ``report.schema.json`` and never changes meaning.

Later versions may add keys: a reader ignores the ones it does not know. What is read is checked
value by value, because a saved report may come from anywhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from memcensus import __version__
from memcensus.errors import Unreadable, unreadable
from memcensus.fit import judge
from memcensus.model import (
    Absence,
    Account,
    Answer,
    Budget,
    Clock,
    Column,
    Evidence,
    Gap,
    Quantity,
    Report,
    Series,
    Source,
    Table,
    Timeline,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from enum import StrEnum
    from pathlib import Path
    from typing import TextIO

    from memcensus.model import Cell, Verdict
    from memcensus.subject import Look

SCHEMA = 1
TOOL = f"memcensus {__version__}"

MOST_BYTES = 1 << 30
"""A larger file is not read: reports of whole machines stay far below."""

LARGEST = 1 << 80
"""No size, time or count reaches it; a larger one would overflow in a view."""

T = TypeVar("T")
E = TypeVar("E", bound="StrEnum")


class JsonView:
    """One report as one JSON document; several as JSON Lines, one a line."""

    name: ClassVar[str] = "json"
    suffix: ClassVar[str] = ".json"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write the reports whole: ``look`` chooses what a person sees, not what is kept."""
        del look
        out.writelines(dumps(report) + "\n" for report in reports)


def dumps(report: Report) -> str:
    """Return ``report`` as one line of JSON: ASCII, so that no name can steer a terminal."""
    return json.dumps(_report(report), allow_nan=False, separators=(",", ":"))


def loads(text: str, name: str = "report") -> list[Report]:
    """Return the reports in ``text``: one JSON document, or one a line.

    Raises:
        Unreadable: if it is not JSON, or not a report of schema 1; says where.
    """
    if not text.lstrip().startswith("{"):
        raise Unreadable(f"{name} is not a saved report; -o FILE.json saves one")
    try:
        documents = [json.loads(text)]
    except RecursionError as error:
        raise Unreadable(f"{name} nests deeper than any report; nothing was read") from error
    except json.JSONDecodeError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2:
            raise Unreadable(f"{name} is not whole JSON: {error}; save it anew") from error
        documents = [_line(line, f"{name}, line {at}") for at, line in enumerate(lines, 1)]
    except ValueError as error:  # json gives up on a number of more than 4,300 digits
        raise Unreadable(f"{name} holds a number longer than any in a report") from error
    return [_read_report(At(document, name)) for document in documents]


def load(path: Path) -> list[Report]:
    """Return the reports saved in the file at ``path``.

    Raises:
        Unreadable: if it cannot be read, is too large, or is no report.
    """
    try:
        if path.is_char_device() or path.is_block_device():
            raise Unreadable(f"{path} is a device, and no saved report; name a file")
        if path.stat().st_size > MOST_BYTES:
            raise Unreadable(f"{path} is larger than {MOST_BYTES:,} B, which no report is")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"{path} is not a saved report: {error.reason} at {error.start}"
        ) from error
    return loads(text, str(path))


def is_report(head: bytes) -> bool:
    """Say whether a file that starts with ``head`` is a saved report."""
    return head.lstrip()[:1] == b"{" and b'"schema"' in head


def _line(text: str, name: str) -> object:
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{name} is not whole JSON: {error}") from error
    return document


# Out: one function for each type, the keys in the schema's order.


def _source(source: Source) -> dict[str, str]:
    plain = {"evidence": source.evidence.value, "where": source.where}
    return {**plain, "meaning": source.meaning} if source.meaning else plain


def _account(account: Account) -> dict[str, object]:
    return {
        "name": account.name,
        "own": account.own,
        "error": account.error,
        "borrowed": account.borrowed,
        "source": _source(account.source),
        "quantities": [
            {"name": q.name, "value": q.value, "unit": q.unit} for q in account.quantities
        ],
        "children": [_account(child) for child in account.children],
    }


def _timeline(timeline: Timeline) -> dict[str, object]:
    return {
        "clock": timeline.clock.value,
        "series": [
            {"path": list(s.path), "times": list(s.times), "sizes": list(s.sizes)}
            for s in timeline.series
        ],
        "marks": [list(mark) for mark in timeline.marks],
    }


def _table(table: Table) -> dict[str, object]:
    return {
        "name": table.name,
        "columns": [{"name": c.name, "unit": c.unit} for c in table.columns],
        "rows": [list(row) for row in table.rows],
        "sources": [_source(source) for source in table.sources],
    }


def _verdict(verdict: Verdict) -> dict[str, object]:
    return {
        "answer": verdict.answer.value,
        "peak": verdict.peak,
        "error": verdict.error,
        "limit": verdict.budget.limit,
        "limit_source": _source(verdict.budget.source),
    }


def _report(report: Report) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "subject": report.subject,
        "target": report.target,
        "tool": TOOL,
        "partial": report.partial,
        "root": _account(report.root),
        "instant": report.instant,
        "timeline": report.timeline and _timeline(report.timeline),
        "tables": [_table(table) for table in report.tables],
        "gaps": [{"what": g.what, "absence": g.absence.value, "why": g.why} for g in report.gaps],
        "verdict": report.verdict and _verdict(report.verdict),
    }


# In: a value and its place in the document, so that every complaint can name it.


@dataclass(frozen=True, slots=True)
class At:
    """A JSON value and where it stands: "file.json: root.children[3].own"."""

    value: object
    place: str

    def wrong(self, wanted: str) -> NoReturn:
        """Complain that the value is not what was wanted."""
        shown = json.dumps(self.value, default=str)[:40]
        raise Unreadable(f"{self.place} should be {wanted} but is {shown}; is this a saved report?")

    def get(self, key: str) -> At:
        """Return the value of ``key``; a missing one is null."""
        if not isinstance(self.value, dict):
            self.wrong("an object")
        return At(self.value.get(key), f"{self.place}: {key}")

    def each(self, read: Callable[[At], T]) -> tuple[T, ...]:
        """Return every element of a list, read by ``read``."""
        if not isinstance(self.value, list):
            self.wrong("a list")
        return tuple(read(At(v, f"{self.place}[{i}]")) for i, v in enumerate(self.value))

    def text(self) -> str:
        """Return a string; half of a surrogate pair, which no file may hold, is escaped."""
        if not isinstance(self.value, str):
            self.wrong("text")
        return self.value.encode("utf-8", "backslashreplace").decode("utf-8")

    def number(self) -> int:
        """Return a whole number of a size that something real may have."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.wrong("a whole number")
        if abs(self.value) >= LARGEST:
            self.wrong("a whole number below 2^80")
        return self.value

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            self.wrong("true or false")
        return self.value

    def cell(self) -> Cell:
        """Return a table cell."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.number()
        if self.value is None or isinstance(self.value, (bool, float)):
            return self.value
        return self.text()

    def word(self, words: type[E]) -> E:
        """Return a word of the enumeration ``words``."""
        text = self.text()
        if text not in [word.value for word in words]:
            self.wrong(f"one of {', '.join(words)}")
        return words(text)

    def maybe(self, read: Callable[[At], T]) -> T | None:
        """Return None for null, else what ``read`` makes of the value."""
        return None if self.value is None else read(self)


def _read_source(at: At) -> Source:
    meaning = at.get("meaning").maybe(At.text)
    return Source(at.get("evidence").word(Evidence), at.get("where").text(), meaning or "")


def _read_quantity(at: At) -> Quantity:
    return Quantity(at.get("name").text(), at.get("value").number(), at.get("unit").text())


def _read_account(at: At) -> Account:
    return Account(
        at.get("name").text(),
        at.get("own").number(),
        _read_source(at.get("source")),
        at.get("children").each(_read_account),
        at.get("error").number(),
        at.get("borrowed").number(),
        at.get("quantities").each(_read_quantity),
    )


def _read_series(at: At) -> Series:
    path = at.get("path").each(At.text)
    return Series(path, at.get("times").each(At.number), at.get("sizes").each(At.number))


def _read_mark(at: At) -> tuple[int, str]:
    if not isinstance(at.value, list) or len(at.value) != 2:
        at.wrong("a time and a label")
    time, label = at.value
    return At(time, f"{at.place}[0]").number(), At(label, f"{at.place}[1]").text()


def _read_timeline(at: At) -> Timeline:
    series, marks = at.get("series").each(_read_series), at.get("marks").each(_read_mark)
    return Timeline(at.get("clock").word(Clock), series, marks)


def _read_column(at: At) -> Column:
    return Column(at.get("name").text(), at.get("unit").maybe(At.text))


def _read_table(at: At) -> Table:
    return Table(
        at.get("name").text(),
        at.get("columns").each(_read_column),
        at.get("rows").each(lambda row: row.each(At.cell)),
        at.get("sources").each(_read_source),
    )


def _read_gap(at: At) -> Gap:
    return Gap(at.get("what").text(), at.get("absence").word(Absence), at.get("why").text())


def _read_verdict(at: At) -> Verdict:
    budget = Budget(at.get("limit").number(), _read_source(at.get("limit_source")))
    verdict = judge(at.get("peak").number(), at.get("error").number(), budget)
    if at.get("answer").word(Answer) is not verdict.answer:
        at.get("answer").wrong(f"{verdict.answer!r}, as peak, error and limit say")
    return verdict


def _read_report(at: At) -> Report:
    if at.get("schema").number() != SCHEMA:
        at.get("schema").wrong(f"{SCHEMA}, the format this version reads")
    try:
        return Report(
            at.get("subject").text(),
            at.get("target").text(),
            _read_account(at.get("root")),
            at.get("instant").maybe(At.number),
            at.get("timeline").maybe(_read_timeline),
            at.get("tables").each(_read_table),
            at.get("gaps").each(_read_gap),
            at.get("verdict").maybe(_read_verdict),
            at.get("partial").flag(),
        )
    except ValueError as error:
        raise Unreadable(f"{at.place} breaks a law of reports: {error}") from error
    except RecursionError as error:
        raise Unreadable(f"{at.place} nests deeper than any report; nothing was read") from error
