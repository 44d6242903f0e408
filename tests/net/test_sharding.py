"""One rank of a spread training holds what torch's own code holds on real tensors, to the byte."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import debug
from torch.testing._internal.distributed.fake_pg import FakeStore

from memcensus.errors import ModelFailed, UsageError
from memcensus.net import gpu, owners, repeated
from memcensus.net.allocator_settings import Settings
from memcensus.net.block import Kind, Trace
from memcensus.net.device import find
from memcensus.net.plan import Optimizer, Plan
from memcensus.net.sharding import _WAYS, BUCKETS, How, lines, sharded
from memcensus.net.step import trace
from memcensus.net.target import Training
from memcensus.subject import silent
from tests.net import truth

RANKS = 4
MIB = 1 << 20
HOWS: tuple[How, ...] = tuple(_WAYS)


class Small(nn.Module):
    """A transformer; no width is a multiple of the ranks, so that shards are padded."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(63, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width - 3, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.last = nn.Linear(width, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.last(x)
        return out * 1  # FSDP2 warns of outputs that are views


class Wide(nn.Module):
    """Gradients of 37 MiB: several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(9))
        self.norm = nn.BatchNorm1d(1024)  # whose buffers DDP sends around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        out: torch.Tensor = self.norm(x)
        return out


def _sum(output: object) -> torch.Tensor:
    if not isinstance(output, torch.Tensor):
        raise TypeError(output)
    return output.sum()


def _small() -> Training:
    with torch.device("meta"):
        return Training(Small(), (torch.empty(2, 5, 63),), {}, _sum, "test")


def _wide() -> Training:
    with torch.device("meta"):
        return Training(Wide(), (torch.empty(2, 1024),), {}, _sum, "test")


BLOCKS = repeated.blocks(_small().module)


def _spread(how: How, optimizer: Optimizer = "adam", ranks: int = RANKS) -> Trace:
    return sharded(_small, Plan(optimizer=optimizer), ranks, how, BLOCKS, silent)


def _kept(trace: Trace, kind: Kind) -> int:
    """Return the bytes of ``kind`` at the end of the step."""
    return sum(block.at(trace.ops) for block in trace.blocks if block.kind is kind)


@contextmanager
def _group(rank: int = 0, ranks: int = RANKS) -> Iterator[None]:
    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def _shard(shape: torch.Size, ranks: int) -> int:
    """Return the numbers of the first of ``ranks`` equal parts of the rows, the last one padded."""
    return math.ceil(shape[0] / ranks) * math.prod(shape[1:])


def _shards(ranks: int) -> int:
    return 4 * sum(_shard(p.shape, ranks) for p in _small().module.parameters())


def _whole() -> int:
    return 4 * sum(p.numel() for p in _small().module.parameters())


@pytest.mark.parametrize("how", ["zero2", "zero3"])
def test_parameters_gradients_and_states_are_shards_by_hand(how: How) -> None:
    traced = _spread(how)
    assert _kept(traced, Kind.PARAMETERS) == _shards(RANKS)
    assert _kept(traced, Kind.GRADIENTS) == _shards(RANKS)
    assert _kept(traced, Kind.OPTIMIZER_STATE) == 2 * _shards(RANKS) + _counts()


def _counts() -> int:
    """Return the bytes of Adam's count of steps: 4 for each parameter, wherever it lies."""
    return 4 * len(list(_small().module.parameters()))


@given(st.integers(2, 9), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
@settings(max_examples=15, deadline=None)
def test_shards_of_any_shapes_are_padded_rows(ranks: int, shapes: list[tuple[int, int]]) -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([x * weight.sum() for weight in self.weights])

    def make() -> Training:
        with torch.device("meta"):
            return Training(Products(), (torch.empty(1),), {}, _sum, "test")

    traced = sharded(make, Plan(), ranks, "zero3", (), silent)
    rows = sum(_shard(torch.Size(shape), ranks) for shape in shapes)
    assert _kept(traced, Kind.PARAMETERS) == 4 * rows
    assert _kept(traced, Kind.GRADIENTS) == 4 * rows


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("how", ["zero2", "zero3"])
def test_the_peak_is_that_of_torchs_fsdp_tracker_on_real_tensors(
    how: How, optimizer: Optimizer
) -> None:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker

    module, x = Small(), torch.randn(2, 5, 63)
    reshard = False if how == "zero2" else None
    with _group():
        mesh = init_device_mesh("cpu", (RANKS,))
        for path in BLOCKS:
            fully_shard(module.get_submodule(path), mesh=mesh, reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
        made = truth.OPTIMIZERS[optimizer](module)
        tracker = FSDPMemTracker(module, made)
        tracker.track_inputs((x,))
        with tracker:
            truth.step(module, made, x, _sum)
            first = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
            tracker.reset_mod_stats()
            truth.step(module, made, x, _sum)
        second = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    traced = _spread(how, optimizer)
    assert (traced.first.size, traced.peak.size) == (first, second)


def _real_ddp(how: How, rank: int) -> int:
    """Return the peak of two real steps under torch's DDP, by the plain counter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, used by torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

    module, x = Wide(), torch.randn(2, 1024)
    counter = truth.Plain([*module.parameters(), *module.buffers(), x])
    with _group(rank), counter:
        whole = nn.parallel.DistributedDataParallel(
            module, init_sync=False, gradient_as_bucket_view=_WAYS[how].view
        )
        whole.register_comm_hook(None, _sent)
        if how == "zero1":
            made: torch.optim.Optimizer = ZeroRedundancyOptimizer(
                module.parameters(), torch.optim.Adam, lr=1e-3
            )
        else:
            made = torch.optim.Adam(module.parameters(), lr=1e-3)
        for _ in range(2):
            truth.step(whole, made, x, _sum)
    return counter.peak


def _sent(_state: object, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (DDP refuses other annotations)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _fullest() -> int:
    """Return the rank to which torch's ZeroRedundancyOptimizer gives the most numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as above
        from torch.distributed.optim import ZeroRedundancyOptimizer

    with _group():
        zero = ZeroRedundancyOptimizer(Wide().parameters(), torch.optim.Adam, lr=1e-3)
        sizes = [
            sum(p.numel() for group in groups for p in group["params"])
            for groups in zero._partition_parameters()  # type: ignore[attr-defined]  # torch leaves it untyped
        ]
    return sizes.index(max(sizes))


@pytest.mark.parametrize("how", ["ddp", "ddp-view", "zero1"])
def test_the_peak_is_that_of_real_steps_under_torchs_ddp(how: How) -> None:
    traced = sharded(_wide, Plan(optimizer="adam"), RANKS, how, (), silent)
    assert traced.peak.size == _real_ddp(how, _fullest() if how == "zero1" else 0)


def test_zero1_keeps_two_states_of_the_fullest_ranks_parameters() -> None:
    """Nine matrices on four ranks: three go to one of them, by pigeonhole."""
    traced = sharded(_wide, Plan(optimizer="adam"), RANKS, "zero1", (), silent)
    matrices = 3 * 4 * 1024 * 1024
    kept = _kept(traced, Kind.OPTIMIZER_STATE)
    assert 2 * matrices <= kept <= 2 * (matrices + 11 * 4 * 1024) + 20 * 4


def test_ddp_adds_a_copy_of_the_gradients_and_a_view_does_not() -> None:
    kept = {how: _kept(_spread(how), Kind.GRADIENTS) for how in HOWS}
    assert kept["ddp"] == 2 * _whole()
    assert kept["ddp-view"] == kept["zero1"] == _whole()


@pytest.mark.parametrize("how", ["ddp-view", "zero1", "zero2", "zero3"])
def test_a_storage_that_many_gradients_share_is_lent_to_none(how: How) -> None:
    """Its bytes would be told once more for each of them."""
    gradients = [b for b in _spread(how).blocks if b.kind is Kind.GRADIENTS]
    assert gradients
    assert not any(block.borrowers for block in gradients)


def test_buckets_close_at_1_and_then_25_mib() -> None:
    """A bucket takes parameters until it has reached its size; the biggest one here has 4 MiB."""
    traced = sharded(_wide, Plan(), RANKS, "ddp-view", (), silent)
    buckets = {b.made.what: b for b in traced.blocks if b.made.path == (BUCKETS,)}
    sizes = [buckets[f"bucket {n}"].at(traced.ops) for n in range(len(buckets))]
    whole = 4 * sum(p.numel() for p in Wide().parameters())
    assert sum(sizes) == whole
    assert len(sizes) == 3
    assert 1 * MIB <= sizes[0] < 5 * MIB
    assert 25 * MIB <= sizes[1] < 29 * MIB


def test_each_step_from_ddp_to_zero3_takes_less() -> None:
    peaks = [_spread(how).peak.size for how in HOWS]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_model_states_follow_the_zero_paper(ranks: int) -> None:
    """Rajbhandari et al. 2020, figure 1: with float32, 4 B of weights, 4 of gradients, 8 of Adam.

    P_os: 8 P + 8 P/N, P_os+g+p: 16 P/N. Off is padding: less than a row for each parameter.
    """
    numbers = _whole() // 4
    rows = sum(math.prod(p.shape[1:]) for p in _small().module.parameters())
    largest = max(p.numel() for p in _small().module.parameters())
    kinds = (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE)

    def states(how: How) -> int:
        traced = _spread(how, ranks=ranks)
        return sum(_kept(traced, kind) for kind in kinds)

    assert 0 <= states("zero1") - (8 + 8 / ranks) * numbers <= 8 * largest + _counts()
    assert 0 <= states("zero3") - 16 * numbers / ranks <= 16 * rows + _counts()


def test_zero2_holds_all_weights_while_it_computes_and_zero3_one_block_beside_the_root() -> None:
    """What DeepSpeed's formulas leave out, as in DeepSpeed#4527: the gathered weights."""

    def gathered(how: How) -> int:
        traced = _spread(how, "sgd")
        weights = [b for b in traced.blocks if b.made.what.endswith("(gathered)")]
        return max(sum(b.at(time) for b in weights) for time in range(traced.ops))

    block = _small().module.get_submodule(BLOCKS[0])
    padded = 4 * sum(RANKS * _shard(p.shape, RANKS) for p in block.parameters())
    root = 4 * sum(
        RANKS * _shard(p.shape, RANKS)
        for name, p in _small().module.named_parameters()
        if not name.startswith("layers.")
    )
    assert gathered("zero2") == root + len(BLOCKS) * padded
    assert gathered("zero3") == root + padded  # the next one's still lie in the buffer of sending


@pytest.mark.parametrize("how", HOWS)
def test_a_trace_of_a_rank_is_a_trace_like_any_other(how: How) -> None:
    """The tree adds up to the running counter, and a GPU's allocator takes the events."""
    plan = Plan(optimizer="adamw", device=find("h100"), autocast="bfloat16")
    traced = sharded(_small, plan, RANKS, how, BLOCKS, silent)
    root = owners.tree("net", traced, "test")
    assert root.total == traced.peak.size
    assert not traced.unknown
    replayed = gpu.replay(traced, Settings())
    assert replayed.peak_reserved >= replayed.peak_allocated >= traced.peak.size


@pytest.mark.parametrize("clear", ["first", "backward", "last"])
@pytest.mark.parametrize("how", HOWS)
def test_loops_that_accumulate_come_through(how: How, clear: str) -> None:
    plan = Plan(accumulate=2, clear=clear, optimizer="adam")  # type: ignore[arg-type]  # of three words
    traced = sharded(_small, plan, RANKS, how, BLOCKS, silent)
    once = _spread(how).peak.size
    assert traced.peak.size >= once


def test_a_trace_does_not_hang_on_what_was_traced_before() -> None:
    """DTensor remembers shapes that it asked for: the first trace asks, the second does not."""
    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    first, second = _spread("zero3", "adamw"), _spread("zero3", "adamw")
    assert first.peak == second.peak
    assert first.events == second.events


class Broken(nn.Module):
    """Raises in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("broken")


def _broken() -> Training:
    with torch.device("meta"):
        return Training(Broken(), (torch.empty(1, 3),), {}, _sum, "test")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("make", [_small, _broken])
def test_nothing_is_left_behind(how: How, make: object) -> None:
    before = (sys.excepthook, torch.UntypedStorage.resize_, _sockets())
    if make is _broken:
        with pytest.raises(ModelFailed, match="broken"):
            sharded(_broken, Plan(), RANKS, how, (), silent)
    else:
        sharded(_small, Plan(), RANKS, how, BLOCKS, silent)
    assert not dist.is_initialized()
    assert before == (sys.excepthook, torch.UntypedStorage.resize_, _sockets())


@pytest.mark.parametrize("how", HOWS)
def test_no_socket_is_open_on_the_way(how: How) -> None:
    seen: list[int] = []

    def look(what: str, done: int, total: int, unit: str) -> None:
        assert what, (done, total, unit)
        assert dist.is_initialized()
        seen.append(_sockets())

    before = _sockets()
    sharded(_small, Plan(), RANKS, how, BLOCKS, look)
    assert seen == [before] * 3


def _sockets() -> int:
    if not Path("/proc/self/fd").exists():
        pytest.skip("open files are listed under /proc, which is not here")
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(str(link.readlink()).startswith("socket:") for link in links)


@pytest.mark.parametrize("how", HOWS)
def test_the_lines_do_what_was_traced(how: How) -> None:
    """Run on real tensors, they leave the same bytes of parameters, gradients and states."""
    parameters, gradients, states = _run(how)
    traced = _spread(how, "adamw")
    assert parameters == _kept(traced, Kind.PARAMETERS)
    assert gradients == _kept(traced, Kind.GRADIENTS) - (_whole() if how == "ddp" else 0)
    if how != "zero1":  # whose rank here is 0, not the fullest
        assert states == _kept(traced, Kind.OPTIMIZER_STATE)


def _run(how: How) -> tuple[int, ...]:
    """Run the lines and a step; return the bytes of parameters, gradients and states."""
    names: dict[str, object] = {"model": Small()}
    with _group(), pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        patch.setattr(nn.Module, "cuda", lambda module: module)
        patch.setattr(dist, "init_process_group", lambda: None)
        warnings.simplefilter("ignore", DeprecationWarning)  # as above
        exec(lines(how, RANKS, BLOCKS), names)  # noqa: S102  (what is tested)
        model = names["model"]
        assert isinstance(model, nn.Module)
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model.register_comm_hook(None, _sent)
        made = names.get("optimizer") or torch.optim.AdamW(model.parameters())
        assert isinstance(made, torch.optim.Optimizer)
        model(torch.randn(2, 5, 63)).sum().backward()
        made.step()
    local = getattr(made, "optim", made)
    states = [state for each in local.state.values() for state in each.values()]
    parameters = list(model.parameters())
    return _bytes(parameters), _bytes([p.grad for p in parameters]), _bytes(states)


def _bytes(tensors: object) -> int:
    assert isinstance(tensors, list)
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ((), []),
        (("0", "1"), ['(f"{n}" for n in range(2))']),
        (
            ("a.h.0", "a.h.1", "b.0"),
            ['(f"a.h.{n}" for n in range(2))', '(f"b.{n}" for n in range(1))'],
        ),
        (("h.1", "h.2"), ["('h.1', 'h.2')"]),
        (("x", "y"), ["('x', 'y')"]),
        (('a".0', 'a".1'), ["('a\".0', 'a\".1')"]),
    ],
)
def test_the_lines_name_each_block_once(names: tuple[str, ...], expected: list[str]) -> None:
    written = lines("zero3", RANKS, names)
    loops = [line[len("for name in ") : -1] for line in written.splitlines() if "for name" in line]
    assert loops == expected
    assert tuple(name for loop in loops for name in eval(loop)) == names  # noqa: S307  (as above)


@pytest.mark.parametrize("ranks", [-1, 0, 1, 4097, 10**12])
def test_counts_of_ranks_that_make_no_sense_are_refused(ranks: int) -> None:
    with pytest.raises(UsageError, match=f"{ranks} GPUs"):
        sharded(_small, Plan(), ranks, "zero3", (), silent)


def test_what_cannot_be_spread_is_said() -> None:
    with pytest.raises(UsageError, match=r"layers\.7"):
        sharded(_small, Plan(), RANKS, "zero3", ("layers.7",), silent)
    with pytest.raises(UsageError, match="infer"):
        sharded(_small, Plan(mode="infer"), RANKS, "ddp", (), silent)
    with _group(), pytest.raises(UsageError, match="process group"):
        sharded(_small, Plan(), RANKS, "ddp", (), silent)
    with pytest.raises(ModelFailed, match="fully_shard"):
        sharded(_scalar, Plan(), RANKS, "zero3", (), silent)


@pytest.mark.parametrize("how", HOWS)
def test_a_network_without_shapes_is_said(how: How) -> None:
    def make() -> Training:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls lazy modules new
            return Training(nn.LazyLinear(3), (torch.empty(1, 2),), {}, _sum, "test")

    with pytest.raises(ModelFailed, match="lazy"):
        sharded(make, Plan(), RANKS, how, (), silent)


def _scalar() -> Training:
    module = nn.ParameterList([nn.Parameter(torch.empty((), device="meta"))])
    return Training(module, (), {}, _sum, "test")


def test_an_unspread_step_is_traced_as_before_afterwards() -> None:
    plan = Plan(optimizer="adam")
    before = trace(_small(), plan, silent)
    for how in HOWS:
        _spread(how)
    assert trace(_small(), plan, silent).events == before.events


def test_the_network_is_built_once() -> None:
    calls: list[int] = []

    def make() -> Training:
        calls.append(1)
        return _small()

    sharded(make, Plan(), 2, "ddp", (), silent)
    assert calls == [1]
