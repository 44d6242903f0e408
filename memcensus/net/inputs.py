"""Inputs from the command line: "3x224x224", "int64:128", "ids:int64:128".

A shape is that of one sample; the batch is put before it. A name gives the tensor to the argument
of that name; without one, tensors are given in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from memcensus.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
_SHAPE = re.compile(r"\d{1,12}(x\d{1,12})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_MOST_DIMENSIONS = 16
_MOST_BYTES = 1 << 50  # a pebibyte: more is a slip of the keyboard


@dataclass(frozen=True, slots=True)
class Input:
    """One input tensor of a batch."""

    name: str | None  # of the argument; None: by position
    dtype: str | None  # None: as the weights
    shape: tuple[int, ...]  # with the batch


def parse_all(words: Iterable[str], batch: int) -> tuple[Input, ...]:
    """Return the inputs that ``words`` name; a word may hold several, with commas between.

    Raises:
        UsageError: if one is not understood, is too large, or follows one with a name.
    """
    if not 1 <= batch <= _MOST_BYTES:
        raise UsageError(f"--batch {batch} makes no step; give a number of samples, at least 1")
    parts = [part.strip() for word in words for part in word.split(",")]
    inputs = tuple(parse(part, batch) for part in parts)
    names = [each.name for each in inputs if each.name is not None]
    if len(set(names)) != len(names):
        raise UsageError(f"--input {','.join(parts)} names an argument twice; give each once")
    return inputs


def parse(text: str, batch: int) -> Input:
    """Return the input that one word names.

    Raises:
        UsageError: if it is not understood or too large.
    """
    *front, shape = text.split(":")
    if not _SHAPE.fullmatch(shape) or len(front) > 2:
        raise UsageError(
            f"--input {text!r} is not understood; write the shape of one sample, 3x224x224, with "
            "the argument and type before it where needed: ids:int64:128"
        )
    name, dtype = _front(front, text)
    sizes = (batch, *map(int, shape.split("x")))
    if len(sizes) > _MOST_DIMENSIONS or not 0 < 8 * prod(sizes) <= _MOST_BYTES:
        raise UsageError(
            f"--input {text} with --batch {batch} has {prod(sizes):,} numbers in {len(sizes)} "
            f"dimensions; give 1 to {_MOST_BYTES // 8:,} in at most {_MOST_DIMENSIONS}"
        )
    return Input(name, dtype, sizes)


def _front(words: list[str], text: str) -> tuple[str | None, str | None]:
    """Return (argument, type) of "", "int64", "ids" or "ids:int64"."""
    if len(words) == 1 and words[0] in DTYPES:
        return None, words[0]
    name = words[0] if words else None
    dtype = words[1] if len(words) == 2 else None
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(f"--input {text!r}: {name!r} can be no argument's name; write a word")
    if dtype is not None and dtype not in DTYPES:
        known = ", ".join(DTYPES)
        raise UsageError(f"--input {text!r}: there is no type {dtype!r}; choose from {known}")
    return name, dtype
