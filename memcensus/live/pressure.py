"""Pressure: the share of time in which work waited for memory (PSI).

Source: Documentation/accounting/psi.rst. "some": at least one task waited; "full": all that could
have run did. The best answer to "is it hurting"; Windows has no such number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memcensus.live import procfs
from memcensus.model import Absence, Column, Evidence, Gap, Source, Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memcensus.model import Cell

_LINE = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=(\d{1,3}\.\d\d) avg300=(\d{1,3}\.\d\d) "
    rb"total=(\d{1,18})$",
    re.MULTILINE,
)
_MEANINGS = {
    "some": "share of the last 10, 60 and 300 s in which at least one task waited for memory",
    "full": "share of the last 10, 60 and 300 s in which every task that could run waited for it",
}
_COLUMNS = (
    *(Column("kind"), Column("avg10", "%"), Column("avg60", "%"), Column("avg300", "%")),
    Column("total", "us"),  # since the machine started
)


def read(proc: Path) -> tuple[Table, Sequence[Gap]]:
    """Return the table ``pressure``, empty and with a Gap where the kernel does not measure it."""
    path = proc / "pressure" / "memory"
    try:
        raw = procfs.read(path, 4096)
    except OSError as error:
        hint = "boot with psi=1; needs Linux 4.20 built with CONFIG_PSI"
        return table(b"", path), [procfs.missing("memory pressure", path, error, hint)]
    found = table(raw, path)
    if not found.rows:
        why = f"{path} has no line 'some avg10=...'"
        return found, [Gap("memory pressure", Absence.UNPARSABLE, why)]
    return found, ()


def table(raw: bytes, path: Path) -> Table:
    """Return the lines of ``raw`` that are pressure, once each."""
    rows: dict[str, tuple[Cell, ...]] = {}
    for kind, *shares, total in _LINE.findall(raw):
        rows.setdefault(kind.decode(), (kind.decode(), *map(float, shares), int(total)))
    sources = [Source(Evidence.MEASURED, f"{path}:{kind}", _MEANINGS[kind]) for kind in rows]
    return Table("pressure", _COLUMNS, tuple(rows.values()), tuple(sources))
