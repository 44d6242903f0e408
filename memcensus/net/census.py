"""From a target and options to the report of one training step."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from memcensus.errors import ModelFailed, UsageError
from memcensus.fit import judge
from memcensus.model import Report, Series
from memcensus.net import (
    allocator_settings,
    branches,
    cuda,
    device,
    gaps,
    gpu,
    inputs,
    owners,
    reads,
    scratch,
    tables,
    target,
)
from memcensus.net.block import Kind
from memcensus.net.pipeline import Pipeline
from memcensus.net.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcensus.model import Account, Budget, Timeline
    from memcensus.net.allocator_settings import Settings
    from memcensus.net.block import Trace
    from memcensus.net.options import NetOptions
    from memcensus.net.target import Training
    from memcensus.subject import Request


def census(text: str, options: NetOptions, request: Request) -> Report:
    """Return the report of one step of the network that ``text`` names.

    Raises:
        UsageError: if the options do not fit the target.
        Unreadable: if the code is not there.
        ModelFailed: if it raises.
    """
    plan, settings, pipeline = plan_of(options), settings_here(), _pipeline(options)
    training, traced = traced_as(text, options, plan, request)
    on_gpu = None if plan.device is None else gpu.replay(traced, settings)
    root, timeline = _drawn(text, traced, on_gpu, plan, training.built)
    budget = budget_of(request, plan)
    peak, error = judged(traced, on_gpu, plan, budget, settings)
    batch = _batch_bytes(traced)
    beside = pipeline.account(batch)
    if beside is not None and plan.device is None:  # with a GPU it lies elsewhere, on the host
        root, timeline = _with(root, timeline, beside)
        peak += beside.total
    return Report(
        subject="net",
        target=text,
        root=root,
        instant=traced.peak.time,
        timeline=timeline,
        tables=(*tables.all_of(traced, root, plan), *pipeline.tables(batch)),
        gaps=gaps.of_step(traced, plan, settings, error),
        verdict=None if budget is None else judge(peak, error, budget),
    )


def budget_of(request: Request, plan: Plan) -> Budget | None:
    """Return what there is: what --limit says, else the device's memory."""
    if request.budget is not None or plan.device is None:
        return request.budget
    return plan.device.budget


def settings_here() -> Settings:
    """Return the caching allocator's settings, as the environment has them for torch.

    Raises:
        UsageError: if they are none.
    """
    text = next(
        (os.environ[name] for name in allocator_settings.VARIABLES if name in os.environ), ""
    )
    return allocator_settings.parse(text)


def judged(
    traced: Trace,
    on_gpu: gpu.Replay | None,
    plan: Plan,
    budget: Budget | None,
    settings: Settings,
) -> tuple[int, int]:
    """Return (peak, error) in bytes that a verdict on both steps rests on."""
    doubt = traced.doubt
    if on_gpu is not None and plan.device is not None:
        limit = None if budget is None else budget.limit
        peak, error = gpu.judged(traced, on_gpu, plan.device, settings, limit)
    else:
        peak = max(traced.peak.size, traced.first.size)
        error = scratch.error(peak, traced.bound)
    return peak, error + doubt


def _drawn(
    text: str, traced: Trace, on_gpu: gpu.Replay | None, plan: Plan, built: str
) -> tuple[Account, Timeline]:
    if on_gpu is None or plan.device is None:
        return owners.tree(text, traced, built), owners.timeline(text, traced)
    return (
        gpu.tree(text, traced, on_gpu, plan.device, built),
        gpu.timeline(text, traced, on_gpu, plan.device),
    )


def _with(root: Account, timeline: Timeline, beside: Account) -> tuple[Account, Timeline]:
    """Return root and timeline with an account that is there all the time."""
    series = Series((root.name, beside.name), (0,), (beside.total,))
    return (
        replace(root, children=(*root.children, beside)),
        replace(timeline, series=(*timeline.series, series)),
    )


def _pipeline(options: NetOptions) -> Pipeline:
    return Pipeline(options.workers, options.prefetch, options.pin, options.versions)


def _batch_bytes(traced: Trace) -> int:
    return sum(b.at(traced.peak.time) for b in traced.blocks if b.kind is Kind.INPUTS)


def plan_of(options: NetOptions) -> Plan:
    """Return how the step is made.

    Raises:
        UsageError: if an option makes no sense.
    """
    return Plan(
        mode=options.mode,
        optimizer=options.optimizer,
        dtype=options.dtype,
        autocast=options.autocast,
        device=None if options.device is None else device.find(options.device),
        clear=options.zero_grad,
        keep=options.keep_output,
        accumulate=options.accumulate,
    )


def traced_as(
    text: str, options: NetOptions, plan: Plan, request: Request
) -> tuple[Training, Trace]:
    """Return the trace, of a network built for real if the code mixes meta tensors with others."""
    told = reads.told(options.read)
    training = prepared(text, options)
    try:
        return training, branches.traced(
            _once(training, text, options), plan, request.progress, told
        )
    except ModelFailed as error:
        if training.built != target.ON_META or "meta" not in str(error.__cause__):
            raise
    training = prepared(text, options, on_meta=False)
    make = _once(training, text, options, on_meta=False)
    return training, branches.traced(make, plan, request.progress, told)


def _once(
    training: Training, text: str, options: NetOptions, *, on_meta: bool = True
) -> Callable[[], Training]:
    """Return what brings ``training`` at its first call, and builds anew from then on."""
    made = [training]
    return lambda: made.pop() if made else prepared(text, options, on_meta=on_meta)


def prepared(text: str, options: NetOptions, *, on_meta: bool = True) -> Training:
    """Return the network with inputs from wherever they come, the command line first."""
    given = inputs.parse_all(options.input, 1 if options.batch is None else options.batch)
    with cuda.named("meta" if on_meta else "cpu") if options.device else nullcontext():
        return _fed(target.load(text, on_meta=on_meta), text, given, options)


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
