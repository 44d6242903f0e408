"""The subject ``net``: detection is by name only, imports no torch and runs no model code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from memcensus.errors import NeedsExtra
from memcensus.net.options import NetOptions
from memcensus.subject import Certainty, Claim, Request

if TYPE_CHECKING:
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
        """Claim the built-in networks' names; never a callable, for that would run it."""
        if target.text in BUILT_IN and target.path is None:
            return Claim(Certainty.NAME, f"{target.text} is a built-in network")
        if ":" in target.text and target.path is None:
            because = "model code runs only where net is named: memcensus net package.module:name"
            return Claim(Certainty.NO, because)
        return Claim(Certainty.NO, f"not a built-in network ({', '.join(sorted(BUILT_IN))})")

    def inspect(
        self, target: Target, request: Request = _NOBODY, options: NetOptions = _DEFAULTS
    ) -> Report:
        """Run one training step on fake tensors and report what it holds.

        Raises:
            NeedsExtra: if torch is not installed.
            UsageError: if the target or an option makes no sense.
            Unreadable: if the target's module or name is not there.
            ModelFailed: if the target's code raises.
        """
        if find_spec("torch") is None:
            raise NeedsExtra(_INSTALL)
        try:
            from memcensus.net.census import census  # noqa: PLC0415  (torch: more than a second)
        except ImportError as error:
            raise NeedsExtra(f"{_INSTALL} ({error})") from error
        return census(target.text, options, request)


_INSTALL = (
    "net needs PyTorch, which is not installed or does not load here: .venv/bin/pip install torch "
    "(or make .venv/torch in a checkout)"
)
