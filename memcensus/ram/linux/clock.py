"""When the machine was started, from the kernel's timekeeper.

``struct timekeeper`` (include/linux/timekeeper_internal.h) keeps three clocks apart by offsets:
real = monotonic + offs_real, boot = monotonic + offs_boot. So the moment of boot, in real time, is
offs_real - offs_boot, and every "since boot" of the kernel can be dated.

Not covered: clocks of other time namespaces; a wrong clock of the machine itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from memcensus.errors import Unreadable

if TYPE_CHECKING:
    from memcensus.ram.linux.kernel import Kernel

_SECOND: Final = 10**9  # nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CENTURIES: Final = 200 * 366 * 86400 * _SECOND  # nanoseconds; a clock beyond that is damage

# The sequence counter in front of the timekeeper has 4 bytes and is padded to 8, as no kernel with
# lock debugging would have it. Since 6.13 the variable is called timekeeper_data.
_VARIABLES: Final = ("tk_core", "timekeeper_data")
_COUNTER: Final = 8


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks at the moment of the image, in nanoseconds."""

    boot: int  # since 1970-01-01 UTC
    uptime: int  # since boot, as of the last tick, with the time spent suspended
    place: int  # physical address of the timekeeper
    variable: str


def read(kernel: Kernel) -> Clock:
    """Return the clocks.

    Raises:
        Unreadable: if the timekeeper is not where it should be: two of its fields tell the same
            in two ways and do not agree.
    """
    variable = next((name for name in _VARIABLES if kernel.symbols.get(name)), _VARIABLES[0])
    start = kernel.symbols.address(variable) + _COUNTER
    offset, memory = kernel.types.offset, kernel.memory
    seconds = memory.s64(start + offset("timekeeper.wall_to_monotonic.tv_sec"))
    rest = memory.s64(start + offset("timekeeper.wall_to_monotonic.tv_nsec"))
    real = memory.s64(start + offset("timekeeper.offs_real"))
    slept = memory.s64(start + offset("timekeeper.offs_boot"))
    now = memory.s64(start + offset("timekeeper.xtime_sec")) * _SECOND
    boot = real - slept
    place = memory.physical(start)
    if real != -(seconds * _SECOND + rest) or not 0 <= boot <= now <= _CENTURIES:
        raise Unreadable(
            f"the timekeeper at {kernel.image.place(place)} contradicts itself, so no moment in "
            "the image can be dated; this kernel keeps it in another form"
        )
    return Clock(boot, now - boot, place, variable)


def rfc3339(nanoseconds: int) -> str:
    """Return nanoseconds since 1970-01-01 UTC as text: "2026-12-01T03:28:41.123Z".

    Raises:
        Unreadable: if no calendar reaches that far.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError as error:
        raise Unreadable(
            f"{nanoseconds} ns since 1970 is a date beyond the calendar; the field is damaged"
        ) from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
