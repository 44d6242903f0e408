"""All processes of this machine, their shared memory counted fairly as far as the time allows.

PSS is what costs: the kernel walks each page table (8.5 ms for a process of 1.5 GB with 3,000
mappings), so the processes with most resident memory come first and the work stops after a budget.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcensus.errors import Unreadable
from memcensus.live import process
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from memcensus.live.process import Process
    from memcensus.subject import Progress

_NUMBER = re.compile("[1-9][0-9]{0,9}")

COLUMNS = (
    *(Column("pid"), Column("ppid"), Column("uid"), Column("name"), Column("arguments")),
    *(Column("started"), Column("resident", "B"), Column("pss", "B"), Column("private", "B")),
    Column("swap", "B"),
)
_MEANING = (
    "resident: pages in memory, shared ones counted in full; pss: shared pages divided by the "
    "processes that have them; private: pages nobody else has. Windows: private is Task Manager's "
    '"memory", resident the working set'
)


_AS_ROOT = " (run as root)" if os.geteuid() else " (not even root: the kernel protects them)"
"""The way out of a right that is missing, where there is one."""


@dataclass(frozen=True, slots=True)
class Row:
    """A process with its fair share; None where it was not reached or not permitted."""

    process: Process
    pss: int | None = None
    private: int | None = None


@dataclass(slots=True)
class _Left:
    """Processes left out, by reason."""

    late: int = 0
    denied: int = 0
    hidden: int = 0
    broken: int = 0

    def gaps(self, budget_ms: int) -> Iterator[Gap]:
        reasons = (
            (self.late, f"not reached within {budget_ms} ms (--pss-budget-ms gives more)"),
            (self.denied, f"this user may not read{_AS_ROOT}"),
            (self.hidden, f"not to be seen at all{_AS_ROOT}"),
            (self.broken, "with files that are not as proc(5) says"),
        )
        told = [f"{count} {why}" for count, why in reasons if count]
        if told:
            count = self.late + self.denied + self.hidden + self.broken
            absence = Absence.OUT_OF_TIME if self.late else Absence.UNREADABLE
            noun = "process" if count == 1 else "processes"
            yield Gap(f"PSS of {count} {noun}", absence, "; ".join(told))


def read(
    proc: Path,
    budget_ms: int,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Table, Sequence[Gap]]:
    """Return the table ``processes``, most PSS first, and one Gap for those whose PSS is missing.

    A process that ends meanwhile is left out, which is no Gap: it has no memory any more.
    ``budget_ms`` is of ``clock``; the process at which it runs out is still finished.
    """
    left = _Left()
    try:
        pids = sorted(int(name) for name in os.listdir(proc) if _NUMBER.fullmatch(name))  # noqa: PTH208  (ten times as quick as iterdir)
    except OSError as error:
        why = f"{proc}: {(error.strerror or 'cannot be listed').lower()}"
        return table((), proc, None), [Gap("processes", Absence.UNREADABLE, why)]
    found = [one for pid in pids if (one := _look(proc, pid, left)) is not None]
    found.sort(key=lambda one: -(one.resident or 0))
    end = clock() + budget_ms / 1000
    rows = []
    for at, one in enumerate(found):
        progress("processes", at, len(found), "process")
        rows.append(_measure(proc, one, left, in_time=clock() < end))
    boot = process.boot_time(proc)
    gaps = list(left.gaps(budget_ms))
    if boot is None and rows:
        gaps.append(Gap("start times", Absence.UNREADABLE, f"{proc}/stat has no btime"))
    if 1 not in pids:  # each pid namespace has one: hidepid=2, proc(5)
        gaps.append(
            Gap("processes of others", Absence.UNREADABLE, f"{proc} hides them; run as root")
        )
    return table([row for row in rows if row is not None], proc, boot), gaps


def table(rows: Sequence[Row], proc: Path, boot: int | None) -> Table:
    """Return the table ``processes`` of ``rows``."""
    ordered = sorted(rows, key=lambda row: (-_weight(row), row.process.pid))
    return Table(
        "processes",
        COLUMNS,
        tuple(
            (
                *(row.process.pid, row.process.ppid, row.process.uid, row.process.name),
                *(row.process.arguments, process.started(row.process, boot)),
                *(row.process.resident or 0, row.pss, row.private, row.process.swap),
            )
            for row in ordered
        ),
        tuple(_source(row, proc) for row in ordered),
    )


def _weight(row: Row) -> int:
    return (row.process.resident or 0) if row.pss is None else row.pss


def _source(row: Row, proc: Path) -> Source:
    place = f"{proc}/{row.process.pid}"
    if row.pss is None:
        return Source(Evidence.MEASURED, f"{place}/status:VmRSS, VmSwap", _MEANING)
    where = f"{place}/status:VmRSS, VmSwap; {place}/smaps_rollup:Pss, Private_Clean + Private_Dirty"
    return Source(Evidence.MEASURED, f"{where} + Private_Hugetlb", _MEANING)


def _look(proc: Path, pid: int, left: _Left) -> Process | None:
    """Return a process; None where it has ended or cannot be seen, which ``left`` counts."""
    try:
        with process.folder(proc, pid) as opened:
            return process.read(opened, pid)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return None
    except OSError:  # hidepid=1
        left.hidden += 1
    except Unreadable:
        left.broken += 1
    return None


def _measure(proc: Path, one: Process, left: _Left, *, in_time: bool) -> Row | None:
    """Return the process with its fair share; None where it has ended since it was looked at."""
    if one.resident is None:  # a kernel thread or a zombie has no memory of its own
        return Row(replace(one, swap=0), 0, 0)
    if not in_time:
        left.late += 1
        return Row(one)
    try:
        with process.folder(proc, one.pid) as opened:
            if process.start(opened, one.pid) != one.ticks:  # the number is another's by now
                return None
            share = process.rollup(opened, proc / str(one.pid))
            return Row(one, share.pss, share.private)
    except (FileNotFoundError, ProcessLookupError):
        return _ended(proc, one, left)
    except OSError:
        left.denied += 1
    except Unreadable:
        left.broken += 1
    return Row(one)


def _ended(proc: Path, one: Process, left: _Left) -> Row | None:
    """Tell a process that has ended from one whose memory map cannot be had."""
    now = _look(proc, one.pid, left)
    if now is None or now.ticks != one.ticks:
        return None
    if now.resident is None:  # a zombie by now
        return Row(replace(now, swap=0), 0, 0)
    left.broken += 1
    return Row(one)
