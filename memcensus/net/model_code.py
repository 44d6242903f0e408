"""Runs the user's model code: its prints go to stderr, and whatever it raises becomes one sentence.

Code that we did not write can raise anything, so here, and only here, everything but an interrupt
is caught, and nothing of it is swallowed: it is told.
"""

from __future__ import annotations

import sys
import sysconfig
from contextlib import redirect_stdout
from pathlib import Path
from traceback import format_exception_only, walk_tb
from typing import TYPE_CHECKING

from memcensus.errors import MemcensusError, ModelFailed

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_OURS = str(Path(__file__).parent.parent)
_BETWEEN = {str(Path(__file__).parent / name) for name in ("trace.py", "fakes.py")}
"""Files of ours that model code calls without knowing it; other files call model code."""
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_TORCH = tuple(str(Path(folder) / "torch") for folder in _INSTALLED)
_STANDARD = sysconfig.get_path("stdlib")
_LONGEST = 300  # characters of somebody else's message that still make a sentence

# torch._subclasses.fake_tensor raises these where an answer depends on numbers that are not there.
_NEEDS_DATA = frozenset({"DataDependentOutputException", "DynamicOutputShapeException"})


class ModelCode:
    """``with ModelCode("the callable m:make"):`` runs code of the user's.

    Raises:
        ModelFailed: for whatever the code raised, with the place in the user's file.
    """

    def __init__(self, what: str) -> None:
        """Name what runs, as the subject of the sentence."""
        self._what = what
        self._redirection = redirect_stdout(sys.stderr)

    def __enter__(self) -> None:
        """Send prints where they cannot end up in the report."""
        self._redirection.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Turn what was raised into a sentence."""
        self._redirection.__exit__(kind, error, trace)
        if error is None or isinstance(error, (KeyboardInterrupt, MemcensusError)):
            return
        if not _is_ours(trace):
            raise ModelFailed(sentence(self._what, error)) from error


class Attempt:
    """``with Attempt() as attempt:`` tries code of the user's that may be tried another way.

    ``attempt.error`` then holds what it raised, None if it went well.
    """

    def __init__(self) -> None:
        """Nothing went wrong yet."""
        self.error: BaseException | None = None
        self._redirection = redirect_stdout(sys.stderr)

    def __enter__(self) -> Self:
        """Send prints where they cannot end up in the report."""
        self._redirection.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Keep what was raised; an interrupt goes on."""
        self._redirection.__exit__(kind, error, trace)
        self.error = error
        return error is not None and not isinstance(error, KeyboardInterrupt)


def sentence(what: str, error: BaseException) -> str:
    """Return one sentence: what failed, how, where in the user's code, and the way out."""
    place = where(error)
    at = f" at {place}" if place else ""
    if type(error).__name__ in _NEEDS_DATA:
        operator = getattr(error, "func", "an operator")
        return (
            f"{what} asks for the value of a tensor ({operator}){at}, and a census has shapes but "
            "no data; take .item(), bool(tensor) or a data-dependent shape out of the step"
        )
    if isinstance(error, SystemExit):
        return f"{what} ended the program{at} (exit code {error.code}); take the exit out of it"
    text = "".join(format_exception_only(error)).partition(": ")[2]  # copes with a bad __str__
    message = next((line for line in text.splitlines() if line.strip()), "").strip()
    said = f"{type(error).__name__}: {message[:_LONGEST]}" if message else type(error).__name__
    return f"{what} raised {said}{at}; mend it there, or check --input, --batch and --dtype"


def where(error: BaseException) -> str:
    """Return "file:line" of the innermost frame of the user's code, "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short(error.filename)}:{error.lineno}"
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    theirs = [place for place in places if not is_nobodys(place[0])]
    users = [place for place in theirs if not place[0].startswith(_INSTALLED)]
    file, line = next(reversed(users or theirs), ("", 0))
    return f"{short(file)}:{line}" if file else ""


def is_nobodys(file: str) -> bool:
    """Return whether ``file`` is neither the user's nor of a package that the user chose."""
    if file.startswith(_INSTALLED):
        return file.startswith((_OURS, *_TORCH))
    return file.startswith((_OURS, "<frozen", _STANDARD))


def _is_ours(trace: TracebackType | None) -> bool:
    """Return whether the fault is in memcensus: then it is no fault of the model's."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(trace)]
    return bool(files) and files[-1] in _BETWEEN


def short(file: str) -> str:
    """Return the path from here, or from where packages are installed."""
    path = Path(file)
    folders = (Path.cwd(), *map(Path, _INSTALLED))
    above = next((folder for folder in folders if path.is_relative_to(folder)), None)
    return file if above is None else str(path.relative_to(above))
