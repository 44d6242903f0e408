"""What C++ kernels may hold beside tensors: an allowance, for it never passes the dispatcher.

Only convolutions and LSTMs were seen to hold more than a few hundred bytes (torch 2.13 on a CPU,
real steps against the allocator's own count: 0 to 288 B for BERT and GPT-2). Convolutions come in
two forms:

- oneDNN, for float32 and the half types: tensors re-ordered into its own layouts; allowed here is
  one more copy of each argument and result (in 4-byte numbers, which it adds up in). Where it has
  no kernel of its own for the processor (dilated ones under AVX2), each thread also lays out the
  windows of one image as columns;
- im2col, for float64, volumes, and where oneDNN is off: each window of the whole batch laid out as
  a column, N * Cin * kernel * output positions numbers (aten/src/ATen/native/ConvolutionMM2d.cpp),
  and as many again for their gradients in the backward.

oneDNN's LSTM layer re-orders its weights, and without gradients keeps its gates to itself; at most
2.1 times its arguments and results were seen, and 3 are allowed.

The allowance is an upper bound that was measured, not proved; ``FLOOR`` covers small networks,
where fixed buffers weigh more (up to 10 MB seen, in a patch embedding's backward).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcensus.net.call import Call

FLOOR = 16 * 1024**2
"""Bytes allowed at least."""
PERCENT = 2
"""Percent of the peak allowed at least; 0 to 1.34 measured over six networks of full size."""

_RECURRENT = frozenset({"aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward"})
_RECURRENT_COPIES = 3
_DILATION = {"aten.convolution": 5, "aten.convolution_backward": 6}
"""Operator -> where its list of dilations stands among the arguments (native_functions.yaml)."""
_ACCUMULATOR = 4  # bytes of the float32 that oneDNN adds half types up in


def allowance(call: Call, given: Sequence[torch.Tensor]) -> int:
    """Return the bytes that the operator may hold that was called so and gave these results."""
    op, tensors = call.op, (*call.taken, *given)
    if op in _RECURRENT:
        return _RECURRENT_COPIES * sum(t.numel() * t.element_size() for t in tensors)
    if op not in _DILATION:
        return 0
    copies = sum(t.numel() * max(t.element_size(), _ACCUMULATOR) for t in tensors)
    backward = op.endswith("backward")
    # of (input, weight, ...), of the backward (gradient of the output, input, weight, ...)
    weight, output = (tensors[2], tensors[0]) if backward else (tensors[1], tensors[-1])
    onednn = torch._C._get_mkldnn_enabled() and weight.dtype is not torch.float64  # noqa: SLF001  (no public getter)
    size = max(weight.element_size(), _ACCUMULATOR if onednn else 0)
    columns = prod(output.shape[2:]) * prod(weight.shape[1:]) * size  # of one image
    if onednn and weight.dim() < 5:
        dilated = set(cast("list[int]", call.args[_DILATION[op]])) != {1}
        return copies + columns * dilated * min(torch.get_num_threads(), output.shape[0])
    return copies + columns * output.shape[0] * (2 if backward else 1)


def error(peak: int, bound: int) -> int:
    """Return by how much a peak of ``peak`` bytes may be too low; ``bound``: with allowances."""
    return max(bound - peak, peak * PERCENT // 100, FLOOR)
