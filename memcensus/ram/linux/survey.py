"""A census of a Linux image while it is made: what the rules share, and what they found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable
from memcensus.model import Absence, Evidence, Gap, Quantity, Source
from memcensus.ram import paging
from memcensus.ram.census import Entry, Ledger
from memcensus.ram.image import PAGE
from memcensus.ram.linux.mappings import Mappings
from memcensus.ram.linux.pages import KernelMap, Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memcensus.model import Path
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.process import Processes
    from memcensus.ram.linux.zones import Zones

FREE: Final = "free"
PROCESSES: Final = "processes"
SHARED: Final = "shared by processes"
TABLES: Final = "page tables"
SLAB: Final = "slab"
LARGE: Final = "large kmalloc"
NOT_RAM: Final = "not RAM"


@dataclass(slots=True)
class Survey:
    """The shared state of all rules. ``pages`` is None where no struct page is in the image."""

    kernel: Kernel
    processes: Processes
    ledger: Ledger
    map: KernelMap
    pages: Pages | None
    mappings: Mappings
    ram: NDArray[np.bool_]  # (pages,)
    zones: Zones | None = None
    ram_size: int = 0  # bytes, in the image or not
    gaps: list[Gap] = field(default_factory=list)

    @classmethod
    def start(cls, kernel: Kernel, processes: Processes) -> Survey:
        """Read what the rules share."""
        gaps: list[Gap] = []
        mapped = KernelMap.read(kernel)
        try:
            pages = Pages.read(kernel, mapped)
        except Unreadable as error:
            pages = None
            why = f"{error}; so the census knows only what page tables tell"
            gaps.append(Gap("struct pages", Absence.UNREADABLE, why))
        mappings = Mappings.read(kernel, processes.spaces)
        if paging.too_many(processes.spaces.walk.leafs, kernel.image.pages):
            why = "they map far more than the machine's memory; they are damaged, and cut here"
            gaps.append(Gap("some mapped pages", Absence.UNPARSABLE, why))
        ledger = Ledger(kernel.image.pages)
        ram = np.ones(kernel.image.pages, np.bool_)
        return cls(kernel, processes, ledger, mapped, pages, mappings, ram, gaps=gaps)

    @property
    def marks(self) -> Pages:
        """The struct pages, or ``Unreadable``."""
        if self.pages is None:
            raise Unreadable("the struct pages are not in the image")
        return self.pages

    def measured(self, what: str) -> Source:
        """Return the source of what was read from the image."""
        return Source(Evidence.MEASURED, f"{self.kernel.image.name}: {what}")

    def estimated(self, what: str) -> Source:
        """Return the source of what was inferred."""
        return Source(Evidence.ESTIMATED, f"{self.kernel.image.name}: {what}")

    def path(self, space: int) -> Path:
        """Return the account of the process that uses an address space."""
        return (PROCESSES, self.processes.owner(space).label)

    def borrowed(self) -> Iterator[Entry]:
        """Yield for each process what it uses of the pages that others own."""
        spaces = self.processes.spaces
        paths = [self.path(space) for space in range(len(spaces.roots))]
        numbers = np.array([self.ledger.number_of(path) for path in paths], np.int64)
        frames, users = self.mappings.frames, self.mappings.spaces
        foreign = self.ledger.owner[frames] != numbers[users]
        used = np.bincount(users[foreign], minlength=len(paths)).tolist()
        source = self.measured("mapped by its page tables, and by nobody else's")
        for path, pages, resident in zip(paths, used, spaces.resident, strict=True):
            yield Entry(path, source, 0, pages * PAGE, (Quantity("resident", resident, "B"),))
