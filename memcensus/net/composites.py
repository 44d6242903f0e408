"""Operators that torch makes of others in C++, looking at numbers on the way, made of fakes too.

``ctc_loss`` with lengths as Python numbers fills a tensor with them by hand, which a fake has no
memory for (native/LossCTC.cpp; ``nn.CTCLoss`` with tuples of lengths).
"""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ATEN = torch.ops.aten
_MEAN, _SUM = 1, 2  # at::Reduction


@contextmanager
def as_for_real() -> Iterator[None]:
    """Hide from transformers that tensors are fakes, where it would take other ways with them.

    Its masks are made otherwise where it believes that it is being exported (utils/import_utils.py,
    ``is_tracing``).
    """
    utils = sys.modules.get("transformers.utils.import_utils")
    asked = getattr(utils, "is_fake_tensor", None)
    if utils is None or asked is None:
        yield
        return
    setattr(utils, "is_fake_tensor", lambda _tensor: False)  # noqa: B010  (a module of any version)
    try:
        yield
    finally:
        setattr(utils, "is_fake_tensor", asked)  # noqa: B010  (as above)


@contextmanager
def replaced(kernels: Mapping[str, Callable[..., object]]) -> Iterator[torch.library.Library]:
    """Put ``kernels`` in the place of torch's own while entered: "dropout" -> what runs."""
    with torch.library._scoped_library("aten", "IMPL") as library:  # noqa: SLF001  (the public class cannot be undone)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of kernels replaced, which is the purpose
            for name, kernel in kernels.items():
                for key in ("AutogradCPU", "CPU"):  # CPU: under inference_mode
                    library.impl(name, kernel, key)
        yield library


@contextmanager
def installed() -> Iterator[None]:
    """Put these in torch's place while entered."""
    with replaced({"ctc_loss.IntList": _ctc_loss}), as_for_real():
        yield


def _ctc_loss(  # noqa: PLR0913, PLR0917  (the operator's own arguments)
    scores: torch.Tensor,
    targets: torch.Tensor,
    lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = _MEAN,
    zero_infinity: bool = False,  # noqa: FBT001, FBT002  (as above)
) -> torch.Tensor:
    batch = scores if scores.dim() == 3 else scores.unsqueeze(1)
    losses: torch.Tensor = _ATEN._ctc_loss.default(  # noqa: SLF001  (torch's name)
        batch, targets.to(torch.int64), lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == float("inf"), losses.new_zeros(()), losses)
    if reduction == _MEAN:
        counts = losses.new_empty((len(target_lengths),)).clamp_min(1)
        return (losses / counts).mean()
    if reduction == _SUM:
        return losses.sum()
    return losses if scores.dim() == 3 else losses.squeeze(0)
