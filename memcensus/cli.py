"""The command line: grammar and exit codes. Every line of work is behind a subject or a view.

The report goes to stdout; progress, gaps and notes go to stderr. Exit codes: 0 done or fits; 1 does
not fit; 2 wrong usage; 3 could not read; 4 too close to call; 130 interrupted. Without --limit no
verdict changes the exit code.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import App, CycloptsError, Parameter

from memcensus import __version__, absent, budget
from memcensus.errors import MemcensusError, UsageError
from memcensus.fit import judge
from memcensus.model import Answer, Report
from memcensus.output import (
    colourful,
    forget_stdout,
    note,
    open_streams,
    tell_gaps,
    unexpected,
    write,
)
from memcensus.progress import Bar
from memcensus.subject import (
    SUBJECTS,
    Look,
    Request,
    Target,
    detect,
    installed,
    load_subject,
    load_view,
)
from memcensus.text import printable
from memcensus.views.diff import Difference, render_json
from memcensus.views.verdict import sentence
from memcensus.watched import watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcensus.model import Budget

EXIT = {Answer.FITS: 0, Answer.TOO_BIG: 1, Answer.TOO_CLOSE: 4}
INTERRUPTED = 130

Silent: TypeAlias = Annotated[Request, Parameter(parse=False)]
"""What every verb is given and no user types."""

WITH_OPTIONS = {
    "live": ("memcensus.live.verb:live", "This machine's memory now, or one process's."),
    "net": ("memcensus.net.verb:net", "What a network's training step holds in memory."),
}
"""Verbs with flags of their own: where the function lives, and its line of help."""

SECOND_WORDS = {
    "ram": {"processes": "The processes: tree, owner, arguments, start, resident bytes."}
}
"""Verb -> the tables of its report that have a word of their own."""

MODEL_CODE = frozenset({"net"})
"""Verbs that run code of the user's, in a process of its own."""

_SUFFIXES = {
    ".perfetto-trace.json": "perfetto",
    ".json": "json",
    ".html": "html",
    ".htm": "html",
    ".csv": "csv",
    ".pb.gz": "pprof",
}
"""How a file's name ends -> the form of what is written to it; the first that fits."""

_SUMMARIES = {"ram": "Whose is every page of a RAM image, and what was running."}


@Parameter(name="*", group="Common")
@dataclass(frozen=True)
class Common:
    """Flags of every verb."""

    limit: Annotated[str | None, Parameter(show_default=False)] = None
    """Judge against this size (24GiB, 500MB), or "auto": what binds here."""
    view: Annotated[
        Literal["table", "tree", "html", "json", "csv", "pprof", "perfetto"] | None,
        Parameter(name="--as", show_default=False),
    ] = None
    """Form of the report; else the suffix of -o decides, else table."""
    output: Annotated[Path | None, Parameter(name=("--output", "-o"), show_default=False)] = None
    """Write the report to this file."""
    depth: Annotated[int | None, Parameter(show_default=False)] = None
    """Levels of the tree to show."""
    focus: Annotated[str | None, Parameter(show_default=False)] = None
    """Show only accounts and rows that this regular expression finds."""
    table: Annotated[str | None, Parameter(show_default=False)] = None
    """Show this table, all its rows."""
    explain: Annotated[bool, Parameter(negative=())] = False
    """Print the source and the meaning of each number."""

    def look(self, table: str | None) -> Look:
        """Return how a terminal is to show the report; ``table`` is the verb's own choice."""
        return Look(
            width=shutil.get_terminal_size((100, 24)).columns,
            colour=self.output is None and colourful(),
            depth=self.depth,
            focus=self._pattern(),
            table=self.table or table,
            explain=self.explain,
        )

    def _pattern(self) -> re.Pattern[str] | None:
        if self.focus is None:
            return None
        try:
            return re.compile(self.focus)
        except re.error as error:
            raise UsageError(
                f"--focus {self.focus!r} is not a regular expression: {error}; "
                "put a backslash before signs that are meant as they stand"
            ) from error


def look_at(target: str = "", /, *, request: Silent) -> list[Report]:
    """Find out what TARGET is, then look at it; without a target, at this machine."""
    from memcensus.views import json  # noqa: PLC0415  (only where a saved report is shown)

    parsed = Target.parse(target)
    if parsed.path is not None and json.is_report(parsed.head):
        return json.load(parsed.path)
    return [detect(parsed).inspect(parsed, request)]


def show(first: Path, /, *more: Path) -> list[Report]:
    """Show saved reports again, in any form; several become one page."""
    from memcensus.views import json  # noqa: PLC0415

    return [report for path in (first, *more) for report in json.load(path)]


def diff(before: Path, after: Path, /) -> Difference:
    """Say what changed from one saved report to another."""
    from memcensus.views import json  # noqa: PLC0415

    return Difference.between(_only(before, json.load(before)), _only(after, json.load(after)))


def doctor() -> None:
    """Say what works here, and what to install for the rest."""
    from memcensus.doctor import examine  # noqa: PLC0415

    for check in examine():
        mark = "ok     " if check.good else "missing"
        print(f"{mark}  {check.what:<24}{printable(check.finding)}")


def main() -> None:
    """Run the command line and exit."""
    sys.excepthook = unexpected
    open_streams()
    tokens = sys.argv[1:]
    try:
        code = watched(lambda: run(tokens)) if MODEL_CODE & set(tokens) else run(tokens)
    except MemcensusError as error:
        note(str(error))
        code = error.exit_code
    sys.exit(code)


def run(tokens: Sequence[str]) -> int:
    """Do what ``tokens`` ask for and return the exit code."""
    try:
        code = _grammar(tokens)(tokens)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output, such as head, has gone: that is no error
        forget_stdout()
        return 0
    except OSError as error:  # what subjects read has its own sentences: this is our own output
        forget_stdout()
        note(f"cannot write to stdout: {(error.strerror or type(error).__name__).lower()}")
        return UsageError.exit_code
    except KeyboardInterrupt:
        note("interrupted before there was anything to report")
        return INTERRUPTED
    except CycloptsError as error:
        note(f"{error} (memcensus --help shows the grammar)")
        return UsageError.exit_code
    except MemcensusError as error:
        note(str(error))
        return error.exit_code
    return code if isinstance(code, int) else 0


def _grammar(tokens: Sequence[str]) -> App:
    """Return the grammar: the verbs, and before them the flags that all have in common.

    Verbs of other packages are looked up only where ``tokens`` hold a word that is no verb of ours.
    """
    app = App(
        name="memcensus",
        help="A census of memory: every byte counted once, with its owner and its source.",
        version=__version__,
        help_format="plaintext",  # Markdown would cost 90 ms
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    app.default(look_at)
    for verb, (place, line) in WITH_OPTIONS.items():
        app.command(place, name=verb, help=line)
    for verb in SUBJECTS.keys() - WITH_OPTIONS.keys():
        app.command(_verb(verb, SECOND_WORDS.get(verb, {})))
    for command in (show, diff, doctor):
        app.command(command)
    if tokens and tokens[0] not in app:
        for verb in installed("subjects", {}).keys() & set(tokens):
            app.command(_verb(verb, {}))
    app.meta.suppress_keyboard_interrupt = False  # run() tells it
    app.meta.default(partial(_launch, app))
    return app.meta


def _verb(verb: str, words: dict[str, str]) -> App:
    """Return the grammar of a verb without flags of its own; its words show one table each."""

    def inspect(target: str, /, *, request: Silent) -> list[Report]:
        return [load_subject(verb).inspect(Target.parse(target), request)]

    grammar = App(name=verb, help=_SUMMARIES.get(verb, f"A subject of another package: {verb}."))
    grammar.default(inspect)
    for word, line in words.items():
        grammar.command(inspect, name=word, help=line)
    return grammar


def _launch(
    app: Annotated[App, Parameter(parse=False)],
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    common: Common = Common(),
) -> int:
    """A census of memory: every byte counted once, with its owner and the source of the figure."""
    absent.refuse(tokens)
    limit = None if common.limit is None else budget.parse(common.limit)
    chain, _, _ = app.parse_commands(tokens)
    if common.depth is not None and common.depth < 0:
        raise UsageError(f"--depth {common.depth} is negative; 0 shows the root alone")
    look = common.look(chain[1] if len(chain) > 1 else None)
    with Bar() as bar:
        command, bound, ignored = app.parse_args(tokens)
        given = {"request": Request(limit, bar)}
        result = command(*bound.args, **bound.kwargs, **{name: given[name] for name in ignored})
    inputs = [Path(token) for token in tokens]  # whatever of it is a file, no report replaces it
    if isinstance(result, Report):
        result = [result]
    if isinstance(result, list):
        return _publish([_judged(report, limit) for report in result], common, look, inputs)
    if result is not None:
        _publish_difference(result, common, look, inputs)
    return 0


def _judged(report: Report, limit: Budget | None) -> Report:
    """Return ``report`` judged against ``limit``, if one was given and it was not judged so yet."""
    if limit is None or (report.verdict is not None and report.verdict.budget == limit):
        return report
    if report.verdict is not None:  # a saved report keeps its peak and gets the new limit
        verdict = judge(report.verdict.peak, report.verdict.error, limit)
    else:
        verdict = judge(report.root.total, report.root.total_error, limit)
    return replace(report, verdict=verdict)


def _publish(reports: list[Report], common: Common, look: Look, inputs: Sequence[Path]) -> int:
    """Write the reports where they belong and return the exit code."""
    view = load_view(common.view or _view_of(common.output))
    write(common.output, inputs, lambda out: view.render(reports, out, look))
    if common.output is not None:
        for report in reports:
            print(f"{printable(report.subject)}: {sentence(report.verdict)}")
    for report in reports:
        tell_gaps(report, of_several=len(reports) > 1)
    if any(report.partial for report in reports):
        return INTERRUPTED
    if common.limit is None:
        return 0
    answers = [report.verdict.answer for report in reports if report.verdict is not None]
    worst = [answer for answer in (Answer.TOO_BIG, Answer.TOO_CLOSE) if answer in answers]
    return EXIT[worst[0]] if worst else 0


def _publish_difference(
    difference: Difference, common: Common, look: Look, inputs: Sequence[Path]
) -> None:
    """Write a difference, which is no report, in one of its two forms."""
    from memcensus.views import changes  # noqa: PLC0415  (rich: 60 ms)

    view = common.view or _view_of(common.output)
    if view == "json":
        write(common.output, inputs, lambda out: render_json(difference, out))
    elif view == "table":
        write(common.output, inputs, lambda out: changes.render(difference, out, look))
    else:
        raise UsageError(f"a difference has no form {view!r}; use --as table or --as json")


def _view_of(output: Path | None) -> str:
    """Return the form that the suffix of ``output`` names."""
    if output is None:
        return "table"
    name = output.name.lower()
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), "table")


def _only(path: Path, reports: list[Report]) -> Report:
    if len(reports) != 1:
        raise UsageError(f"{path} holds {len(reports)} reports; a difference takes files of one")
    return reports[0]
