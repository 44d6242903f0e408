"""One thread for torch: the tests run beside each other."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
