"""A report for ``pprof``: one sample for each account with bytes of its own, its path as the stack.

The format is gzipped protobuf (github.com/google/pprof, proto/profile.proto). Only what a census
has is written: one sample type, bytes; one function and one location for each name. Accounts of one
path in several reports are added up.

Not covered: quantities, tables, gaps and the verdict.
"""

from __future__ import annotations

import gzip
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from memcensus.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from memcensus.model import Path, Report
    from memcensus.subject import Look

# Field numbers of profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS, _DEFAULT_TYPE = 1, 2, 4, 5, 6, 14
_LENGTH_DELIMITED = 2


class PprofView:
    """The accounts as a profile."""

    name: ClassVar[str] = "pprof"
    suffix: ClassVar[str] = ".pb.gz"

    def render(self, reports: Sequence[Report], out: TextIO, look: Look) -> None:
        """Write ``reports`` as one gzipped profile.

        Raises:
            UsageError: if ``out`` takes no bytes.
        """
        raw = getattr(out, "buffer", None)
        if raw is None:
            raise UsageError("a pprof profile is binary; name a file with -o profile.pb.gz")
        paths: dict[Path, int] = {}
        for report in reports:
            for path, account in report.root.walk():
                if account.own and (look.focus is None or look.focus.search("/".join(path))):
                    paths[path] = paths.get(path, 0) + account.own
        raw.write(gzip.compress(profile(paths), mtime=0))


def profile(sizes: dict[Path, int]) -> bytes:
    """Return a profile in which each path, root first, holds its bytes."""
    strings: dict[str, int] = {"": 0}

    def known(text: str) -> int:
        return strings.setdefault(text, len(strings))

    numbers = {name: number for number, name in zip(count(1), _names(sizes), strict=False)}
    kind = _varint(1, known("memory")) + _varint(2, known("bytes"))
    body = [_nested(_SAMPLE_TYPE, kind)]
    for path, size in sizes.items():
        stack = b"".join(_number(numbers[name]) for name in reversed(path))  # the leaf comes first
        body.append(_nested(_SAMPLE, _nested(1, stack) + _nested(2, _number(size))))
    for name, number in numbers.items():
        line = _nested(4, _varint(1, number))
        body.append(_nested(_LOCATION, _varint(1, number) + line))
        body.append(_nested(_FUNCTION, _varint(1, number) + _varint(2, known(name))))
    body.append(_varint(_DEFAULT_TYPE, known("memory")))
    body.extend(_nested(_STRINGS, text.encode()) for text in strings)
    return b"".join(body)


def _names(sizes: Iterable[Path]) -> Iterator[str]:
    return iter(dict.fromkeys(name for path in sizes for name in path))


def _number(value: int) -> bytes:
    """Return a varint: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(field: int, value: int) -> bytes:
    return _number(field << 3) + _number(value)


def _nested(field: int, content: bytes) -> bytes:
    return _number(field << 3 | _LENGTH_DELIMITED) + _number(len(content)) + content
