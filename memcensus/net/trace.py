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
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr as _sequence_number
from torch._C._autograd import _top_saved_tensors_default_hooks as _saving_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memcensus.net.block import LOSS, NETWORK, OPTIMIZER, Block, Event, Kind, Made, Peak, Phase
from memcensus.net.saved import savers
from memcensus.net.scratch import allowance, workspace
from memcensus.net.unknown import is_custom, is_untold, largest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    from memcensus.model import Path
    from memcensus.net.device import Device

_NOWHERE: Path = ()
_READ_BACK = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (torch's name)
_SCALAR = 8  # bytes of the largest number: torch.optim keeps "step" on the CPU, if not capturable
_PASSING = frozenset({Kind.TEMPORARIES, Kind.SAVED})
_QUESTIONS = frozenset({torch.ops.prim.device.default})
"""What fake tensors answer through the dispatcher though it is no operator."""
_MULTIPLIES = frozenset(
    f"aten.{op}" for op in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_scaled_mm")
)
"""Operators that cuBLAS computes."""
_OF_PARAMETERS = frozenset({Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE})
_BESIDE: dict[Phase, Path] = {Phase.LOSS: (LOSS,), Phase.OPTIMIZER: (OPTIMIZER,)}


@dataclass(slots=True)
class _Storage:
    """A storage alive, or dead in this step. Times count the operators of all steps."""

    serial: int
    made: Made
    sizes: list[tuple[int, int]]
    phase: Phase | None  # of its birth; None: it was there before
    kind: Kind = Kind.TEMPORARIES
    died: int | None = None
    borrowers: list[Path] = field(default_factory=list)
    savers: list[str] = field(default_factory=list)
    assumed: bool = False  # its size is only a bound


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
        unknown: operators whose memory nobody can tell: custom ones, compiled ones.
        events: every birth, new size and death since the tracker was made.
        results: bytes that the forward of this step made in all, dead or alive.
        doubt: the most bytes of the step at one time that are only assumed, see ``unknown``.
        libraries: serials of the storages that stand for what cuBLAS keeps.
    """

    def __init__(self, module: nn.Module, device: Device | None = None) -> None:
        """Watch the calls of ``module`` and its children; ``close`` ends that."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.live = 0
        self.bound = 0
        self.workspace = 0
        self.phase = Phase.FORWARD
        self.peak = Peak(0, 0, Phase.FORWARD, "", _NOWHERE)
        self.calls: dict[Path, Calls] = {}
        self.unseen: set[str] = set()
        self.unknown: set[str] = set()
        self.marks: list[tuple[int, Phase]] = []
        self.events: list[Event] = []
        self.results = 0
        self.doubt = 0
        self.libraries: set[int] = set()
        self.start = 0  # time at which the step began
        self._assumed = 0  # bytes alive of storages whose size is only a bound
        self._bounds: set[int] = set()  # sizes of dimensions that are only bounds
        self._multiplied: set[bool] = set()  # threads that have used cuBLAS: the backward's or not
        self._device = device  # None: the CPU
        self._time = 0  # operators seen in all steps
        self._serials = count()
        self._hooked: set[int] = set()  # numbers of nodes whose saved tensors hooks stand for
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
        return self._time - self.start

    def close(self) -> None:
        """Stop watching module calls."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Begin a step: forget what is dead, count from here; what is left is kept by the code."""
        self.start = self._time
        for storage in list(self._alive.values()):
            if storage.kind in _PASSING:
                storage.kind = Kind.BUFFERS
        self._dead = []
        self.marks = []
        self.calls = {}
        self.bound = self.live
        self.workspace = 0
        self.results = 0
        self.doubt = self._assumed
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

    def meet(self, tensor: torch.Tensor) -> None:
        """Count ``tensor`` now; ``hold`` will say what it is."""
        for part in self._parts(tensor):
            self._see(part, _NOWHERE, "tensor of the code")

    def backdate(self, tensor: torch.Tensor) -> None:
        """Count ``tensor``, made in this step, as if it had been there when the step began."""
        storage = self._alive[_key(tensor)]
        (born, size) = storage.sizes[0]
        storage.sizes[0] = (self.start, size)
        self.events.remove(Event(born, storage.serial, size))
        before = next(at for at, event in enumerate(self.events) if event.time >= self.start)
        self.events.insert(before, Event(self.start, storage.serial, size))
        self.bound += size
        if self.start + self.peak.time < born:
            self.peak = replace(self.peak, size=self.peak.size + size)

    def save_survivors(self, loss: torch.Tensor) -> None:
        """Say that what the forward made and is still alive was saved for the backward."""
        besides = _key(loss)
        for key, storage in list(self._alive.items()):
            in_this_step = storage.sizes[0][0] >= self.start
            if in_this_step and storage.phase in (Phase.FORWARD, Phase.LOSS) and key != besides:
                _save(storage)
        for node, name, tensor in savers(loss.grad_fn, self._readable):
            saved = self._alive.get(_key(tensor))
            if saved is not None:
                path = ".".join(self._paths_of_nodes.get(_number(node), _NOWHERE))
                saved.savers.append(f"{path or NETWORK}: {node.name()} ({name})")

    def _readable(self, node: Node) -> bool:
        return _number(node) not in self._hooked

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
        if func in _QUESTIONS:
            return func(*args, **(kwargs or {}))
        self._note_nodes()
        path, op = self._here(), _name(func)
        taken = list(_tensors((*args, *kwargs.values()) if kwargs else args))
        for tensor in taken:
            self._meet(tensor, path)
        if func is _READ_BACK and self.phase is Phase.OPTIMIZER:
            return 1.0  # torch.optim scales by it; no size hangs on it
        result = self._run(func, op, args, kwargs or {})
        given = list(_tensors((result,)))
        for at, tensor in enumerate(given):
            where = self._stepped(args, at) if self.phase is Phase.OPTIMIZER else path
            for part in self._parts(tensor):
                self._see(part, where, op)
        if self._bounds:
            self._assume(taken, given)
        if is_custom(func):
            self.unknown.add(op)
            beside = sum(t.untyped_storage().nbytes() for t in (*taken, *given))
            self.doubt = max(self.doubt, self._assumed + beside)
        if self._device is not None and op in _MULTIPLIES:
            self._keep_workspace(self._device.workspace)
        self.workspace += workspace(op, (*taken, *given))
        beside = self.workspace + allowance(op, (*taken, *given), args)
        self.bound = max(self.bound, self.live + beside)
        if self.live > self.peak.size:
            self.peak = Peak(self.live, self.ops, self.phase, op, path)
        self._time += 1
        return result

    def _run(
        self,
        func: torch._ops.OpOverload,
        op: str,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        """Run the operator; where no shape tells its result, take the largest it can have."""
        try:
            result: object = func(*args, **kwargs)
        except RuntimeError as error:
            assumed = largest(func, args, kwargs) if is_untold(func, error) else None
            if assumed is None:
                raise
            result, bounds = assumed
            self.unknown.add(op)
            self._bounds |= bounds
            for tensor in _tensors((result,)):
                self._see(tensor, self._here(), op)
                self._doubt(tensor)
        return result

    def _assume(self, taken: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        """Doubt results of doubtful arguments that have a dimension which is only a bound."""
        doubtful = (self._alive.get(_key(t)) for part in taken for t in self._parts(part))
        if any(storage is not None and storage.assumed for storage in doubtful):
            for tensor in given:
                if not self._bounds.isdisjoint(tensor.shape):
                    self._doubt(tensor)

    def _doubt(self, tensor: torch.Tensor) -> None:
        storage = self._alive.get(_key(tensor))
        if storage is not None and not storage.assumed:
            storage.assumed = True
            self._assumed += storage.sizes[-1][1]
            self.doubt = max(self.doubt, self._assumed)

    def _keep_workspace(self, size: int) -> None:
        """Let cuBLAS take its workspace, once for each thread that multiplies matrices."""
        thread = self.phase is Phase.BACKWARD
        if thread not in self._multiplied:
            self._multiplied.add(thread)
            serial = next(self._serials)
            self.libraries.add(serial)
            self.events.append(Event(self._time, serial, size))

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

    def _stepped(self, args: tuple[object, ...], at: int) -> Path:
        """Return "(optimizer)" and the parameter that the ``at``-th result is made for, if any."""
        of = args[0] if args else None
        if isinstance(of, (list, tuple)):
            of = of[at] if at < len(of) else None
        known = self._alive.get(_key(of)) if isinstance(of, torch.Tensor) else None
        if known is None:
            return (OPTIMIZER,)
        made = known.made
        if made.path[:1] == (OPTIMIZER,):  # a temporary's temporary
            return made.path
        if known.kind not in _OF_PARAMETERS:
            return (OPTIMIZER,)
        name = () if known.kind is Kind.OPTIMIZER_STATE else (made.what,)
        return (OPTIMIZER, *made.path, *name)

    def _note_nodes(self) -> None:
        """Note which module made the autograd nodes since the last look: their numbers follow."""
        now = _sequence_number()
        if now > self._nodes:
            path = self._stack[-1] if self._stack else _BESIDE.get(self.phase, _NOWHERE)
            for number in range(self._nodes, now):
                self._paths_of_nodes[number] = path
            if _saving_hooks(False) is not None:  # noqa: FBT003  (its only argument, by position)
                self._hooked.update(range(self._nodes, now))
        self._nodes = now

    def _parts(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the dense tensors that hold the bytes of ``tensor``."""
        if _device(tensor).type == "meta":
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
        if known is None and size and not self._stays_on_cpu(size):
            made = _made(tensor, path, what)
            phase = self.phase if self.marks else None
            storage = _Storage(next(self._serials), made, [(self._time, size)], phase)
            self._alive[key] = storage
            self.events.append(Event(self._time, storage.serial, size))
            self.live += size
            if phase in (Phase.FORWARD, Phase.LOSS):
                self.results += size
            weakref.finalize(untyped, partial(self._die, key)).atexit = False
        elif known is not None and size != known.sizes[-1][1]:
            self.live += size - known.sizes[-1][1]
            known.sizes.append((self._time, size))
            self.events.append(Event(self._time, known.serial, size))

    def _stays_on_cpu(self, size: int) -> bool:
        """Return whether a new storage is no GPU's: the count of steps that an optimizer keeps."""
        on_gpu = self._device is not None
        return on_gpu and self.phase is Phase.OPTIMIZER and size <= _SCALAR

    def _die(self, key: int) -> None:
        storage = self._alive.pop(key)
        storage.died = self._time
        self.live -= storage.sizes[-1][1]
        self._assumed -= storage.sizes[-1][1] if storage.assumed else 0
        self.events.append(Event(self._time, storage.serial, 0))
        self._dead.append(storage)

    def _block(self, storage: _Storage) -> Block:
        sizes = {max(0, time - self.start): size for time, size in storage.sizes}
        died = None if storage.died is None else storage.died - self.start
        borrowers = tuple(storage.borrowers)
        made, savers = storage.made, tuple(dict.fromkeys(storage.savers))
        return Block(storage.kind, made, tuple(sizes.items()), died, borrowers, savers)

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


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operator's arguments or results: in lists and tuples, no deeper."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _device(tensor: torch.Tensor) -> torch.device:
    """Return where ``tensor`` is; to ask a fake for its ``device`` goes through the dispatcher."""
    device: torch.device = getattr(tensor, "fake_device", None) or tensor.device
    return device


def _made(tensor: torch.Tensor, path: Path, what: str) -> Made:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Made(path, what, tuple(map(int, tensor.shape)), dtype, tensor.element_size())


def _key(tensor: torch.Tensor) -> int:
    """Return the identity of the storage behind ``tensor`` and its views, while it lives."""
    key: int = tensor.untyped_storage()._cdata  # noqa: SLF001  (data_ptr is 0 for all fakes)
    return key


def _number(node: Node) -> int:
    number: int = node._sequence_nr()  # noqa: SLF001  (torch has no public name for it)
    return number


def _name(func: torch._ops.OpOverload) -> str:
    """Return "aten.convolution": the operator without its overload."""
    return str(getattr(func, "overloadpacket", func))


def _path(name: str) -> Path:
    return tuple(name.split(".")) if name else _NOWHERE
