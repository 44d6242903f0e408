"""What the trace of a step could not tell: the gaps of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus import units
from memcensus.model import Absence, Gap
from memcensus.net.reads import PATIENCE
from memcensus.net.unknown import COMPILED, RECURRENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.net.allocator_settings import Settings
    from memcensus.net.block import Branch, Trace
    from memcensus.net.plan import Plan


def of_step(traced: Trace, plan: Plan, settings: Settings, error: int) -> tuple[Gap, ...]:
    """Return what is missing; ``error``: bytes that a verdict allows for all of it."""
    beside = _on_cpu(error) if plan.device is None else _on_gpu(settings, error)
    branches = [_branch(branch) for branch in traced.branches if _matters(branch, traced)]
    return (*branches, *_unknown(traced), *_without_storage(traced), *beside)


def _unknown(traced: Trace) -> Iterator[Gap]:
    """Yield a gap for each operator whose memory is assumed, by its name."""
    for op in sorted(traced.unknown):
        why = _OTHERWISE.get(
            op,
            "no shape tells what it holds; the largest it can return is counted, or for an "
            "operator of your own its arguments and results once more",
        )
        yield Gap(
            op if op in _OTHERWISE else f"the operator {op}",
            Absence.UNSUPPORTED,
            f"{why}; in all {units.size(traced.doubt)} are in doubt, and a verdict allows for them",
        )


def _matters(branch: Branch, traced: Trace) -> bool:
    """Return whether some bytes hang on what is read, or may."""
    highest = max(traced.peak.size, traced.first.size)
    return not branch.others or any(peak != highest for _, peak in branch.others)


def _branch(branch: Branch) -> Gap:
    """Return the gap for a number that the code reads back from a tensor."""
    what = f"the number that {branch.place} reads back ({branch.op})"
    if branch.told:
        return Gap(what, Absence.UNCOUNTED, f"taken as {branch.answer}, as --read says")
    tried = [
        f"with {answer} it {'raises' if peak is None else f'peaks at {units.size(peak)}'}"
        for answer, peak in branch.others
    ]
    tried = tried or ["its other answers were not tried"]
    loop = f"; a loop there was ended after {PATIENCE} reads" if branch.ended else ""
    why = (
        f"a census has shapes and no data: taken as {branch.answer}"
        f"{''.join(f', {text}' for text in tried)}{loop}; --read {branch.place}=VALUE tells"
    )
    return Gap(what, Absence.UNSUPPORTED, why)


_OTHERWISE = {
    COMPILED: "traced as if it were not compiled; the compiler may save other tensors",
    RECURRENT: "traced as a CPU runs them; cuDNN saves a reserve of its own instead",
}
"""What is traced in another way than it runs -> how."""


def _without_storage(traced: Trace) -> Iterator[Gap]:
    for layout in sorted(traced.unseen):
        why = "they have no storage to follow"
        yield Gap(f"tensors of layout {layout}", Absence.UNCOUNTED, why)


def _on_cpu(error: int) -> Iterator[Gap]:
    yield Gap(
        "scratch inside C++ kernels",
        Absence.UNCOUNTED,
        f"it never passes torch's dispatcher; a verdict allows {units.size(error)} for it, "
        "convolutions above all (measured: 0 to 1.34 % of the peak on six large networks, "
        "far more on small ones with wide images)",
    )
    yield Gap(
        "Python and torch themselves",
        Absence.UNCOUNTED,
        "only tensor bytes are counted, not the program's code, its heap and the allocator's "
        "rounding",
    )


def _on_gpu(settings: Settings, error: int) -> Iterator[Gap]:
    yield Gap(
        "workspaces of cuDNN and scratch of other GPU kernels",
        Absence.UNCOUNTED,
        f"libraries choose them at run time; a verdict allows {units.size(error)} for them and the "
        "context; how close that comes is not established yet",
    )
    yield Gap(
        "other programs on the GPU, NCCL",
        Absence.UNCOUNTED,
        "one process is planned, and no communication between GPUs",
    )
    for option in settings.ignored:
        why = "this option of the allocator is not simulated"
        yield Gap(f"PYTORCH_ALLOC_CONF {option}", Absence.UNSUPPORTED, why)
