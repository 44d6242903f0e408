"""What kernels return for real, where torch's fake ones return something smaller.

Found by running the samples that torch tests its operators with, real beside fake
(tests/net/test_kernel_results.py): of some 600 operators, these.

- A loss of one number is worked out in a tensor of all elements, which is then resized to the one
  and keeps its storage (native/Loss.cpp: ``mse_loss``, ``smooth_l1_loss``, ``soft_margin_loss``,
  ``binary_cross_entropy``; CPU and CUDA alike).
- An embedding bag's table of bags is made one number too long, as are the bags' sizes where the
  last offset is the end; for a sum of bfloat16 the table is left out (native/EmbeddingBag.cpp,
  ``make_offset2bag_out``, ``make_bag_size_out``, ``is_fast_path``).
- oneDNN's LSTM layer keeps a workspace for the backward, whose fake is empty; and its backward
  returns gradients of the weights as float32 whatever they are (native/mkldnn/RNN.cpp).
- A norm of 16-bit numbers with float32 weights keeps its statistics as float32 (native/
  mixed_data_type.h), and on a GPU layer and batch norms of 16-bit numbers do so in any case
  (native/cuda/layer_norm_kernel.cu, Normalization.cuh: ``acc_type``); the gradient of a group
  norm's input has the input's type.

And one that torch refuses on fakes, except for bfloat16: grouped products, which the experts of
transformers' routed networks use (native/GroupedMMUtils.h, ``create_grouped_gemm_output_tensor``).

Not covered: ``_sparse_mm_reduce_impl``, whose tensors are sparse in a layout that is not followed.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, cast

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcensus.net.call import Call

_ALIGNED = 16  # bytes, to which the rows of a grouped product are padded
_PAGE = 4096
_LINE = 64
_FLOAT = 4


def run(call: Call, *, on_gpu: bool = False) -> object:
    """Return what the operator returns for fakes, as large as for real tensors."""
    if call.op == "aten._grouped_mm":
        return _grouped_product(call)
    corrected = (on_gpu and _ON_GPU.get(call.op)) or _CORRECTED.get(call.op)
    result = call.run()
    return corrected(result, call.args) if corrected else result


def _grouped_product(call: Call) -> object:
    left, right = call.taken[:2]
    if left.dtype is torch.bfloat16 or left.dtype is not right.dtype:
        return call.run()
    offsets = call.taken[2] if len(call.taken) > 2 else None  # a bias is not supported by torch
    flat = left.dim() == right.dim() == 2
    groups = () if left.dim() != right.dim() else (left if offsets is None else offsets).shape[:1]
    if offsets is None and flat:
        return call.run()
    rows, columns = left.shape[-2], right.shape[-1]
    padded = -(-columns // (_ALIGNED // left.element_size())) * (_ALIGNED // left.element_size())
    strides = (rows * padded, padded, 1)[-2 - len(groups) :]
    return torch.empty_strided((*groups, rows, columns), strides, dtype=left.dtype)


def onednn_is_known() -> bool:
    """Return whether oneDNN's workspace here is what ``lstm_workspace`` says, by real calls."""
    return all(_real_workspace(*sizes) == lstm_workspace(*sizes, _FLOAT) for sizes in _TRIED)


def lstm_workspace(steps: int, samples: int, inputs: int, hidden: int, itemsize: int) -> int:
    """Return the bytes that an LSTM layer of oneDNN keeps from a forward with gradients.

    Gates, the projected state, three pairs of states and two pairs of cells, each from a page of
    its own (oneDNN 3, cpu/rnn/rnn_utils: ``set_offsets``, ``get_good_ld``). ``itemsize``: bytes of
    a number of the input; gradients are float32 always.
    """
    wide = max(inputs, hidden)
    states, cells = 2 * (steps + 1) * samples, 2 * (steps + 1) * samples * hidden
    parts = (
        steps * samples * _row(4 * hidden, itemsize),
        steps * samples * _row(hidden, itemsize),
        states * _row(wide, itemsize),
        states * _row(wide, _FLOAT),
        states * _row(wide, _FLOAT),
        cells * itemsize,
        cells * _FLOAT,
    )
    return sum(-(-part // _PAGE) * _PAGE for part in parts)


def _row(numbers: int, itemsize: int) -> int:
    """Return the bytes of a row: whole cache lines, and no multiple of 256 numbers."""
    row = -(-numbers * itemsize // _LINE) * _LINE
    return row + _LINE if row // itemsize % 256 == 0 else row


_TRIED = ((2, 3, 5, 7), (9, 8, 31, 64))


@cache
def _real_workspace(steps: int, samples: int, inputs: int, hidden: int) -> int:
    with unset_fake_temporarily(), torch.device("cpu"), torch.enable_grad():
        weights = [torch.zeros(4 * hidden, n) for n in (inputs, hidden)]
        biases = [torch.zeros(4 * hidden) for _ in range(2)]
        state = torch.zeros(1, samples, hidden)
        returned = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, samples, inputs),
            *(*weights, *biases, state, state.clone()),
            *(False, [], 2, hidden, 1, True, False, False, True),
        )
    return int(returned[3].nbytes)


def _loss(result: object, args: tuple[object, ...], *, over: int) -> object:
    """Correct a loss that is worked out over the first ``over`` arguments together."""
    tensors = [a for a in args[:over] if isinstance(a, torch.Tensor)]
    numbers = prod(max(sizes) for sizes in _aligned(tensors))
    if not isinstance(result, torch.Tensor) or result.dim() or not numbers:
        return result
    return result.new_empty(numbers).as_strided((), ())


def _aligned(tensors: list[torch.Tensor]) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of each dimension, as broadcasting aligns them: the last ones together."""
    return zip_longest(*(reversed(tensor.shape) for tensor in tensors), fillvalue=1)


def _embedding_bag(result: object, args: tuple[object, ...]) -> object:
    output, bags, sizes, most = cast("tuple[torch.Tensor, ...]", result)
    given = (*args, *_BAG_DEFAULTS[len(args) :])
    weight, offsets = cast("torch.Tensor", given[0]), cast("torch.Tensor", given[2])
    mode, scales, ends, padding = given[4], given[6], given[7], cast("int", given[8])
    plain = scales is None or cast("torch.Tensor", scales).stride(0) == 1
    fast = mode == _SUM_OF_BAG and padding < 0 and plain and weight.stride(1) == 1
    if fast and weight.dtype is torch.bfloat16:
        bags = bags.new_empty(0)
    if bags.numel():
        bags = _longer(bags)
    if ends and offsets.numel() > 1:
        sizes = _longer(sizes)
    return output, bags, sizes, most


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake like this row of numbers, in a storage with room for one more."""
    return tensor.new_empty(tensor.numel() + 1).as_strided((tensor.numel(),), (1,))


_SUM_OF_BAG = 0
_BAG_DEFAULTS = (None, None, None, False, 0, False, None, False, -1)


def _norm(result: object, args: tuple[object, ...], *, wide: bool = False) -> object:
    output, *statistics = cast("tuple[torch.Tensor, ...]", result)
    kinds = {value.dtype for value in args if isinstance(value, torch.Tensor)}
    if wide or (torch.float32 in kinds and len(kinds) > 1):
        half = output.dtype in (torch.float16, torch.bfloat16)
        statistics = [t.to(torch.float32) if half else t for t in statistics]
    return output, *statistics


def _group_norm_backward(result: object, args: tuple[object, ...]) -> object:
    of_input, *others = cast("tuple[torch.Tensor | None, ...]", result)
    if of_input is not None:
        of_input = of_input.to(cast("torch.Tensor", args[1]).dtype)
    return of_input, *others


def _lstm(result: object, args: tuple[object, ...]) -> object:
    output, hidden, cell, _ = cast("tuple[torch.Tensor, ...]", result)
    given = cast("torch.Tensor", args[0])
    steps, samples, inputs = given.shape  # in this order whatever ``batch_first`` says
    size = lstm_workspace(steps, samples, inputs, output.shape[2], given.element_size())
    workspace = torch.empty(
        size if torch.is_grad_enabled() else 0, dtype=torch.uint8, device=given.device
    )
    return output, hidden, cell, workspace


def _lstm_backward(result: object, _args: tuple[object, ...]) -> object:
    return tuple(
        torch.empty_like(t, dtype=torch.float32) if isinstance(t, torch.Tensor) else t
        for t in cast("tuple[object, ...]", result)
    )


_CORRECTED: dict[str, Callable[[object, tuple[object, ...]], object]] = {
    "aten.mse_loss": partial(_loss, over=2),
    "aten.smooth_l1_loss": partial(_loss, over=2),
    "aten.soft_margin_loss": partial(_loss, over=1),
    "aten.binary_cross_entropy": partial(_loss, over=1),
    "aten._embedding_bag": _embedding_bag,
    "aten.native_batch_norm": _norm,
    "aten.native_layer_norm": _norm,
    "aten.native_group_norm": _norm,
    "aten.native_group_norm_backward": _group_norm_backward,
    "aten.mkldnn_rnn_layer": _lstm,
    "aten.mkldnn_rnn_layer_backward": _lstm_backward,
}
"""Operator -> what makes its real result from the fake one and the arguments."""
_ON_GPU: dict[str, Callable[[object, tuple[object, ...]], object]] = {
    "aten.native_batch_norm": partial(_norm, wide=True),
    "aten.native_layer_norm": partial(_norm, wide=True),
}
"""The same where a GPU's kernel differs from the CPU's."""
