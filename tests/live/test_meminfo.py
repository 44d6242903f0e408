"""The counters of /proc/meminfo, and formulas that are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import Unreadable
from memcensus.live import composition, memory
from memcensus.live.meminfo import Meminfo, parse, read

HERE = Path("/proc/meminfo")
FORMULAS = (
    *(composition.MODIFIED, composition.CLEAN, composition.RECLAIMABLE, composition.NEEDED),
    *(memory.NONPAGED, "SwapTotal - SwapFree", "MemFree"),
)
NAMES = sorted({n for f in FORMULAS for n in re.findall(r"[A-Z]\w+", f)})


def test_every_line_of_this_machine_is_read() -> None:
    raw = HERE.read_bytes()
    lines = [line.split() for line in raw.decode().splitlines()]
    expected = {
        words[0].rstrip(":"): int(words[1]) * (1024 if words[-1] == "kB" else 1) for words in lines
    }
    assert expected == dict(parse(raw, HERE).fields)


@given(st.binary(max_size=2000))
def test_random_bytes_are_no_counters_and_no_error(raw: bytes) -> None:
    found = parse(raw, HERE)
    assert all(value >= 0 for value in found.fields.values())


@given(st.lists(st.sampled_from(["Mem", "Free", ":", " ", "12", "9" * 30, " kB", "\n", "\xff"])))
def test_pieces_of_lines_are_no_error(pieces: list[str]) -> None:
    found = parse("".join(pieces).encode("latin-1"), HERE)
    assert all(0 <= value < 10**15 * 1024 for value in found.fields.values())


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 50)),
    st.sampled_from(FORMULAS),
)
def test_the_formula_that_is_shown_is_the_one_that_was_computed(
    fields: dict[str, int], formula: str
) -> None:
    info = Meminfo(HERE, fields)
    value, shown = info.value(formula), info.where(formula).partition(":")[2]
    assert (value is None) == bool(info.lacks(formula))
    if value is not None:
        # an evaluator of its own: signs and names from the text that a user sees
        words = re.findall(r"([+-]?) ?([A-Z]\w*)", shown)
        assert value == sum((-1 if sign == "-" else 1) * fields[name] for sign, name in words)


def test_of_two_lines_with_one_name_the_first_counts() -> None:
    assert parse(b"MemFree: 1 kB\nMemFree: 2 kB\n", HERE).fields == {"MemFree": 1024}


def test_a_number_too_long_to_be_a_size_is_missing_and_not_cut() -> None:
    assert not parse(b"MemFree: 1234567890123456 kB\n", HERE).fields


def test_without_the_file_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="mount /proc"):
        read(tmp_path)
