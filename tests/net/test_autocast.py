"""Casts on CPU fakes are those that torch's own CUDA kernels of autocast make on fake CUDA tensors.

The oracle needs no GPU: forward operators without gradients run on fake CUDA tensors in any build.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memcensus.net import autocast, cuda, device

GPU = device.find("rtx3060")
KINDS = (torch.bfloat16, torch.float16)
F32, F64 = torch.float32, torch.float64


class Log(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes each operator that makes tensors, and the types and shapes of these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.lines: list[str] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if made:
            shown = ", ".join(f"{str(t.dtype)[6:]}{list(t.shape)}" for t in made)
            self.lines.append(f"{func} -> {shown}")
        return result


@contextmanager
def torchs_own(kind: torch.dtype) -> Iterator[None]:
    """CUDA's autocast, which the public context refuses to switch on without a GPU."""
    torch.set_autocast_dtype("cuda", kind)
    torch.set_autocast_enabled("cuda", True)  # noqa: FBT003  (torch's own signature)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)  # noqa: FBT003  (as above)


Work = Callable[[Callable[..., torch.Tensor]], object]


def logged(work: Work, kind: torch.dtype) -> tuple[list[str], list[str]]:
    """Return what ``work`` does under torch's autocast on fake CUDA, and under ours on the CPU."""

    def maker(where: str) -> Callable[..., torch.Tensor]:
        def make(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=where)

        return make

    with FakeTensorMode(), torchs_own(kind), Log() as theirs:
        work(maker("cuda"))
    with FakeTensorMode(), cuda.kernels(GPU), torch.autocast("cuda", dtype=kind), Log() as ours:
        work(maker("cuda"))
    return theirs.lines, ours.lines


OPERATORS: dict[str, Work] = {
    "mm": lambda t: torch.mm(t(3, 4), t(4, 5)),
    "mm, one is double": lambda t: torch.mm(t(3, 4, dtype=F64), t(4, 5, dtype=F64)),
    "matmul of integers": lambda t: torch.matmul(
        t(3, 4, dtype=torch.int64), t(4, 5, dtype=torch.int64)
    ),
    "bmm": lambda t: torch.bmm(t(2, 3, 4), t(2, 4, 5)),
    "addmm": lambda t: torch.addmm(t(5), t(3, 4), t(4, 5)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 3, 5), t(2, 3, 4), t(2, 4, 5)),
    "linear": lambda t: functional.linear(t(2, 3, 4), t(5, 4), t(5)),
    "einsum": lambda t: torch.einsum("bij,bjk->bik", t(2, 3, 4), t(2, 4, 5)),
    "conv1d": lambda t: functional.conv1d(t(2, 3, 9), t(4, 3, 3), t(4)),
    "conv2d": lambda t: functional.conv2d(t(2, 3, 9, 9), t(4, 3, 3, 3), t(4)),
    "conv3d": lambda t: functional.conv3d(t(2, 3, 9, 9, 9), t(4, 3, 3, 3, 3)),
    "conv_transpose2d": lambda t: functional.conv_transpose2d(t(2, 3, 9, 9), t(3, 4, 2, 2)),
    "conv2d, padding by word": lambda t: functional.conv2d(
        t(2, 3, 9, 9), t(4, 3, 3, 3), padding="same"
    ),
    "prelu": lambda t: functional.prelu(t(2, 3), t(3)),
    "exp of a half": lambda t: torch.exp(t(3, dtype=torch.bfloat16)),
    "pow": lambda t: (t(3, dtype=torch.float16) ** 2, 2 ** t(3, dtype=torch.float16)),
    "rsqrt": lambda t: torch.rsqrt(t(3, dtype=torch.float16)),
    "log1p": lambda t: torch.log1p(t(3, dtype=torch.bfloat16)),
    "softplus": lambda t: functional.softplus(t(3, dtype=torch.bfloat16)),
    "layer_norm": lambda t: functional.layer_norm(t(2, 3, dtype=torch.float16), (3,)),
    "group_norm": lambda t: functional.group_norm(t(2, 4, 5, dtype=torch.bfloat16), 2),
    "cosine_similarity": lambda t: functional.cosine_similarity(
        t(2, 3, dtype=torch.bfloat16), t(2, 3)
    ),
    "mse_loss": lambda t: functional.mse_loss(t(2, 3, dtype=torch.bfloat16), t(2, 3)),
    "smooth_l1_loss": lambda t: functional.smooth_l1_loss(t(2, 3, dtype=torch.bfloat16), t(2, 3)),
    "kl_div": lambda t: functional.kl_div(t(2, 3, dtype=torch.bfloat16), t(2, 3), reduction="sum"),
    "nll_loss": lambda t: functional.nll_loss(
        t(2, 3, dtype=torch.bfloat16), t(2, dtype=torch.int64)
    ),
    "bce with logits": lambda t: functional.binary_cross_entropy_with_logits(
        t(2, 3, dtype=torch.bfloat16), t(2, 3)
    ),
    "cross_entropy, bfloat16": lambda t: functional.cross_entropy(
        t(2, 3, dtype=torch.bfloat16), t(2, dtype=torch.int64)
    ),
    "cdist": lambda t: torch.cdist(t(2, 3, dtype=torch.bfloat16), t(4, 3)),
    "interpolate": lambda t: functional.interpolate(
        t(1, 2, 4, 4, dtype=torch.bfloat16), scale_factor=2
    ),
    "bilinear interpolation": lambda t: functional.interpolate(
        t(1, 2, 4, 4, dtype=torch.bfloat16), scale_factor=2, mode="bilinear"
    ),
    "softmax": lambda t: torch.softmax(t(2, 3, dtype=torch.bfloat16), -1),
    "softmax with a type": lambda t: torch.softmax(
        t(2, 3, dtype=torch.bfloat16), -1, dtype=torch.bfloat16
    ),
    "log_softmax": lambda t: functional.log_softmax(t(2, 3, dtype=torch.bfloat16), -1),
    "softmax, float16": lambda t: torch.softmax(t(2, 3, dtype=torch.float16), -1),
    "cross_entropy, float16": lambda t: functional.cross_entropy(
        t(2, 3, dtype=torch.float16), t(2, dtype=torch.int64)
    ),
    "lstm_cell": lambda t: torch.lstm_cell(
        t(2, 3), (t(2, 4), t(2, 4)), t(16, 3), t(16, 4), t(16), t(16)
    ),
    "sum": lambda t: (t(2, 3, dtype=torch.bfloat16).sum(), t(2, 3, dtype=torch.bfloat16).sum(1)),
    "sum of integers": lambda t: t(2, 3, dtype=torch.int32).sum(),
    "prod": lambda t: t(2, 3, dtype=torch.float16).prod(1),
    "cumsum": lambda t: torch.cumsum(t(2, 3, dtype=torch.float16), 1),
    "norm": lambda t: (torch.norm(t(2, 3, dtype=torch.bfloat16)), t(2, 3, dtype=F64).norm(dim=1)),
    "vector_norm": lambda t: torch.linalg.vector_norm(t(2, 3, dtype=torch.bfloat16), dim=1),
    "addcmul": lambda t: torch.addcmul(t(3), t(3, dtype=torch.bfloat16), t(3)),
    "atan2": lambda t: torch.atan2(t(3), t(3, dtype=torch.bfloat16)),
    "dot": lambda t: torch.dot(t(3), t(3, dtype=torch.bfloat16)),
    "index_put": lambda t: torch.index_put(
        t(4, 3), (t(2, dtype=torch.int64),), t(2, 3, dtype=torch.bfloat16)
    ),
    "scatter_add": lambda t: torch.scatter_add(
        t(4, 3), 0, t(4, 3, dtype=torch.int64), t(4, 3, dtype=torch.bfloat16)
    ),
    "cat of two types": lambda t: torch.cat([t(2, 3), t(2, 3, dtype=torch.bfloat16)]),
    "stack of two types": lambda t: torch.stack([t(2, 3), t(2, 3, dtype=torch.bfloat16)]),
    "add of two types": lambda t: t(3) + t(3, dtype=torch.bfloat16),
    "dropout": lambda t: functional.dropout(t(4, 4, dtype=torch.bfloat16), 0.1),
    "dropout, none": lambda t: functional.dropout(t(4, 4), 0.0),
    "dropout, all": lambda t: functional.dropout(t(4, 4), 1.0),
    "dropout, evaluating": lambda t: functional.dropout(t(4, 4), 0.5, training=False),
    "average pool": lambda t: functional.avg_pool3d(t(1, 2, 4, 4, 4, dtype=torch.bfloat16), 2),
    "pad by reflection": lambda t: functional.pad(
        t(1, 2, 4, dtype=torch.bfloat16), (1, 1), mode="reflect"
    ),
    "gelu": lambda t: functional.gelu(t(3, dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_cast_as_torchs_cuda_kernels_do(name: str, kind: torch.dtype) -> None:
    theirs, ours = logged(OPERATORS[name], kind)
    assert theirs
    assert ours == theirs


def test_the_lists_name_what_torch_has_kernels_for() -> None:
    """Rows that no sample covers are at least the operators that CUDA's autocast knows."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    known = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has(name, "AutocastCUDA")
    }
    listed = {
        str(op.name())  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for names in autocast.POLICIES.values()
        for op in autocast.operators(names)
    }
    # cudnn_* are called by users only; binary_cross_entropy is refused by CUDA's autocast
    left = {"aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}
    assert known - listed - left == {"aten::binary_cross_entropy"}
    assert listed <= known


def test_a_weight_is_cast_once_and_kept_until_autocast_ends() -> None:
    """Two uses of a weight make one copy of it; a tensor that is no leaf is cast each time."""
    with FakeTensorMode(), cuda.kernels(GPU):
        weight = nn.Parameter(torch.empty(4, 4))
        with torch.autocast("cuda", dtype=torch.bfloat16), Log() as log:
            torch.mm(weight, weight)
            torch.mm(weight, weight)
        casts = [line for line in log.lines if "_to_copy" in line]
        assert len(casts) == 1
        with torch.autocast("cuda", dtype=torch.bfloat16), Log() as log:
            torch.mm(weight * 1, weight)
            with torch.autocast("cuda", enabled=False):
                assert torch.mm(weight, weight).dtype is F32
        assert len([line for line in log.lines if "_to_copy" in line]) == 2


def test_the_default_type_of_cuda_is_float16() -> None:
    with FakeTensorMode(), cuda.kernels(GPU), torch.autocast("cuda"):
        assert torch.mm(torch.empty(2, 2), torch.empty(2, 2)).dtype is torch.float16


def test_everything_is_as_before_afterwards() -> None:
    before = torch.autocast.__init__, torch.clear_autocast_cache
    with FakeTensorMode(), cuda.kernels(GPU):
        pass
    assert (torch.autocast.__init__, torch.clear_autocast_cache) == before
    with FakeTensorMode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(torch.empty(2, 2), torch.empty(2, 2)).dtype is torch.bfloat16
        pooled = functional.avg_pool3d(torch.empty(1, 1, 2, 2, 2, dtype=torch.bfloat16), 2)
        assert pooled.dtype is F32  # the CPU's own list, which CUDA has not
        dropped = functional.dropout(torch.empty(4, 4, requires_grad=True), 0.5)
        assert dropped.grad_fn is not None
        assert dropped.grad_fn.name() == "MulBackward0"


def test_no_warning_reaches_the_user() -> None:
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("error")
        with cuda.kernels(GPU), torch.autocast("cuda"):
            torch.mm(torch.empty(2, 2), torch.empty(2, 2))
