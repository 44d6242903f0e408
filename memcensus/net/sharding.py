"""What one rank holds when training is spread over N GPUs: DDP, and ZeRO 1 to 3.

The step of ``step`` is traced again, for one rank of a process group that only pretends to send
(torch's "fake" backend: no socket, no other process), with torch's own code for each way:

    ddp        DistributedDataParallel: a copy of all gradients in buckets of 25 MiB, the first 1
    ddp-view   the same with gradient_as_bucket_view: the gradients lie in the buckets
    zero1      ddp-view, and ZeroRedundancyOptimizer: each rank keeps the states of its parameters
    zero2      fully_shard (FSDP2) of each block with reshard_after_forward=False
    zero3      fully_shard of each block: parameters, gradients and states in N parts

So what is alive when comes from torch and not from a formula: the padding of shards, the gathered
block, the buffer of the block before it, reduce-scatter buffers, the second division into buckets.
The rank is the one that holds the most: 0 for shards, where the first part is never the smaller
one, and the fullest of ``ZeroRedundancyOptimizer``'s greedy division for zero1.

Three things do not pass the dispatcher or do so in vain, and are seen to: FSDP2 lets gathered
parameters go by ``UntypedStorage.resize_``; DDP exchanges the new order of its buckets as numbers,
which must be real; DTensor asks for shapes by running the operator on fakes of the whole tensor.

Not covered: FSDP2's buffers lie in streams of their own, whose free blocks other streams cannot
use, so a GPU reserves more than a replay in one stream says; NCCL's buffers; MixedPrecisionPolicy,
offloading and meshes of two dimensions; ``no_sync`` while gradients are accumulated. Facts: torch
2.13, distributed/fsdp/_fully_shard/, nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

import re
import sys
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.testing._internal.distributed.fake_pg import FakeStore

from memcensus.errors import UsageError
from memcensus.net import composites, cuda, step
from memcensus.net.block import Kind
from memcensus.net.fakes import Fakes
from memcensus.net.model_code import ModelCode
from memcensus.net.optimizers import RATE, optimizer
from memcensus.net.reads import Reads
from memcensus.net.trace import Tracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    from memcensus.model import Path
    from memcensus.net.block import Trace
    from memcensus.net.device import Device
    from memcensus.net.optimizers import Parameters
    from memcensus.net.plan import Plan
    from memcensus.net.target import Training
    from memcensus.subject import Progress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit.script, which torch calls
    from torch.distributed.optim import ZeroRedundancyOptimizer

How: TypeAlias = Literal["ddp", "ddp-view", "zero1", "zero2", "zero3"]

MOST_RANKS = 4096
"""More are refused: shards of so many parts are hardly ever meant, and take long to divide."""
BUCKETS = "(buckets)"
"""Where DDP's buckets are owned; no module can have such a name by attribute."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What one ``How`` means."""

    sharded: bool = False  # FSDP2; else DDP
    reshard: bool | None = None  # reshard_after_forward; None: all but the root, as by default
    view: bool = False  # gradient_as_bucket_view
    states: bool = False  # ZeroRedundancyOptimizer


_WAYS: dict[How, _Way] = {
    "ddp": _Way(),
    "ddp-view": _Way(view=True),
    "zero1": _Way(view=True, states=True),
    "zero2": _Way(sharded=True, reshard=False),
    "zero3": _Way(sharded=True),
}


def sharded(
    make: Callable[[], Training],
    plan: Plan,
    ranks: int,
    how: How,
    blocks: tuple[str, ...],
    progress: Progress,
) -> Trace:
    """Return the second step of the fullest of ``ranks`` ranks, all fed what ``make`` brings.

    ``make`` must build anew each time, as the network is changed for good; ``blocks`` are the
    paths of the modules that zero2 and zero3 shard one by one (``repeated.blocks``), the rest of
    the network being one more.

    Raises:
        UsageError: if the ranks are too few or too many, a block is not there, the plan is no
            training, or a process group is there already.
        ModelFailed: if the model's code raises, or cannot be spread in this way.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise UsageError(f"{ranks} GPUs to spread over; take 2 to {MOST_RANKS}")
    if plan.mode != "train":
        raise UsageError(f"{how} spreads a training, and the plan is to {plan.mode}")
    way, training = _WAYS[how], make()
    rank = _fullest(training.module.parameters(), ranks) if way.states else 0
    with ExitStack() as stack:
        stack.enter_context(step._quiet())  # noqa: SLF001  (the step's own way around)
        stack.enter_context(composites.installed())
        if plan.device is not None:
            stack.enter_context(cuda.kernels(plan.device))
        stack.enter_context(_group(ranks, rank))
        return _traced(training, plan, way, blocks, progress)


def _traced(
    training: Training, plan: Plan, way: _Way, blocks: tuple[str, ...], progress: Progress
) -> Trace:
    around = _Rank(training, plan, way, blocks)
    progress(around.name, 0, 2, "pass")
    reads = Reads()
    reads.dimension = around.dimension
    tracker = _RankTracker(around.module, reads, plan.device)
    try:
        with (
            step._collector_off(),  # noqa: SLF001  (as above)
            around.mode,
            tracker,
            _resizes(tracker),
            _unseen_shapes(tracker),
        ):
            return step._second(around, tracker, progress)  # noqa: SLF001  (as above)
    finally:
        tracker.close()


def _fullest(parameters: Iterable[torch.Tensor], ranks: int) -> int:
    """Return the rank with the most numbers in ZeroRedundancyOptimizer's division.

    The largest parameter that is left goes to the rank with the least so far. Lazy ones have no
    size, and are refused later.
    """
    held = [0] * ranks
    for numbers in sorted((p.numel() for p in parameters if not is_lazy(p)), reverse=True):
        held[held.index(min(held))] += numbers
    return held.index(max(held))


class _RankTracker(Tracker):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """A tracker that looks into DTensors and sees storages resized."""

    def __init__(self, module: nn.Module, reads: Reads, device: Device | None) -> None:
        """Watch ``module``."""
        super().__init__(module, reads, device, _local)
        self.looking = True
        self.numbers = False  # whether what runs needs real numbers

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Let a DTensor run first, which then asks for operators on its local part."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if not self.looking:
            return func(*args, **(kwargs or {}))
        if self.numbers and _is_of_numbers(args, kwargs or {}):
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count the new size of a storage that no operator has changed."""
        self.storages.resize(storage)

    def hold_bucket(self, bucket: torch.Tensor, what: str) -> None:
        """Say that ``bucket`` holds gradients; it was there before the step, as a buffer is."""
        known = self.storages.of(bucket)
        if known is not None:
            known.kind = Kind.TEMPORARIES  # which may still become anything
        self.hold(bucket, Kind.GRADIENTS, (BUCKETS,), what)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of ``tensor``."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001  (to_local() is an operator)


def _is_of_numbers(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Return whether a call makes or takes the int32 in which DDP sends its buckets' order."""
    if kwargs.get("dtype") is torch.int32:
        return True
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in args)
    tensors = [t for each in lists for t in each if isinstance(t, torch.Tensor)]
    return bool(tensors) and all(t.dtype is torch.int32 for t in tensors)


class _Rank(step._Step):  # noqa: SLF001  (the step itself is not to be written twice)
    """The step of one rank."""

    def __init__(self, training: Training, plan: Plan, way: _Way, blocks: tuple[str, ...]) -> None:
        """Replace every tensor by one without data, and shard the parameters, if they are."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        dtype = None if plan.dtype is None else getattr(torch, plan.dtype)
        super().__init__(training, plan, Fakes(mode, dtype), mode)
        self.mode = mode
        self._way = way
        self._whole: DistributedDataParallel | None = None
        self._tracker: _RankTracker | None = None
        parts = [_part(self.module, path) for path in blocks]
        if way.sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            with ModelCode("fully_shard"), mode:
                for part in (*parts, self.module):
                    fully_shard(part, mesh=mesh, reshard_after_forward=way.reshard)

    def prepare(self) -> None:
        """Make the optimizer; under DDP its reducer too, which takes the first bucket."""
        super().prepare()
        if self._way.sharded:
            return
        with ModelCode("DistributedDataParallel"):
            view = self._way.view
            whole = DistributedDataParallel(
                self.module, init_sync=False, gradient_as_bucket_view=view
            )
            whole.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        self._whole = whole
        if self._way.states:
            parameters = list(self.module.parameters())
            with ModelCode("ZeroRedundancyOptimizer"):
                part = cast("type[torch.optim.Optimizer]", self._optimizer_of)
                self._optimizer = ZeroRedundancyOptimizer(parameters, part, lr=RATE)

    def _optimizer_of(self, parameters: Parameters, lr: float) -> torch.optim.Optimizer:  # noqa: ARG002  (ZeroRedundancyOptimizer hands all defaults on)
        on_gpu = self._plan.device is not None
        return optimizer(self._plan.optimizer, parameters, on_gpu=on_gpu)

    def _send(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Stand in for the all-reduce, which sums in place; the fake one brings no result."""
        if self._tracker is not None:
            self._tracker.hold_bucket(bucket.buffer(), f"bucket {bucket.index()}")
        sent: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        sent.set_result(bucket.buffer())
        return sent

    def make(self, tracker: Tracker) -> frozenset[int]:
        """Go around once; before that comes what torch does between two steps."""
        if isinstance(tracker, _RankTracker):
            self._tracker = tracker
            self._hold_gathered(tracker)
            if self._optimizer is not None and self._plan.clear == "first":
                self._optimizer.zero_grad(set_to_none=True)  # which comes before the new buckets
            self._divide_again(tracker)
        return super().make(tracker)

    def _hold_gathered(self, tracker: _RankTracker) -> None:
        """Say what the storages are that parameters are gathered in; the first step makes them."""
        for _, part in _shards(self.module):
            gathered = getattr(part, "_unsharded_param", None)
            if gathered is not None:
                *path, last = str(part._param_fqn).split(".")  # noqa: SLF001  (torch's name)
                tracker.callers.stands_for(gathered, tuple(path))
                tracker.hold(gathered, Kind.PARAMETERS, tuple(path), f"{last} (gathered)")

    def _divide_again(self, tracker: Tracker) -> None:
        """Divide the gradients into buckets in the order of the first backward, if not yet done.

        DDP does it as the second forward begins, whose step must not seem to make the buckets.
        """
        if self._whole is not None and isinstance(tracker, _RankTracker):
            tracker.numbers = True
            self._whole.reducer._rebuild_buckets()  # noqa: SLF001  (torch's name)
            tracker.numbers = False

    def _forth(self, tracker: Tracker) -> tuple[object, torch.Tensor]:
        """Go forward through what DDP makes of the network."""
        self._divide_again(tracker)
        inner = self.module
        self.module = self._whole or inner
        try:
            return super()._forth(tracker)
        finally:
            self.module = inner

    def _hold_gradients(self, tracker: Tracker) -> None:
        if self._way.view:
            return  # they lie in the buckets
        for path, part in _shards(self.module):
            gradient = part.sharded_param.grad
            if gradient is not None:  # all of a block lie in the output of one reduce-scatter
                tracker.hold(gradient, Kind.GRADIENTS, path, "gradients")
        if not self._way.sharded:
            super()._hold_gradients(tracker)

    def _hold_state(self, tracker: Tracker, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, ZeroRedundancyOptimizer):
            optimizer = optimizer.optim
        super()._hold_state(tracker, optimizer)


def _part(module: nn.Module, path: str) -> nn.Module:
    try:
        return module.get_submodule(path)
    except AttributeError as error:
        raise UsageError(f"{path}: the network has no such module to shard") from error


def _shards(module: nn.Module) -> Iterator[tuple[Path, FSDPParam]]:
    """Yield (path of the block, parameter) for what FSDP2 shards, each once."""
    seen: set[int] = set()
    for name, block in module.named_modules():
        if not isinstance(block, FSDPModule):
            continue
        for group in block._get_fsdp_state()._fsdp_param_groups:  # noqa: SLF001  (torch's names)
            if id(group) not in seen:
                seen.add(id(group))
                path = tuple(name.split(".")) if name else ()
                yield from ((path, part) for part in group.fsdp_params)


@contextmanager
def _group(ranks: int, rank: int) -> Iterator[None]:
    """Be ``rank`` of ``ranks`` in a group that sends nothing; it is gone afterwards."""
    if dist.is_initialized():
        raise UsageError("a process group is there already; ask outside of a distributed program")
    shows = sys.excepthook  # torch puts "[rank0]:" before tracebacks from here on
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        yield
    finally:
        sys.excepthook = shows
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _resizes(tracker: _RankTracker) -> Iterator[None]:
    """Let ``tracker`` see storages whose size changes without an operator."""
    inherited = torch.UntypedStorage.resize_
    own = vars(torch.UntypedStorage).get("resize_")

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        inherited(storage, size)
        tracker.resized(storage)
        return storage

    type.__setattr__(torch.UntypedStorage, "resize_", resize)
    try:
        yield
    finally:
        if own is None:
            type.__delattr__(torch.UntypedStorage, "resize_")
        else:
            type.__setattr__(torch.UntypedStorage, "resize_", own)


class _Unseen(nullcontext[None]):
    """Keeps a tracker from counting what DTensor runs to learn shapes; may be entered again."""

    def __init__(self, tracker: _RankTracker) -> None:
        """Watch nothing yet."""
        super().__init__()
        self._tracker = tracker

    def __enter__(self) -> None:
        """Look away."""
        self._tracker.looking = False

    def __exit__(self, *_error: object) -> None:
        """Look again."""
        self._tracker.looking = True


@contextmanager
def _unseen_shapes(tracker: _RankTracker) -> Iterator[None]:
    """Take the place of the lock that torch holds while it asks for shapes."""
    lock = ShardingPropagator._fake_mode_lock  # noqa: SLF001  (torch's name)
    ShardingPropagator._fake_mode_lock = _Unseen(tracker)  # noqa: SLF001  (as above)
    try:
        yield
    finally:
        ShardingPropagator._fake_mode_lock = lock  # noqa: SLF001  (as above)


def lines(how: How, ranks: int, blocks: tuple[str, ...]) -> str:
    """Return the lines of code that spread a training over ``ranks`` GPUs in this way.

    They stand after ``model`` is built and before its optimizer is made.
    """
    way = _WAYS[how]
    return "\n".join(
        [
            f"# torchrun --nproc-per-node {ranks} SCRIPT; each rank takes a batch of its own",
            "import torch",
            "import torch.distributed as dist",
            "",
            "dist.init_process_group()",
            "torch.cuda.set_device(dist.get_node_local_rank(0))",
            "model.cuda()",
            *(_sharding(way, blocks) if way.sharded else _copying(way)),
        ]
    )


def _sharding(way: _Way, blocks: tuple[str, ...]) -> Iterator[str]:
    keyword = "" if way.reshard is None else f", reshard_after_forward={way.reshard}"
    yield "from torch.distributed.fsdp import fully_shard"
    for names in _runs(blocks):
        yield f"for name in {names}:"
        yield f"    fully_shard(model.get_submodule(name){keyword})"
    yield f"fully_shard(model{keyword})"


def _copying(way: _Way) -> Iterator[str]:
    view = ", gradient_as_bucket_view=True" if way.view else ""
    yield "from torch.nn.parallel import DistributedDataParallel"
    yield f"model = DistributedDataParallel(model{view})"
    if way.states:
        yield "from torch.distributed.optim import ZeroRedundancyOptimizer"
        yield "made = torch.optim.AdamW, {'lr': 1e-3}  # put your optimizer and its arguments here"
        yield "optimizer = ZeroRedundancyOptimizer(model.parameters(), made[0], **made[1])"


_PLAIN = re.compile(r"[\w.]*")  # what stands in a string as it is: a name may have quotes in it


def _runs(blocks: tuple[str, ...]) -> Iterator[str]:
    """Yield an expression for the names of each container's blocks, in their order."""
    for above, paths in groupby(blocks, key=lambda path: path.rpartition(".")[0]):
        names = [path.rpartition(".")[2] for path in paths]
        numbered = names == [str(number) for number in range(len(names))]
        if numbered and _PLAIN.fullmatch(above):
            prefix = f"{above}." if above else ""
            yield f'(f"{prefix}{{n}}" for n in range({len(names)}))'
        else:
            yield repr(tuple(f"{above}.{name}" if above else name for name in names))
