"""The tables of a training step: its layers, the owners of its peak, and the steps compared."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memcensus.model import Column, Evidence, Source, Table
from memcensus.net.block import NETWORK, Kind, Phase

if TYPE_CHECKING:
    from memcensus.model import Account, Cell, Path
    from memcensus.net.block import Peak, Trace
    from memcensus.net.plan import Plan


def all_of(trace: Trace, root: Account, plan: Plan) -> tuple[Table, ...]:
    """Return the tables of one step, those that a reader looks at first in front."""
    training = (saved(trace),) if plan.mode == "train" else ()
    return (owners(root), layers(trace), *training, steps(trace, plan))


def saved(trace: Trace) -> Table:
    """Return one row for each activation that the forward leaves behind: who made and keeps it."""
    start = next((time for time, phase in trace.marks if phase is Phase.BACKWARD), trace.ops)
    kept = [(b, b.at(start)) for b in trace.blocks if b.kind is Kind.SAVED and b.at(start)]
    kept.sort(key=lambda pair: -pair[1])
    columns = (
        Column("module"),
        Column("made by"),
        Column("shape"),
        Column("type"),
        Column("saved", "B"),
        Column("saved by"),
    )
    rows = tuple(
        (
            ".".join(block.made.path) or NETWORK,
            block.made.what,
            "x".join(map(str, block.made.shape)),
            block.made.dtype,
            size,
            "; ".join(block.savers) or _UNNAMED,
        )
        for block, size in kept
    )
    where = f"autograd's graph under the loss; alive when backward begins, operator {start}"
    return Table("saved", columns, rows, (Source(Evidence.COMPUTED, where),) * len(rows))


_UNNAMED = "the code, or a node that does not tell"


def layers(trace: Trace) -> Table:
    """Return one row for each module, in the order of the code."""
    start = next((time for time, phase in trace.marks if phase is Phase.BACKWARD), trace.ops)
    saved: dict[Path, int] = defaultdict(int)
    weights: dict[Path, int] = defaultdict(int)
    for block in trace.blocks:
        if block.kind is Kind.SAVED:
            saved[block.made.path] += block.at(start)
        elif block.kind is Kind.PARAMETERS:
            weights[block.made.path] += block.at(start)
    columns = (
        Column("module"),
        Column("type"),
        Column("output"),
        Column("calls"),
        Column("parameters"),
        Column("parameter bytes", "B"),
        Column("saved", "B"),
    )
    rows: list[tuple[Cell, ...]] = []
    sources: list[Source] = []
    for layer in trace.layers:
        module = ".".join(layer.path) or NETWORK
        sizes = weights[layer.path], saved[layer.path]
        rows.append((module, layer.kind, layer.output, layer.calls, layer.parameters, *sizes))
        where = f"named_modules()[{module!r}]; saved: alive when backward begins, operator {start}"
        sources.append(Source(Evidence.COMPUTED, where))
    return Table("layers", columns, tuple(rows), tuple(sources))


def owners(root: Account) -> Table:
    """Return one row for each account that holds bytes at the peak, the largest first."""
    held = [(path[1:], account) for path, account in root.walk() if account.own]
    held.sort(key=lambda pair: -pair[1].own)
    columns = (
        Column("kind"),
        Column("module"),
        Column("operator or name"),
        Column("at the peak", "B"),
        Column("share", "%"),
    )
    rows = tuple(
        (path[0], ".".join(path[1:-1]) or NETWORK, path[-1], account.own, _share(account, root))
        for path, account in held
    )
    return Table("owners", columns, rows, tuple(account.source for _, account in held))


def steps(trace: Trace, plan: Plan) -> Table:
    """Return one row for each of the two times around: its peak and where that was."""
    columns = (
        Column("step"),
        Column("peak", "B"),
        Column("phase"),
        Column("operator"),
        Column("number"),
        Column("module"),
        Column("operators"),
    )
    peaks = (("first", trace.first, trace.first_ops), ("second", trace.peak, trace.ops))
    rows = tuple(_step(name, peak, ops) for name, peak, ops in peaks)
    sources = tuple(
        Source(Evidence.COMPUTED, f"running counter of the {name} step") for name, _, _ in peaks
    )
    name = "step" if plan.mode == "train" else "forward"
    return Table(name, columns, rows, sources)


def _step(name: str, peak: Peak, ops: int) -> tuple[Cell, ...]:
    module = ".".join(peak.path) or NETWORK
    return (name, peak.size, peak.phase.value, peak.op, peak.time, module, ops)


def _share(account: Account, root: Account) -> float:
    return round(100 * account.own / root.total, 2)
