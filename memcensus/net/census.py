"""From a target and options to the report of one training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus import units
from memcensus.errors import ModelFailed, UsageError
from memcensus.fit import judge
from memcensus.model import Absence, Gap, Report
from memcensus.net import inputs, owners, scratch, tables, target
from memcensus.net.step import trace

if TYPE_CHECKING:
    from memcensus.net.block import Trace
    from memcensus.net.options import NetOptions
    from memcensus.net.target import Training
    from memcensus.subject import Request


def census(text: str, options: NetOptions, request: Request) -> Report:
    """Return the report of one training step of the network that ``text`` names.

    Raises:
        UsageError: if the options do not fit the target.
        Unreadable: if the code is not there.
        ModelFailed: if it raises.
    """
    given = inputs.parse_all(options.input, 1 if options.batch is None else options.batch)
    training, traced = _traced(text, given, options, request)
    root = owners.tree(text, traced, training.built)
    peak = max(traced.peak.size, traced.first.size)
    error = scratch.error(peak, traced.bound)
    return Report(
        subject="net",
        target=text,
        root=root,
        instant=traced.peak.time,
        timeline=owners.timeline(text, traced),
        tables=(tables.layers(traced), tables.owners(root), tables.steps(traced)),
        gaps=tuple(_gaps(traced, error)),
        verdict=None if request.budget is None else judge(peak, error, request.budget),
    )


def _traced(
    text: str, given: tuple[inputs.Input, ...], options: NetOptions, request: Request
) -> tuple[Training, Trace]:
    """Return the trace, of a network built for real if the code mixes meta tensors with others."""
    training = _fed(target.load(text), text, given, options)
    try:
        return training, trace(training, options.optimizer, options.dtype, request.progress)
    except ModelFailed as error:
        if training.built != target.ON_META or "meta" not in str(error.__cause__):
            raise
    training = _fed(target.load(text, on_meta=False), text, given, options)
    return training, trace(training, options.optimizer, options.dtype, request.progress)


def _fed(
    training: Training, text: str, given: tuple[inputs.Input, ...], options: NetOptions
) -> Training:
    """Return ``training`` with inputs from wherever they come, the command line first."""
    if given:
        return target.feed(training, given)
    if training.arguments is not None:
        if options.batch is not None:
            raise UsageError(
                f"--batch {options.batch} has nothing to work on: {text} brings its own inputs; "
                "change them there, or give --input"
            )
        return training
    if text not in target.BUILT_IN:
        raise UsageError(
            f"{text} brings no inputs; give the shape of one sample, as --input 3x224x224 or "
            "--input ids:int64:128"
        )
    shape = (options.batch or 1, *target.BUILT_IN[text][1])
    return target.feed(training, (inputs.Input(None, None, shape),))


def _gaps(traced: Trace, error: int) -> list[Gap]:
    gaps = [
        Gap(
            "scratch inside C++ kernels",
            Absence.UNCOUNTED,
            f"it never passes torch's dispatcher; a verdict allows {units.size(error)} for it, "
            "convolutions above all (measured: 0 to 1.34 % of the peak on six large networks, "
            "far more on small ones with wide images)",
        ),
        Gap(
            "Python and torch themselves",
            Absence.UNCOUNTED,
            "only tensor bytes are counted, not the program's code, its heap and the allocator's "
            "rounding",
        ),
    ]
    if traced.workspace:
        gaps.insert(
            0,
            Gap(
                "the workspace of oneDNN's LSTM",
                Absence.UNCOUNTED,
                f"torch tells its size only on a real run; up to {units.size(traced.workspace)} "
                "are allowed for it in a verdict, and none are in the tree; within "
                "torch.backends.mkldnn.flags(enabled=False) an LSTM has none",
            ),
        )
    gaps.extend(
        Gap(f"tensors of layout {layout}", Absence.UNCOUNTED, "they have no storage to follow")
        for layout in sorted(traced.unseen)
    )
    return gaps
