"""What ``torch.autocast("cuda")`` casts, made to hold for CPU fakes.

Each operator of the lists follows one policy (aten/src/ATen/autocast_mode.h of PyTorch 2.13, the
AT_FORALL macros; the CPU has other lists, which are put aside here):

- LOWER: floating arguments are cast to autocast's type;
- FLOAT: cast to float32;
- FLOAT_RESULT: no cast, but ``dtype=float32`` where the caller names no type;
- WIDEST: cast to the widest type among the arguments.

Arguments are cast from the last to the first, as g++ evaluates them: the order decides where the
casts end up in memory. Casts of float32 leaves that require a gradient, the weights, are cached
until the outermost autocast ends, and so live until then.

Not covered: ``binary_cross_entropy``, which CUDA's autocast refuses.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

KEY = "AutocastCPU"
_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001  (no public name)
_EXCLUDE = torch._C._ExcludeDispatchKeyGuard  # noqa: SLF001  (no public name)


class Policy(Enum):
    """How an operator's arguments are cast; see the module's docstring."""

    LOWER = "lower"
    FLOAT = "float"
    FLOAT_RESULT = "float result"
    WIDEST = "widest"


POLICIES: dict[Policy, str] = {
    Policy.LOWER: """
        _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
        conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul
        einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
        _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        _scaled_dot_product_flash_attention scaled_dot_product_attention""",
    Policy.FLOAT: """
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Scalar
        pow.Tensor_Scalar pow.Tensor_Tensor softplus layer_norm native_layer_norm group_norm
        rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
        poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
        l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
        soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
        dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
        upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
        upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
        upsample_bicubic2d _upsample_bicubic2d_aa""",
    Policy.FLOAT_RESULT: """
        prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
        linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList norm.Scalar
        norm.ScalarOpt_dim""",
    Policy.WIDEST: """
        addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot
        scatter_add""",
}
"""Policy -> the operators it holds for, without "aten::"."""


class Cache:
    """The casts of weights that autocast keeps."""

    def __init__(self) -> None:
        """Keep none yet."""
        self._casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        """Let all casts go, as the end of the outermost autocast does."""
        self._casts = {}

    def cast(self, tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        """Return ``tensor`` as ``kind``; tensors that autocast leaves alone as they are."""
        if not tensor.is_floating_point() or tensor.dtype in (kind, torch.float64):
            return tensor
        cached = (
            kind is torch.get_autocast_dtype("cpu")
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()  # noqa: SLF001  (torch has no public name for it)
            and torch.is_autocast_cache_enabled()
        )
        if not cached:
            return tensor.to(kind)
        if id(tensor) not in self._casts:
            self._casts[id(tensor)] = (tensor, tensor.to(kind))
        return self._casts[id(tensor)][1]

    def within(self, value: object, kind: torch.dtype) -> object:
        """Return ``value`` with the tensors in it cast to ``kind``."""
        if isinstance(value, torch.Tensor):
            return self.cast(value, kind)
        if not isinstance(value, (list, tuple)):
            return value
        mapped: object = tree_map_only(torch.Tensor, lambda tensor: self.cast(tensor, kind), value)
        return mapped

    def named(self, values: dict[str, object], kind: torch.dtype) -> dict[str, object]:
        """Return the named arguments so."""
        return {name: self.within(value, kind) for name, value in values.items()}


def _kernel(op: OpOverload, policy: Policy, cache: Cache) -> Callable[..., object]:
    """Return what runs in the place of ``op`` while autocast is on."""
    typed = _TYPED.get(str(op), op)
    names = [argument.name for argument in typed._schema.arguments]  # noqa: SLF001  (no public name)
    at = names.index("dtype") if "dtype" in names else None

    def run(*args: object, **kwargs: object) -> object:
        with _EXCLUDE(_BELOW):
            if policy is Policy.FLOAT_RESULT:
                args, kwargs = _with_type(args, kwargs, at)
                return typed(*args, **kwargs)
            kind = _KIND[policy](args)
            named = cache.named(kwargs, kind)
            cast = [cache.within(value, kind) for value in reversed(args)]
            return op(*reversed(cast), **named)

    return run


def _with_type(
    args: tuple[object, ...], kwargs: dict[str, object], at: int | None
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments with ``dtype=float32``, which stands at ``at``, if nothing else does."""
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return args, kwargs
    given = args[at] if at is not None and at < len(args) else kwargs.get("dtype")
    if first.dtype is torch.float64 or given is not None:
        return args, kwargs
    return args[:at], {**kwargs, "dtype": torch.float32}


def _lower(_value: object) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _float(_value: object) -> torch.dtype:
    return torch.float32


def _widest(value: object) -> torch.dtype:
    floating = [
        leaf.dtype
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    return torch.float32 if torch.float32 in floating else torch.get_autocast_dtype("cpu")


_KIND: dict[Policy, Callable[[object], torch.dtype]] = {
    Policy.LOWER: _lower,
    Policy.FLOAT: _float,
    Policy.WIDEST: _widest,
}
_TYPED: dict[str, OpOverload] = {
    "aten.norm.Scalar": torch.ops.aten.norm.ScalarOpt_dtype,
    "aten.norm.ScalarOpt_dim": torch.ops.aten.norm.ScalarOpt_dim_dtype,
}
"""Operator -> the overload that takes a type."""


def operators(names: str) -> Iterator[OpOverload]:
    """Yield the overloads that ``names`` name: "mm", "sum.dim_IntList"."""
    for name in names.split():
        packet, _, overload = name.partition(".")
        if hasattr(torch.ops.aten, packet):
            yield getattr(getattr(torch.ops.aten, packet), overload or "default")


def install(library: torch.library.Library, cache: Cache) -> None:
    """Put the CUDA lists in the place of the CPU's, until ``library`` goes."""
    kernels: dict[str, Callable[..., object]] = {
        str(op): _kernel(op, policy, cache)
        for policy, names in POLICIES.items()
        for op in operators(names)
    }
    has = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001  (no public name)
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001  (no public name)
        full = name if "." in name else f"{name}.default"
        if name.startswith("aten::") and has(name, KEY):
            kernels.setdefault(full.replace("::", "."), torch.library.fallthrough_kernel)
    for name, kernel in kernels.items():
        short = name.removeprefix("aten.").removesuffix(".default")
        library.impl(short, kernel, KEY)  # type: ignore[no-untyped-call]  # torch leaves it untyped


@contextmanager
def as_cuda(cache: Cache) -> Iterator[None]:
    """Make ``torch.autocast("cuda")`` of the user's code work on CPU fakes, with this ``cache``."""
    kind = torch.amp.autocast_mode.autocast
    make, clear = kind.__init__, torch.clear_autocast_cache

    def instead(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,  # noqa: FBT001, FBT002  (torch's own signature)
        cache_enabled: bool | None = None,  # noqa: FBT001  (as above)
    ) -> None:
        default = torch.float16 if device_type == "cuda" else torch.bfloat16
        make(self, "cpu", dtype or default, enabled, cache_enabled)

    def cleared() -> None:
        cache.clear()
        clear()

    kind.__init__ = instead  # type: ignore[method-assign]  # put back below
    torch.clear_autocast_cache = cleared
    try:
        yield
    finally:
        kind.__init__ = make  # type: ignore[method-assign]  # as it was
        torch.clear_autocast_cache = clear
