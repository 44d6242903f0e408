"""The largest value that the numbers of a tensor can have, where their making tells it.

What ``.item()`` reads back is often a count, an index or a length, and these have bounds without
any data: ``argmax`` over eight columns is 7 at most, and the sum of a mask's row its length. Each
rule says how an operator's result is bounded by its arguments; an operator without a rule tells
nothing. Numbers are taken to be at least 0, as sizes are.

Not covered: bounds that hang on several operators together, and what is read from inputs.
"""

from __future__ import annotations

from math import ceil, inf, isnan, prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcensus.net.call import Call

    Known: TypeAlias = Callable[[torch.Tensor], float]
    Rule: TypeAlias = Callable[["Bounded"], float]

UNTOLD = inf


class Bounded(NamedTuple):
    """A call of an operator, its first result, and what is known of the values of its tensors."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    result: torch.Tensor
    known: Known

    def of(self, at: int) -> float:
        """Return the largest value of the argument at ``at``: a number or a tensor."""
        return self._largest(self.args[at]) if at < len(self.args) else UNTOLD

    def number(self, at: int, name: str = "") -> float:
        """Return the argument at ``at`` or called ``name``, if it is a number."""
        value = self.args[at] if at < len(self.args) else self.kwargs.get(name)
        return float(value) if isinstance(value, (bool, int, float)) else UNTOLD

    def all(self) -> float:
        """Return the largest value of all tensors in the first argument, a list of them."""
        listed = self.args[0]
        return max(map(self._largest, listed)) if isinstance(listed, (list, tuple)) else UNTOLD

    def times(self) -> int:
        """Return how many numbers of the first argument go into one of the result."""
        return max(1, self.first().numel() // max(1, self.result.numel()))

    def first(self) -> torch.Tensor:
        """Return the first argument, a tensor."""
        return cast("torch.Tensor", self.args[0])

    def longest(self) -> int:
        """Return the largest dimension of the first argument."""
        return max(self.first().shape, default=1)

    def _largest(self, value: object) -> float:
        if isinstance(value, torch.Tensor):
            return self.known(value)
        return float(value) if isinstance(value, (bool, int, float)) else UNTOLD


def largest(call: Call, result: torch.Tensor, known: Known) -> float:
    """Return the largest value in the first ``result`` of a call, ``UNTOLD`` if nothing tells."""
    rule = RULES.get(call.op) or RULES.get(call.op.removesuffix("_"))
    if rule is None:
        return 1 if result.dtype is torch.bool else UNTOLD
    bound = rule(Bounded(call.args, call.kwargs, result, known))
    return UNTOLD if isnan(bound) else bound  # nothing times something untold


def _quotient(call: Bounded) -> float:
    divisor = call.number(1)
    return call.of(0) / divisor if 0 < divisor < inf else call.of(0)


def _sum(call: Bounded) -> float:
    return call.of(0) * call.times()


def _running_sum(call: Bounded) -> float:
    return call.of(0) * call.longest()


def _added(call: Bounded) -> float:
    alpha = call.kwargs.get("alpha", 1)
    return call.of(0) + call.of(1) * (float(alpha) if isinstance(alpha, (int, float)) else inf)


def _clamped(call: Bounded) -> float:
    lower, upper = call.number(1, "min"), call.number(2, "max")
    return min(max(call.of(0), lower if lower < inf else 0), upper)


def _end(call: Bounded) -> float:
    """Bound ``arange``: one number is its end, of two the second is."""
    return (call.number(1) if len(call.args) > 1 else call.number(0)) - 1


def _index(call: Bounded) -> float:
    return call.longest() - 1


def _flat_index(call: Bounded) -> float:
    return prod(call.first().shape) - 1


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        [f"aten.{name}" for name in ("zeros", "zeros_like", "new_zeros", "zero_")], lambda _: 0
    ),
    **dict.fromkeys(
        [
            f"aten.{name}"
            for name in (
                *("ones", "ones_like", "new_ones", "eye", "bernoulli", "rand", "rand_like"),
                *("sigmoid", "_softmax", "sin", "cos", "tanh"),
            )
        ],
        lambda _: 1,
    ),
    "aten.full": lambda call: call.number(1),
    "aten.full_like": lambda call: call.number(1),
    "aten.new_full": lambda call: call.number(2),
    "aten.fill_": lambda call: call.of(1),
    "aten.scalar_tensor": lambda call: call.number(0),
    "aten.arange": _end,
    "aten.randint": lambda call: call.number(1 if len(call.args) > 2 else 0) - 1,
    **dict.fromkeys(
        [
            f"aten.{name}"
            for name in (
                *("clone", "_to_copy", "gather", "index", "index_select", "take", "flip", "roll"),
                *("repeat", "max", "amax", "min", "amin", "median", "mode", "mean", "round"),
                *("floor", "trunc", "sub", "abs", "contiguous", "sort", "topk", "cummax", "rsub"),
                *("masked_select", "unique_consecutive", "_unique2", "unfold", "tril", "triu"),
            )
        ],
        lambda call: call.of(0),
    ),
    "aten.copy_": lambda call: call.of(1),
    "aten.ceil": lambda call: ceil(call.of(0)) if call.of(0) < inf else inf,
    "aten.argmax": lambda call: _flat_index(call) if len(call.args) < 2 else _index(call),
    "aten.argmin": lambda call: _flat_index(call) if len(call.args) < 2 else _index(call),
    "aten.argsort": _index,
    "aten.nonzero": _index,
    "aten.sum": _sum,
    "aten.count_nonzero": lambda call: call.times(),
    "aten.cumsum": _running_sum,
    "aten.add": _added,
    "aten.mul": lambda call: call.of(0) * call.of(1),
    "aten.div": _quotient,
    "aten.floor_divide": _quotient,
    "aten.remainder": lambda call: min(call.of(0), call.of(1) - 1),
    "aten.clamp": _clamped,
    "aten.clamp_max": lambda call: min(call.of(0), call.of(1)),
    "aten.clamp_min": lambda call: max(call.of(0), call.of(1)),
    "aten.minimum": lambda call: min(call.of(0), call.of(1)),
    "aten.maximum": lambda call: max(call.of(0), call.of(1)),
    "aten.where": lambda call: max(call.of(1), call.of(2)),
    "aten.masked_fill": lambda call: max(call.of(0), call.of(2)),
    "aten.scatter_": lambda call: max(call.of(0), call.of(3)),
    "aten.cat": Bounded.all,
    "aten.stack": Bounded.all,
}
"""Operator -> the largest value in its first result."""
