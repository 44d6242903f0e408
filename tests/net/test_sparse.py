"""Sparse gradients: the peak is that of a real step whose indices all differ."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from memcensus.net.loss import default_loss
from memcensus.net.plan import Optimizer, Plan
from memcensus.net.step import trace
from memcensus.net.target import Training
from memcensus.subject import silent
from tests.net import networks, truth

IDS = torch.arange(400).view(50, 8)
TARGET = torch.zeros(50, dtype=torch.int64)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 8, sparse=True)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(ids).mean(1))
        return scores


class Bagged(nn.Module):
    def __init__(self, mode: str, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(500, 8, sparse=sparse, mode=mode)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.table(ids))
        return scores


MAKERS: dict[str, networks.Maker] = {
    "embedding": Embedded,
    **{f"sparse bag, {m}": partial(Bagged, m, sparse=True) for m in ("sum", "mean")},
    **{f"bag, {m}": partial(Bagged, m, sparse=False) for m in ("sum", "mean", "max")},
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", ["sgd", "sgd-momentum", "adagrad"])
@pytest.mark.parametrize("name", MAKERS)
def test_peak_with_rows_looked_up_once(name: str, optimizer: Optimizer) -> None:
    make = MAKERS[name]
    traced = trace(Training(make(), (IDS,), {}, None, ""), Plan(optimizer=optimizer), silent)
    criterion = partial(default_loss, target=TARGET)
    assert traced.peak.size == truth.plain_peak(make(), optimizer, IDS, criterion, [TARGET])
    coalesced = optimizer == "adagrad" and not name.startswith("bag")
    assert traced.unknown == ({"aten._coalesce"} if coalesced else set())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_rows_looked_up_often_fall_together_within_the_doubt() -> None:
    ids = torch.zeros_like(IDS)
    traced = trace(Training(Embedded(), (ids,), {}, None, ""), Plan(optimizer="adagrad"), silent)
    criterion = partial(default_loss, target=TARGET)
    real = truth.plain_peak(Embedded(), "adagrad", ids, criterion, [TARGET])
    assert traced.peak.size - 3 * traced.doubt <= real < traced.peak.size
