"""The self-check of a census: the kernel's own counters in the same image.

The kernel counts what it gives away (Documentation/filesystems/proc.rst, /proc/meminfo). On a
machine that stood still the census must give the same numbers to the page; a difference is shown
as a gap, and measures how much the image was smeared while it was taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.model import Absence, Gap
from memcensus.ram.image import PAGE
from memcensus.ram.linux import page_cache, vmalloc, zones
from memcensus.ram.linux.survey import FREE, LARGE, PROCESSES, SHARED, SLAB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcensus.ram.linux.survey import Survey


def compare(survey: Survey) -> Iterator[tuple[str, int, int]]:
    """Yield (counter, the census's number, the kernel's).

    Raises:
        Unreadable: if the counters or the struct pages are not in the image.
    """
    found = survey.zones or zones.read(survey.kernel)
    kernel = zones.counters(survey.kernel, found)
    for names, count in CHECKS:
        if all(name in kernel for name in names):
            yield " + ".join(names), count(survey), sum(kernel[name] for name in names)


def differences(survey: Survey) -> Iterator[Gap]:
    """Yield a gap for every counter that says something else, or raise ``Unreadable``."""
    for name, ours, told in compare(survey):
        if ours != told:
            yield Gap(
                f"agreement about {name}",
                Absence.CONTRADICTORY,
                f"the census counts {ours:,}, the kernel's counter says {told:,}; the image "
                "changed while it was saved, is damaged, or holds what is not known here",
            )


def _anonymous(survey: Survey) -> int:
    """Count the anonymous pages that are mapped, whoever owns them."""
    owned = survey.ledger.under(PROCESSES) | survey.ledger.under(SHARED)
    return int(np.count_nonzero(owned))


def _slab(survey: Survey) -> int:
    """Count slab pages and large kmalloc, which the kernel counts as slab (mm/slab_common.c).

    The names end in _B because they are set in bytes; they are kept in pages (mm/vmstat.c).
    """
    return survey.ledger.count(SLAB) + survey.ledger.count(LARGE)


def _page_tables(survey: Survey) -> int:
    """Count the tables that carry the mark; root and upper tables are not in the counter."""
    return int(np.count_nonzero(survey.marks.typed("table")))


def _stacks(survey: Survey) -> int:
    """Count the stacks of tasks in KiB; those kept for later belong to nobody."""
    owners = ("of processes and threads", "of idle processors")
    return sum(survey.ledger.count(vmalloc.STACKS, owner) for owner in owners) * (PAGE // 1024)


def _managed(survey: Survey) -> int:
    return int(np.count_nonzero(survey.ram & ~survey.marks.flag("reserved")))


# Linux 6.1 and 6.12 names of enum node_stat_item and zone_stat_item.
CHECKS: Final[tuple[tuple[tuple[str, ...], Callable[[Survey], int]], ...]] = (
    (("NR_FREE_PAGES",), lambda survey: survey.ledger.count(FREE, "buddy blocks")),
    ((zones.PER_CPU,), lambda survey: survey.ledger.count(FREE, "lists of each processor")),
    (("NR_FILE_PAGES",), lambda survey: survey.ledger.count(page_cache.CACHE)),
    (("NR_SHMEM",), lambda survey: survey.ledger.count(page_cache.CACHE, page_cache.SHARED)),
    (("NR_ANON_MAPPED",), _anonymous),
    (("NR_SLAB_RECLAIMABLE_B", "NR_SLAB_UNRECLAIMABLE_B"), _slab),
    (("NR_PAGETABLE",), _page_tables),
    (("NR_KERNEL_STACK_KB",), _stacks),
    (("managed_pages",), _managed),
    (("present_pages",), lambda survey: int(np.count_nonzero(survey.ram))),
)
"""Counters that are added up -> the same from the census."""
