"""The subject ``live``: this machine's memory now, or one process's by mapping."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from memcensus.subject import Certainty, Claim, Request

if TYPE_CHECKING:
    from memcensus.model import Report
    from memcensus.subject import Target

PSS_BUDGET_MS = 500
"""Time for the processes' fair shares unless the user says otherwise."""

_MACHINE = {"", "."}
_PLAIN = Request()


@dataclass(frozen=True, slots=True)
class Live:
    """Reads the kernel's own files; ``proc`` and ``sys`` may be recorded copies of them."""

    name: ClassVar[str] = "live"
    summary: ClassVar[str] = "This machine's memory now, or one process's."
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")

    def claim(self, target: Target) -> Claim:
        """Claim no target at all, and the number of a process that runs."""
        if target.text in _MACHINE:
            return Claim(Certainty.SHAPE, "no target was named")
        if not (target.text.isascii() and target.text.isdecimal()) or len(target.text) > 10:
            return Claim(Certainty.NO, "is no process number")
        if (self.proc / str(int(target.text))).is_dir():
            return Claim(Certainty.NAME, f"a process has the number {target.text}")
        return Claim(Certainty.NO, f"no process has the number {target.text} now")

    def inspect(
        self,
        target: Target,
        request: Request = _PLAIN,
        pss_budget_ms: int = PSS_BUDGET_MS,
    ) -> Report:
        """Return the report on this machine, or on the process that ``target`` names.

        ``pss_budget_ms`` of time go into the fair shares of all processes; 0 leaves them out.

        Raises:
            UsageError: if the time is negative.
            Unreadable: if there is no such process, it is not ours, or /proc is not there.
        """
        from memcensus.errors import UsageError  # noqa: PLC0415  (claiming stays cheap)
        from memcensus.live import machine, mapping  # noqa: PLC0415

        if pss_budget_ms < 0:
            raise UsageError(f"--pss-budget-ms {pss_budget_ms} is negative; 0 leaves PSS out")
        if target.text in _MACHINE:
            return machine.inspect(target.text, self.proc, self.sys, request, pss_budget_ms)
        return mapping.inspect(target.text, self.proc, request)
