"""How far long work is: a bar on stderr with rate and time left, on a terminal and only there."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, TaskID

PATIENCE = 0.5
"""Seconds of work before a bar appears: a quick answer needs none."""


class Bar:
    """Satisfies ``subject.Progress``; use it as a context, so that the terminal is left clean."""

    def __init__(self) -> None:
        """Draw nothing yet."""
        self._started = time.monotonic()
        self._wanted = sys.stderr.isatty()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, what: str, done: int, total: int, unit: str) -> None:
        """Show that ``done`` of ``total`` units are done; see ``subject.Progress``."""
        if not self._wanted or time.monotonic() - self._started < PATIENCE:
            return
        if self._progress is None:
            self._progress = _new_bar(unit)
            self._progress.start()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._tasks[what], completed=done, total=total or None)


def _new_bar(unit: str) -> Progress:
    from rich import progress  # noqa: PLC0415  (30 ms that a quick answer should not pay)
    from rich.console import Console  # noqa: PLC0415

    speed = progress.TransferSpeedColumn() if unit == "B" else progress.MofNCompleteColumn()
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        speed,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
