"""The kernel's object caches: which of them hold the slab memory.

Source: slabinfo(5). Only root may read /proc/slabinfo, and one cache may stand for
several that the allocator merged (boot with slab_nomerge to tell them apart).
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from memcensus import text
from memcensus.live import procfs
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOP = 20
"""Caches shown, the largest first."""

# name active_objs num_objs objsize objperslab pagesperslab : tunables ... : slabdata active num
_LINE = re.compile(
    rb"^(\S{1,128}) +(\d{1,15}) +(\d{1,15}) +(\d{1,9}) +\d{1,9} +(\d{1,6}) :[^\n]{0,128}"
    rb": slabdata +\d{1,15} +(\d{1,15}) ",
    re.MULTILINE,
)
_MEANING = "memory of one kind of kernel object, with what its slabs have free. Windows: a pool tag"
_COLUMNS = (
    *(Column("name"), Column("size", "B"), Column("objects", "object"), Column("used", "object")),
    Column("object_size", "B"),
)


def read(proc: Path) -> tuple[Table, Sequence[Gap]]:
    """Return the table ``slab``: the ``TOP`` largest caches; empty with a Gap if not root."""
    path = proc / "slabinfo"
    try:
        raw = procfs.read(path)
    except OSError as error:
        return table(b"", path), [procfs.missing("slab caches", path, error)]
    found = table(raw, path)
    if not found.rows:
        return found, [Gap("slab caches", Absence.UNPARSABLE, f"{path} is not slabinfo 2.1")]
    return found, ()


def table(raw: bytes, path: Path) -> Table:
    """Return the largest caches in ``raw``. Size: slabs * pages of a slab * bytes of a page."""
    page = os.sysconf("SC_PAGE_SIZE")
    rows = [
        (text.decode(name), int(slabs) * int(pages) * page, int(all_), int(used), int(size))
        for name, used, all_, size, pages, slabs in _LINE.findall(raw)
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    formula = "num_slabs * pagesperslab * page size"
    sources = [Source(Evidence.COMPUTED, f"{path}:{r[0]}: {formula}", _MEANING) for r in rows[:TOP]]
    return Table("slab", _COLUMNS, tuple(rows[:TOP]), tuple(sources))
