"""Follows every storage of a training step from birth to death, by watching the dispatcher.

Works on fake tensors (no data, no computing) and on real ones alike. A storage is born when an
operator first returns it, and dies when its last tensor does; views, in-place operators, dead
outputs, tied weights and ``resize_`` need no rules of their own.

The module of an operator is the one whose call is under way; in the backward it is the one whose
forward made the autograd node that runs now, found by the node's sequence number. A module whose
``forward`` is called directly does not announce itself: its operators count for its caller.

Not seen: scratch inside a C++ kernel, which never passes the dispatcher, and storages of tensor
subclasses other than torch's fake ones. Facts: torch 2.13, torch/utils/_python_dispatch.py and
torch/csrc/autograd/function.h ("sequence_nr").
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr as _sequence_number
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memcensus.net.block import LOSS, OPTIMIZER, Block, Kind, Made, Peak, Phase
from memcensus.net.scratch import allowance, workspace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from memcensus.model import Path

_NOWHERE: Path = ()
_PASSING = frozenset({Kind.TEMPORARIES, Kind.SAVED})
_BESIDE: dict[Phase, Path] = {Phase.LOSS: (LOSS,), Phase.OPTIMIZER: (OPTIMIZER,)}


@dataclass(slots=True)
class _Storage:
    """A storage alive, or dead in this step. Times count the operators of all steps."""

    made: Made
    sizes: list[tuple[int, int]]
    phase: Phase | None  # of its birth; None: it was there before
    kind: Kind = Kind.TEMPORARIES
    died: int | None = None
    borrowers: list[Path] = field(default_factory=list)


@dataclass(slots=True)
class Calls:
    """What one module returned, and how often it was called."""

    count: int = 0
    output: str = ""


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts live bytes while it is entered.

    Attributes:
        live: bytes of all storages alive now: the running counter, kept apart from the blocks.
        ops: operators seen since the step began.
        peak: the highest ``live`` since the step began.
        bound: the same with what kernels may hold beside tensors.
        workspace: bytes that operators of the step may keep for the backward, unseen.
        calls: per module path, what the module returned.
        unseen: layouts of tensors met that have no storage to count.
    """

    def __init__(self, module: nn.Module) -> None:
        """Watch the calls of ``module`` and its children; ``close`` ends that."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.live = 0
        self.bound = 0
        self.workspace = 0
        self.phase = Phase.FORWARD
        self.peak = Peak(0, 0, Phase.FORWARD, "", _NOWHERE)
        self.calls: dict[Path, Calls] = {}
        self.unseen: set[str] = set()
        self.marks: list[tuple[int, Phase]] = []
        self._time = 0  # operators seen in all steps
        self._start = 0  # time at which the step began
        self._alive: dict[int, _Storage] = {}
        self._dead: list[_Storage] = []
        self._stack: list[Path] = []
        self._recomputing: set[int] = set()  # storages alive before the recomputation began
        self._paths_of_nodes: dict[int, Path] = {}
        self._nodes = _sequence_number()
        self._paths = {id(m): _path(name) for name, m in module.named_modules()}
        self._paths_of_parameters = {
            id(p): _path(name)[:-1] for name, p in module.named_parameters()
        }
        self._hooks = list(self._listen(module))

    @property
    def ops(self) -> int:
        """Return the operators seen since the step began."""
        return self._time - self._start

    def close(self) -> None:
        """Stop watching module calls."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Begin a step: forget what is dead, count from here; what is left is kept by the code."""
        self._start = self._time
        for storage in list(self._alive.values()):
            if storage.kind in _PASSING:
                storage.kind = Kind.BUFFERS
        self._dead = []
        self.marks = []
        self.calls = {}
        self.bound = self.live
        self.workspace = 0
        self.peak = Peak(self.live, 0, Phase.FORWARD, "", _NOWHERE)
        self.enter(Phase.FORWARD)

    def enter(self, phase: Phase) -> None:
        """Begin a part of the step."""
        self._note_nodes()
        self.phase = phase
        self.marks.append((self.ops, phase))

    def hold(self, tensor: torch.Tensor, kind: Kind, path: Path, what: str) -> None:
        """Say that ``tensor`` is ``kind`` and kept as ``what`` of the module at ``path``.

        A storage that has an owner already is only borrowed under this name.
        """
        for part in self._parts(tensor):
            self._see(part, path, what)
            storage = self._alive.get(_key(part))
            if storage is None:
                continue  # no bytes
            if storage.kind in _PASSING:
                storage.kind = kind
                storage.made = _made(part, path, what)
            elif storage.kind is kind and (*storage.made.path, storage.made.what) != (*path, what):
                borrower = (*path, what)
                if borrower not in storage.borrowers:
                    storage.borrowers.append(borrower)

    def save_survivors(self, loss: torch.Tensor) -> None:
        """Say that what the forward made and is still alive was saved for the backward."""
        besides = _key(loss)
        for key, storage in list(self._alive.items()):
            in_this_step = storage.sizes[0][0] >= self._start
            if in_this_step and storage.phase in (Phase.FORWARD, Phase.LOSS) and key != besides:
                _save(storage)

    def keys(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """Return the identities of the storages behind ``tensors``, which they outlive."""
        found = (self._alive.get(_key(t)) for t in tensors)
        return frozenset(id(storage) for storage in found if storage is not None)

    def blocks(self) -> tuple[Block, ...]:
        """Return all that lived since the step began, times counted from there."""
        return tuple(self._block(storage) for storage in (*self._dead, *self._alive.values()))

    def kept_peak(self, keys: frozenset[int]) -> int:
        """Return the peak in bytes if the storages of ``keys`` lived to the end of the step."""
        changes: dict[int, int] = {}
        for storage in (*self._dead, *self._alive.values()):
            block = self._block(storage)
            for time, change in block.changes():
                if not (id(storage) in keys and time == block.died and change < 0):
                    changes[time] = changes.get(time, 0) + change
        live = highest = 0
        for time in sorted(changes):
            live += changes[time]
            highest = max(highest, live)
        return highest

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the operator, then count what it returned and what it took that is new."""
        self._note_nodes()
        path, op = self._here(), _name(func)
        taken = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for tensor in taken:
            self._meet(tensor, path)
        result: object = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for tensor in given:
            for part in self._parts(tensor):
                self._see(part, path, op)
        self.workspace += workspace(op, (*taken, *given))
        beside = self.workspace + allowance(op, (*taken, *given))
        self.bound = max(self.bound, self.live + beside)
        if self.live > self.peak.size:
            self.peak = Peak(self.live, self.ops, self.phase, op, path)
        self._time += 1
        return result

    def _here(self) -> Path:
        """Return the path of the module that the operator runs for."""
        if self._stack:
            return self._stack[-1]
        if self.phase is not Phase.BACKWARD:
            return _BESIDE.get(self.phase, _NOWHERE)
        node = torch._C._current_autograd_node()  # noqa: SLF001  (torch has no public name for it)
        number = getattr(node, "_sequence_nr", None)
        if number is None:  # no node: this is the gradient of the loss, before the first one
            return _BESIDE[Phase.LOSS]
        variable = getattr(node, "variable", None)  # AccumulateGrad, which has no forward
        if variable is not None:
            return self._paths_of_parameters.get(id(variable), _NOWHERE)
        return self._paths_of_nodes.get(number(), _NOWHERE)

    def _note_nodes(self) -> None:
        """Note which module made the autograd nodes since the last look: their numbers follow."""
        now = _sequence_number()
        if now > self._nodes:
            path = self._stack[-1] if self._stack else _BESIDE.get(self.phase, _NOWHERE)
            for number in range(self._nodes, now):
                self._paths_of_nodes[number] = path
        self._nodes = now

    def _parts(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the dense tensors that hold the bytes of ``tensor``."""
        if tensor.device.type == "meta":
            return
        if tensor.layout == torch.strided:
            yield tensor
        elif tensor.layout == torch.sparse_coo:
            yield tensor._indices()  # noqa: SLF001  (the public ones refuse what is not coalesced)
            yield tensor._values()  # noqa: SLF001  (as above)
        else:
            self.unseen.add(str(tensor.layout).removeprefix("torch."))

    def _meet(self, tensor: torch.Tensor, path: Path) -> None:
        """Count an argument that no operator returned: the code keeps it outside the module."""
        for part in self._parts(tensor):
            if _key(part) not in self._alive:
                self.hold(part, Kind.BUFFERS, path, "tensor of the code")

    def _see(self, tensor: torch.Tensor, path: Path, what: str) -> None:
        """Count the storage behind ``tensor``, or its new size."""
        untyped = tensor.untyped_storage()
        key, size = _key(tensor), untyped.nbytes()
        known = self._alive.get(key)
        if known is None and size:
            made = _made(tensor, path, what)
            phase = self.phase if self.marks else None
            self._alive[key] = _Storage(made, [(self._time, size)], phase)
            self.live += size
            weakref.finalize(untyped, partial(self._die, key)).atexit = False
        elif known is not None and size != known.sizes[-1][1]:
            self.live += size - known.sizes[-1][1]
            known.sizes.append((self._time, size))

    def _die(self, key: int) -> None:
        storage = self._alive.pop(key)
        storage.died = self._time
        self.live -= storage.sizes[-1][1]
        self._dead.append(storage)

    def _block(self, storage: _Storage) -> Block:
        sizes = {max(0, time - self._start): size for time, size in storage.sizes}
        died = None if storage.died is None else storage.died - self._start
        borrowers = tuple(storage.borrowers)
        return Block(storage.kind, storage.made, tuple(sizes.items()), died, borrowers)

    def _listen(self, module: nn.Module) -> Iterator[RemovableHandle]:
        for part in module.modules():
            yield part.register_forward_pre_hook(self._call)
            # always_call: a recomputation that has all it needs stops by an exception.
            yield part.register_forward_hook(self._return, always_call=True)

    def _call(self, module: nn.Module, _arguments: object) -> None:
        self._note_nodes()
        if self.phase is Phase.BACKWARD and not self._stack:
            self._recomputing = {id(storage) for storage in self._alive.values()}
        self._stack.append(self._paths[id(module)])

    def _return(self, module: nn.Module, _arguments: object, output: object) -> None:
        self._note_nodes()
        path = self._paths[id(module)]
        while self._stack and self._stack.pop() != path:
            pass  # calls that ended by an exception
        calls = self.calls.setdefault(path, Calls())
        calls.count += 1
        tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        calls.output = next(("x".join(map(str, t.shape)) for t in tensors), calls.output)
        if self.phase is Phase.BACKWARD and not self._stack:
            for storage in list(self._alive.values()):
                if id(storage) not in self._recomputing:
                    _save(storage)


def _save(storage: _Storage) -> None:
    if storage.kind is Kind.TEMPORARIES:
        storage.kind = Kind.SAVED


def _made(tensor: torch.Tensor, path: Path, what: str) -> Made:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Made(path, what, tuple(map(int, tensor.shape)), dtype, tensor.element_size())


def _key(tensor: torch.Tensor) -> int:
    """Return the identity of the storage behind ``tensor`` and its views, while it lives."""
    key: int = tensor.untyped_storage()._cdata  # noqa: SLF001  (data_ptr is 0 for all fakes)
    return key


def _name(func: torch._ops.OpOverload) -> str:
    """Return "aten.convolution": the operator without its overload."""
    return str(getattr(func, "overloadpacket", func))


def _path(name: str) -> Path:
    return tuple(name.split(".")) if name else _NOWHERE
