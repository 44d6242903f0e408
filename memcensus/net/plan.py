"""How a loop goes around: what decides the peak besides the network itself. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from memcensus.errors import UsageError

if TYPE_CHECKING:
    from memcensus.net.device import Device

Mode: TypeAlias = Literal["train", "infer"]
Optimizer: TypeAlias = Literal[
    "sgd", "sgd-momentum", "adam", "adamw", "adagrad", "rmsprop", "adafactor", "adam8bit"
]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]
Half: TypeAlias = Literal["bfloat16", "float16"]
Clear: TypeAlias = Literal["first", "backward", "last"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One way around.

    Raises:
        UsageError: if ``accumulate`` is below 1.
    """

    mode: Mode = "train"
    optimizer: Optimizer = "sgd"
    dtype: Dtype | None = None  # of weights and inputs; None: as the code has it
    autocast: Half | None = None  # forward and loss run under torch.autocast with this type
    device: Device | None = None  # None: the CPU
    clear: Clear = "first"  # zero_grad: before the forward, before the backward, after the step
    keep: bool = False  # the loop holds the output until the step's end
    accumulate: int = 1  # forwards and backwards for each optimizer step

    def __post_init__(self) -> None:
        """Check the count."""
        if self.accumulate < 1:
            raise UsageError(
                f"--accumulate {self.accumulate}: a step has at least one backward; take 1 or more"
            )
