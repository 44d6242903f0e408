"""Runs work in a child process, because it calls code that we did not write.

Model code may end the process it runs in: ``os._exit``, an abort in a C++ library, a bad pointer.
The child therefore says in its last breath that it came to its own end; where it did not, the
parent tells what happened, and an exit code of somebody else's never passes for a verdict.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from memcensus.errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_DONE = b"."
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SET_DEATH_SIGNAL = 1  # prctl(2), PR_SET_PDEATHSIG


def watched(work: Callable[[], int]) -> int:
    """Return the exit code of ``work``, run in a child.

    Raises:
        ModelFailed: if the child ended before ``work`` did.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _bind(parent)
        _finish(work(), writer)
    os.close(writer)
    _pass_on(child)
    with os.fdopen(reader, "rb") as pipe:
        came_to_its_end = pipe.read(1) == _DONE
    _, status = os.waitpid(child, 0)
    if not came_to_its_end:
        raise ModelFailed(
            f"the code of the network ended the program ({_how(status)}), so nothing is known "
            "about it; take out what ends it, such as os._exit or a crash in a library"
        )
    return os.waitstatus_to_exitcode(status)


def _finish(code: int, writer: int) -> None:
    """End the child, whatever threads the code has left running."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(writer, _DONE)
    os._exit(code)


def _bind(parent: int) -> None:
    """Die with the parent, and get the terminal's signals from it alone, each of them once."""
    import ctypes  # noqa: PLC0415  (8 ms that other verbs need not pay)

    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(os.EX_OSERR)


def _pass_on(child: int) -> None:
    """Let signals reach the child, which is the one that tells what comes of them."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, forward)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
