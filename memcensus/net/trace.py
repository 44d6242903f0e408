"""Follows a training step operator by operator, by watching torch's dispatcher.

What is alive is kept by ``storages``, for whom an operator runs by ``callers``; here the operators
run, and the step's highest moment is found.

Not seen: scratch inside a C++ kernel, which never passes the dispatcher. Facts: torch 2.13,
torch/utils/_python_dispatch.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from memcensus.net import kernel_results, known, sparse
from memcensus.net.block import OPTIMIZER, Event, Kind, Peak, Phase
from memcensus.net.call import Call, tensors_in
from memcensus.net.callers import NOWHERE, Callers
from memcensus.net.largest import UNTOLD, largest
from memcensus.net.saved import savers
from memcensus.net.scratch import allowance
from memcensus.net.storages import PASSING, Storages, made
from memcensus.net.unknown import is_custom, is_untold
from memcensus.net.unknown import largest as largest_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from memcensus.model import Path
    from memcensus.net.device import Device
    from memcensus.net.reads import Reads
    from memcensus.net.storages import Storage

_READ_BACK = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (torch's name)
_SCALAR = 8  # bytes of the largest number: torch.optim keeps "step" on the CPU, if not capturable
_QUESTIONS = frozenset({torch.ops.prim.device.default})
"""What fake tensors answer through the dispatcher though it is no operator."""
_MULTIPLIES = frozenset(
    f"aten.{op}" for op in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_scaled_mm")
)
"""Operators that cuBLAS computes."""
_LSTM = "aten.mkldnn_rnn_layer"
_OF_PARAMETERS = frozenset({Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE})


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts live bytes while it is entered.

    Attributes:
        storages: what is alive.
        callers: for whom it is made.
        peak: the most live bytes since the step began, and where.
        bound: the same with what kernels may hold beside tensors.
        unknown: operators whose memory nobody can tell: custom ones, compiled ones.
        results: bytes that the forward of this step made in all, dead or alive.
        doubt: the most bytes of the step at one time that are only assumed, see ``unknown``.
        libraries: serials of the storages that stand for what cuBLAS keeps.
    """

    def __init__(
        self,
        module: nn.Module,
        reads: Reads,
        device: Device | None = None,
        local: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        """Watch the calls of ``module`` and its children; ``close`` ends that.

        ``local`` returns the tensor that holds the bytes of another one.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.storages = Storages(local)
        self.callers = Callers(module, self._outermost)
        self.peak = Peak(0, 0, Phase.FORWARD, "", NOWHERE)
        self.bound = 0
        self.unknown: set[str] = set()
        self.marks: list[tuple[int, Phase]] = []
        self.results = 0
        self.doubt = 0
        self.libraries: set[int] = set()
        self._known = known.Known()
        self._reads = reads
        self._device = device  # None: the CPU
        self._bounds: set[int] = set()  # sizes of dimensions that are only bounds
        self._multiplied: set[bool] = set()  # threads that have used cuBLAS: the backward's or not
        self._before: frozenset[int] = frozenset()  # alive before the recomputation began

    @property
    def ops(self) -> int:
        """Return the operators seen since the step began."""
        return self.storages.time - self.storages.start

    def close(self) -> None:
        """Stop watching module calls."""
        self.callers.close()

    def begin(self) -> None:
        """Begin a step: forget what is dead, count from here; what is left is kept by the code."""
        self.storages.begin()
        self.callers.calls = {}
        self.marks = []
        self.bound = self.storages.live
        self.results = 0
        self.doubt = self.storages.assumed
        self.peak = Peak(self.storages.live, 0, Phase.FORWARD, "", NOWHERE)
        self.enter(Phase.FORWARD)

    def enter(self, phase: Phase) -> None:
        """Begin a part of the step."""
        self.callers.enter(phase)
        self.marks.append((self.ops, phase))

    def hold(self, tensor: torch.Tensor, kind: Kind, path: Path, what: str) -> None:
        """Say that ``tensor`` is ``kind`` and kept as ``what`` of the module at ``path``.

        A storage that has an owner already is only borrowed under this name.
        """
        for part in self.storages.parts(tensor):
            self._see(part, path, what)
            storage = self.storages.of(part)
            if storage is None:
                continue  # no bytes
            if storage.kind in PASSING:
                storage.kind = kind
                storage.made = made(part, path, what)
            elif storage.kind is kind and (*storage.made.path, storage.made.what) != (*path, what):
                borrower = (*path, what)
                if borrower not in storage.borrowers:
                    storage.borrowers.append(borrower)

    def meet(self, tensor: torch.Tensor) -> None:
        """Count ``tensor`` now; ``hold`` will say what it is."""
        for part in self.storages.parts(tensor):
            self._see(part, NOWHERE, "tensor of the code")

    def backdate(self, tensor: torch.Tensor) -> None:
        """Count ``tensor``, made in this step, as if it had been there when the step began."""
        if self.storages.of(tensor) is None:
            return  # no bytes
        size, born = self.storages.backdate(tensor)
        self.bound += size
        if self.storages.start + self.peak.time < born:
            self.peak = replace(self.peak, size=self.peak.size + size)

    def save_survivors(self, loss: torch.Tensor) -> None:
        """Say that what the forward made and is still alive was saved for the backward."""
        besides = self.storages.of(loss)
        for storage in self.storages.alive():
            in_this_step = storage.sizes[0][0] >= self.storages.start
            forward = storage.phase in (Phase.FORWARD, Phase.LOSS)
            if in_this_step and forward and storage is not besides:
                storage.save()
        for node, name, tensor in savers(loss.grad_fn, self.callers.readable):
            for part in self.storages.parts(tensor):
                saved = self.storages.of(part)
                if saved is not None:
                    saved.savers.append(f"{self.callers.of_node(node)}: {node.name()} ({name})")

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the operator, then count what it returned and what it took that is new."""
        named = kwargs or {}
        if func in _QUESTIONS:
            return func(*args, **named)
        if torch.is_inference_mode_enabled() and _is_made_of_others(func):
            with self:  # under a gradient autograd takes it apart before it comes here
                return func.decompose(*args, **named)
        self.callers.note_nodes()
        path, call = self.callers.here(), Call.of(func, args, named)
        for tensor in call.taken:
            self._meet(tensor, path)
        if func is _READ_BACK and self.callers.phase is Phase.OPTIMIZER:
            return 1.0  # torch.optim scales by it; no size hangs on it
        result = self._run(call)
        given = list(tensors_in((result,)))
        self._count(call, given)
        self._learn(call, given)
        if is_custom(func):
            self.unknown.add(call.op)
            beside = sum(self._bytes(t) for t in (*call.taken, *given))
            self.doubt = max(self.doubt, self.storages.assumed + beside)
        if self._device is not None and call.op in _MULTIPLIES:
            self._keep_workspace(self._device.workspace)
        live = self.storages.live
        self.bound = max(self.bound, live + allowance(call, given))
        if live > self.peak.size:
            self.peak = Peak(live, self.ops, self.callers.phase, call.op, path)
        self.storages.time += 1
        return result

    def _run(self, call: Call) -> object:
        """Run the operator; where no shape tells its result, take the largest it can have."""
        on_gpu = self._device is not None
        try:
            result = sparse.run(call, partial(kernel_results.run, on_gpu=on_gpu))
        except DataDependentOutputException:
            return self._read(call)
        except RuntimeError as error:
            if not is_untold(call, error):
                raise
            real = self._known.compute(call)
            if real is not None:
                return tree_map_only(torch.Tensor, self._faked, real)
            assumed = largest_result(call, self._values)
            if assumed is None:
                raise
            result, bounds = assumed
            self._bounds |= bounds
            self._bound(call.op, result)
        if call.op == _LSTM and (on_gpu or not kernel_results.onednn_is_known()):
            self._bound(call.op, result)  # a GPU's is cuDNN's, which keeps something else
        if sparse.is_bound(call.op) and _has_sparse(result):
            self._bound(call.op, result)
        return result

    def _bound(self, op: str, result: object) -> None:
        """Say that ``result`` is only as large as it can be."""
        self.unknown.add(op)
        for tensor in tensors_in((result,)):
            for part in self.storages.parts(tensor):
                self._see(part, self.callers.here(), op)
            self._doubt(tensor)

    def _read(self, call: Call) -> bool | int | float:
        """Return the number that the code reads back."""
        real = self._known.compute(call)
        if isinstance(real, (bool, int, float)):
            return real
        if call.func is not _READ_BACK:
            return self._reads.answer(call.op, torch.bool, 1)  # whether two tensors are equal
        tensor = call.taken[0]
        if not isinstance(tensor, FakeTensor) and tensor.device.type == "cpu":
            with unset_fake_temporarily():
                held: bool | int | float = tensor.item()  # the code's own, outside of the network
                return held
        return self._reads.answer(call.op, tensor.dtype, self._values(tensor))

    def _count(self, call: Call, given: list[torch.Tensor]) -> None:
        """Count what the operator returned."""
        path = self.callers.here()
        for at, tensor in enumerate(given):
            stepped = self.callers.phase is Phase.OPTIMIZER
            where = self._stepped(call.args, at) if stepped else path
            for part in self.storages.parts(tensor):
                self._see(part, where, call.op)

    def _learn(self, call: Call, given: list[torch.Tensor]) -> None:
        """Note what the arguments tell of the results: numbers, bounds of numbers, of sizes."""
        self._known.learn(call, given)
        if self._bounds:
            self._assume(call.taken, given)
        storage = self._storage(given[0]) if given else None
        if storage is None:
            return
        if call.changes:
            storage.largest = max(storage.largest, largest(call, given[0], self._values))
        elif storage.sizes[0][0] == self.storages.time:  # it is new
            storage.largest = largest(call, given[0], self._values)

    def _values(self, tensor: torch.Tensor) -> float:
        """Return the largest value that a number of ``tensor`` can have."""
        twin = self._known.of(tensor)
        if twin is not None and twin.numel():
            with unset_fake_temporarily():
                return float(twin.max())
        storage = self._storage(tensor)
        return UNTOLD if storage is None else storage.largest

    @staticmethod
    def _faked(tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake as large as ``tensor``; called inside the fakes' mode."""
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def _storage(self, tensor: torch.Tensor) -> Storage | None:
        return next((self.storages.of(part) for part in self.storages.parts(tensor)), None)

    def _bytes(self, tensor: torch.Tensor) -> int:
        return sum(part.untyped_storage().nbytes() for part in self.storages.parts(tensor))

    def _assume(self, taken: Sequence[torch.Tensor], given: list[torch.Tensor]) -> None:
        """Doubt results of doubtful arguments that have a dimension which is only a bound."""
        doubtful = (self.storages.of(t) for whole in taken for t in self.storages.parts(whole))
        if any(storage is not None and storage.assumed for storage in doubtful):
            for tensor in given:
                if not self._bounds.isdisjoint(tensor.shape):
                    self._doubt(tensor)

    def _doubt(self, tensor: torch.Tensor) -> None:
        for part in self.storages.parts(tensor):
            self.storages.doubt(part)
        self.doubt = max(self.doubt, self.storages.assumed)

    def _keep_workspace(self, size: int) -> None:
        """Let cuBLAS take its workspace, once for each thread that multiplies matrices."""
        thread = self.callers.phase is Phase.BACKWARD
        if thread not in self._multiplied:
            self._multiplied.add(thread)
            serial = self.storages.serial()
            self.libraries.add(serial)
            self.storages.events.append(Event(self.storages.time, serial, size))

    def _stepped(self, args: tuple[object, ...], at: int) -> Path:
        """Return "(optimizer)" and the parameter that the ``at``-th result is made for, if any."""
        of = args[0] if args else None
        if isinstance(of, (list, tuple)):
            of = of[at] if at < len(of) else None
        known = self._storage(of) if isinstance(of, torch.Tensor) else None
        if known is None:
            return (OPTIMIZER,)
        if known.made.path[:1] == (OPTIMIZER,):  # a temporary's temporary
            return known.made.path
        if known.kind not in _OF_PARAMETERS:
            return (OPTIMIZER,)
        name = () if known.kind is Kind.OPTIMIZER_STATE else (known.made.what,)
        return (OPTIMIZER, *known.made.path, *name)

    def _meet(self, tensor: torch.Tensor, path: Path) -> None:
        """Count an argument that no operator returned: the code keeps it outside the module."""
        for part in self.storages.parts(tensor):
            if self.storages.of(part) is None:
                self.hold(part, Kind.BUFFERS, path, "tensor of the code")

    def _see(self, part: torch.Tensor, path: Path, what: str) -> None:
        """Count the storage behind ``part``, or its new size."""
        if self._stays_on_cpu(part):
            return
        phase = self.callers.phase if self.marks else None
        size = self.storages.see(part, path, what, phase)
        if phase in (Phase.FORWARD, Phase.LOSS):
            self.results += size

    def _stays_on_cpu(self, part: torch.Tensor) -> bool:
        """Return whether it is new and no GPU's: the count of steps that an optimizer keeps."""
        if self._device is None or self.callers.phase is not Phase.OPTIMIZER:
            return False
        return part.untyped_storage().nbytes() <= _SCALAR and self.storages.of(part) is None

    def _outermost(self, begins: bool) -> None:  # noqa: FBT001  (its only argument)
        """Note a module called in the backward: it computes its forward again, and saves it."""
        if self.callers.phase is not Phase.BACKWARD:
            return
        if begins:
            self._before = frozenset(storage.serial for storage in self.storages.alive())
            return
        for storage in self.storages.alive():
            if storage.serial not in self._before:
                storage.save()


def _has_sparse(result: object) -> bool:
    return any(tensor.layout is torch.sparse_coo for tensor in tensors_in((result,)))


def _is_made_of_others(func: torch._ops.OpOverload) -> bool:
    """Return whether ``func`` is only a way to call other operators, and nothing stands for it."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001  (no public name)
    name = str(func.name())  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return func._can_decompose() and not has(name, "CPU")  # noqa: SLF001  (torch's name)
