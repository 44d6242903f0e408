"""The loss of a step where the model's code names none, and its target.

Which outputs are learned from, the first rule that holds:

1. a mapping, dataclass or ModelOutput with a ``loss`` that is a tensor: that loss, as it is;
2. one with floating ``logits``: these;
3. every floating tensor in the output, in the order of its nest.

Rule 2 or 3 with a single tensor of shape (N, C) gives the cross-entropy with N class numbers as the
target (int64, counted among the inputs); everything else gives the sum of all elements. So a token
model's (N, T, C) is summed: name a loss in the callable to have another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from memcensus.errors import ModelFailed


def target_of(output: object) -> torch.Tensor | None:
    """Return the target that the default loss of ``output`` needs, None if it needs none.

    Raises:
        ModelFailed: if there is nothing in the output to learn from.
    """
    if _own_loss(output) is not None:
        return None
    learned = tensors_of(output)
    if len(learned) != 1 or learned[0].dim() != 2:
        return None
    return torch.zeros(learned[0].shape[0], dtype=torch.int64)


def default_loss(output: object, target: torch.Tensor | None) -> torch.Tensor:
    """Return the loss of ``output``, one number."""
    own = _own_loss(output)
    if own is not None:
        return own
    learned = tensors_of(output)
    if target is not None:
        return cross_entropy(learned[0], target)
    total = learned[0].sum()
    for tensor in learned[1:]:
        total = total + tensor.sum()
    return total


def tensors_of(output: object) -> list[torch.Tensor]:
    """Return the floating tensors to learn from, at least one.

    Raises:
        ModelFailed: if there is none.
    """
    entries = _entries(output)
    logits = entries.get("logits")
    found = [t for t in leaves_of(output) if t.dtype.is_floating_point]
    if isinstance(logits, torch.Tensor) and logits.dtype.is_floating_point:
        found = [logits]
    if not found:
        raise ModelFailed(
            f"the network returned {_kind(output)} without a floating tensor in it, so "
            "there is nothing to learn from; return (module, inputs, loss) from the callable"
        )
    return found


def leaves_of(output: object) -> list[torch.Tensor]:
    """Return every tensor in ``output``: nests of tuples, lists, mappings and dataclasses."""
    if isinstance(output, (Mapping,)) or (is_dataclass(output) and not isinstance(output, type)):
        return [leaf for part in _entries(output).values() for leaf in leaves_of(part)]
    if isinstance(output, (list, tuple)):
        return [leaf for part in output for leaf in leaves_of(part)]
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _own_loss(output: object) -> torch.Tensor | None:
    loss = _entries(output).get("loss")
    return loss if isinstance(loss, torch.Tensor) else None


def _entries(output: object) -> dict[str, object]:
    """Return the named parts of a mapping or dataclass; a ModelOutput is both, {} for others."""
    if isinstance(output, Mapping):
        return {str(key): value for key, value in output.items()}
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return {}


def _kind(output: object) -> str:
    """Return what the network's author calls the type of ``output``."""
    if isinstance(output, torch.Tensor):
        return f"a tensor of {str(output.dtype).removeprefix('torch.')}"
    return f"a {type(output).__name__}"
