"""/proc/meminfo: the kernel's counters, and formulas over them that say what they computed.

A formula is text, so that the number and what is written beside it cannot differ::

    "Buffers + Cached - Shmem"        all three must be there
    "KReclaimable|SReclaimable"       the first that this kernel has
    "SUnreclaim + Percpu?"            ? : a kernel without this counter has nothing to add

Source of the fields: kernel fs/proc/meminfo.c (v6.18) and Documentation/filesystems/proc.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from memcensus.errors import unreadable
from memcensus.live import procfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# 15 digits of KiB are 0.9 EiB, the most that a 64-bit machine could hold; more is no size.
_LINE = re.compile(rb"^([A-Za-z][\w()]{0,63}):[ \t]*(\d{1,15})( kB)?[ \t]*$", re.MULTILINE)
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a formula: a sign, the counters that may stand for it, and whether it must."""

    sign: int  # +1 or -1
    names: tuple[str, ...]  # the first that is there counts
    optional: bool


@dataclass(frozen=True, slots=True)
class Meminfo:
    """One reading. ``fields`` are bytes, except the HugePages_ ones, which count pages."""

    path: Path
    fields: Mapping[str, int]

    def value(self, formula: str) -> int | None:
        """Return what ``formula`` comes to, in bytes; None where a counter it needs is missing."""
        total = 0
        for term in terms(formula):
            name = self._name(term)
            if name is not None:
                total += term.sign * self.fields[name]
            elif not term.optional:
                return None
        return total

    def where(self, formula: str) -> str:
        """Return the place for a Source: the file and the formula with the counters that counted.

        A counter that is needed and missing is named all the same.
        """
        text = ""
        for term in terms(formula):
            name = self._name(term)
            if name is None and term.optional:
                continue
            sign = " - " if term.sign < 0 else " + "
            text += (sign if text or term.sign < 0 else "") + (name or term.names[0])
        return f"{self.path}:{text.strip()}"

    def lacks(self, formula: str) -> tuple[str, ...]:
        """Return the counters that ``formula`` needs and this kernel has not got."""
        needed = (term for term in terms(formula) if not term.optional)
        return tuple(" or ".join(term.names) for term in needed if self._name(term) is None)

    def _name(self, term: Term) -> str | None:
        return next((name for name in term.names if name in self.fields), None)


@cache
def terms(formula: str) -> tuple[Term, ...]:
    """Return the terms of a formula of this package."""
    found = []
    sign = 1
    for word in formula.split():
        if word in {"+", "-"}:
            sign = 1 if word == "+" else -1
            continue
        names = tuple(word.removesuffix("?").split("|"))
        found.append(Term(sign, names, word.endswith("?")))
    return tuple(found)


def parse(raw: bytes, path: Path) -> Meminfo:
    """Return the counters in ``raw``; lines that are none are left out, of twins the first counts.

    Never raises: what is missing shows when a formula needs it.
    """
    fields: dict[str, int] = {}
    for name, digits, unit in _LINE.findall(raw):
        fields.setdefault(name.decode("ascii", "replace"), int(digits) * (_KIB if unit else 1))
    return Meminfo(path, fields)


def read(proc: Path) -> Meminfo:
    """Return the counters of now.

    Raises:
        Unreadable: if the file cannot be read.
    """
    path = proc / "meminfo"
    try:
        return parse(procfs.read(path), path)
    except OSError as error:
        raise unreadable(path, error, "mount /proc; live needs a Linux machine") from error
