"""The options of PyTorch's caching allocator: what PYTORCH_ALLOC_CONF sets.

Source: c10/core/AllocatorConfig.h and .cpp of PyTorch 2.13. Only what changes sizes or addresses on
one stream is kept; ``garbage_collection_threshold`` works only where a process was given a fraction
of the GPU, and the rest is about threads, pinned memory and the driver: these are in ``ignored``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memcensus.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
_INTERVALS = 16  # powers of two from 1 MiB to 64 GiB, each with a number of steps of its own
_LARGEST_POWER = 15
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The environment's names for it, the newer first."""

_KEY, _SIZES = "a key:value list, as max_split_size_mb:128,expandable_segments:True", "[256:1,>:4]"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the allocator rounds, splits and takes memory from the driver. Sizes are bytes."""

    max_split: int | None = None  # blocks of this size and more are not split; None: no limit
    max_non_split_rounding: int = 20 * MIB  # how much too large such a block may be for a request
    large_segment: int = 20 * MIB  # taken from the driver for requests of 1 to 10 MiB
    expandable: bool = False  # segments grow by pages instead
    divisions: tuple[int, ...] = field(default=(0,) * _INTERVALS)  # from 1, 2, 4 ... MiB on
    ignored: tuple[str, ...] = ()  # options that were given and are not simulated

    def divisions_of(self, size: int) -> int:
        """Return into how many steps a power of two is divided for a request of ``size``."""
        at = max(0, size.bit_length() - 1 - (MIB.bit_length() - 1))
        return self.divisions[min(at, _LARGEST_POWER)]


def parse(text: str) -> Settings:
    """Return the settings that ``text`` asks for, in the environment variable's grammar.

    Raises:
        UsageError: if an option or its value is none that PyTorch 2.13 takes.
    """
    values: dict[str, int] = {}
    divisions, expandable, ignored = (0,) * _INTERVALS, False, []
    for name, value in _options(text):
        if name in _SIZES_IN_MIB:
            values[_SIZES_IN_MIB[name]] = _number(name, value) * MIB
        elif name == "expandable_segments":
            expandable = _switch(name, value)
        elif name == "roundup_power2_divisions":
            divisions = _divisions(value)
        elif name in _IGNORED:
            ignored.append(name)
        else:
            raise UsageError(f"the allocator of PyTorch has no option {name!r}; it takes {_KEY}")
    if values.get("max_split", 21 * MIB) <= 20 * MIB:
        raise UsageError("max_split_size_mb must be more than 20, the size of a large segment")
    return Settings(**values, divisions=divisions, expandable=expandable, ignored=tuple(ignored))


_SIZES_IN_MIB = {
    "max_split_size_mb": "max_split",
    "max_non_split_rounding_mb": "max_non_split_rounding",
    "large_segment_size_mb": "large_segment",
}
_IGNORED = frozenset(
    {
        "garbage_collection_threshold",
        "backend",
        "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "graph_capture_record_stream_reuse",
        "per_process_memory_fraction",
        "throw_on_cudamalloc_oom",
    }
)


def _options(text: str) -> list[tuple[str, str]]:
    """Split "a:1,b:[256:1,>:4]" at the commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[last:at])
            last = at + 1
    parts.append(text[last:])
    pairs = [part.strip().partition(":") for part in parts if part.strip()]
    wrong = next((name for name, colon, _ in pairs if not colon), None)
    if wrong is not None:
        raise UsageError(f"allocator option {wrong!r} has no value; write {_KEY}")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 9:
        raise UsageError(f"{name}:{value} is no whole number of megabytes; write {name}:128")
    return int(value)


def _switch(name: str, value: str) -> bool:
    if value not in {"True", "False"}:
        raise UsageError(f"{name}:{value} is neither True nor False; write {name}:True")
    return value == "True"


def _divisions(value: str) -> tuple[int, ...]:
    """Read one number for all sizes, or a list of megabytes:steps with ">" for the rest.

    As PyTorch does it: the first entry also holds for all smaller sizes, and a power of two that is
    not named is not divided.
    """
    if not value.startswith("["):
        return (_power_of_two(value),) * _INTERVALS
    if not value.endswith("]"):
        raise UsageError(f"roundup_power2_divisions:{value} does not end; write {_SIZES}")
    table, last = [0] * _INTERVALS, -1
    for part in value[1:-1].split(","):
        key, _, steps = part.partition(":")
        divided = _power_of_two(steps.strip())
        if key.strip() == ">":
            table[last + 1 :] = [divided] * (_INTERVALS - last - 1)
            break
        at = min(_power_of_two(key.strip()).bit_length() - 1, _LARGEST_POWER)
        if last < 0:
            table[:at] = [divided] * at
        table[at], last = divided, at
    return tuple(table)


def _power_of_two(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if number == 0 or number & (number - 1):
        raise UsageError(
            f"roundup_power2_divisions: {text!r} is no power of two; write 4 or {_SIZES}"
        )
    return number
