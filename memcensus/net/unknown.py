"""Operators whose results no shape tells, and operators that are not torch's: what is assumed.

- Data decides the size (``nonzero``, ``x[mask]``, ``unique``, ``bincount``, a CTC loss): the
  largest size it can have is taken; what hangs on it is in doubt by all its bytes.
- A custom operator without a fake kernel (``torch.library.register_fake``): each result is taken to
  be like the first tensor it is given.
- Any custom operator may hold in C++ what nobody sees: as much as its arguments and results is in
  doubt while it runs.
- ``torch.compile`` (``COMPILED``): the step is traced as if it were not compiled; the compiler may
  save other tensors for the backward, so all saved bytes are in doubt.
- Recurrent layers on a GPU (``RECURRENT``) are traced as the CPU runs them; cuDNN saves a reserve
  of its own instead, so the same holds.

Where not even a largest size is known (``repeat_interleave`` of counts that nothing bounds), the
step ends with a sentence that names the operator. Numbers read back are answered by ``reads``.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from memcensus.net.largest import UNTOLD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcensus.net.call import Call
    from memcensus.net.largest import Known

_UNTOLD = (DynamicOutputShapeException, UnsupportedOperatorException)
_NO_FAKE = "no fake impl"  # in the RuntimeError of an operator made by torch.library.custom_op

COMPILED = "torch.compile"
RECURRENT = "cuDNN's recurrent layers"

_TORCHS = frozenset(
    {
        *("aten", "prims", "prim", "profiler", "inductor", "mkldnn", "mkl", "quantized", "sparse"),
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp", "rngprims"),
    }
)
_ATEN = torch.ops.aten


def is_custom(func: torch._ops.OpOverload) -> bool:
    """Return whether ``func`` is none of torch's own operators."""
    return func.namespace not in _TORCHS


def untold(module: nn.Module, *, on_gpu: bool) -> frozenset[str]:
    """Return what in ``module`` saves other tensors for real than where it is traced."""
    found = set()
    for part in module.modules():
        found |= {COMPILED} if _is_compiled(part) else set()
        found |= {RECURRENT} if on_gpu and isinstance(part, nn.RNNBase) else set()
    return frozenset(found)


def is_untold(call: Call, error: RuntimeError) -> bool:
    """Return whether ``error`` says that fake tensors cannot tell the shape of a result."""
    return isinstance(error, _UNTOLD) or (is_custom(call.func) and _NO_FAKE in str(error))


def largest(call: Call, values: Known) -> tuple[object, frozenset[int]] | None:
    """Return (result, sizes of dimensions that are bounds) of a call that ``is_untold``.

    None if no bound is known. Called with fake tensors, inside their mode; ``values`` tells the
    largest value that a tensor's numbers can have.
    """
    by_shape, by_value = _LARGEST.get(call.func), _LARGEST_BY_VALUE.get(call.func)
    if by_shape is not None:
        return by_shape(*call.args, **call.kwargs)
    if by_value is not None:
        return by_value(values, *call.args, **call.kwargs)
    return _like_first(call) if is_custom(call.func) else None


def _is_compiled(part: nn.Module) -> bool:
    """Return whether ``torch.compile`` was used on ``part``, or on what it holds or names."""
    if getattr(part, "_compiled_call_impl", None) is not None:
        return True
    return any(_COMPILED_MARK in getattr(value, "__dict__", ()) for value in _reached(part))


_COMPILED_MARK = "_torchdynamo_orig_callable"


def _reached(part: nn.Module) -> Iterator[object]:
    """Yield the module, its attributes, its class's, and the globals that its forward names."""
    yield part
    yield from vars(part).values()
    for kind in type(part).__mro__:
        if kind is nn.Module:
            break
        yield from vars(kind).values()
    code = getattr(part.forward, "__func__", None)
    if isinstance(code, FunctionType):
        yield from (code.__globals__.get(name) for name in code.__code__.co_names)


def _nonzero(tensor: torch.Tensor) -> tuple[object, frozenset[int]]:
    rows = tensor.numel()
    return tensor.new_empty((rows, tensor.dim()), dtype=torch.int64), frozenset({rows})


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> tuple[object, frozenset[int]]:
    numbers = torch.logical_and(tensor != 0, mask).numel()  # broadcast against each other
    return tensor.new_empty((numbers,)), frozenset({numbers})


def _index(
    tensor: torch.Tensor, indices: list[torch.Tensor | None]
) -> tuple[object, frozenset[int]]:
    """Put in the place of each mask the indices of all its elements."""
    instead: list[torch.Tensor | None] = []
    bounds = set()
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            instead.append(index)
            continue
        bounds.add(index.numel())
        full = index.new_empty((index.numel(),), dtype=torch.int64)
        instead.extend([full] * index.dim())
    return _ATEN.index.Tensor(tensor, instead), frozenset(bounds)


def _unique(
    tensor: torch.Tensor,
    _ordered: bool = True,  # noqa: FBT001, FBT002  (the operator's own arguments)
    _inverse: bool = False,  # noqa: FBT001, FBT002  (as above)
    _counts: bool = False,  # noqa: FBT001, FBT002  (as above)
) -> tuple[object, frozenset[int]]:
    numbers = tensor.numel()
    places = tensor.new_empty(tensor.shape, dtype=torch.int64)
    counts = tensor.new_empty((numbers,), dtype=torch.int64)
    return (tensor.new_empty((numbers,)), places, counts), frozenset({numbers})


def _unique_dim(
    tensor: torch.Tensor,
    dim: int,
    *_options: bool,
) -> tuple[object, frozenset[int]]:
    rows = tensor.shape[dim]
    index = tensor.new_empty((rows,), dtype=torch.int64)
    return (tensor.new_empty(tensor.shape), index, torch.empty_like(index)), frozenset({rows})


def _bincount(
    values: Known, tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> tuple[object, frozenset[int]] | None:
    most = values(tensor)
    if most == UNTOLD:
        return None
    numbers = max(minlength, int(most) + 1)
    kind = torch.int64 if weights is None else weights.dtype
    return tensor.new_empty((numbers,), dtype=kind), frozenset({numbers})


def _repeat_interleave(
    values: Known, repeats: torch.Tensor, output_size: int | None = None
) -> tuple[object, frozenset[int]] | None:
    most = repeats.numel() * values(repeats)
    if output_size is None and most == UNTOLD:
        return None
    numbers = int(most) if output_size is None else output_size
    return repeats.new_empty((numbers,), dtype=torch.int64), frozenset({numbers})


def _ctc_loss(
    values: Known,
    scores: torch.Tensor,
    targets: torch.Tensor,
    _lengths: object,
    target_lengths: torch.Tensor | Sequence[int],
    *_options: object,
) -> tuple[object, frozenset[int]] | None:
    """Make the losses and the table of the forward variables (native/LossCTC.cpp)."""
    steps, samples = scores.shape[0], scores.shape[1]
    if isinstance(target_lengths, torch.Tensor):
        most = min(values(target_lengths), targets.shape[-1])
    else:
        most = max(target_lengths, default=0)
    states = 2 * int(most) + 1
    table = scores.new_empty((samples, steps, states))
    return (scores.new_empty((samples,)), table), frozenset({states})


def _lstsq(
    matrix: torch.Tensor,
    right: torch.Tensor,
    _cutoff: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[object, frozenset[int]]:
    """Make the solution, the residuals, the ranks and the singular values.

    The solution lies in what was large enough for the right side too.
    """
    rows, columns = matrix.shape[-2:]
    driver = driver or "gelsy"  # on a CPU
    batch = matrix.shape[:-2]
    tail = right.shape[matrix.dim() - 1 :]
    whole = matrix.new_empty((*batch, max(rows, columns), *tail))
    solution = whole.narrow(len(batch), 0, columns)
    residuals = matrix.new_empty((*batch, *tail) if rows > columns and driver != "gelsy" else (0,))
    ranks = matrix.new_empty(batch if driver != "gels" else (0,), dtype=torch.int64)
    values = matrix.new_empty((*batch, min(rows, columns)), dtype=matrix.real.dtype)
    singular = values if driver in ("gelss", "gelsd") else values.new_empty((0,))
    return (solution, residuals, ranks, singular), frozenset()


def _like_first(call: Call) -> tuple[object, frozenset[int]] | None:
    returns = call.func._schema.returns  # noqa: SLF001  (torch's name)
    if not call.taken or any(str(each.type) != "Tensor" for each in returns):
        return None
    first = call.taken[0]
    results = tuple(torch.empty_like(first) for _ in returns)
    return (results[0] if len(results) == 1 else results), frozenset(first.shape)


_LARGEST: dict[torch._ops.OpOverload, Callable[..., tuple[object, frozenset[int]]]] = {
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _masked_select,
    _ATEN.index.Tensor: _index,
    _ATEN._unique2.default: _unique,  # noqa: SLF001  (torch's name)
    _ATEN.unique_consecutive.default: _unique,
    _ATEN.unique_dim.default: _unique_dim,
    _ATEN.linalg_lstsq.default: _lstsq,
}

_LARGEST_BY_VALUE: dict[
    torch._ops.OpOverload, Callable[..., tuple[object, frozenset[int]] | None]
] = {
    _ATEN.bincount.default: _bincount,
    _ATEN.repeat_interleave.Tensor: _repeat_interleave,
    _ATEN._ctc_loss.default: _ctc_loss,  # noqa: SLF001  (torch's name)
    _ATEN._ctc_loss.Tensor: _ctc_loss,  # noqa: SLF001  (as above)
}
