"""What a subject and a view must be, and which subject a target belongs to.

No base class: satisfy the protocol and add one line to ``SUBJECTS`` or ``VIEWS``. Installed
packages add theirs under the entry points ``memcensus.subjects`` and ``memcensus.views``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from memcensus.errors import LONGEST, NoSubject, UsageError, unreadable
from memcensus.text import printable

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from memcensus.model import Budget, Report

HEAD = 4096
"""Bytes of a file that every subject may look at to claim it."""


class Certainty(IntEnum):
    """How sure a subject is that a target is its own."""

    NO = 0
    NAME = 1  # only the file's name or the word's form suggests it
    SHAPE = 2  # the content has the structure
    MAGIC = 3  # a signature that nothing else has


@dataclass(frozen=True, slots=True)
class Claim:
    """A subject's answer to "is this yours?"."""

    certainty: Certainty
    because: str  # shown to the user: "starts with the zstd magic 28 b5 2f fd"


@dataclass(frozen=True, slots=True)
class Target:
    """What the user pointed at. ``head`` is at most the first 4 KiB, read once for all subjects."""

    text: str
    path: Path | None = None  # where the text names something in the file system
    head: bytes = b""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target that ``text`` names, with the head of a regular file or device.

        Raises:
            Unreadable: if it is a file that cannot be read.
        """
        path = Path(text)
        try:
            if not text or "\0" in text or not path.exists():
                return cls(text)
            if path.is_dir() or path.is_fifo() or path.is_socket():
                return cls(text, path)
            with path.open("rb") as file:
                return cls(text, path, file.read(HEAD))
        except OSError as error:
            raise unreadable(text, error) from error


class Progress(Protocol):
    """Where long work reports how far it is. Only ``cli`` draws it."""

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        """Say that ``done`` of ``total`` units of ``what`` are done; ``total`` 0 is not known."""


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True)
class Request:
    """What every subject is asked, whatever its own options are."""

    budget: Budget | None = None  # judge against this; None: no limit was given
    progress: Progress = silent


class Subject(Protocol):
    """One kind of memory. Importing the module that holds it must stay cheap: no torch, no numpy.

    ``inspect`` may take options of its own, with defaults, after the two shared arguments.
    """

    name: ClassVar[str]  # the verb
    summary: ClassVar[str]  # one line of help

    def claim(self, target: Target) -> Claim:
        """Say how sure this subject is that ``target`` is its own, and why."""

    def inspect(self, target: Target, request: Request = ...) -> Report:
        """Look at ``target`` and report.

        Raises:
            MemcensusError: if there is nothing at all to report.
        """


@dataclass(frozen=True, slots=True)
class Look:
    """How a report is to be shown. Every view honours what applies to its form."""

    width: int = 100  # columns of a terminal
    colour: bool = False
    depth: int | None = None  # levels of the tree; None: the view's own choice
    focus: re.Pattern[str] | None = None  # only accounts and rows whose path or text matches
    table: str | None = None  # show this table, all its rows, and nothing else
    explain: bool = False  # print each number's source and meaning


class View(Protocol):
    """One way to show reports."""

    name: ClassVar[str]
    suffix: ClassVar[str]  # of a file that holds this form: ".json"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write ``reports``, at least one, to ``out``."""


SUBJECTS: dict[str, str] = {
    "live": "memcensus.live.subject:Live",
    "net": "memcensus.net.subject:Net",
    "ram": "memcensus.ram.subject:Ram",
}
"""Verb -> where it lives, as text, so that importing memcensus imports no subject."""

VIEWS: dict[str, str] = {
    "table": "memcensus.views.table:TableView",
    "tree": "memcensus.views.tree:TreeView",
    "html": "memcensus.views.html:HtmlView",
    "json": "memcensus.views.json:JsonView",
    "csv": "memcensus.views.csv:CsvView",
    "pprof": "memcensus.views.pprof:PprofView",
    "perfetto": "memcensus.views.perfetto:PerfettoView",
}
"""``--as`` word -> where it lives."""


def installed(group: str, ours: dict[str, str]) -> dict[str, str]:
    """Return ``ours`` and what other packages register under "memcensus.<group>"; ours win."""
    from importlib.metadata import entry_points  # noqa: PLC0415  (25 ms that few verbs need)

    theirs = {entry.name: entry.value for entry in entry_points(group=f"memcensus.{group}")}
    return {**theirs, **ours}


def load_subject(verb: str) -> Subject:
    """Return the subject behind ``verb``.

    Raises:
        UsageError: if there is none.
    """
    return cast("Subject", _load(installed("subjects", SUBJECTS), verb, "kind"))


def load_view(name: str) -> View:
    """Return the view called ``name``.

    Raises:
        UsageError: if there is none.
    """
    return cast("View", _load(installed("views", VIEWS), name, "view"))


def _load(table: dict[str, str], word: str, noun: str) -> object:
    if word not in table:
        raise UsageError(f"there is no {noun} {word!r}; choose from {', '.join(sorted(table))}")
    module, _, name = table[word].partition(":")
    loaded: object = getattr(import_module(module), name)()
    return loaded


def detect(target: Target) -> Subject:
    """Return the one subject that is surest about ``target``; order of registration never decides.

    Raises:
        NoSubject: if none claims it.
        UsageError: if two are equally sure.
    """
    claims = sorted(_claims(target), key=lambda pair: -pair[1].certainty)
    best = claims[0][1].certainty
    sure = [subject for subject, claim in claims if claim.certainty == best]
    shown = printable(target.text[:LONGEST] + ("..." if target.text[LONGEST:] else ""))
    if best == Certainty.NO:
        tried = "".join(f"\n  {subject.name}: {claim.because}" for subject, claim in claims)
        missing = "" if target.path else " (there is no such file)"
        raise NoSubject(
            f"cannot tell what {shown!r} is{missing}{tried}\n"
            f"name the kind: memcensus <kind> {shown}"
        )
    if len(sure) > 1:
        either = " or ".join(f"memcensus {subject.name} {shown}" for subject in sure)
        raise UsageError(f"{shown!r} could be two things; say which: {either}")
    return sure[0]


def _claims(target: Target) -> Iterator[tuple[Subject, Claim]]:
    for verb in installed("subjects", SUBJECTS):
        subject = load_subject(verb)
        yield subject, subject.claim(target)
