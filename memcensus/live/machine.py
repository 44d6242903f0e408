"""This machine's memory: one look at all its counters, and whether it fits what binds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus import fit
from memcensus.live import (
    arc,
    cgroup,
    composition,
    compressed,
    meminfo,
    memory,
    pressure,
    processes,
    slab,
    vmstat,
    zoneinfo,
)
from memcensus.live.inuse import Beside
from memcensus.live.memory import Machine
from memcensus.model import Absence, Budget, Evidence, Gap, Report, Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memcensus.live.cgroup import Level
    from memcensus.model import Account, Table, Verdict
    from memcensus.subject import Request

ATTEMPTS = 3
"""Readings of counters that contradict each other, before a Gap says so."""


def inspect(target: str, proc: Path, sys: Path, request: Request, pss_budget_ms: int) -> Report:
    """Return the report on the machine whose /proc and /sys these are.

    Raises:
        Unreadable: if not even MemTotal can be read.
    """
    root, machine, gaps = look(proc, sys)
    levels, hidden = cgroup.read(proc)
    binds = cgroup.binding(levels, machine.meminfo.value("MemTotal"))
    verdict, doubts = judge(machine, levels, binds, request.budget)
    numbers, unknown = memory.table(machine)
    tables: list[Table] = [numbers, compressed.table(machine.stores)]
    tables += [cgroup.table(levels, binds), cgroup.kills(levels)]
    found = [*gaps, *unknown, *hidden, *doubts]
    for read in (pressure.read, vmstat.read, slab.read):
        table, missing = read(proc)
        tables.append(table)
        found += missing
    table, missing = processes.read(proc, pss_budget_ms, request.progress)
    tables.insert(1, table)
    found += missing
    return Report("live", target, root, tables=tuple(tables), gaps=tuple(found), verdict=verdict)


def look(proc: Path, sys: Path) -> tuple[Account, Machine, Sequence[Gap]]:
    """Return the account of the machine and its counters, read again if they contradict.

    Raises:
        Unreadable: if not even MemTotal can be read.
    """
    for attempt in range(1, ATTEMPTS + 1):
        counters = meminfo.read(proc)
        cache, unread = arc.read(proc)
        stores, hidden = compressed.read(counters, sys)
        beside = Beside(cache, stores, zoneinfo.read(proc))
        root, parts, gaps = composition.account(counters, beside)
        machine = Machine(proc, counters, cache, stores, parts, not hidden)
        if attempt == ATTEMPTS or not gaps:
            return root, machine, [*gaps, *unread, *hidden]
    raise RuntimeError("a loop over at least one attempt has ended without one")


def judge(
    machine: Machine, levels: Sequence[Level], binds: Level | None, given: Budget | None
) -> tuple[Verdict | None, Sequence[Gap]]:
    """Return whether what cannot be given back stays below what binds, and what is not known.

    The machine's peak is MemTotal - MemAvailable, off by the difference between the two senses of
    available: one counts reserves and mapped pages as usable, the other does not. Where a control
    group's limit binds, the peak is that group's, because the limit says nothing of the others.
    """
    group = binds if given is None else _group_of(given, levels)
    if group is not None and group.budget is not None:
        needs = cgroup.needs(group)
        if needs is not None:
            return fit.judge(*needs, given or group.budget), ()
        why = f"{group.folder} shows no usage or no inactive file pages that fit it"
        return None, [Gap("verdict on the cgroup", Absence.UNREADABLE, why)]
    total = machine.meminfo.value("MemTotal")
    available, droppable = machine.available, machine.droppable
    senses = [size for size in (available, droppable) if size is not None]
    if total is None or not senses:
        return None, [Gap("verdict", Absence.UNREADABLE, "no sense of available memory is known")]
    if max(senses) > total:
        why = f"available memory is {max(senses):,} B of {total:,} B: the counters contradict"
        return None, [Gap("verdict", Absence.CONTRADICTORY, why)]
    where = f"{machine.meminfo.path}:MemTotal"
    host = Budget(total, Source(Evidence.MEASURED, where))
    return fit.judge(total - senses[0], max(senses) - min(senses), given or host), ()


def _group_of(given: Budget, levels: Sequence[Level]) -> Level | None:
    """Return the group whose limit ``given`` is: --limit auto may have found one."""
    places = {level.figures["limit"].source.where: level for level in levels if level.size("limit")}
    return places.get(given.source.where)
