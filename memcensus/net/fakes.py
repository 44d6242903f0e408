"""Stand-ins without data for a network's tensors, so that no weight is ever in memory.

One fake storage takes the place of each real or meta storage, so ties and views stay what they
were: two parameters that shared bytes share them still. Strides, requires_grad, parameter
attributes and buffers outside the state dict are kept; the device is always the CPU.

Not covered: sparse and quantized parameters, and parameters of a tensor subclass.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from memcensus.errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CellType

    from torch._subclasses.fake_tensor import FakeTensorMode

_DEEPEST = 4  # levels of lists and dicts in a module's attributes that are searched for tensors


class Fakes:
    """Makes and remembers the stand-ins; ``dtype`` replaces every floating type, if given."""

    def __init__(self, mode: FakeTensorMode, dtype: torch.dtype | None = None) -> None:
        """Make none yet."""
        self._mode = mode
        self._dtype = dtype
        self._of: dict[int, torch.Tensor] = {}  # id of a tensor -> its stand-in
        self._storages: dict[int, torch.Tensor] = {}  # key of a storage -> a flat stand-in
        self._originals: list[torch.Tensor] = []  # kept alive, so that no id comes twice

    def of(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Return the stand-in of ``tensor``, always the same one.

        Raises:
            ModelFailed: if the tensor has no storage of the plain kind, or no shape yet.
        """
        if id(tensor) not in self._of:
            _refuse(tensor, name)
            self._originals.append(tensor)
            self._of[id(tensor)] = self._parameter(tensor)
        return self._of[id(tensor)]

    def value(self, value: object, name: str) -> object:
        """Return ``value`` with every tensor in it replaced: tuples, lists, dicts and nests."""
        swapped: object = tree_map_only(torch.Tensor, lambda tensor: self.of(tensor, name), value)
        return swapped

    def module(self, module: nn.Module) -> None:
        """Replace every tensor that ``module`` and its children hold."""
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):  # noqa: SLF001  (setattr refuses lazy ones)
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = self.of(tensor, _joined(path, name))
            for name, value in vars(part).items():
                if not name.startswith("_") or name == "_flat_weights":  # nn.RNNBase's own list
                    vars(part)[name] = self._within(value, _joined(path, name), _DEEPEST)

    def loss(
        self, function: Callable[..., object]
    ) -> tuple[Callable[..., object], list[torch.Tensor]]:
        """Return ``function`` with the tensors it keeps replaced, and these: targets, weights.

        Looked at are closures, defaults, ``functools.partial`` and the tensors of a module.
        """
        before = len(self._originals)
        swapped = self._loss(function)
        kept = [self._of[id(tensor)] for tensor in self._originals[before:]]
        return swapped, kept

    def _loss(self, function: Callable[..., object]) -> Callable[..., object]:
        if isinstance(function, nn.Module):
            self.module(function)
        if isinstance(function, partial):
            arguments = [self._within(value, "the loss", _DEEPEST) for value in function.args]
            keywords = {
                name: self._within(value, "the loss", _DEEPEST)
                for name, value in function.keywords.items()
            }
            return partial(self._loss(function.func), *arguments, **keywords)
        if isinstance(function, FunctionType):
            for cell in function.__closure__ or ():
                self._cell(cell)
            defaults = function.__defaults__ or ()
            function.__defaults__ = tuple(
                self._within(value, "the loss", _DEEPEST) for value in defaults
            )
        return function

    def _cell(self, cell: CellType) -> None:
        try:
            held = cell.cell_contents
        except ValueError:  # a variable that was never given a value
            return
        cell.cell_contents = self._within(held, "the loss", _DEEPEST)

    def _within(self, value: object, name: str, depth: int) -> object:
        """Return ``value`` with tensors replaced in plain lists, tuples and dicts."""
        if isinstance(value, torch.Tensor):
            return self.of(value, name)
        if not depth or not _holds_tensors(value, depth):
            return value
        if isinstance(value, dict):
            return {key: self._within(part, name, depth - 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self._within(part, name, depth - 1) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        return value

    def _parameter(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = self._view(tensor)
        if isinstance(tensor, nn.Parameter):
            parameter = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            own = parameter.__dict__  # has what makes it a fake; ``tensor`` may be an older one
            own.update({name: v for name, v in tensor.__dict__.items() if name not in own})
            return parameter
        return fake.requires_grad_(tensor.requires_grad and fake.dtype.is_floating_point)

    def _view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake of the same shape and strides over the stand-in of the same storage."""
        storage = tensor.untyped_storage()
        dtype = tensor.dtype
        if self._dtype is not None and dtype.is_floating_point:
            dtype = self._dtype
        count = storage.nbytes() // tensor.element_size()
        with self._mode, torch.no_grad():
            key = storage._cdata  # noqa: SLF001  (data_ptr is 0 for all on meta)
            flat = self._storages.get(key)
            if flat is None:
                self._storages[key] = flat = torch.empty(count, dtype=dtype, device="cpu")
            flat = flat if flat.dtype == dtype else flat.view(dtype)
            offset = tensor.storage_offset()
            return flat.as_strided(tensor.shape, tensor.stride(), offset).detach()


def _holds_tensors(value: object, depth: int) -> bool:
    """Return whether a list, tuple or dict has a tensor in it, at most ``depth`` levels in."""
    if isinstance(value, torch.Tensor):
        return True
    parts: Iterable[object] = ()
    if type(value) in (list, tuple):
        parts = cast("Iterable[object]", value)
    elif type(value) is dict:
        parts = value.values()
    return depth > 0 and any(_holds_tensors(part, depth - 1) for part in parts)


def _refuse(tensor: torch.Tensor, name: str) -> None:
    if is_lazy(tensor):
        raise ModelFailed(
            f"{name} has no shape yet (a lazy module); call the network once, inside the callable, "
            "before it is returned"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise ModelFailed(
            f"{name} is {kind}, and net counts dense tensors only; convert it with .to_dense() or "
            ".dequantize() in the callable"
        )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
