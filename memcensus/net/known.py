"""Whole numbers that are known though a census has no data: positions, indices, masks of ones.

``torch.arange(8)`` holds the same numbers on every run. So whole numbers and truth values that
are made of nothing but constants are computed for real, beside the fakes, as long as they are few;
what code reads back from them, or how many of them are nonzero, is then no guess.

Not covered: floats, and buffers of a network that was built on the meta device.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from memcensus.net.call import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence

    from memcensus.net.call import Call

MOST = 1 << 16
"""Numbers in one tensor that are computed."""

_FACTORIES = frozenset(f"aten.{name}" for name in ("arange", "zeros", "ones", "full", "eye"))
_LIKE = frozenset(
    f"aten.{name}"
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
"""Operators whose numbers do not hang on those of their first argument."""


class Known:
    """The real twins of fakes whose numbers are known."""

    def __init__(self) -> None:
        """Know none yet."""
        self._twins: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the real twin of ``tensor``, None if its numbers are not known."""
        if not isinstance(tensor, FakeTensor):
            return tensor if _few(tensor) and tensor.device.type == "cpu" else None
        return self._twins.get(tensor)

    def learn(self, call: Call, given: Sequence[torch.Tensor]) -> None:
        """Compute the twins of the results ``given``, if all that they are made of is known."""
        if not given or not all(map(_few, given)):
            return
        real = self.compute(call)
        if real is not None:
            for fake, twin in zip(given, tensors_in((real,)), strict=True):
                if isinstance(fake, FakeTensor):
                    self._twins[fake] = twin
        elif call.changes:
            self._forget(call.taken)

    def compute(self, call: Call) -> object:
        """Return what the operator returns for real, None if what it takes is not known."""
        if not self._is_known(call):
            return None
        with _disable_current_modes(), torch.no_grad():
            args, kwargs = tree_map_only(torch.Tensor, self._twin, (call.args, dict(call.kwargs)))
            if "device" in kwargs:
                kwargs["device"] = torch.device("cpu")
            with suppress(RuntimeError, IndexError):  # so it would be for real: the code will see
                computed: object = call.func(*args, **kwargs)
                return computed
        return None

    def _is_known(self, call: Call) -> bool:
        if call.op in _FACTORIES or call.op in _LIKE:
            return True
        if not call.taken or torch.Tag.nondeterministic_seeded in call.func.tags:
            return False
        if call.changes and not all(isinstance(t, FakeTensor) for t in call.taken):
            return False  # torch itself changes what the code holds for real
        return all(_few(t) and self.of(t) is not None for t in call.taken)

    def _twin(self, tensor: torch.Tensor) -> torch.Tensor:
        twin = self.of(tensor)
        if twin is tensor:
            return tensor.clone()  # a twin that shared its memory would keep that alive
        if twin is not None:
            return twin
        return torch.empty(tensor.shape, dtype=tensor.dtype)  # its numbers do not matter

    def _forget(self, taken: Iterable[torch.Tensor]) -> None:
        """Know no longer what shares its memory with an argument that was overwritten."""
        twins = (self._twins.get(tensor) for tensor in taken if isinstance(tensor, FakeTensor))
        changed = {twin.untyped_storage().data_ptr() for twin in twins if twin is not None}
        if changed:
            for fake, twin in list(self._twins.items()):
                if twin.untyped_storage().data_ptr() in changed:
                    del self._twins[fake]


def _whole(tensor: torch.Tensor) -> bool:
    kind = tensor.dtype
    return not kind.is_floating_point and not kind.is_complex and tensor.layout is torch.strided


def _few(tensor: torch.Tensor) -> bool:
    return _whole(tensor) and tensor.numel() <= MOST
