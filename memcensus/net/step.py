"""One training step, made twice on fake tensors: the first fills the optimizer, the second counts.

The order, which decides the peak::

    optimizer.zero_grad(set_to_none=True)
    output = module(inputs)
    loss = criterion(output)
    del output                              # let go once the loss exists
    loss.backward()
    optimizer.step()

Inputs, target, parameters and buffers are there from the start. A loop that keeps ``output`` to the
step's end holds what ``Trace.kept`` says. Reference cycles that hold tensors are collected between
the steps only, so the figure does not hang on when Python's collector happens to run.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from memcensus.errors import ModelFailed
from memcensus.net.block import LOSS, Kind, Layer, Phase, Trace
from memcensus.net.fakes import Fakes
from memcensus.net.loss import default_loss, leaves_of, target_of
from memcensus.net.model_code import ModelCode
from memcensus.net.trace import Calls, Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from torch.utils._pytree import KeyEntry

    from memcensus.net.options import Dtype
    from memcensus.net.options import Optimizer as OptimizerName
    from memcensus.net.target import Training
    from memcensus.subject import Progress

    Parameters: TypeAlias = list[nn.Parameter]

RATE = 1e-3  # no byte depends on the learning rate

OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "sgd": lambda given: torch.optim.SGD(given, lr=RATE),
    "sgd-momentum": lambda given: torch.optim.SGD(given, lr=RATE, momentum=0.9),
    "adam": lambda given: torch.optim.Adam(given, lr=RATE),
    "adamw": lambda given: torch.optim.AdamW(given, lr=RATE),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=RATE),
    "rmsprop": lambda given: torch.optim.RMSprop(given, lr=RATE),
}
"""``--optimizer`` word -> torch's own, with its defaults: on a CPU, one parameter after another."""


def trace(
    training: Training, optimizer: OptimizerName, dtype: Dtype | None, progress: Progress
) -> Trace:
    """Return what the second training step holds, operator by operator.

    Raises:
        ModelFailed: if the model's code raises, needs data, or learns nothing.
    """
    with _quiet():
        return _traced(training, optimizer, dtype, progress)


def _traced(
    training: Training, optimizer: OptimizerName, dtype: Dtype | None, progress: Progress
) -> Trace:
    logging.getLogger(FakeTensorMode.__module__).disabled = True  # it logs errors that we tell
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = Fakes(mode, None if dtype is None else getattr(torch, dtype))
    step = _Step(training, fakes, mode)
    progress("training step", 0, 3, "pass")
    step.probe()
    progress("training step", 1, 3, "pass")
    tracker = Tracker(step.module)
    try:
        with _collector_off(), mode, tracker:
            return _second(step, tracker, optimizer, progress)
    finally:
        tracker.close()


def _second(step: _Step, tracker: Tracker, optimizer: OptimizerName, progress: Progress) -> Trace:
    step.hold(tracker)
    parameters = list(step.module.parameters())  # frozen ones too, as most loops have it
    if not any(parameter.requires_grad for parameter in parameters):
        raise ModelFailed("no parameter of the network requires a gradient; there is no training")
    with ModelCode(f"the optimizer {optimizer}"):
        chosen = OPTIMIZERS[optimizer](parameters)
    step.make(tracker, chosen)
    first, first_ops = tracker.peak, tracker.ops
    gc.collect()
    progress("training step", 2, 3, "pass")
    kept = step.make(tracker, chosen)
    progress("training step", 3, 3, "pass")
    return Trace(
        first=first,
        first_ops=first_ops,
        peak=tracker.peak,
        ops=tracker.ops,
        blocks=tracker.blocks(),
        marks=tuple(tracker.marks),
        layers=tuple(_layers(step.module, tracker.calls)),
        bound=tracker.bound,
        workspace=tracker.workspace,
        kept=tracker.kept_peak(kept),
        unseen=frozenset(tracker.unseen),
    )


class _Step:
    """The network on fake tensors, its inputs, its target, and how to go once around."""

    def __init__(self, training: Training, fakes: Fakes, mode: FakeTensorMode) -> None:
        """Replace every tensor by one without data."""
        self.module = training.module
        self._mode = mode
        fakes.module(self.module)
        self.module.train()
        self._arguments = [fakes.value(value, "an input") for value in training.arguments or ()]
        self._keywords = {
            name: fakes.value(value, f"the input {name}")
            for name, value in training.keywords.items()
        }
        fed = leaves_of([self._arguments, self._keywords])
        shapes = ", ".join("x".join(map(str, tensor.shape)) or "1" for tensor in fed)
        self._forward = f"the network's forward, fed {shapes or 'nothing'},"
        self._own_loss = None
        self._kept_by_loss: list[torch.Tensor] = []
        if training.loss is not None:
            self._own_loss, self._kept_by_loss = fakes.loss(training.loss)
        self._target: torch.Tensor | None = None

    def probe(self) -> None:
        """Go forward once, uncounted, to learn the shape of the target."""
        if self._own_loss is not None:
            return
        with ModelCode(self._forward), self._mode:
            self._target = target_of(self.module(*self._arguments, **self._keywords))

    def hold(self, tracker: Tracker) -> None:
        """Tell the tracker what the network and the loop keep from step to step."""
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            *path, last = name.split(".")
            tracker.hold(parameter, Kind.PARAMETERS, tuple(path), last)
        for name, buffer in self.module.named_buffers(remove_duplicate=False):
            *path, last = name.split(".")
            tracker.hold(buffer, Kind.BUFFERS, tuple(path), last)
        for name, part in self.module.named_modules():
            path = name.split(".") if name else []
            for attribute, value in vars(part).items():
                if isinstance(value, torch.Tensor):
                    tracker.hold(value, Kind.BUFFERS, tuple(path), attribute)
        for at, value in tree_flatten_with_path((self._arguments, self._keywords))[0]:
            if isinstance(value, torch.Tensor):
                tracker.hold(value, Kind.INPUTS, (), f"input {_named(at[1:])}")
        for tensor in self._kept_by_loss:
            tracker.hold(tensor, Kind.INPUTS, (LOSS,), "target")
        if self._target is not None:
            tracker.hold(self._target, Kind.INPUTS, (LOSS,), "target")

    def make(self, tracker: Tracker, optimizer: torch.optim.Optimizer) -> frozenset[int]:
        """Make one step; return the identities of the output's storages."""
        optimizer.zero_grad(set_to_none=True)
        tracker.begin()
        with ModelCode(self._forward):
            output = self.module(*self._arguments, **self._keywords)
        tracker.enter(Phase.LOSS)
        loss = self._loss(output)
        kept = tracker.keys(leaves_of(output))
        del output
        tracker.save_survivors(loss)
        tracker.enter(Phase.BACKWARD)
        with ModelCode("the backward"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._hold_gradients(tracker)
        tracker.enter(Phase.OPTIMIZER)
        with ModelCode("the optimizer"):
            optimizer.step()
        self._hold_state(tracker, optimizer)
        self.hold(tracker)
        return kept

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


def _named(at: tuple[KeyEntry, ...]) -> str:
    """Return "0", "ids" or "0.mask": where in the nest of arguments a tensor is."""
    return ".".join(part.strip("'\"") for part in keystr(at)[1:-1].split("]["))


def _layers(module: nn.Module, calls: dict[tuple[str, ...], Calls]) -> Iterator[Layer]:
    for name, part in module.named_modules():
        path = tuple(name.split(".")) if name else ()
        called = calls.get(path, Calls())
        numbers = sum(p.numel() for p in part.parameters(recurse=False))
        yield Layer(path, type(part).__name__, called.output, called.count, numbers)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging a traceback of what is raised anyhow and becomes a sentence."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep Python's cycle collector out of a step; see the module's docstring."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
