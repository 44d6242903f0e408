"""Hostile bytes: kept whole, and harmless in a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.text import decode, printable


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"sshd", "sshd"),
        ("naïve 東京".encode(), "naïve 東京"),
        (b"\x1b[2J<b>\xff", "\\x1b[2J<b>\\xff"),
        (b"a\nb\tc\x00", "a\\x0ab\\x09c\\x00"),
        ("\u202egnp.exe".encode(), "\\u202egnp.exe"),
        (b"\x9b31m", "\\x9b31m"),
        ("\U000e0041".encode(), "\\U000e0041"),
    ],
)
def test_what_a_terminal_sees(raw: bytes, shown: str) -> None:
    assert shown == printable(decode(raw))


@given(st.binary(max_size=64))
def test_no_byte_sequence_reaches_the_terminal_as_control(raw: bytes) -> None:
    shown = printable(decode(raw))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", shown)
    shown.encode("utf-8")


@given(st.text(alphabet=st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert text == printable(decode(text.encode()))
