"""Free pages that each CPU keeps at hand: free, but in no counter of meminfo.

Source: /proc/zoneinfo, "pagesets" (mm/page_alloc.c, per-CPU page lists; v6.18). MemFree does not
count these pages, so they look used; on an idle machine they can be most of what looks unexplained.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memcensus.live import procfs
from memcensus.model import Absence, Account, Evidence, Gap, Source

if TYPE_CHECKING:
    from pathlib import Path

_COUNT = re.compile(rb"^ {1,32}count: {1,32}(\d{1,12})$", re.MULTILINE)
_MEANING = (
    "free pages that each CPU keeps for its next allocations; in no one's use, but MemFree does "
    "not count them. Windows: free"
)


def read(proc: Path) -> Account | Gap:
    """Return the account of these pages, or the Gap where they are not told."""
    path = proc / "zoneinfo"
    try:
        counts = _COUNT.findall(procfs.read(path))
    except OSError as error:
        return procfs.missing("free pages at each CPU", path, error)
    if not counts:
        why = f"{path} has no page sets; their bytes are in unexplained"
        return Gap("free pages at each CPU", Absence.UNPARSABLE, why)
    size = sum(map(int, counts)) * os.sysconf("SC_PAGE_SIZE")
    source = Source(Evidence.MEASURED, f"{path}:sum of pagesets count * page size", _MEANING)
    return Account("free pages at each CPU", size, source)
