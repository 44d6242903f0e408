"""Peaks of real training steps, on real tensors, by counters that are not ours.

Two of them: torch's own MemTracker, and the plainest counter there is, which after each operator
adds up whatever storages are alive, with no births, deaths or running sums to get wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Criterion: TypeAlias = Callable[[object], torch.Tensor]

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=1e-3),
    "sgd-momentum": lambda m: torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-3),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=1e-3),
}


class Plain(TorchDispatchMode):
    """Adds up what is alive after each operator."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak: int = 0
        for tensor in known:
            self.see(tensor)

    def see(self, tensor: torch.Tensor) -> None:
        if tensor.is_sparse:
            self.see(tensor._indices())
            self.see(tensor._values())
            return
        storage = tensor.untyped_storage()
        self.storages[id(storage)] = weakref.ref(storage)

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        alive = (reference() for reference in self.storages.values())
        self.peak = max(self.peak, sum(s.nbytes() for s in alive if s is not None))
        return result


def step(
    module: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, criterion: Criterion
) -> None:
    """One step, in the order that the convention of memcensus fixes."""
    optimizer.zero_grad(set_to_none=True)
    output = module(x)
    loss = criterion(output)
    del output
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()


def kept(
    module: nn.Module, optimizer: torch.optim.Optimizer, beside: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    """All that is there before the second step."""
    states = tree_leaves([list(state.values()) for state in optimizer.state.values()])
    attributes = [value for part in module.modules() for value in vars(part).values()]
    return [
        *module.parameters(),
        *module.buffers(),
        *beside,
        *(value for value in (*states, *attributes) if isinstance(value, torch.Tensor)),
    ]


def plain_peak(
    module: nn.Module,
    optimizer_name: str,
    x: torch.Tensor,
    criterion: Criterion,
    beside: Iterable[torch.Tensor] = (),
) -> int:
    """Return the peak of a real second step, by the plain counter."""
    module.train()
    optimizer = OPTIMIZERS[optimizer_name](module)
    step(module, optimizer, x, criterion)
    optimizer.zero_grad(set_to_none=True)
    counter = Plain(kept(module, optimizer, [x, *beside]))
    with counter:
        step(module, optimizer, x, criterion)
    return counter.peak


@dataclass(frozen=True)
class Loop:
    """How a loop goes around, written out as a user would write it."""

    optimizer: str = "sgd"
    clear: str = "first"
    keep: bool = False
    accumulate: int = 1
    half: torch.dtype | None = None  # of autocast

    def step(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: Mapping[str, object] | Sequence[object],
        criterion: Criterion,
    ) -> None:
        if self.clear == "first":
            optimizer.zero_grad(set_to_none=True)
        for micro in range(self.accumulate):
            kind, on = self.half or torch.bfloat16, self.half is not None
            with torch.autocast("cpu", dtype=kind, enabled=on):
                output = called(module, inputs)
                loss = criterion(output)
            if not self.keep:
                del output
            if self.clear == "backward" and micro == 0:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        if self.clear == "last":
            optimizer.zero_grad(set_to_none=True)

    def peak(
        self,
        module: nn.Module,
        inputs: Mapping[str, object] | Sequence[object],
        criterion: Criterion,
        beside: Iterable[torch.Tensor] = (),
    ) -> int:
        """Return the peak of a real second step, by the plain counter."""
        module.train()
        optimizer = OPTIMIZERS[self.optimizer](module)
        self.step(module, optimizer, inputs, criterion)
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        if self.clear == "first":
            optimizer.zero_grad(set_to_none=True)
            gradients = []
        held = kept(module, optimizer, [*_tensors(inputs), *beside, *gradients])
        del gradients
        counter = Plain(held)
        del held
        with counter:
            self.step(module, optimizer, inputs, criterion)
        return counter.peak


def inference_peak(module: nn.Module, inputs: Mapping[str, object] | Sequence[object]) -> int:
    """Return the peak of a real forward without gradients, by the plain counter."""
    module.eval()
    held = [*module.parameters(), *module.buffers(), *_tensors(inputs)]
    counter = Plain(held)
    with counter, torch.inference_mode():
        called(module, inputs)
    return counter.peak


def allocator_inference_peak(
    module: nn.Module, inputs: Mapping[str, object] | Sequence[object]
) -> int:
    """Return the peak of a real forward as the CPU allocator counts, with kernels' scratch."""
    module.eval()
    held = [*module.parameters(), *module.buffers(), *_tensors(inputs)]
    storages = [tensor.untyped_storage() for tensor in held]
    before = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p,
    ):
        called(module, inputs)
    return before + _highest(p)


def _highest(done: profile) -> int:
    results: Any = done.profiler.kineto_results  # type: ignore[union-attr]  # it was entered
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]"
    )
    highest: int = max(accumulate((size for _, size in events), initial=0))
    return highest


def called(module: nn.Module, inputs: Mapping[str, object] | Sequence[object]) -> object:
    """Return what ``module`` returns for ``inputs``, by name or in order."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs)


def _tensors(inputs: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def torchs_peak(
    module: nn.Module,
    optimizer_name: str,
    x: torch.Tensor,
    criterion: Criterion,
    beside: Iterable[torch.Tensor] = (),
) -> int:
    """Return the peak of a real second step, by torch's MemTracker."""
    module.train()
    optimizer = OPTIMIZERS[optimizer_name](module)
    step(module, optimizer, x, criterion)
    optimizer.zero_grad(set_to_none=True)
    tracker = MemTracker()
    tracker.track_external(module, optimizer, x, *beside)
    with tracker:
        step(module, optimizer, x, criterion)
    peak: dict[str, int] = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return peak["Total"]


def allocator_peak(
    module: nn.Module,
    optimizer_name: str,
    x: torch.Tensor,
    criterion: Criterion,
    beside: Iterable[torch.Tensor] = (),
) -> int:
    """Return the peak of a real second step as the CPU allocator counts, with kernels' scratch."""
    module.train()
    optimizer = OPTIMIZERS[optimizer_name](module)
    step(module, optimizer, x, criterion)
    optimizer.zero_grad(set_to_none=True)
    storages = [tensor.untyped_storage() for tensor in kept(module, optimizer, [x, *beside])]
    before = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(module, optimizer, x, criterion)
    return before + _highest(profiler)
