"""What users reported that other tools count wrongly, each with the right number.

The numbers of parameters, outputs and bytes are worked out by hand from the reports' own sizes.
Reports about FLOPs, shards and configurations have their places elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from memcensus.net import owners
from memcensus.net.block import Kind, Phase, Trace
from memcensus.net.plan import Plan
from memcensus.net.step import trace
from memcensus.net.target import Training
from memcensus.subject import silent
from tests.net import truth
from tests.net.exact import UNet

MIB = 1 << 20


def _traced(make: Callable[[], nn.Module], *shape: int, plan: Plan | None = None) -> Trace:
    with torch.device("meta"):
        module, x = make(), torch.empty(shape)
    x = x.to(next((p.dtype for p in module.parameters()), torch.float32))
    return trace(Training(module, (x,), {}, None, ""), plan or Plan(), silent)


def _parameters(traced: Trace) -> tuple[int, int]:
    """Return how many numbers the parameters have, and how many bytes."""
    held = [block for block in traced.blocks if block.kind is Kind.PARAMETERS]
    numbers = sum(block.at(0) // block.made.itemsize for block in held)
    return numbers, sum(block.at(0) for block in held)


class Shares(nn.Module):
    """torchinfo#327, #396: one ReLU in three blocks of two Linear(4, 4)."""

    def __init__(self) -> None:
        super().__init__()
        relu = nn.ReLU()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(4, 4), relu, nn.Linear(4, 4), relu) for _ in range(3))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(x)
        return out


class Direct(nn.Module):
    """torchinfo#366: the first layer is called by its ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first.forward(x))
        return out


class ReZero(nn.Module):
    """torchinfo#137: a module with a parameter of its own between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.scale = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.scale * self.layers(x)
        return out


class Twice(nn.Module):
    """pytorch-OpCounter#98, pytorch-summary#37: two networks share one Linear(10, 10)."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(10, 10)
        self.one, self.two = nn.Sequential(shared), nn.Sequential(shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.two(self.one(x))
        return out


class Bare(nn.Module):
    """pytorch-OpCounter#205: parameters that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(7, 11))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Attends(nn.Module):
    """pytorch-OpCounter#197: MultiheadAttention(100, 1) on 1x1000x100 has parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(100, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attend(x, x, x, need_weights=False)[0]
        return out


class Again(nn.Module):
    """torchinfo#144: Linear(1024, 1024) applied ``times`` to 10240 rows."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(1024, 1024), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.layer(x)
        return x


@pytest.mark.parametrize(
    ("make", "shape", "numbers", "size"),
    [
        (Shares, (1, 4), 120, 480),
        (Direct, (1, 3), 50, 200),
        (ReZero, (1, 2), 14, 56),
        (Twice, (1, 10), 110, 440),
        (Bare, (1, 7), 77, 308),
        (Attends, (1, 1000, 100), 40_400, 161_600),
        (lambda: Direct().half(), (1, 3), 50, 100),  # torchinfo#29: sized as float32
    ],
    ids=["shares", "direct", "rezero", "twice", "bare", "attends", "half"],
)
def test_parameters_are_counted_once_and_in_their_own_type(
    make: Callable[[], nn.Module], shape: tuple[int, ...], numbers: int, size: int
) -> None:
    assert _parameters(_traced(make, *shape)) == (numbers, size)


def test_gpt2_owns_its_tied_head_once() -> None:
    """torchinfo#322, #397: 163,037,184 said, 124,439,808 true."""
    from tests.net.networks import gpt2

    with torch.device("meta"):
        module, ids = gpt2(), torch.ones(1, 8, dtype=torch.int64)
    traced = trace(Training(module, (ids,), {}, None, ""), Plan(mode="infer"), silent)
    assert _parameters(traced)[0] == 124_439_808


@pytest.mark.parametrize(("times", "size"), [(1, 84.00390625), (100, 4044.00390625)])
def test_a_layer_applied_often_holds_each_of_its_outputs(times: int, size: float) -> None:
    """A 4 MiB weight, a 4 KiB bias, and 40 MiB for the input and for each output."""
    traced = _traced(lambda: Again(times), 10240, 1024)
    end = next(time for time, phase in traced.marks if phase is Phase.LOSS)
    held = sum(block.at(end - 1) for block in traced.blocks if block.kind is not Kind.GRADIENTS)
    target = 10240 * 8
    assert held == size * MIB + target


def test_in_place_costs_no_second_output() -> None:
    """pytorch-summary#163: the output of ReLU(inplace=True) was counted as new."""

    def traced(*, in_place: bool) -> Trace:
        layers = (nn.Linear(64, 64), nn.ReLU(inplace=in_place), nn.Linear(64, 64))
        return _traced(lambda: nn.Sequential(*layers), 5000, 64)

    in_place, beside = traced(in_place=True), traced(in_place=False)
    made = [block.at(block.born) for block in beside.blocks if block.made.what == "aten.relu"]
    assert made == [5000 * 64 * 4]
    assert "aten.relu" not in {block.made.what for block in in_place.blocks}
    assert beside.results - in_place.results == made[0]


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_return_tuples(kind: str, gates: int) -> None:
    """pytorch-summary#143: LSTM(5, 5) ended in an error about 'tuple'."""
    traced = _traced(lambda: getattr(nn, kind)(5, 5), 3, 2, 5)
    layer = next(layer for layer in traced.layers if layer.kind == kind)
    assert layer.output == "3x2x5"
    assert layer.parameters == gates * (2 * 5 * 5 + 2 * 5)


def test_a_u_nets_inference_is_no_half_of_its_training() -> None:
    """torchinfo#149: 50 GB said for a forward of 1x1x4096x3328 that takes 15 GB."""
    one, four = (
        truth.inference_peak(UNet(32), [torch.randn(1, 1, n * 128, n * 104)]) for n in (1, 2)
    )
    large = _traced(lambda: UNet(32), 1, 1, 4096, 3328, plan=Plan(mode="infer"))
    pixels = (four - one) // 3  # bytes for 128 x 104 of them; what is left are the weights
    assert large.peak.size == one - pixels + 32 * 32 * pixels
    assert large.results > 2 * large.peak.size  # the sum of all outputs, which others report


def test_a_frozen_encoder_layer_takes_the_fast_path() -> None:
    """flops-counter.pytorch#101: TransformerEncoderLayer(512, 4) without gradients saw nothing."""
    layer = nn.TransformerEncoderLayer(512, 4, batch_first=True).eval().requires_grad_(False)  # noqa: FBT003  (its only argument)
    x = torch.randn(2, 10, 512)
    traced = trace(Training(layer, (x,), {}, None, ""), Plan(mode="infer"), silent)
    assert traced.peak.size == truth.inference_peak(layer, [x])
    assert traced.results > 0


def test_bert_with_a_mask_needs_no_data() -> None:
    """pytorch#126738: bert-base on fakes ended in DataDependentOutputException in its mask."""
    from tests.net.networks import bert

    with torch.device("meta"):
        module = bert(num_hidden_layers=1).get_submodule("network")
    named = {
        "input_ids": torch.ones(2, 16, dtype=torch.int64),
        "attention_mask": torch.ones(2, 16, dtype=torch.int64),
    }
    traced = trace(Training(module, (), dict(named), None, ""), Plan(), silent)
    assert owners.tree("bert", traced, "").total == traced.peak.size


def test_a_backward_planned_for_a_gpu_needs_none() -> None:
    """pytorch#92627: ``backward`` on fakes of CUDA ended in an error about the device of events."""
    from memcensus.net.device import find

    traced = _traced(Direct, 1, 3, plan=Plan(device=find("h100")))
    assert Phase.OPTIMIZER in {phase for _, phase in traced.marks}


def test_what_cublas_keeps_is_no_leak() -> None:
    """pytorch#95668: Linear(1, 1) leaves 8,519,680 B, which is the workspace of cuBLAS."""
    from memcensus.net.device import find

    plan = Plan(mode="infer", device=find("a100"))
    traced = _traced(lambda: nn.Linear(1, 1), 1, 1, plan=plan)
    sizes = {event.serial: event.size for event in traced.events if event.size}
    assert [sizes[serial] for serial in traced.libraries] == [8_519_680]
