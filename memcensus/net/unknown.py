"""Operators whose results no shape tells, and operators that are not torch's: what is assumed.

- Data decides the size (``nonzero``, ``x[mask]``, ``unique``): the largest size it can have is
  taken; what hangs on it is in doubt by all its bytes.
- A custom operator without a fake kernel (``torch.library.register_fake``): each result is taken to
  be like the first tensor it is given.
- Any custom operator may hold in C++ what nobody sees: as much as its arguments and results is in
  doubt while it runs.
- ``torch.compile``: the step is traced as if it were not compiled; the compiler may save other
  tensors for the backward, so all saved bytes are in doubt.

Where not even a largest size exists (``bincount``, ``repeat_interleave`` without ``output_size``, a
number read back by ``.item()``), the step ends with a sentence that names the operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_UNTOLD = (DynamicOutputShapeException, UnsupportedOperatorException)
_NO_FAKE = "no fake impl"  # in the RuntimeError of an operator made by torch.library.custom_op

COMPILED = "torch.compile"

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


def compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` was used on ``module``, a part of it or what it calls."""
    return any(_is_compiled(part) for part in module.modules())


def is_untold(func: torch._ops.OpOverload, error: RuntimeError) -> bool:
    """Return whether ``error`` says that fake tensors cannot tell the shape of a result."""
    return isinstance(error, _UNTOLD) or (is_custom(func) and _NO_FAKE in str(error))


def largest(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[object, frozenset[int]] | None:
    """Return (result, sizes of dimensions that are bounds) of a call that ``is_untold``.

    None if no bound is known. Called with fake tensors, inside their mode.
    """
    known = _LARGEST.get(func)
    if known is not None:
        return known(*args, **kwargs)
    return _like_first(func, args, kwargs) if is_custom(func) else None


def _is_compiled(part: nn.Module) -> bool:
    held = (part, *vars(part).values())
    return getattr(part, "_compiled_call_impl", None) is not None or any(
        "_torchdynamo_orig_callable" in getattr(value, "__dict__", ()) for value in held
    )


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


def _like_first(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[object, frozenset[int]] | None:
    first = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)), None)
    returns = func._schema.returns  # noqa: SLF001  (torch's name)
    if first is None or any(str(each.type) != "Tensor" for each in returns):
        return None
    results = tuple(torch.empty_like(first) for _ in returns)
    return (results[0] if len(results) == 1 else results), frozenset(first.shape)


_LARGEST: dict[torch._ops.OpOverload, Callable[..., tuple[object, frozenset[int]]]] = {
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _masked_select,
    _ATEN.index.Tensor: _index,
    _ATEN._unique2.default: _unique,  # noqa: SLF001  (torch's name)
    _ATEN.unique_consecutive.default: _unique,
    _ATEN.unique_dim.default: _unique_dim,
}
