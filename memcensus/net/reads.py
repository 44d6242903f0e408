"""Numbers that code reads back from tensors: ``.item()``, ``if tensor``, ``torch.equal``.

A census has shapes and no data, so a read gets an answer that is assumed: True, 1.0, or the largest
value that the number can have (``largest``). ``branches`` goes around again with the other answers,
so that a branch on data is taken both ways. An answer may also be told, by the place of the read.

A loop that ends by what it reads would never end, so each place gives another answer once in
``PATIENCE`` reads.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from memcensus.errors import UsageError
from memcensus.net.model_code import is_nobodys, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType

Number: TypeAlias = bool | int | float

PATIENCE = 64
"""Reads at one place after which a loop is made to end."""
_UNKNOWN_PLACE = "code without a file"
_WORDS: dict[str, Number] = {"true": True, "false": False}


class Site(NamedTuple):
    """A place in the code at which a number is read; a line may have several."""

    place: str  # "models.py:31"
    instruction: int  # of the bytecode


@dataclass(frozen=True, slots=True)
class Read:
    """What was made of the reads at one site."""

    site: Site
    op: str
    answers: tuple[Number, ...]  # that make sense, the first before the others
    told: bool = False


class Reads:
    """Answers reads, and remembers them.

    Attributes:
        seen: what was read, the latest last.
        ended: places whose loop was made to end.
        dimension: what an integer that nothing bounds is taken for: the inputs' largest dimension.
    """

    def __init__(
        self,
        told: Mapping[str, Number] | None = None,
        turned: Mapping[Site, int] | None = None,
    ) -> None:
        """Answer with ``told`` at these places, with the n-th of the answers at ``turned`` ones."""
        self.seen: dict[Site, Read] = {}
        self.ended: set[str] = set()
        self.dimension = 1
        self._told = told or {}
        self._turned = turned or {}
        self._times: Counter[Site] = Counter()

    def answer(self, op: str, dtype: torch.dtype, largest: float) -> Number:
        """Return what code that runs now is to read from a tensor of ``dtype``."""
        site = _site()
        told = self._told.get(site.place)
        answers = (told,) if told is not None else _answers(dtype, largest, self.dimension)
        self.seen.pop(site, None)  # the latest read stands last
        self.seen[site] = Read(site, op, answers, told is not None)
        self._times[site] += 1
        which = self._turned.get(site, 0)
        if self._times[site] % PATIENCE == 0 and len(answers) > 1:
            self.ended.add(site.place)
            which += 1
        return answers[which % len(answers)]


def told(texts: Iterable[str]) -> dict[str, Number]:
    """Read "models.py:31=false" as the place and what is read there.

    Raises:
        UsageError: if a text has another form.
    """
    return dict(map(_told, texts))


def _told(text: str) -> tuple[str, Number]:
    place, _, value = text.rpartition("=")
    word = value.strip().lower()
    if place and ":" in place:
        if word in _WORDS:
            return place, _WORDS[word]
        for kind in (int, float):
            try:
                return place, kind(word)
            except ValueError:
                continue
    raise UsageError(
        f"--read {text!r}: name the line and what it reads, as --read models.py:31=false or "
        "models.py:40=128"
    )


def _answers(dtype: torch.dtype, largest: float, dimension: int) -> tuple[Number, ...]:
    if dtype is torch.bool:
        return (True, False)
    if dtype.is_floating_point or dtype.is_complex:
        return (1.0, 0.0)
    bound = int(largest) if largest < sys.maxsize else dimension
    return tuple(dict.fromkeys((bound, 1, 0)))


def _site() -> Site:
    """Return where the innermost code is that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (the documented way to walk frames)
    while frame is not None and is_nobodys(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return Site(_UNKNOWN_PLACE, 0)
    return Site(f"{short(frame.f_code.co_filename)}:{frame.f_lineno}", frame.f_lasti)
