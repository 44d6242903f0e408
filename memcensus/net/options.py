"""The flags of ``memcensus net`` beyond those that all verbs have."""

from __future__ import annotations

from dataclasses import dataclass

from memcensus.net.plan import (  # noqa: TC001  (cyclopts reads the annotations)
    Clear,
    Dtype,
    Half,
    Mode,
    Optimizer,
)


@dataclass(frozen=True, slots=True)
class NetOptions:
    """How the step is made."""

    mode: Mode = "train"
    """What to measure: a training step, or a forward without gradients."""

    batch: int | None = None
    """Samples in one step, 1 if not given; for --input and built-in networks."""

    input: tuple[str, ...] = ()
    """One sample: 3x224x224, or ids:int64:128 (argument, type, shape); repeat or use commas."""

    optimizer: Optimizer = "sgd"
    """Which optimizer makes the step."""

    dtype: Dtype | None = None
    """Number format of weights and inputs; as the model's code has it if not given."""

    autocast: Half | None = None
    """Run forward and loss under torch.autocast with this type; the weights stay as they are."""

    device: str | None = None
    """The GPU to plan for: h100, rtx3060 ... or cuda:24GiB; the CPU if not given."""

    zero_grad: Clear = "first"
    """Where the loop clears gradients: before the forward, before the backward, after the step."""

    keep_output: bool = False
    """The loop holds the network's output until the step's end."""

    read: tuple[str, ...] = ()
    """What code reads back from a tensor, by its line: models.py:31=false; may be repeated."""

    accumulate: int = 1
    """Forwards and backwards, each on one batch, for each optimizer step."""

    workers: int = 0
    """Processes of the data loader; with them the report has what waits on the host."""

    prefetch: int = 2
    """Batches that each worker is asked for ahead."""

    pin: bool = False
    """Batches are copied to page-locked memory."""

    versions: int = 0
    """Copies of a batch that a worker holds while it makes it: decoded, augmented, as floats."""
