"""The subject ``net``: detection looks at files, imports no torch and runs no model code."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from memcensus.errors import NeedsExtra, Unreadable, UsageError
from memcensus.net import readers
from memcensus.net.options import NetOptions
from memcensus.subject import Certainty, Claim, Request

if TYPE_CHECKING:
    from pathlib import Path

    from memcensus.model import Report
    from memcensus.subject import Target

BUILT_IN = frozenset({"vgg16"})
"""The words that name a network of ours; ``target.BUILT_IN`` has the networks."""

_DEFAULTS = NetOptions()
_NOBODY = Request()


class Net:
    """One training step of a network."""

    name: ClassVar[str] = "net"
    summary: ClassVar[str] = "What a network's training step holds in memory."

    def claim(self, target: Target) -> Claim:
        """Claim files that a reader knows, and built-in networks; never a callable, to run it."""
        if target.text in BUILT_IN and target.path is None:
            return Claim(Certainty.NAME, f"{target.text} is a built-in network")
        if ":" in target.text and target.path is None:
            because = "model code runs only where net is named: memcensus net package.module:name"
            return Claim(Certainty.NO, because)
        found = readers.reader_of(target)
        if found is not None:
            return Claim(Certainty.SHAPE, found[2])
        formats = ", ".join(sorted(BUILT_IN))
        return Claim(Certainty.NO, f"no file of weights or traces, no built-in network ({formats})")

    def inspect(
        self, target: Target, request: Request = _NOBODY, options: NetOptions = _DEFAULTS
    ) -> Report:
        """Run one training step on fake tensors, or read the file, and report what it holds.

        Raises:
            NeedsExtra: if torch is needed and not installed.
            UsageError: if the target or an option makes no sense.
            Unreadable: if the target's module or name is not there, or the file is damaged.
            ModelFailed: if the target's code raises.
        """
        found = readers.reader_of(target)
        if found is None and _is_file(target):
            raise Unreadable(
                f"{target.text} is a file of no kind that net reads; it reads checkpoints (.pt) "
                "and traces of torch.profiler, and runs package.module:callable"
            )
        if found is None:
            return _torch("census").census(target.text, options, request)
        if options != _DEFAULTS:
            raise UsageError(
                f"{target.text} is a file that is read, not a network that runs: --batch, --device "
                "and the other flags of a step do not apply; leave them out"
            )
        return found[1].census(cast("Path", target.path), target.text, request.progress)


def _is_file(target: Target) -> bool:
    return target.path is not None and target.path.is_file() and target.text not in BUILT_IN


class _Worker(Protocol):
    """A module that needs torch."""

    def census(self, text: str, options: NetOptions, request: Request) -> Report:
        """Return the report of one step."""


def _torch(name: str) -> _Worker:
    if find_spec("torch") is None:
        raise NeedsExtra(_INSTALL)
    try:
        return cast("_Worker", import_module(f"memcensus.net.{name}"))
    except ImportError as error:
        raise NeedsExtra(f"{_INSTALL} ({error})") from error


_INSTALL = (
    "net needs PyTorch, which is not installed or does not load here: .venv/bin/pip install torch "
    "(or make .venv/torch in a checkout)"
)
