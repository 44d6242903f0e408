"""Peaks of whole steps and forwards are those of real ones to the byte, over many networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
import torch
from torch import nn

from memcensus.net import owners
from memcensus.net.block import Trace
from memcensus.net.loss import default_loss, target_of
from memcensus.net.plan import Optimizer, Plan
from memcensus.net.step import trace
from memcensus.net.target import Training
from memcensus.subject import silent
from tests.net import networks, truth
from tests.net.exact import CASES, Case, Holder

pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor", "ignore:.*inputs have requires_grad"
)
HALF = torch.bfloat16


def _traced(case: Case, plan: Plan) -> Trace:
    named = isinstance(case.inputs, Mapping)
    arguments = () if named else tuple(case.inputs)
    keywords = dict(case.inputs) if isinstance(case.inputs, Mapping) else {}
    return trace(Training(case.make(), arguments, keywords, None, ""), plan, silent)


def _target(module: nn.Module, case: Case) -> torch.Tensor | None:
    with torch.no_grad():
        return target_of(truth.called(module, case.inputs))


def _held(module: nn.Module) -> list[torch.Tensor]:
    """What objects keep that are no modules."""
    values = [value for part in module.modules() for value in vars(part).values()]
    return [value.table for value in values if isinstance(value, Holder)]


def _real(case: Case, loop: truth.Loop) -> int:
    target = _target(case.make(), case)
    module = case.make()
    beside = [*_held(module), *([] if target is None else [target])]
    return loop.peak(module, case.inputs, partial(default_loss, target=target), beside)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", CASES)
def test_a_training_step(name: str, optimizer: Optimizer) -> None:
    case = CASES[name]
    traced = _traced(case, Plan(optimizer=optimizer))
    assert traced.peak.size == _real(case, truth.Loop(optimizer))
    assert traced.doubt == 0
    root = owners.tree(name, traced, "")
    assert root.total == traced.peak.size
    assert all(child.name != "unexplained" for child in root.children)


@pytest.mark.parametrize("name", CASES)
def test_a_forward_without_gradients(name: str) -> None:
    case = CASES[name]
    traced = _traced(case, Plan(mode="infer"))
    module = case.make()
    held = sum(tensor.nbytes for tensor in _held(module))
    assert traced.peak.size == truth.inference_peak(module, case.inputs) + held
    assert owners.tree(name, traced, "").total == traced.peak.size


KERNELS_ALLOCATE = frozenset(
    {"u-net", "u-net, wide", "planes", "volumes", "lstm", "lstm, two layers, both ways"}
    | {"rnn, both ways", "held outside"}
)
"""Cases in which C++ holds memory that no tensor has; the last keeps a tensor outside."""


@pytest.mark.parametrize("name", sorted(CASES.keys() - KERNELS_ALLOCATE))
def test_a_forward_by_the_allocators_own_count(name: str) -> None:
    """No dispatcher: torch's CPU allocator says what it gave, but for the sums of some losses."""
    case = CASES[name]
    traced = _traced(case, Plan(mode="infer"))
    assert 0 <= truth.allocator_inference_peak(case.make(), case.inputs) - traced.peak.size <= 144


LOOPS: dict[str, tuple[Plan, truth.Loop]] = {
    "cleared before the backward": (
        Plan(optimizer="adam", clear="backward"),
        truth.Loop("adam", clear="backward"),
    ),
    "cleared at the end": (Plan(optimizer="adam", clear="last"), truth.Loop("adam", clear="last")),
    "three small batches": (
        Plan(optimizer="adam", accumulate=3),
        truth.Loop("adam", accumulate=3),
    ),
    "autocast": (Plan(autocast="bfloat16"), truth.Loop(half=HALF)),
    "autocast, adam, two batches": (
        Plan(optimizer="adam", autocast="bfloat16", accumulate=2),
        truth.Loop("adam", half=HALF, accumulate=2),
    ),
}
IN_LOOPS = ("u-net", "encoder", "llama", "gpt2", "functional")


@pytest.mark.parametrize("how", LOOPS)
@pytest.mark.parametrize("name", IN_LOOPS)
def test_other_ways_around(name: str, how: str) -> None:
    case, (plan, loop) = CASES[name], LOOPS[how]
    assert _traced(case, plan).peak.size == _real(case, loop)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", IN_LOOPS)
def test_an_output_that_is_kept(name: str, optimizer: Optimizer) -> None:
    case = CASES[name]
    real = _real(case, truth.Loop(optimizer, keep=True))
    traced = _traced(case, Plan(optimizer=optimizer, keep=True))
    assert traced.peak.size == real
    assert _traced(case, Plan(optimizer=optimizer)).kept == real


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad", "rmsprop", "sgd-momentum", "adafactor"])
@pytest.mark.parametrize("make", [networks.Planes, networks.Normal], ids=["planes", "normal"])
def test_other_optimizers(make: networks.Maker, optimizer: Optimizer) -> None:
    inputs = torch.randn(2, 3, 16, 16) if make is networks.Planes else torch.randn(5, 8)
    case = Case(make, (inputs,))
    traced = _traced(case, Plan(optimizer=optimizer))
    assert traced.peak.size == _real(case, truth.Loop(optimizer))


def test_inference_holds_the_largest_pair_of_layers_and_not_their_sum() -> None:
    """A chain of equal layers needs two of their outputs at a time, however long it is."""
    x = torch.randn(1000, 64)

    def chain(length: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(64, 64) for _ in range(length)))

    peaks = []
    for length in (2, 20):
        traced = _traced(Case(partial(chain, length), (x,)), Plan(mode="infer"))
        weights = length * (64 * 64 + 64) * 4
        peaks.append(traced.peak.size - weights)
        assert traced.results == length * x.nbytes
    assert peaks == [3 * x.nbytes, 3 * x.nbytes]  # the input, and two outputs
