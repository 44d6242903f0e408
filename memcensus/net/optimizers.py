"""The optimizers of ``--optimizer``: torch's own with their defaults, and Adam with 8-bit states.

On a GPU torch takes the multi-tensor ("foreach") path where it can, which holds temporaries for all
parameters at once (torch/optim/optimizer.py, ``_default_to_fused_or_foreach``); on a CPU it goes
parameter by parameter.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Parameters: TypeAlias = list[nn.Parameter]

RATE = 1e-3  # no byte depends on the learning rate

BLOCK = 256
"""Numbers that share one float32 scale in bitsandbytes' block-wise quantization."""
SMALLEST = 4096
"""Parameters of fewer numbers keep float32 states there (``min_8bit_size``)."""


class Adam8bit(torch.optim.Optimizer):
    """Holds what bitsandbytes' Adam8bit holds: two states of a byte a number, with their scales.

    The update itself is one kernel for each parameter that makes no tensor. Facts: bitsandbytes
    0.43, optim/optimizer.py (Optimizer2State, block-wise).
    """

    def __init__(self, params: Parameters, lr: float = RATE) -> None:
        """Keep the parameters; the states come with the first step."""
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # never with a closure
        """Make the states that are not there yet."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if parameter.grad is not None and not state:
                    state.update(_states(parameter))


def _states(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    if parameter.numel() < SMALLEST:
        kind = torch.float32
        return {name: torch.zeros_like(parameter, dtype=kind) for name in ("state1", "state2")}
    scales = -(-parameter.numel() // BLOCK)
    kind = torch.uint8
    states = {name: torch.zeros_like(parameter, dtype=kind) for name in ("state1", "state2")}
    for name in ("absmax1", "absmax2"):
        states[name] = parameter.new_zeros(scales, dtype=torch.float32)
    return states


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
    "adam8bit": Adam8bit,
}
"""``--optimizer`` word -> what makes it."""

_ALONE = frozenset({"adam8bit"})  # has no multi-tensor path


def optimizer(name: str, parameters: Parameters, *, on_gpu: bool) -> torch.optim.Optimizer:
    """Return the optimizer called ``name`` as torch makes it for parameters on such a device."""
    if name in _ALONE:
        return OPTIMIZERS[name](parameters, lr=RATE)
    return OPTIMIZERS[name](parameters, lr=RATE, foreach=on_gpu)
