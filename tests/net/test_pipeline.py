"""The data pipeline's bytes are at most what a real DataLoader has under way."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from memcensus.errors import UsageError
from memcensus.model import Report
from memcensus.net.options import NetOptions
from memcensus.net.pipeline import Pipeline
from memcensus.net.subject import Net
from memcensus.subject import Request, Target


class Pictures(Dataset[torch.Tensor]):
    """Sixty-four small pictures."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3, 8, 8), float(index))


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 3)])
def test_batches_waiting_are_those_a_dataloader_has_asked_for(workers: int, prefetch: int) -> None:
    loader = DataLoader(Pictures(), batch_size=4, num_workers=workers, prefetch_factor=prefetch)
    batches = iter(loader)
    asked = batches._send_idx - batches._rcvd_idx  # type: ignore[attr-defined]  # torch's own count
    batch = next(batches).nbytes
    account = Pipeline(workers, prefetch).account(batch)
    assert account is not None
    assert account.total == asked * batch
    del batches


def test_each_part_by_hand() -> None:
    account = Pipeline(4, 2, pinned=True, versions=3).account(1000)
    assert account is not None
    parts = {child.name: child.own for child in account.children}
    assert parts == {
        "batches waiting": 8000,
        "pinned copies": 8000,
        "versions being made": 12000,
    }


def test_a_loop_that_loads_by_itself_holds_nothing_but_a_pinned_batch() -> None:
    assert Pipeline().account(1000) is None
    pinned = Pipeline(pinned=True).account(1000)
    assert pinned is not None
    assert pinned.total == 1000


@pytest.mark.parametrize(
    ("name", "workers", "prefetch", "versions"),
    [("workers", -1, 2, 0), ("prefetch", 2, -1, 0), ("versions", 2, 2, -1)],
)
def test_absurd_counts_are_refused(name: str, workers: int, prefetch: int, versions: int) -> None:
    with pytest.raises(UsageError, match=f"--{name} -1"):
        Pipeline(workers, prefetch, versions=versions)


BYTES = 6 * (2 * 8 * 4 + 2 * 8)
"""Six batches, each of two images of eight float32 numbers and their two class numbers."""


def _report(device: str | None) -> Report:
    options = NetOptions(batch=2, input=("8",), workers=3, prefetch=2, device=device)
    plan = Net().inspect(Target("tests.net.networks:Shared"), Request(), options)
    table = plan.table("data pipeline")
    assert table is not None
    assert [row[:2] for row in table.rows] == [("batches waiting", 6)]
    assert table.rows[0][2] == BYTES
    return plan


def test_on_a_cpu_the_batches_lie_beside_the_tensors() -> None:
    report = _report(None)
    beside = next(child for child in report.root.children if child.name == "data pipeline")
    assert beside.total == BYTES
    assert report.timeline is not None
    assert report.timeline.total(0) >= beside.total


def test_on_a_gpu_they_are_no_part_of_the_device() -> None:
    names = [child.name for child in _report("rtx3060").root.children]
    assert "data pipeline" not in names
    assert "CUDA context" in names
