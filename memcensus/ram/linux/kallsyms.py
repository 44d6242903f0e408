"""kallsyms: the kernel's own table of symbol names and addresses, which lies in its read-only data.

The names are packed with 256 tokens. The table is found by the run of tokens "0" to "9", which
scripts/kallsyms.c always keeps as single characters, and every part is checked against the others:
token index against tokens, markers against the lengths of the names, addresses against ``_text``.

Order of the parts (each starts at a multiple of 8, or 4 on old kernels):

* before Linux 6.4: offsets, relative_base, num_syms, names, markers, [seqs_of_names],
  token_table, token_index
* since 6.4 ("scripts/kallsyms: change the output order"): num_syms, names, markers, token_table,
  token_index, offsets, relative_base, seqs_of_names

Not covered: tables of 64-bit addresses without a base (CONFIG_KALLSYMS_BASE_RELATIVE off), symbols
of modules. A copy of the table that boot left behind looks as good as the real one: whoever uses
``search`` must check that the addresses lead anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from memcensus.ram.image import Image, Words

_DIGITS = re.compile(rb"".join(b"%d\\x00" % digit for digit in range(10)))
_FIRST_DIGIT: Final = 48  # token 48 is "0"
_TOKENS: Final = 256
_TOKEN_LIMIT: Final = 64  # bytes of one token
_BEHIND: Final = 8 << 20  # bytes before the tokens that can hold the names
_BLOCK: Final = 256  # names between two markers
_STEP: Final = range(2 * _BLOCK, 512 * _BLOCK)  # bytes between two markers
_LEAST: Final = 64 * _BLOCK  # names in any real kernel
_TEXT_LIMIT: Final = 64 << 20  # bytes of all names unpacked
_TOP: Final = 0xFFFF_FFFF  # upper half of every address of the kernel image
_CANDIDATES: Final = 16  # of each part; the first is nearly always right, many are an attack


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of one kernel image, in the table's order."""

    place: int  # physical address of the packed names
    base: int  # relative_base: what the offsets count from
    addresses: Words  # (symbols,)
    text: bytes  # every name with its type letter in front and a newline behind
    starts: NDArray[np.int64]  # (symbols,): where in text each one starts
    order: NDArray[np.int64] = field(init=False)  # (symbols,): by address
    seen: dict[str, int | None] = field(default_factory=dict)  # what was looked up before

    def __post_init__(self) -> None:
        """Sort by address, for ``nearest``."""
        object.__setattr__(self, "order", np.argsort(self.addresses, kind="stable"))

    def __len__(self) -> int:
        """Return how many symbols there are."""
        return len(self.addresses)

    def get(self, name: str) -> int | None:
        """Return the address of the first symbol called ``name``, None if there is none."""
        if name not in self.seen:
            self.seen[name] = self._find(name)
        return self.seen[name]

    def _find(self, name: str) -> int | None:
        wanted = name.encode() + b"\n"
        at = self.text.find(wanted)
        while at >= 0:
            if at == 1 or self.text[at - 2 : at - 1] == b"\n":
                return int(self.addresses[np.searchsorted(self.starts, at - 1)])
            at = self.text.find(wanted, at + 1)
        return None

    def address(self, name: str) -> int:
        """Return the address of ``name``.

        Raises:
            Unreadable: if this kernel has no such symbol.
        """
        found = self.get(name)
        if found is None:
            raise Unreadable(f"this kernel has no symbol {name}: a version not known here")
        return found

    def nearest(self, address: int) -> str:
        """Return the name of the last symbol at or below ``address``, "" if there is none."""
        ranked = np.searchsorted(self.addresses, np.uint64(address), "right", sorter=self.order)
        if ranked == 0:
            return ""
        start = int(self.starts[self.order[int(ranked) - 1]])
        return self.text[start + 1 : self.text.index(b"\n", start)].decode("ascii", "replace")


def search(image: Image, low: int, high: int) -> Iterator[Symbols]:
    """Yield every whole table whose tokens start between two physical addresses."""
    runs = _DIGITS.finditer(image.data, max(low, 0), min(high, image.size))
    for match in islice(runs, _CANDIDATES):
        tokens = _Tokens.around(image, match.start())
        if tokens is None:
            continue
        for names in islice(_names(image, tokens), _CANDIDATES):
            symbols = _addressed(image, tokens, names)
            if symbols is not None:
                yield symbols
                break


@dataclass(frozen=True, slots=True)
class _Tokens:
    start: int  # of token_table
    index: int  # of token_index
    words: tuple[bytes, ...]

    @classmethod
    def around(cls, image: Image, digits: int) -> _Tokens | None:
        """Return the tokens of which number 48 stands at ``digits``, None if they are not whole."""
        data, start = image.data, digits
        for _ in range(_FIRST_DIGIT):
            end = start - 1  # the NUL behind the token before
            start = data.rfind(b"\0", max(0, end - _TOKEN_LIMIT), end) + 1
            if start == 0:
                return None
        words, at = [], start
        for _ in range(_TOKENS):
            end = data.find(b"\0", at, at + _TOKEN_LIMIT)
            if end < 0:
                return None
            words.append(data[at:end])
            at = end + 1
        lengths = [len(word) + 1 for word in words[:-1]]
        index = np.concatenate([[0], np.cumsum(lengths)]).astype("<u2").tobytes()
        found = data.find(index, at, at + 16 + len(index))
        return cls(start, found, tuple(words)) if found >= 0 else None


@dataclass(frozen=True, slots=True)
class _Names:
    place: int
    count: int
    text: bytes
    starts: NDArray[np.int64]


def _names(image: Image, tokens: _Tokens) -> Iterator[_Names]:
    """Yield the tables of names in front of the tokens: markers first, then what they mark."""
    low = max(0, tokens.start - _BEHIND) + 3 & ~3
    count = (tokens.start - low) // 4
    words = np.frombuffer(image.data, "<u4", count, low).astype(np.int64)
    step = np.diff(words)
    good = (step >= _STEP.start) & (step < _STEP.stop)
    ends = np.flatnonzero(~good)  # a run of good steps ends before each of these
    starts = np.flatnonzero((words[:-1] == 0) & good)[::-1]
    for start in starts[: 4 * _CANDIDATES].tolist():
        after = int(np.searchsorted(ends, start))
        stop = int(ends[after]) if after < len(ends) else len(step)
        markers = words[start : stop + 1]
        if len(markers) * _BLOCK >= _LEAST:
            yield from _named(image, tokens, markers, low + 4 * start)


def _named(image: Image, tokens: _Tokens, markers: NDArray[np.int64], end: int) -> Iterator[_Names]:
    """Yield the names that ``markers`` fit: num_syms stands 8 bytes in front of them."""
    last = int(markers[-1])
    high = end - last - 1 & ~3
    low = max(8, high - _STEP.stop)
    counts = np.frombuffer(image.data, "<u4", max(high - low, 0) // 4 + 2, low - 8)
    fits = -(-counts.astype(np.int64) // _BLOCK) == len(markers)
    for number in np.flatnonzero(fits)[::-1][:_CANDIDATES].tolist():
        where = low - 8 + 4 * number
        for place in (where + 8, where + 4):  # an unsigned int, padded to 8 bytes or not
            names = _unpacked(image, tokens, markers, (place, end, int(counts[number])))
            if names is not None:
                yield names


def _unpacked(
    image: Image, tokens: _Tokens, markers: NDArray[np.int64], where: tuple[int, int, int]
) -> _Names | None:
    """Unpack the names of (place, end, count), None if the lengths do not meet the markers.

    All blocks are followed at once: 256 array steps instead of one step for each symbol.
    """
    place, end, count = where
    packed = np.frombuffer(image.data, np.uint8, end - place, place).astype(np.int64)
    at = markers.copy()
    start = np.zeros((_BLOCK, len(markers)), np.int64)
    length = np.zeros_like(start)
    for row in range(_BLOCK):
        here = np.minimum(at, len(packed) - 2)
        head = packed[here]
        long = head >= 128  # two bytes, low seven bits first: since Linux 6.1
        length[row] = np.where(long, head & 127 | packed[here + 1] << 7, head)
        start[row] = here + 1 + long
        at = start[row] + length[row]
    if not np.array_equal(at[:-1], markers[1:]):
        return None
    first, size = start.T.ravel()[:count], length.T.ravel()[:count]
    if int(first[-1] + size[-1]) > len(packed) or not size.all():
        return None
    return _expanded(tokens, packed, first, size, place)


def _expanded(
    tokens: _Tokens,
    packed: NDArray[np.int64],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
    place: int,
) -> _Names | None:
    """Replace every token number by its letters; each name ends with a newline (token 256)."""
    ends = np.cumsum(size + 1)
    begins = ends - size - 1
    which = np.repeat(np.arange(len(size)), size + 1)
    offset = np.arange(int(ends[-1])) - begins[which]
    numbers = np.where(
        offset == size[which], _TOKENS, packed[np.minimum(first[which] + offset, len(packed) - 1)]
    )
    words = (*tokens.words, b"\n")
    lengths = np.array([len(word) for word in words])
    if int(lengths[numbers].sum()) > _TEXT_LIMIT:
        return None
    pool = np.frombuffer(b"".join(words), np.uint8)
    run = lengths[numbers]
    stop = np.cumsum(run)
    shift = np.repeat(np.cumsum(lengths)[numbers] - stop, run)
    text = pool[shift + np.arange(int(stop[-1]))].tobytes()
    starts = (stop - run)[begins]
    return _Names(place, len(size), text, starts)


def _addressed(image: Image, tokens: _Tokens, names: _Names) -> Symbols | None:
    """Return the symbols with their addresses; each layout is tried until ``_text`` is right."""
    for offsets, base_at in _layouts(tokens, names):
        if offsets < 0 or max(offsets + 4 * names.count, base_at + 8) > image.size:
            continue
        base = image.u64(base_at)
        if base >> 32 != _TOP:
            continue
        raw = np.frombuffer(image.data, "<i4", names.count, offsets).astype(np.int64)
        symbols = Symbols(names.place, base, _absolute(raw, base), names.text, names.starts)
        if symbols.get("_text") == base or symbols.get("_stext") == base:
            return symbols
    return None


def _layouts(tokens: _Tokens, names: _Names) -> Iterator[tuple[int, int]]:
    """Yield where (offsets, relative_base) may be: behind the tokens, or before the names."""
    size = 4 * names.count
    behind = tokens.index + 2 * _TOKENS
    for alignment in (8, 4, 16, 32, 64):
        offsets = -(-behind // alignment) * alignment
        yield offsets, -(-(offsets + size) // 8) * 8
    for gap in range(16, 80, 8):
        base_at = names.place - gap
        yield base_at - -(-size // 8) * 8, base_at


def _absolute(raw: NDArray[np.int64], base: int) -> Words:
    """Return the addresses of the offsets ``raw``, which are signed 32-bit numbers.

    With CONFIG_KALLSYMS_ABSOLUTE_PERCPU a negative offset counts down from base - 1 and one that
    is not is an address by itself (of per-cpu data); else all are plain unsigned offsets. In the
    first form most are negative (kernel/kallsyms.c, kallsyms_sym_address).
    """
    signed_base = base - (1 << 64)
    if np.count_nonzero(raw < 0) * 2 > len(raw):
        return np.where(raw < 0, signed_base - 1 - raw, raw).view(np.uint64)
    return (signed_base + (raw & 0xFFFF_FFFF)).view(np.uint64)
