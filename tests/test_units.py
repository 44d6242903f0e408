"""Sizes in and out, against what the standards say and against numfmt(1)."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus import units
from memcensus.errors import UsageError


@pytest.mark.parametrize(
    ("shape", "exact", "short"),
    [
        ((1000, 1000), "4,000,000 B", "3.81 MiB"),
        ((32, 3, 256, 256), "25,165,824 B", "24 MiB"),
        ((64, 3, 3, 3), "6,912 B", "6.75 KiB"),
        ((1,), "4 B", "4 B"),
    ],
)
def test_a_float32_tensor_has_its_textbook_size(
    shape: tuple[int, ...], exact: str, short: str
) -> None:
    count = 4
    for side in shape:
        count *= side
    assert (exact, short) == (units.exact(count), units.size(count))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("24GiB", 25_769_803_776),
        ("24GB", 24_000_000_000),
        ("24 gib", 25_769_803_776),
        ("1.5MiB", 1_572_864),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("0", 0),
        ("1_000,000", 1_000_000),
        ("512 B", 512),
    ],
)
def test_binary_and_decimal_units_are_told_apart(text: str, count: int) -> None:
    assert count == units.parse(text)


@pytest.mark.parametrize("text", ["24G", "", "GiB", "-1GiB", "1e9", "24Gibi", "1.2.3MB", "9" * 30])
def test_what_could_mean_two_things_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(UsageError, match="GiB"):
        units.parse(text)


@given(st.integers(0, 2**64))
def test_a_printed_size_reads_back_to_three_digits(count: int) -> None:
    back = units.parse(units.size(count))
    assert abs(back - count) <= count * 0.006


@given(st.integers(0, 2**63))
def test_the_number_before_a_unit_never_reaches_the_next_unit(count: int) -> None:
    number, unit = units.size(count).split()
    assert float(number) < 1024 or unit == "EiB"


@given(st.integers(1, 2**50))
def test_exact_bytes_lose_nothing(count: int) -> None:
    assert count == units.parse(units.exact(count))


@pytest.mark.skipif(shutil.which("numfmt") is None, reason="numfmt (coreutils) is not installed")
@pytest.mark.parametrize("text", ["1KiB", "7MiB", "3GiB", "2TiB"])
def test_numfmt_reads_binary_units_as_we_do(text: str) -> None:
    command = ["numfmt", "--from=iec-i", text.removesuffix("B")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(said) == units.parse(text)


def test_shares_never_show_something_as_nothing() -> None:
    assert ("0 %", "<0.1 %", "50.0 %") == (
        units.share(0, 0),
        units.share(1, 10_000),
        units.share(1, 2),
    )
