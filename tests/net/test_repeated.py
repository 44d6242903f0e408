"""The repeated blocks are those that the networks' authors name, and none where none repeat."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memcensus.net.repeated import blocks
from memcensus.net.vgg import vgg16
from tests.net import networks


class Layer(nn.Module):
    """Attention over ``width`` numbers, and experts."""

    def __init__(self, width: int, experts: int = 0) -> None:
        super().__init__()
        self.attention = nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, 9 * width) for _ in range(experts))


class Nested(nn.Module):
    """Blocks that hold blocks of their own class."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, 2))
        self.inner = nn.ModuleList(Nested(depth - 1) for _ in range(2 * (depth > 0)))


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(partial(networks.gpt2, n_layer=3), 3, id="gpt2"),
        pytest.param(partial(networks.bert, num_hidden_layers=4), 4, id="bert"),
        pytest.param(partial(networks.vit, num_hidden_layers=5), 5, id="vit"),
    ],
)
def test_they_are_of_a_class_that_transformers_says_must_not_be_split(
    make: networks.Maker, count: int
) -> None:
    with torch.device("meta"):
        module = make()
    whole = {name for part in module.modules() for name in getattr(part, "_no_split_modules", ())}
    found = blocks(module)
    assert len(found) == count
    assert {type(module.get_submodule(path)).__name__ for path in found} <= whole


def test_the_bottlenecks_of_a_resnet_are_found_and_not_its_unlike_stages() -> None:
    with torch.device("meta"):
        found = blocks(networks.resnet50())
    stages = [path.split(".")[-3] for path in found]
    assert [stages.count(stage) for stage in "0123"] == [3, 4, 6, 3]  # the paper's table


def test_layers_are_found_and_not_the_many_experts_inside_them() -> None:
    network = nn.ModuleList(Layer(4, experts=8) for _ in range(3))
    assert blocks(network) == ("0", "1", "2")


def test_encoder_and_decoder_of_one_class_are_both_found() -> None:
    halves = {name: nn.Sequential(Layer(4), Layer(4)) for name in ("encoder", "decoder")}
    expected = ("encoder.0", "encoder.1", "decoder.0", "decoder.1")
    assert blocks(nn.ModuleDict(halves)) == expected


def test_nothing_is_found_where_nothing_repeats() -> None:
    once = Layer(4)
    assert blocks(nn.Sequential(once, once)) == ()  # one block, used twice
    assert blocks(nn.Sequential(Layer(4), Layer(5), Layer(6))) == ()
    assert blocks(nn.Sequential(nn.ReLU(), nn.ReLU())) == ()
    with torch.device("meta"):
        assert blocks(vgg16()) == ()


@given(st.integers(0, 4))
def test_no_block_lies_in_another(depth: int) -> None:
    found = blocks(nn.ModuleList(Nested(depth) for _ in range(2)))
    assert found == ("0", "1")
