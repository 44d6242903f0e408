"""BTF: the kernel's own description of its types, which lies in its read-only data.

Gives the offset of a member, the size of a type and the values of an enum, so that no symbol file
is needed. Format: Linux Documentation/bpf/btf.rst. In kernels since 5.2 with CONFIG_DEBUG_INFO_BTF:
Debian 11, Ubuntu 20.10, Fedora 32, RHEL 8.2 and later.

Not covered: the BTF of modules, bit fields narrower than a byte, big-endian images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus.errors import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.ram.image import Image

MAGIC: Final = 0x0001_EB9F  # u16 magic, u8 version 1, u8 flags 0, as one little-endian word

_HEADER = Struct(
    "<HBBIIIII"
)  # magic, version, flags, hdr_len, type_off, type_len, str_off, str_len
_LIMIT: Final = 16 << 20  # bytes of each section; Debian's 6.12 has 3 MB of types
_LEAST: Final = 500_000  # bytes of types in any whole kernel; a module has far less
_DEPTH: Final = 32  # anonymous structs and typedefs inside each other

# Kinds, and the 32-bit words that follow the three of a record: (a fixed number, per member).
_ARRAY, _STRUCT, _UNION, _ENUM, _ENUM64 = 3, 4, 5, 6, 19
_EXTRA: Final[dict[int, tuple[int, int]]] = {
    **dict.fromkeys(range(1, 20), (0, 0)),
    1: (1, 0),  # INT
    _ARRAY: (3, 0),
    _STRUCT: (0, 3),
    _UNION: (0, 3),
    _ENUM: (0, 2),
    13: (0, 2),  # FUNC_PROTO
    14: (1, 0),  # VAR
    15: (0, 3),  # DATASEC
    17: (1, 0),  # DECL_TAG
    _ENUM64: (0, 3),
}
_PEELED: Final = frozenset({8, 9, 10, 11, 18})  # TYPEDEF VOLATILE CONST RESTRICT TYPE_TAG


class NoSuchMember(Unreadable):
    """The kernel has no type or member of this name: another version than was expected."""


@dataclass(frozen=True, slots=True)
class Types:
    """The parsed types of one kernel. A path is "task_struct.tasks.next"."""

    words: list[int]  # the type section as 32-bit words
    starts: list[int]  # type id -> index of its record in words; id 0 is void
    named: dict[str, int]  # struct, union or enum -> type id
    strings: bytes
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # what was looked up before

    @classmethod
    def parse(cls, image: Image, address: int) -> Types:
        """Parse the BTF at a physical address.

        Raises:
            Unreadable: if it is not whole.
        """
        header = _Header.read(image, address)
        words = np.frombuffer(image.read(header.types, header.types_size), "<u4").tolist()
        strings = image.read(header.strings, header.strings_size)
        starts = _records(words, image.place(address))
        return cls(words, starts, _names(words, starts, strings), strings)

    def offset(self, path: str) -> int:
        """Return the bytes from the start of the type to the member; raise ``NoSuchMember``."""
        return self._find(path)[0]

    def has(self, path: str) -> bool:
        """Say whether the type or member exists."""
        try:
            self.offset(path)
        except NoSuchMember:
            return False
        return True

    def size(self, name: str) -> int:
        """Return ``sizeof`` of a struct or union in bytes, or raise ``NoSuchMember``."""
        return self.words[self.starts[self._id(name)] + 2]

    def enum(self, name: str) -> dict[str, int]:
        """Return the values of an enum by name; empty if the kernel has none so called."""
        if name not in self.named:
            return {}
        start = self.starts[self.named[name]]
        kind, count = _kind(self.words[start + 1])
        step = {_ENUM: 2, _ENUM64: 3}.get(kind)
        if step is None:
            return {}
        at = range(start + 3, start + 3 + step * count, step)
        return {_text(self.strings, self.words[i]): self.words[i + 1] for i in at}

    def array(self, path: str) -> int:
        """Return the number of elements of the array member at ``path``."""
        start = self.starts[self._find(path)[1]]
        if _kind(self.words[start + 1])[0] != _ARRAY:
            raise NoSuchMember(f"{path} is no array in this kernel: a version not known here")
        return self.words[start + 5]

    def _find(self, path: str) -> tuple[int, int]:
        """Return (offset in bytes, type id) of the member at ``path``."""
        if path in self.seen:
            return self.seen[path]
        name, *members = path.split(".")
        offset, kind = 0, self._id(name)
        for member in members:
            found = self._member(kind, member, _DEPTH)
            if found is None:
                raise NoSuchMember(f"this kernel's struct has no {path}: a version not known here")
            offset, kind = offset + found[0], found[1]
        self.seen[path] = offset, kind
        return offset, kind

    def _id(self, name: str) -> int:
        if name not in self.named:
            raise NoSuchMember(f"this kernel has no struct {name}: a version not known here")
        return self.named[name]

    def _peel(self, kind: int) -> int:
        for _ in range(_DEPTH):
            if not 0 < kind < len(self.starts):
                return 0
            start = self.starts[kind]
            if _kind(self.words[start + 1])[0] not in _PEELED:
                return kind
            kind = self.words[start + 2]
        return 0

    def _members(self, kind: int) -> Iterator[tuple[int, int, int]]:
        """Yield (offset of the name, type id, offset in bytes) of a struct's members."""
        if not 0 < kind < len(self.starts):
            return
        start = self.starts[kind]
        info = self.words[start + 1]
        if _kind(info)[0] not in {_STRUCT, _UNION}:
            return
        mask = 0xFF_FFFF if info >> 31 else 0xFFFF_FFFF  # with bit fields: the low 24 bits
        for at in range(start + 3, start + 3 + 3 * (info & 0xFFFF), 3):
            yield self.words[at], self.words[at + 1], (self.words[at + 2] & mask) >> 3

    def _member(self, kind: int, name: str, depth: int) -> tuple[int, int] | None:
        """Return (offset in bytes, type id) of a member, also inside nameless ones."""
        if depth == 0:
            return None
        for name_at, inner, offset in self._members(kind):
            if name_at and _text(self.strings, name_at) == name:
                return offset, self._peel(inner)
            below = None if name_at else self._member(self._peel(inner), name, depth - 1)
            if below is not None:
                return offset + below[0], below[1]
        return None


@dataclass(frozen=True, slots=True)
class _Header:
    types: int  # physical address
    types_size: int
    strings: int
    strings_size: int

    @classmethod
    def read(cls, image: Image, address: int) -> _Header:
        raw = _HEADER.unpack(image.read(address, _HEADER.size))
        magic, version, _, length, type_at, type_size, text_at, text_size = raw
        fits = length >= _HEADER.size and type_at + type_size <= text_at
        whole = address + length + text_at + text_size <= image.size
        small = max(length + text_at, type_size, text_size) <= _LIMIT
        if (magic, version) != (0xEB9F, 1) or not (fits and whole and small) or type_size % 4:
            raise Unreadable(f"{image.place(address)} starts no whole BTF; the image is damaged")
        start = address + length
        return cls(start + type_at, type_size, start + text_at, text_size)


def plausible(image: Image, address: int) -> bool:
    """Say whether a kernel's whole BTF may start at a physical address; cheap."""
    try:
        header = _Header.read(image, address)
        first = image.read(header.strings, 2) if header.strings_size > 1 else b"\1"
    except Unreadable:
        return False
    return header.types_size >= _LEAST and first[0] == 0  # string 0 is the empty one


def _kind(info: int) -> tuple[int, int]:
    return info >> 24 & 31, info & 0xFFFF


def _records(words: list[int], place: str) -> list[int]:
    """Return where each type's record starts; records are of many lengths.

    Raises:
        Unreadable: if the records do not fill the section exactly.
    """
    starts = [0]  # void
    at, end = 0, len(words)
    while at + 3 <= end:
        info = words[at + 1]
        extra = _EXTRA.get(info >> 24 & 31)
        if extra is None:
            break
        starts.append(at)
        at += 3 + extra[0] + extra[1] * (info & 0xFFFF)
    if at != end:
        raise Unreadable(f"the BTF at {place} breaks off at its type {len(starts)}: it was cut")
    return starts


def _names(words: list[int], starts: list[int], strings: bytes) -> dict[str, int]:
    wanted = (_STRUCT, _UNION, _ENUM, _ENUM64)
    named: dict[str, int] = {}
    for kind in range(1, len(starts)):
        at = starts[kind]
        if words[at] and words[at + 1] >> 24 & 31 in wanted:
            named.setdefault(_text(strings, words[at]), kind)
    return named


def _text(strings: bytes, at: int) -> str:
    end = strings.find(b"\0", at)
    return strings[at : end if end >= 0 else at].decode("ascii", "replace")
