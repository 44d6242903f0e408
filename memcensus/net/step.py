"""One training step or forward, made twice on fake tensors: the second time is the one that counts.

The order, which decides the peak; ``Plan`` has the places where loops differ::

    optimizer.zero_grad(set_to_none=True)   # Plan.clear: here, before the backward, or at the end
    output = module(inputs)
    loss = criterion(output)
    del output                              # let go once the loss exists, unless Plan.keep
    loss.backward()                         # Plan.accumulate: these four so often
    optimizer.step()

Inputs, target, parameters and buffers are there from the start. A loop that keeps ``output`` to the
step's end holds what ``Trace.kept`` says. Reference cycles that hold tensors are collected between
the steps only, so the figure does not hang on when Python's collector happens to run.

A forward without gradients runs in ``torch.inference_mode``, on a module in evaluation mode; its
output is alive at the end.
"""

from __future__ import annotations

import gc
import logging
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from memcensus.errors import ModelFailed
from memcensus.net import composites, cuda
from memcensus.net.block import LOSS, Kind, Layer, Phase, Trace
from memcensus.net.callers import Calls, path_of
from memcensus.net.fakes import Fakes
from memcensus.net.loss import default_loss, leaves_of, target_of
from memcensus.net.model_code import ModelCode
from memcensus.net.optimizers import optimizer
from memcensus.net.reads import Reads
from memcensus.net.trace import Tracker
from memcensus.net.unknown import untold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from torch.utils._pytree import KeyEntry

    from memcensus.model import Path
    from memcensus.net.block import Block
    from memcensus.net.plan import Plan
    from memcensus.net.target import Training
    from memcensus.subject import Progress


def trace(training: Training, plan: Plan, progress: Progress, reads: Reads | None = None) -> Trace:
    """Return what the second time around holds, operator by operator.

    ``reads`` answers what the code reads back from tensors, and remembers it.

    Raises:
        ModelFailed: if the model's code raises, needs data, or learns nothing.
    """
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        stack.enter_context(composites.installed())
        if plan.device is not None:
            stack.enter_context(cuda.kernels(plan.device))
        return _traced(training, plan, progress, reads or Reads())


def _traced(training: Training, plan: Plan, progress: Progress, reads: Reads) -> Trace:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = Fakes(mode, None if plan.dtype is None else getattr(torch, plan.dtype))
    around = _Step(training, plan, fakes, mode)
    progress(around.name, 0, 2, "pass")
    reads.dimension = around.dimension
    tracker = Tracker(around.module, reads, plan.device)
    try:
        with _collector_off(), mode, tracker:
            return _second(around, tracker, progress)
    finally:
        tracker.close()


def _second(around: _Step, tracker: Tracker, progress: Progress) -> Trace:
    around.hold(tracker)
    around.prepare()
    around.make(tracker)
    first, first_ops = tracker.peak, tracker.ops
    gc.collect()
    progress(around.name, 1, 2, "pass")
    kept = around.make(tracker)
    progress(around.name, 2, 2, "pass")
    storages = tracker.storages
    blocks, marks = storages.blocks(), tuple(tracker.marks)
    saved = _saved(blocks, marks) if around.untold else 0  # something else may be saved
    return Trace(
        first=first,
        first_ops=first_ops,
        peak=tracker.peak,
        ops=tracker.ops,
        blocks=blocks,
        marks=marks,
        layers=tuple(_layers(around.module, tracker.callers.calls)),
        bound=tracker.bound,
        kept=storages.kept_peak(kept),
        unseen=frozenset(storages.unseen),
        unknown=frozenset(tracker.unknown) | around.untold,
        doubt=tracker.doubt + saved,
        libraries=frozenset(tracker.libraries),
        results=tracker.results,
        events=tuple(storages.events),
        start=storages.start,
    )


def _saved(blocks: Iterable[Block], marks: Iterable[tuple[int, Phase]]) -> int:
    """Return the bytes that lie saved when the backward begins."""
    begins = [time for time, phase in marks if phase is Phase.BACKWARD]
    kept = (block for block in blocks if block.kind is Kind.SAVED)
    return sum(block.at(begins[-1]) for block in kept) if begins else 0


class _Step:
    """The network on fake tensors, its inputs, its target, and how to go once around."""

    def __init__(self, training: Training, plan: Plan, fakes: Fakes, mode: FakeTensorMode) -> None:
        """Replace every tensor by one without data."""
        self.module = training.module
        self.name = "forward" if plan.mode == "infer" else "training step"
        self._plan = plan
        self._mode = mode
        self._optimizer: torch.optim.Optimizer | None = None
        self.untold = untold(self.module, on_gpu=plan.device is not None)
        fakes.module(self.module)
        self.module.train(plan.mode == "train")
        self._arguments = [fakes.value(value, "an input") for value in training.arguments or ()]
        self._keywords = {
            name: fakes.value(value, f"the input {name}")
            for name, value in training.keywords.items()
        }
        fed = leaves_of([self._arguments, self._keywords])
        self.dimension = max((size for tensor in fed for size in tensor.shape), default=1)
        shapes = ", ".join("x".join(map(str, tensor.shape)) or "1" for tensor in fed)
        self._forward = f"the network's forward, fed {shapes or 'nothing'},"
        self._own_loss = None
        self._kept_by_loss: list[torch.Tensor] = []
        if training.loss is not None:
            self._own_loss, self._kept_by_loss = fakes.loss(training.loss)
        self._target: torch.Tensor | None = None

    def hold(self, tracker: Tracker) -> None:
        """Tell the tracker what the network and the loop keep from step to step."""
        for tensor in _in_order_of_moving(self.module):
            tracker.meet(tensor)
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            *path, last = name.split(".")
            tracker.hold(parameter, Kind.PARAMETERS, tuple(path), last)
        for name, buffer in self.module.named_buffers(remove_duplicate=False):
            *path, last = name.split(".")
            tracker.hold(buffer, Kind.BUFFERS, tuple(path), last)
        for owner, attribute, value in _loose(self.module):
            tracker.hold(value, Kind.BUFFERS, owner, attribute)
        for at, value in tree_flatten_with_path((self._arguments, self._keywords))[0]:
            if isinstance(value, torch.Tensor):
                tracker.hold(value, Kind.INPUTS, (), f"input {_named(at[1:])}")
        for tensor in self._kept_by_loss:
            tracker.hold(tensor, Kind.INPUTS, (LOSS,), "target")
        if self._target is not None:
            tracker.hold(self._target, Kind.INPUTS, (LOSS,), "target")

    def prepare(self) -> None:
        """Make the optimizer, if there is training."""
        if self._plan.mode == "infer":
            return
        parameters = list(self.module.parameters())  # frozen ones too, as most loops have it
        if not any(parameter.requires_grad for parameter in parameters):
            raise ModelFailed(
                "no parameter of the network requires a gradient; there is no training"
            )
        chosen = self._plan.optimizer
        with ModelCode(f"the optimizer {chosen}"):
            on_gpu = self._plan.device is not None
            self._optimizer = optimizer(chosen, parameters, on_gpu=on_gpu)

    def make(self, tracker: Tracker) -> frozenset[int]:
        """Go around once; return the identities of the output's storages."""
        if self._optimizer is None:
            return self._infer(tracker)
        return self._train(tracker, self._optimizer)

    def _infer(self, tracker: Tracker) -> frozenset[int]:
        tracker.begin()
        with ModelCode(self._forward), torch.inference_mode(), self._casting():
            output = self.module(*self._arguments, **self._keywords)
        kept = tracker.storages.keys(leaves_of(output))
        self.hold(tracker)
        del output
        return kept

    def _train(self, tracker: Tracker, optimizer: torch.optim.Optimizer) -> frozenset[int]:
        clear, kept = self._plan.clear, frozenset[int]()
        if clear == "first":
            optimizer.zero_grad(set_to_none=True)
        tracker.begin()
        for micro in range(self._plan.accumulate):
            if micro:
                tracker.enter(Phase.FORWARD)
            output, loss = self._forth(tracker)
            kept = tracker.storages.keys(leaves_of(output))
            if not self._plan.keep:
                del output
            tracker.save_survivors(loss)
            if clear == "backward" and micro == 0:
                optimizer.zero_grad(set_to_none=True)
            tracker.enter(Phase.BACKWARD)
            with ModelCode("the backward"):
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
            self._hold_gradients(tracker)
        tracker.enter(Phase.OPTIMIZER)
        with ModelCode("the optimizer"):
            optimizer.step()
        self._hold_state(tracker, optimizer)
        self.hold(tracker)
        if clear == "last":
            optimizer.zero_grad(set_to_none=True)
        return kept

    def _forth(self, tracker: Tracker) -> tuple[object, torch.Tensor]:
        """Go forward; return the output and its loss."""
        with self._casting():
            with ModelCode(self._forward):
                output = self.module(*self._arguments, **self._keywords)
            self._find_target(tracker, output)
            tracker.enter(Phase.LOSS)
            return output, self._loss(output)

    def _find_target(self, tracker: Tracker, output: object) -> None:
        """Make the target of the default loss, whose shape the first output tells."""
        if self._own_loss is not None or self._target is not None:
            return
        with ModelCode(self._forward):
            self._target = target_of(output)
        if self._target is not None:
            tracker.hold(self._target, Kind.INPUTS, (LOSS,), "target")
            tracker.backdate(self._target)

    def _casting(self) -> torch.autocast:
        """Return the context that forward and loss run in: autocast, off where none is planned."""
        wanted = self._plan.autocast
        kind = torch.bfloat16 if wanted is None else getattr(torch, wanted)
        return torch.autocast("cpu", dtype=kind, enabled=wanted is not None)

    def _loss(self, output: object) -> torch.Tensor:
        with ModelCode("the loss"):
            loss = (
                default_loss(output, self._target)
                if self._own_loss is None
                else self._own_loss(output)
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shown = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ModelFailed(f"the loss is {shown}, and must be a tensor of one number")
        if not loss.requires_grad:
            raise ModelFailed(
                "the loss does not depend on any parameter that requires a gradient; check for "
                "torch.no_grad() and .detach() in the network"
            )
        return loss

    def _hold_gradients(self, tracker: Tracker) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                *path, last = name.split(".")
                tracker.hold(parameter.grad, Kind.GRADIENTS, tuple(path), last)

    def _hold_state(self, tracker: Tracker, optimizer: torch.optim.Optimizer) -> None:
        for name, parameter in self.module.named_parameters():
            *path, last = name.split(".")
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tracker.hold(value, Kind.OPTIMIZER_STATE, (*path, last), str(key))


def _loose(module: nn.Module) -> Iterator[tuple[Path, str, torch.Tensor]]:
    """Yield (path, attribute, tensor) of what modules hold that is no parameter or buffer."""
    for name, part in module.named_modules():
        path = path_of(name)
        for attribute, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield path, attribute, value


def _in_order_of_moving(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield what ``module.to(device)`` moves, in its order: children first (Module._apply)."""
    for child in module.children():
        yield from _in_order_of_moving(child)
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _named(at: tuple[KeyEntry, ...]) -> str:
    """Return "0", "ids" or "0.mask": where in the nest of arguments a tensor is."""
    return ".".join(part.strip("'\"") for part in keystr(at)[1:-1].split("]["))


def _layers(module: nn.Module, calls: dict[tuple[str, ...], Calls]) -> Iterator[Layer]:
    for name, part in module.named_modules():
        path = path_of(name)
        called = calls.get(path, Calls())
        numbers = sum(p.numel() for p in part.parameters(recurse=False))
        yield Layer(path, type(part).__name__, called.output, called.count, numbers)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging a traceback of what is raised anyhow and becomes a sentence.

    And from warnings, which tell about numbers that are not there.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python's cycle collector out of a step; see the module's docstring.

    What is there already is frozen: to walk through all of torch's objects takes 0.2 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
