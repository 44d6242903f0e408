"""The flags of ``memcensus net`` beyond those that all verbs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["train"]
Optimizer: TypeAlias = Literal["sgd", "sgd-momentum", "adam", "adamw", "adagrad", "rmsprop"]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]


@dataclass(frozen=True, slots=True)
class NetOptions:
    """How the step is made."""

    mode: Mode = "train"
    """What to measure: a training step."""

    batch: int | None = None
    """Samples in one step, 1 if not given; for --input and built-in networks."""

    input: tuple[str, ...] = ()
    """One sample: 3x224x224, or ids:int64:128 (argument, type, shape); repeat or use commas."""

    optimizer: Optimizer = "sgd"
    """Which optimizer makes the step."""

    dtype: Dtype | None = None
    """Number format of weights and inputs; as the model's code has it if not given."""
