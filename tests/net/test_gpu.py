"""Planning for a GPU: the table of cards, and the sums of the simulated allocator."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from memcensus.errors import UsageError
from memcensus.model import Answer, Budget, Evidence, Source
from memcensus.net import device, gpu
from memcensus.net.allocator import OutOfDeviceMemory
from memcensus.net.allocator_settings import Settings
from memcensus.net.block import Trace
from memcensus.net.options import NetOptions
from memcensus.net.plan import Plan
from memcensus.net.step import trace
from memcensus.net.subject import Net
from memcensus.net.target import Training
from memcensus.subject import Request, Target, silent

CARD = device.find("rtx3060")


def _traced(plan: Plan, rows: int = 4000) -> Trace:
    layers = (nn.Linear(256, 900), nn.ReLU(), nn.Dropout(), nn.Linear(900, 10))
    with torch.device("meta"):
        module, x = nn.Sequential(*layers), torch.empty(rows, 256)
    return trace(Training(module, (x,), {}, None, ""), plan, silent)


@pytest.fixture(scope="module")
def traced() -> Trace:
    return _traced(Plan(optimizer="adam", device=CARD))


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("rtx3060", "GeForce RTX 3060 (2021)"),
        ("RTX 3060", "GeForce RTX 3060 (2021)"),
        ("NVIDIA GeForce RTX 3060", "GeForce RTX 3060 (2021)"),
        ("A100-40GB", "A100 40GB (2020)"),
        ("Tesla K80", "Tesla K80, one of its two GPUs (2014)"),
    ],
)
def test_a_card_is_found_however_it_is_written(text: str, title: str) -> None:
    assert device.find(text).title == title


def test_any_size_will_do() -> None:
    assert device.find("cuda:24GiB").memory == 24 << 30


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rtx3061", "rtx3060.*cuda:24GiB"),
        ("abacus", "no such GPU"),
        ("cuda:much", "much"),
        ("", "--"),
    ],
)
def test_an_unknown_card_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        device.find(text)


def test_cards_have_less_than_their_sheet_says_and_the_smallest_has_3_gb() -> None:
    known = device.known()
    assert known[0].memory <= 3 << 30
    assert known[-1].memory > 170 << 30
    assert all(one.memory <= two.memory for one, two in pairwise(known))
    for card in device._CARDS.values():
        assert card.seen is None or 0.85 * card.sheet < card.seen <= card.sheet
    sheets = {card.sheet for card in device._CARDS.values()}
    assert {3, 4, 6, 8, 12, 16, 24, 48, 80, 141} <= sheets


def test_the_documentation_names_every_card() -> None:
    text = (Path(__file__).parents[2] / "docs" / "net.md").read_text(encoding="utf-8")
    assert all(f"`{card.name}`" in text for card in device.known())


def test_live_is_within_allocated_within_reserved(traced: Trace) -> None:
    replayed = gpu.replay(traced, Settings())
    pairs = zip(replayed.allocated, replayed.reserved, strict=True)
    assert all(allocated <= reserved for allocated, reserved in pairs)
    assert traced.peak.size <= replayed.peak_allocated <= replayed.peak_reserved
    assert replayed.at(traced.peak.time)[0] >= traced.peak.size


def test_the_parts_sum_to_what_the_device_holds_at_every_time(traced: Trace) -> None:
    replayed = gpu.replay(traced, Settings())
    root = gpu.tree("net", traced, replayed, CARD, "")
    assert root.total == replayed.at(traced.peak.time)[1] + CARD.context.size
    assert all(child.name != "unexplained" for child in root.children)
    drawn = gpu.timeline("net", traced, replayed, CARD)
    assert drawn.total(traced.peak.time) == root.total
    for time in range(0, traced.ops + 1, 7):
        assert drawn.total(time) == replayed.at(time)[1] + CARD.context.size


def test_a_squeezed_step_still_runs_in_the_least_and_not_in_less(traced: Trace) -> None:
    settings = Settings()
    replayed = gpu.replay(traced, settings)
    least = gpu.least(traced, replayed, settings)
    assert replayed.peak_allocated <= least <= replayed.peak_reserved
    assert gpu.replay(traced, settings, least).peak_reserved <= least
    with pytest.raises(OutOfDeviceMemory):
        gpu.replay(traced, settings, replayed.peak_allocated - (2 << 20))


def test_dropout_and_the_optimizer_are_the_gpus() -> None:
    """A mask of bytes instead of one of floats, and one operator for all parameters."""
    on_gpu = _traced(Plan(optimizer="adam", device=CARD))
    on_cpu = _traced(Plan(optimizer="adam"))
    masks = [b for b in on_gpu.blocks if b.made.dtype == "bool" and b.made.path == ("2",)]
    assert [mask.at(mask.born) for mask in masks] == [4000 * 900]
    assert on_gpu.ops < on_cpu.ops


@pytest.mark.parametrize(
    ("limit", "answer"),
    [("24GiB", Answer.FITS), ("128MiB", Answer.TOO_BIG), (None, Answer.FITS)],
)
def test_the_verdict_is_on_the_device(limit: str | None, answer: Answer) -> None:
    from memcensus.units import parse

    budget = None if limit is None else Budget(parse(limit), Source(Evidence.ASSUMED, "test"))
    options = NetOptions(batch=2, input=("8",), device="rtx3060")
    report = Net().inspect(Target("tests.net.networks:Shared"), Request(budget), options)
    assert report.verdict is not None
    assert report.verdict.answer is answer
    quantities = {quantity.name for quantity in report.root.quantities}
    assert {"peak allocated", "peak reserved", "peak of the device"} <= quantities


def test_settings_of_the_allocator_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = NetOptions(batch=2, input=("8",), device="rtx3060")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:1")
    with pytest.raises(UsageError, match="more than 20"):
        Net().inspect(Target("tests.net.networks:Shared"), Request(), options)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
    report = Net().inspect(Target("tests.net.networks:Shared"), Request(), options)
    assert any("backend" in gap.what for gap in report.gaps)
