"""The verb ``live`` and its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from memcensus.live.subject import PSS_BUDGET_MS, Live
from memcensus.model import Report  # noqa: TC001  (cyclopts reads the annotations at run time)
from memcensus.subject import Request, Target  # noqa: TC001  (Request: as above)


@Parameter(name="*", group="Live")
@dataclass(frozen=True)
class LiveOptions:
    """Flags of ``live``."""

    pss_budget_ms: int = PSS_BUDGET_MS
    """Milliseconds to spend on the processes' fair shares (PSS), biggest first."""


def live(
    target: str = "",
    /,
    *,
    options: LiveOptions = LiveOptions(),
    request: Annotated[Request, Parameter(parse=False)],
) -> Report:
    """Show what this machine's memory is doing now; with a process number, that process's."""
    return Live().inspect(Target(target), request, options.pss_budget_ms)
