"""Sparse COO tensors, whose fakes forget how many numbers they hold.

A sparse gradient (``nn.Embedding(sparse=True)``) has as many numbers as the batch has indices.
Torch makes it right on fakes, but what is then made of it (a clone, a product, a coalesced one)
has none. Here such a result gets the numbers of the sparse tensors that it is made of; where equal
indices may fall together (``coalesce``), that is only the most it can have. Followed are the
operators of autograd and of torch.optim, in which each result has memory of its own.

Not covered: other sparse layouts, and operators whose result shares its indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcensus.net.call import Call

_EMPTY = frozenset({"aten.zeros_like", "aten.empty_like", "aten.new_empty", "aten.new_zeros"})
"""Operators whose sparse results hold nothing for real either."""
_RIGHT = frozenset({"aten._sparse_coo_tensor_with_dims_and_tensors", "aten.detach", "aten.alias"})
"""Operators whose fakes are right."""
_FALL_TOGETHER = frozenset({"aten._coalesce", "aten.add", "aten.index_select"})
"""Operators after which there may be fewer."""
_ADD_IN_PLACE = "aten.add_"
_BAG = "aten._embedding_bag_backward"  # its second argument is the indices
_COALESCES = "aten._coalesce"
_SUMMED = frozenset({"aten.cat", "aten.add"})
"""Operators whose results hold what all arguments hold together; else the last one decides."""


def is_bound(op: str) -> bool:
    """Return whether results of ``op`` may hold fewer numbers than ``corrected`` gives them."""
    return op in _FALL_TOGETHER


def run(call: Call, kernel: Callable[[Call], object]) -> object:
    """Return what the operator returns: ``kernel`` runs it, as far as it can run on fakes."""
    sparse = [tensor for tensor in call.taken if tensor.layout is torch.sparse_coo]
    if call.op == _ADD_IN_PLACE and sparse:
        return _added(call.taken[0], sparse)  # the kernel would look at the indices
    return _corrected(kernel(call), call.op, call.taken)


def _added(to: torch.Tensor, sparse: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return ``to`` after a sparse tensor was added to it: a sparse one grows."""
    if to.layout is torch.sparse_coo:
        count = sum(tensor._nnz() for tensor in sparse)  # noqa: SLF001  (torch has no public name for it)
        torch.ops.aten.copy_sparse_to_sparse_(to, _holding(to, count, coalesced=False))
    return to


def _corrected(result: object, op: str, taken: Sequence[torch.Tensor]) -> object:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.sparse_coo:
        return result
    if op == _BAG:
        return _made(result, taken[1].view(1, -1), coalesced=False)  # shares them
    given = [tensor for tensor in taken if tensor.layout is torch.sparse_coo]
    if op in _EMPTY or op in _RIGHT or not given or any(result is tensor for tensor in given):
        return result
    counts = [tensor._nnz() for tensor in given]  # noqa: SLF001  (torch has no public name for it)
    if op in _SUMMED:
        return _holding(result, sum(counts), coalesced=False)
    return _holding(result, counts[-1], coalesced=op == _COALESCES or given[-1].is_coalesced())


def _holding(result: torch.Tensor, count: int, *, coalesced: bool) -> torch.Tensor:
    indices = torch.empty((result.sparse_dim(), count), dtype=torch.int64)
    return _made(result, indices, coalesced=coalesced)


def _made(result: torch.Tensor, indices: torch.Tensor, *, coalesced: bool) -> torch.Tensor:
    """Return a fake like ``result`` with ``indices``, and values of its own."""
    dense = result.shape[result.sparse_dim() :]
    values = torch.empty((indices.shape[1], *dense), dtype=result.dtype)
    made: torch.Tensor = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(  # noqa: SLF001  (torch's name)
        result.sparse_dim(),
        result.dense_dim(),
        result.shape,
        indices,
        values,
        dtype=result.dtype,
        layout=torch.sparse_coo,
        device=result.device,
        is_coalesced=coalesced,
    )
    return made
