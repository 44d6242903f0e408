"""What the data pipeline holds beside the step: batches that wait on the host.

``torch.utils.data.DataLoader`` keeps ``workers * prefetch_factor`` batches asked for, so at most so
many lie in shared memory (torch/utils/data/dataloader.py, ``_MultiProcessingDataLoaderIter``). With
``pin_memory`` each of them is copied once more into page-locked memory. Each worker further holds
versions of the batch it is making: decoded, augmented, as floats; how many, only the code knows.

Upper bounds, so estimated: a loader that the step outruns has its queue empty. Not covered: what
the dataset itself keeps in each worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcensus.errors import UsageError
from memcensus.model import Account, Column, Evidence, Source, Table
from memcensus.units import exact

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "data pipeline"
_MOST = 1 << 20  # of any count
_MEANING = "host memory, at most; empty where the step outruns the loader"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How batches come.

    Raises:
        UsageError: if a count is negative or absurd, or batches are pinned that nobody loads.
    """

    workers: int = 0  # processes; 0: the loop loads its batches itself
    prefetch: int = 2  # batches asked for per worker (torch's default)
    pinned: bool = False  # batches are copied to page-locked memory
    versions: int = 0  # copies of a batch that each worker holds while it makes it

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("workers", "prefetch", "versions"):
            count: int = getattr(self, name)
            if not 0 <= count <= _MOST:
                raise UsageError(f"--{name} {count}: a count from 0 to {_MOST:,} makes sense")

    def account(self, batch: int) -> Account | None:
        """Return whose the host's bytes are for batches of ``batch`` bytes; None: it holds none."""
        accounts = tuple(
            Account(name, count * batch, _source(count, how, batch))
            for name, count, how in self._held(batch)
        )
        if not accounts:
            return None
        source = Source(Evidence.ESTIMATED, "sum of its parts", _MEANING)
        return Account(NAME, 0, source, accounts)

    def tables(self, batch: int) -> tuple[Table, ...]:
        """Return one row for each part, in a table, or no table if there is none."""
        held = list(self._held(batch))
        columns = (Column("what"), Column("batches"), Column("host memory", "B"))
        rows = tuple((name, count, count * batch) for name, count, _ in held)
        sources = tuple(_source(count, how, batch) for _, count, how in held)
        return (Table(NAME, columns, rows, sources),) if held else ()

    def _held(self, batch: int) -> Iterator[tuple[str, int, str]]:
        """Yield (what, how many batches, how that comes about) for what holds any bytes."""
        asked = self.workers * self.prefetch
        parts = (
            ("batches waiting", asked, "workers x prefetch"),
            ("pinned copies", max(1, asked) * self.pinned, "workers x prefetch, at least 1"),
            ("versions being made", max(1, self.workers) * self.versions, "workers x versions"),
        )
        return (part for part in parts if part[1] * batch)


def _source(count: int, how: str, batch: int) -> Source:
    return Source(Evidence.ESTIMATED, f"{count} ({how}) x {exact(batch)} of a batch", _MEANING)
