"""What PyTorch does otherwise on a GPU, made to happen on CPU fakes, so that no GPU is needed.

Tensors stay fakes of the CPU; only decisions that torch makes by the device are taken as for CUDA:

- dropout in training is one kernel with a mask of bytes (aten/src/ATen/native/Dropout.cpp,
  ``is_fused_kernel_acceptable``);
- scaled-dot-product attention takes the kernel that the GPU would: flash for 16-bit numbers, else
  memory-efficient, else plain mathematics (native/transformers/cuda/sdp_utils.cpp);
- float16 turns into float32 inside the softmax, and an LSTM cell is one kernel;
- autocast follows CUDA's lists (``autocast``);
- code that asks for "cuda" by name gets the fakes: ``.cuda()``, ``.to("cuda")``, ``device="cuda"``.

As shipped, torch's fake CUDA tensors cannot do this: without a GPU, CPU builds refuse their
operators ("not linked with support for cuda devices", 2.13) and CUDA builds their backward
("hasPrimaryContext expects a valid device index", 2.14.1).

Not covered: branches of the user's code on ``tensor.is_cuda``, custom CUDA operators, cuDNN's
recurrent layers (they run as the CPU's, and are a gap, see ``unknown``) and the fused GRU cell, and
cuDNN's attention, whose memory is flash's.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

from memcensus.net import autocast, composites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcensus.net.device import Device

_ATEN = torch.ops.aten
_FLASH_SINCE = (8, 0)  # compute capability; 2.13 has flash for sm_80 and later only
_LARGEST_FLASH_HEAD = 256
_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def kernels(device: Device) -> Iterator[None]:
    """Take CUDA's decisions while entered, as for a GPU like ``device``."""
    cache = autocast.Cache()
    with composites.replaced(_replacements(device)) as library:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as there
            autocast.install(library, cache)
        with autocast.as_cuda(cache), named("cpu"):
            yield


def named(device: str) -> TorchFunctionMode:
    """Return a context in which what code places on "cuda" goes to ``device`` instead."""
    return _NamedDevice(torch.device(device))


def _replacements(device: Device) -> dict[str, Callable[..., object]]:
    def attention(  # noqa: PLR0913  (the operator's own arguments)
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002  (the operator's own arguments)
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kernel = attention_kernel(
            device.capability, query, key, value, attn_mask, enable_gqa=enable_gqa
        )
        asked = _Attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _ATTENTION[kernel](asked)

    return {
        "dropout": _dropout,
        "lstm_cell": _lstm_cell,
        "softmax.int": partial(_softmax, _ATEN._softmax.default),  # noqa: SLF001  (torch's name)
        "log_softmax.int": partial(_softmax, _ATEN._log_softmax.default),  # noqa: SLF001  (torch's name)
        "scaled_dot_product_attention": attention,
    }


def _softmax(
    kernel: Callable[[torch.Tensor, int, bool], torch.Tensor],
    tensor: torch.Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Go from float16 to float32 inside the kernel, without a copy (native/SoftMax.cpp)."""
    inside = tensor.dtype is torch.float16 and dtype is torch.float32
    if dtype is not None and not inside:
        tensor = tensor.to(dtype)
    return kernel(tensor, dim, inside)


def _lstm_cell(
    tensor: torch.Tensor,
    states: Sequence[torch.Tensor],
    input_weight: torch.Tensor,
    hidden_weight: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one kernel of the gates (native/RNN.cpp, ``LSTMCell``)."""
    gates = linear(tensor, input_weight), linear(states[0], hidden_weight)
    hidden, cell, _ = _ATEN._thnn_fused_lstm_cell.default(  # noqa: SLF001  (torch's name)
        *gates, states[1], input_bias, hidden_bias
    )
    return hidden, cell


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001  (the operator's own arguments)
    if not train or p == 0 or not tensor.numel():
        return tensor
    if p == 1:
        return tensor.mul(torch.zeros((), dtype=tensor.dtype))
    dropped: torch.Tensor = _ATEN.native_dropout.default(tensor, p, train)[0]
    return dropped


def attention_kernel(
    capability: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    enable_gqa: bool,
) -> str:
    """Return "flash", "efficient" or "math": which kernel attends to (N, heads, length, E).

    Source: sdp_utils.cpp of PyTorch 2.13, ``select_sdp_backend`` with all backends enabled.
    """
    head, head_out = query.shape[-1], value.shape[-1]
    if query.dim() != 4 or 0 in query.shape or 0 in key.shape:
        return "math"
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    if (
        query.dtype in _HALVES
        and capability >= _FLASH_SINCE
        and mask is None
        and head == head_out
        and head <= _LARGEST_FLASH_HEAD
        and (same_heads or enable_gqa)
    ):
        return "flash"
    wide = 16 if capability >= _FLASH_SINCE or query.dtype in _HALVES else 4  # bytes of a load
    aligned = all(size * query.element_size() % wide == 0 for size in (head, head_out))
    learned_mask = mask is not None and mask.requires_grad and query.dtype not in _HALVES
    known = query.dtype in (torch.float32, *_HALVES)
    if known and aligned and same_heads and not learned_mask:
        return "efficient"
    return "math"


class _Attention(NamedTuple):
    """The arguments of scaled-dot-product attention."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    grouped: bool  # fewer heads of keys than of queries


def _flash(asked: _Attention) -> torch.Tensor:
    """Attend with flash, heads padded to a multiple of 8 (attention.cpp, ``pad_last_dim``)."""
    head, scale = asked.query.shape[-1], asked.scale
    tensors = [asked.query, asked.key, asked.value]
    missing = -head % 8
    if missing:
        scale = head**-0.5 if scale is None else scale
        tensors = [pad(tensor, (0, missing)) for tensor in tensors]
    out: torch.Tensor = _ATEN._scaled_dot_product_flash_attention.default(  # noqa: SLF001  (torch's name)
        *tensors, asked.dropout, asked.causal, scale=scale
    )[0]
    return out[..., :head] if missing else out


def _efficient(asked: _Attention) -> torch.Tensor:
    """Attend with the memory-efficient kernel; a mask becomes an additive one, padded to 16."""
    mask, tensors = asked.mask, (asked.query, asked.key, asked.value)
    if mask is not None and mask.dtype is torch.bool:
        zero = torch.zeros((), dtype=asked.query.dtype)
        mask = torch.where(mask.logical_not(), float("-inf"), zero)
    if mask is not None:
        shape = (*asked.query.shape[:3], asked.key.shape[2])
        mask = _aligned(mask).expand(shape)
    keep_sums = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    out: torch.Tensor = _ATEN._scaled_dot_product_efficient_attention.default(  # noqa: SLF001  (torch's name)
        *tensors, mask, keep_sums, asked.dropout, asked.causal, scale=asked.scale
    )[0]
    return out


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Return ``mask`` over rows of a multiple of 16 numbers (attention.cpp, ``pad_bias``)."""
    length = mask.shape[-1]
    missing = -length % 16
    return pad(mask, (0, missing))[..., :length] if missing else mask


def _math(asked: _Attention) -> torch.Tensor:
    out: torch.Tensor = _ATEN._scaled_dot_product_attention_math.default(  # noqa: SLF001  (torch's name)
        *asked[:6], None, scale=asked.scale, enable_gqa=asked.grouped
    )[0]
    return out


_ATTENTION: dict[str, Callable[[_Attention], torch.Tensor]] = {
    "flash": _flash,
    "efficient": _efficient,
    "math": _math,
}


class _NamedDevice(TorchFunctionMode):
    """Puts another device in the place of "cuda" in every call of torch."""

    def __init__(self, device: torch.device) -> None:
        """Remember the other device."""
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call ``func`` with "cuda" replaced; ``.cuda()`` returns the tensor as it is."""
        if func is torch.Tensor.cuda:
            return args[0]
        named = {name: self._instead(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._instead, args), **named)

    def _instead(self, value: object) -> object:
        by_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
        by_type = isinstance(value, torch.device) and value.type == "cuda"
        return self._device if by_name or by_type else value
