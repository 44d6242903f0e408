"""One call of an operator, as the dispatcher sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Call:
    """An operator and what it is called with."""

    func: torch._ops.OpOverload
    op: str  # "aten.convolution": without its overload
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    taken: Sequence[torch.Tensor]  # the tensors among the arguments, in their order

    @classmethod
    def of(
        cls, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Call:
        """Return the call of ``func`` with these arguments."""
        op = str(getattr(func, "overloadpacket", func))
        return cls(func, op, args, kwargs, tuple(tensors_in((*args, *kwargs.values()))))

    @property
    def changes(self) -> bool:
        """Whether an argument is written to."""
        changes: bool = self.func._schema.is_mutable  # noqa: SLF001  (torch's name)
        return changes

    def run(self) -> object:
        """Return what the operator returns."""
        result: object = self.func(*self.args, **self.kwargs)
        return result


def tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operator's arguments or results: in lists and tuples, no deeper."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
