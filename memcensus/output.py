"""Where words go: the report to a file or stdout, gaps and notes to stderr.

With ``cli`` the only place that prints.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.errors import UsageError
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import TextIO

    from memcensus.model import Report

UNEXPECTED = 3
"""Exit code for a fault of our own: nothing could be read."""

MOST_GAPS = 12
"""Gaps told on stderr; a file or --as json has them all."""


def write(path: Path | None, inputs: Sequence[Path], render: Callable[[TextIO], None]) -> None:
    """Let ``render`` write to ``path``, whole or not at all, or to stdout.

    Raises:
        UsageError: if the file is one of the ``inputs``, as evidence is never written to, or if it
            cannot be written.
    """
    if path is None:
        _to_stdout(render)
        return
    try:
        if any(path.exists() and file.exists() and path.samefile(file) for file in inputs):
            raise UsageError(f"-o {path} is the target itself, which is never written to")
        if path.exists() and not path.is_file():  # /dev/null, a pipe
            with path.open("w", encoding="utf-8", newline="") as out:
                render(out)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("x", encoding="utf-8", newline="") as out:
                render(out)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    note(f"wrote {path} ({units.size(path.stat().st_size)})")


def _to_stdout(render: Callable[[TextIO], None]) -> None:
    try:
        render(sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        forget_stdout()
        raise _unwritable("to stdout", error) from error


def forget_stdout() -> None:
    """Send whatever is still to come to nowhere: at its end Python writes what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def open_streams() -> None:
    """See to it that there are a stdout and a stderr, and that they write UTF-8.

    A stream that the caller has closed is None; what would go there goes to nowhere, and where it
    is the report that is lost, that is said.
    """
    lost = sys.stdout is None
    if lost:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale says
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if lost:
        note("stdout is closed, so what goes there is lost; -o FILE keeps the report")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _unwritable(place: object, error: OSError) -> UsageError:
    reason = (error.strerror or type(error).__name__).lower()
    return UsageError(f"cannot write {place}: {reason}; name a file in a folder you may write to")


def tell_gaps(report: Report, *, of_several: bool) -> None:
    """Say on stderr what the report could not count; of which report, where there are several."""
    head = f"gap in {report.subject}" if of_several else "gap"
    for gap in report.gaps[:MOST_GAPS]:
        note(f"{head}: {gap.what} ({gap.absence}): {gap.why}")
    if len(report.gaps) > MOST_GAPS:
        note(f"and {len(report.gaps) - MOST_GAPS:,} more gaps; --as json has them all")


def note(text: str) -> None:
    """Say something beside the report; hostile names in it cannot move the cursor."""
    lines = "\n".join(printable(line) for line in text.split("\n"))
    with suppress(OSError):  # stderr is full or gone: there is nobody left to tell
        print(f"memcensus: {lines}", file=sys.stderr, flush=True)


def colourful() -> bool:
    """Say whether stdout is a terminal that wants colour (no-color.org)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Say a fault of ours in one sentence; MEMCENSUS_TRACEBACK=1 shows where it happened."""
    if os.environ.get("MEMCENSUS_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
    note(
        f"a fault in memcensus itself ({kind.__name__}: {error}); nothing can be said about the "
        "target; please report it with the output of MEMCENSUS_TRACEBACK=1 and the same command"
    )
    sys.stderr.flush()
    os._exit(UNEXPECTED)  # not Python's own 1, which would mean "does not fit"
