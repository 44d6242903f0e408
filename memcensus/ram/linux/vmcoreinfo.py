"""VMCOREINFO: what the kernel writes down for a crash dump, as text in a page of its own.

A second way to the same facts as BTF and kallsyms, found by its first words and by nothing else.
Format: lines of NAME=value, Linux Documentation/admin-guide/kdump/vmcoreinfo.rst. The page is
allocated whole (kernel/crash_core.c, crash_save_vmcoreinfo_init), so the text starts a page.

Not covered: the copy in the note of an ELF or kdump file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.ram.image import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.ram.image import Image

_FIRST: Final = b"OSRELEASE="
_LINE = re.compile(r"([A-Z][\w()]*(?:\([\w.]+\))?)=([^\n]*)\n")
_LEAST: Final = 20  # lines of a whole note; it has a hundred


@dataclass(frozen=True, slots=True)
class Note:
    """One note: its lines, and where it stands."""

    place: int  # physical address
    lines: dict[str, str]  # "NUMBER(phys_base)" -> "226492416"

    def number(self, name: str) -> int | None:
        """Return the decimal number of ``NUMBER(name)``, ``SIZE(name)``, as written; else None."""
        return _integer(self.lines.get(name, ""), 10)

    def address(self, name: str) -> int | None:
        """Return the hexadecimal number of ``SYMBOL(name)`` or KERNELOFFSET, else None."""
        return _integer(self.lines.get(name, ""), 16)


def find(image: Image) -> Iterator[Note]:
    """Yield every whole note that starts a page of ``image``."""
    first = np.frombuffer(_FIRST[:8], "<u8")[0]
    for page in np.flatnonzero(image.tables[:, 0] == first).tolist():
        raw = image.read(page * PAGE, PAGE)
        if not raw.startswith(_FIRST):
            continue
        lines = dict(_LINE.findall(raw.partition(b"\0")[0].decode("ascii", "replace")))
        if len(lines) >= _LEAST:
            yield Note(page * PAGE, lines)


def _integer(text: str, base: int) -> int | None:
    if len(text) > 20:  # a 64-bit number has at most 20 digits
        return None
    try:
        return int(text, base)
    except ValueError:
        return None
