"""Who owns the bytes: the tree at the peak, and each kind's bytes over the step.

Pure arithmetic on a ``Trace``; torch is not needed. The parts are summed from the blocks' lives and
checked against the running counter, which was kept apart from them.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING

from memcensus.model import Account, Clock, Evidence, Quantity, Series, Source, Timeline
from memcensus.net.accounts import Node
from memcensus.net.block import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcensus.model import Path
    from memcensus.net.block import Block, Trace

MOST_TIMES = 4096
"""Points of a timeline; longer steps are drawn at every n-th operator, the peak and the marks."""

MEANINGS = {
    Kind.PARAMETERS: "the weights; tied ones are owned under their first name",
    Kind.GRADIENTS: "one for each trained parameter, from its operator in the backward",
    Kind.OPTIMIZER_STATE: "what the optimizer keeps from step to step",
    Kind.SAVED: "what a forward made and left behind for the backward",
    Kind.TEMPORARIES: "results that live for a few operators",
    Kind.INPUTS: "the batch, and the target of the loss",
    Kind.BUFFERS: "running statistics, and other tensors that the code keeps",
}


def tree(name: str, trace: Trace, built: str) -> Account:
    """Return the account of all live bytes at the peak, by kind, module and operator.

    Raises:
        Overcounted: if the blocks hold more than the running counter said.
    """
    peak = trace.peak
    where = (
        f"running counter of live tensor bytes at operator {peak.time} ({peak.op}) of "
        f"{trace.ops}, in the {peak.phase} of the second step"
    )
    counted = Source(Evidence.COMPUTED, where, "tensor bytes alive at the step's highest moment")
    root = Account.explain(name, peak.size, counted, kinds(trace, built))
    quantities = (
        Quantity("peak of the first step", trace.first.size, "B"),
        Quantity("peak if the loop keeps the output", trace.kept, "B"),
        Quantity("operators", trace.ops, "operator"),
    )
    return Account(root.name, root.own, root.source, root.children, quantities=quantities)


def kinds(trace: Trace, built: str) -> list[Account]:
    """Return one account for each kind that holds tensors at the peak."""
    nodes = {kind: Node() for kind in Kind}
    for block in trace.blocks:
        _place(nodes[block.kind], block, trace.peak.time)
    accounts = (
        node.account(
            kind.value,
            Evidence.COMPUTED,
            Source(Evidence.COMPUTED, _how(kind, built), MEANINGS[kind]),
        )
        for kind, node in nodes.items()
    )
    return [account for account in accounts if _holds(account)]


def timeline(name: str, trace: Trace) -> Timeline:
    """Return each kind's bytes over the operators of the step; they sum to the peak at its time."""
    return Timeline(Clock.STEP, tuple(kinds_over_time(name, trace)), marks(trace))


def marks(trace: Trace) -> tuple[tuple[int, str], ...]:
    """Return where the phases begin."""
    return tuple((time, phase.value) for time, phase in trace.marks)


def kinds_over_time(name: str, trace: Trace) -> Iterator[Series]:
    """Yield a series for each kind that ever holds anything."""
    changes: dict[Kind, dict[int, int]] = {kind: defaultdict(int) for kind in Kind}
    for block in trace.blocks:
        for time, change in block.changes():
            changes[block.kind][time] += change
    times = times_of(trace)
    series = (_series((name, kind.value), changes[kind], times) for kind in Kind)
    yield from (each for each in series if any(each.sizes))


def _place(kind: Node, block: Block, time: int) -> None:
    size = block.at(time)
    if not size:
        return
    made = block.made
    path = (*made.path, made.what)
    kind.put(path, size, f"{made.formula(size)} of {made.what}")
    for borrower in block.borrowers:
        kind.put(borrower, 0, f"tied to {'.'.join(path)}", borrowed=size)


def _how(kind: Kind, built: str) -> str:
    if kind in (Kind.PARAMETERS, Kind.BUFFERS):
        return f"shapes of the network, {built}"
    return "shapes on fake tensors, from birth to death of each storage"


def _holds(account: Account) -> bool:
    return bool(account.total or account.children)


def times_of(trace: Trace) -> list[int]:
    """Return the times at which the series are drawn."""
    every = max(1, -(-trace.ops // MOST_TIMES))
    fixed = (trace.peak.time, trace.ops, *(time for time, _ in trace.marks))
    return sorted({*range(0, trace.ops + 1, every), *fixed})


def _series(path: Path, changes: dict[int, int], times: Iterable[int]) -> Series:
    """Return the running sum of ``changes`` at ``times``; equal neighbours are left out."""
    ordered = sorted(changes)
    sums = list(accumulate(changes[time] for time in ordered))
    points = list(_points(ordered, sums, times))
    return Series(path, tuple(time for time, _ in points), tuple(size for _, size in points))


def _points(ordered: list[int], sums: list[int], times: Iterable[int]) -> Iterator[tuple[int, int]]:
    at, size, drawn = 0, 0, None
    for time in times:
        while at < len(ordered) and ordered[at] <= time:
            size = sums[at]
            at += 1
        if size != drawn:
            yield time, size
            drawn = size
