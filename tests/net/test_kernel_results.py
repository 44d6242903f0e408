"""Fake results are as large as real ones, over the samples torch tests its operators with.

Each operator that a sample reaches in forward or backward runs for real and on fakes; shapes, types
and storage bytes are compared.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memcensus.net import kernel_results
from memcensus.net.call import Call
from memcensus.net.largest import UNTOLD
from memcensus.net.unknown import is_untold, largest

Signature = list[tuple[tuple[int, ...], torch.dtype, int]]

DIFFERENT = {
    "aten._sparse_mm_reduce_impl.default",  # of sparse matrices in a layout that is not followed
    "aten.indices.default",  # sparse tensors are not copied to fakes with their numbers here; what
    "aten.values.default",  # training makes of them is in test_sparse
}
"""Operators whose fakes are known to be smaller, and why that does no harm."""

UNBOUNDED = {
    "aten._local_scalar_dense.default",  # read back: test_branches
    "aten.equal.default",
    "aten.allclose.default",
    "aten.bincount.default",  # the values of an input of the network are not known
    "aten.repeat_interleave.Tensor",
    "aten._unique.default",  # no longer called by torch.unique
}
"""Operators whose results data decides, and which nothing bounds in these samples."""

MOST = 60  # calls of one operator that are compared


class Beside(TorchDispatchMode):
    """Runs each operator on fakes too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.calls: Counter[str] = Counter()
        self.smaller: dict[str, list[tuple[Signature, Signature]]] = defaultdict(list)
        self.unbounded: set[str] = set()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = str(func)
        if self.calls[name] >= MOST:
            return func(*args, **kwargs)
        mode = FakeTensorMode()
        fakes, named = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
        real = func(*args, **kwargs)
        self.calls[name] += 1
        with mode:
            self._compare(func, fakes, named, real)
        return real

    def _compare(
        self,
        func: torch._ops.OpOverload,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        real: object,
    ) -> None:
        name, measured = str(func), signature(real)
        call = Call.of(func, args, kwargs)
        try:
            fake = kernel_results.run(call)
        except RuntimeError as error:
            known = is_untold(call, error)
            bound = largest(call, lambda _: UNTOLD) if known else None
            if bound is None:
                self.unbounded.add(name)
            elif not covers(signature(bound[0]), measured):
                self.smaller[name].append((signature(bound[0]), measured))
        else:
            if signature(fake) != measured:
                self.smaller[name].append((signature(fake), measured))


def signature(result: object) -> Signature:
    return [
        (tuple(t.shape), t.dtype, t.untyped_storage().nbytes())
        for t in tree_leaves(result)
        if isinstance(t, torch.Tensor) and t.layout is torch.strided
    ]


def covers(bounds: Signature, sizes: Signature) -> bool:
    pairs = zip(bounds, sizes, strict=True)
    return all(ours[1] is real[1] and ours[2] >= real[2] for ours, real in pairs)


def samples() -> Iterator[Callable[[], None]]:
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            known = op.supported_dtypes("cpu")  # type: ignore[no-untyped-call]  # torch leaves it untyped
            if dtype not in known or op.name.startswith("jiterator"):
                continue
            trained = op.supports_autograd and dtype.is_floating_point
            given_ = op.sample_inputs("cpu", dtype, requires_grad=trained)  # type: ignore[no-untyped-call]  # as above
            for sample in given_:
                yield lambda op=op, sample=sample: once(op, sample)  # type: ignore[misc]


def once(
    op: Callable[..., object],
    sample: object,
) -> None:
    """Run one sample forward, and backward where it goes."""
    given_ = (sample.input, sample.args, sample.kwargs)  # type: ignore[attr-defined]
    result = op(given_[0], *given_[1], **given_[2])
    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    inputs = [t for t in tree_leaves(given_) if isinstance(t, torch.Tensor) and t.requires_grad]
    if outputs and inputs and all(t.is_floating_point() for t in outputs):
        total = sum(t.sum() for t in outputs if t.layout is torch.strided)
        if isinstance(total, torch.Tensor):
            torch.autograd.grad(total, inputs, allow_unused=True)


@pytest.mark.filterwarnings("ignore")
def test_no_fake_result_is_smaller_than_the_real_one() -> None:
    pytest.importorskip("expecttest", reason="torch's samples need expecttest")
    beside = Beside()
    ran = 0
    for run in samples():
        ran += 1
        with suppress(RuntimeError, ValueError), warnings.catch_warnings(), beside:
            warnings.simplefilter("ignore")
            run()  # some samples have no backward for their type, which torch says by an error
    assert ran > 15_000
    assert len(beside.calls) > 500
    assert beside.smaller.keys() <= DIFFERENT, beside.smaller
    assert beside.unbounded <= UNBOUNDED


def shape_of_workspace(
    steps: int, samples_: int, inputs: int, hidden: int, dtype: torch.dtype
) -> int:
    weights = [torch.zeros(4 * hidden, n, dtype=dtype) for n in (inputs, hidden)]
    biases = [torch.zeros(4 * hidden, dtype=dtype) for _ in range(2)]
    state = torch.zeros(1, samples_, hidden, dtype=dtype)
    returned = torch.ops.aten.mkldnn_rnn_layer(
        torch.zeros(steps, samples_, inputs, dtype=dtype),
        *(*weights, *biases, state, state.clone()),
        *(False, [], 2, hidden, 1, True, False, False, True),
    )
    return int(returned[3].nbytes)


@given(
    steps=st.integers(1, 40),
    samples_=st.integers(1, 20),
    inputs=st.integers(1, 600),
    hidden=st.integers(1, 600),
)
@settings(max_examples=60, deadline=None)
def test_an_lstms_workspace_is_what_onednn_returns(
    steps: int, samples_: int, inputs: int, hidden: int
) -> None:
    sizes = steps, samples_, inputs, hidden
    real = shape_of_workspace(*sizes, torch.float32)
    assert kernel_results.lstm_workspace(*sizes, 4) == real
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        real = shape_of_workspace(*sizes, torch.bfloat16)
        assert kernel_results.lstm_workspace(*sizes, 2) == real


def test_onednn_is_asked_before_it_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_results.onednn_is_known()
    monkeypatch.setattr(kernel_results, "_PAGE", 1)
    assert not kernel_results.onednn_is_known()


GROUPS = torch.tensor([3, 8, 8, 24], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "grouped"),
    [((24, 16), (4, 16, 24), True), ((16, 24), (24, 24), True), ((4, 8, 16), (4, 16, 24), False)],
)
def test_a_grouped_product_of_any_type(
    left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype, *, grouped: bool
) -> None:
    func, groups = torch.ops.aten._grouped_mm.default, GROUPS if grouped else None
    real = func(torch.zeros(left, dtype=dtype), torch.zeros(right, dtype=dtype), groups)
    with FakeTensorMode() as mode:
        fakes = torch.empty(left, dtype=dtype), torch.empty(right, dtype=dtype)
        offsets = None if groups is None else mode.from_tensor(groups)
        fake = kernel_results.run(Call.of(func, (*fakes, offsets), {}))
    assert signature(fake) == signature(real)
    assert isinstance(fake, torch.Tensor)
    assert fake.stride() == real.stride()


NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch": (lambda: nn.BatchNorm2d(6), (2, 6, 4, 4)),
    "layer": (lambda: nn.LayerNorm(6), (2, 4, 6)),
    "group": (lambda: nn.GroupNorm(2, 6), (2, 6, 4, 4)),
    "instance": (lambda: nn.InstanceNorm2d(6, affine=True), (2, 6, 4, 4)),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from_tensor asks for it
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_16_bit_numbers(name: str, weights: torch.dtype, *, training: bool) -> None:
    make, shape = NORMS[name]
    norm, x = make().to(weights).train(training), torch.randn(shape).bfloat16().requires_grad_()
    beside = Beside()
    with beside:
        norm(x).sum().backward()
    assert not beside.smaller
