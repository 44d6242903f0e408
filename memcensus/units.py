"""Sizes in and out: ``parse("24GiB")`` and ``size(25_769_803_776)``.

Read: binary units with the i (KiB = 1024 B) and decimal ones without (KB = 1000 B); a bare number
is bytes. "24G" is refused, because tools disagree by 7 % about what it means.
Written: always binary, always with the i, three significant digits (IEC 80000-13).
"""

from __future__ import annotations

import re

from memcensus.errors import UsageError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FACTORS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{unit.lower(): 1024**power for power, unit in enumerate(_BINARY) if power},
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb", "pb", "eb"), 1)},
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:[_,]\d{1,20})*)(\.\d{1,20})?\s*([A-Za-z]*)\s*")


def parse(text: str) -> int:
    """Return the bytes that ``text`` names: "24GiB", "24 GB", "1.5 MiB", "1_000".

    A fraction of a byte is rounded down.

    Raises:
        UsageError: if the number or the unit cannot be understood.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a size; write a number and a unit: 24GiB, 500MB")
    whole, fraction, unit = match.group(1), match.group(2) or ".0", match.group(3)
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        raise UsageError(
            f"{text!r} has the unit {unit!r}, which could mean two things or nothing; "
            f"write KiB, MiB, GiB (powers of 1024) or KB, MB, GB (powers of 1000)"
        )
    digits = whole.replace(",", "").replace("_", "")
    parts: int = 10 ** (len(fraction) - 1)
    return (int(digits) * parts + int(fraction[1:])) * factor // parts


def size(count: int) -> str:
    """Return ``count`` bytes in binary units, three significant digits: "3.81 MiB", "24 MiB"."""
    if count < 0:
        return f"-{size(-count)}"
    power = 0
    while power < len(_BINARY) - 1 and float(_digits(count / 1024**power)) >= 1024:
        power += 1
    return f"{_digits(count / 1024**power)} {_BINARY[power]}"


def exact(count: int) -> str:
    """Return ``count`` as whole bytes: "4,000,000 B"."""
    return f"{count:,} B"


def both(count: int) -> str:
    """Return whole bytes and the short form: "4,000,000 B (3.81 MiB)"."""
    return exact(count) if abs(count) < 1024 else f"{exact(count)} ({size(count)})"


def share(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` in percent: "12.3 %"; a part too small to show is "<0.1 %"."""
    if not whole:
        return "0 %"
    percent = 100 * part / whole
    return "<0.1 %" if 0 < percent < 0.1 else f"{percent:.1f} %"


def _digits(value: float) -> str:
    """Three significant digits, or all digits before the point; no trailing zeros."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
