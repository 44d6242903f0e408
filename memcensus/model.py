"""The one shape every subject produces: a tree of byte accounts, a timeline, tables, and gaps.

Six laws hold for these values; the first four are checked where a value is built:

1. Every byte has one owner. ``Account.total`` is ``own`` plus the children's totals and is never
   stored apart from them, so no view can show numbers that do not add up.
2. Every number says where it came from (``Source``), precisely enough to check by hand.
3. What could not be read is listed (``Gap``), never counted as zero.
4. Timeline and tree agree: at ``Report.instant`` the series sum to ``Report.root.total``.
5. A report survives JSON both ways (``views/json.py``).
6. ``diff(a, a)`` is empty (``views/diff.py``).

Units: sizes are whole bytes (``int``), times are nanoseconds or step numbers (see ``Clock``).
This module imports nothing else of memcensus.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Path: TypeAlias = tuple[str, ...]
"""Names from the root down to an account."""

Cell: TypeAlias = str | int | float | bool | None
"""One value of a table. None is "not known": the report has a Gap that says why."""

UNEXPLAINED = "unexplained"


class Evidence(StrEnum):
    """How a number was come by, strongest first."""

    MEASURED = "measured"  # read from the memory itself or from the kernel
    COMPUTED = "computed"  # follows exactly from declared shapes and types, or total - parts
    ESTIMATED = "estimated"  # a model of behaviour; carries an error
    ASSUMED = "assumed"  # a default nobody confirmed


class Absence(StrEnum):
    """Why something is missing. Zero bytes is none of these."""

    UNREADABLE = "unreadable"  # the page, file or right to read it is not there
    UNPARSABLE = "unparsable"  # read, but not what the format promises
    UNSUPPORTED = "unsupported"  # memcensus does not know this operator, kernel or format
    UNCOUNTED = "not counted"  # lies outside of what the figures are about
    CONTRADICTORY = "contradictory"  # two sources say different things
    OUT_OF_TIME = "out of time"  # left out to keep the answer quick


class Clock(StrEnum):
    """What the times of a timeline count."""

    NANOSECONDS = "ns"  # monotonic, from the start of the recording
    STEP = "step"  # position in a predicted schedule; no duration is claimed


class Answer(StrEnum):
    """Does it fit?"""

    FITS = "fits"
    TOO_BIG = "too big"
    TOO_CLOSE = "too close to call"  # the error bar straddles the limit


@dataclass(frozen=True, slots=True)
class Source:
    """Where a number came from, and, where its name does not say it, what it means."""

    evidence: Evidence
    where: str  # "/proc/4711/smaps:Pss", "dump.raw@0x1f3000", "N*Cout*Hout*Wout*4"
    meaning: str = ""  # the definition in words


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number beside the bytes, with its unit: ``Quantity("pages", 131_072, "page")``."""

    name: str
    value: int
    unit: str


@dataclass(frozen=True, slots=True)
class Account:
    """A named owner of bytes.

    Raises:
        ValueError: if a size is negative or two children have one name.
    """

    name: str
    own: int  # bytes held here and in no child
    source: Source
    children: tuple[Account, ...] = ()
    error: int = 0  # own may be off by this many bytes either way
    borrowed: int = 0  # bytes used here but owned elsewhere; never in total
    quantities: tuple[Quantity, ...] = ()
    total: int = field(init=False)
    total_error: int = field(init=False)

    def __post_init__(self) -> None:
        """Check the sizes and names, and derive the totals."""
        if self.own < 0 or self.error < 0 or self.borrowed < 0:
            raise ValueError(
                f"{self.name}: own={self.own:,} B, error={self.error:,} B, "
                f"borrowed={self.borrowed:,} B; none may be negative"
            )
        names = [child.name for child in self.children]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"{self.name}: children share a name: {', '.join(twice)}")
        total = self.own + sum(child.total for child in self.children)
        error = self.error + sum(child.total_error for child in self.children)
        object.__setattr__(self, "total", total)
        object.__setattr__(self, "total_error", error)

    @classmethod
    def explain(cls, name: str, total: int, source: Source, parts: Iterable[Account]) -> Account:
        """Account for an independently known ``total`` by ``parts``; the rest is "unexplained".

        Raises:
            Overcounted: if the parts hold more than the total: some byte was given two owners.
        """
        children = tuple(parts)
        explained = sum(child.total for child in children)
        if explained > total:
            raise Overcounted(name, total=total, explained=explained, source=source)
        if explained == total:
            return cls(name, 0, source, children)
        where = f"{source.where} - parts"
        rest = Account(UNEXPLAINED, total - explained, Source(Evidence.COMPUTED, where))
        return cls(name, 0, source, (*children, rest))

    def walk(self, above: Path = ()) -> Iterator[tuple[Path, Account]]:
        """Yield each account with its path, parents first."""
        path = (*above, self.name)
        yield path, self
        for child in self.children:
            yield from child.walk(path)


@dataclass(frozen=True, slots=True)
class Gap:
    """Something the subject met and could not account for."""

    what: str
    absence: Absence
    why: str


@dataclass(frozen=True, slots=True)
class Series:
    """One account's bytes over time: a step function that holds each size until the next time.

    Raises:
        ValueError: if times and sizes differ in length, a time falls, or a size is negative.
    """

    path: Path
    times: tuple[int, ...]  # shape (n,), never falling, in the timeline's clock
    sizes: tuple[int, ...]  # shape (n,), bytes

    def __post_init__(self) -> None:
        """Check shape and order."""
        name = "/".join(self.path)
        if len(self.times) != len(self.sizes):
            raise ValueError(f"{name}: {len(self.times)} times but {len(self.sizes)} sizes")
        falls = (i for i, t in enumerate(self.times[1:], 1) if t < self.times[i - 1])
        if (at := next(falls, None)) is not None:
            raise ValueError(f"{name}: time {self.times[at]} follows {self.times[at - 1]}")
        if self.sizes and min(self.sizes) < 0:
            raise ValueError(f"{name}: a size of {min(self.sizes):,} B; none may be negative")

    def at(self, time: int) -> int:
        """Bytes at ``time``: the last size known by then, 0 before the first."""
        known = bisect_right(self.times, time)
        return self.sizes[known - 1] if known else 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """Accounts over time. No series lies inside another, so at any time they may be summed.

    Raises:
        ValueError: if one series' path is inside another's.
    """

    clock: Clock
    series: tuple[Series, ...]
    marks: tuple[tuple[int, str], ...] = ()  # (time, label): "backward starts", "OOM"

    def __post_init__(self) -> None:
        """Check that no byte is drawn twice."""
        paths = {series.path for series in self.series}
        if len(paths) != len(self.series):
            raise ValueError("two series have one path")
        for path in paths:
            inside = next((path[:n] for n in range(1, len(path)) if path[:n] in paths), None)
            if inside is not None:
                raise ValueError(f"series {'/'.join(path)} lies inside {'/'.join(inside)}")

    def total(self, time: int) -> int:
        """Bytes of all series at ``time``."""
        return sum(series.at(time) for series in self.series)


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: its name and the unit of its numbers ("B", "page"; None for words)."""

    name: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Typed rows: processes, layers, files ... Every row says where it came from.

    Raises:
        ValueError: if a row has not one cell for each column, rows and sources differ, or a
            number is not finite.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sources: tuple[Source, ...]  # one for each row

    def __post_init__(self) -> None:
        """Check the shape."""
        if len(self.rows) != len(self.sources):
            raise ValueError(f"{self.name}: {len(self.rows)} rows, {len(self.sources)} sources")
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise ValueError(f"{self.name}: {len(wrong)} cells in {len(self.columns)} columns")
        if any(isinstance(cell, float) and not isfinite(cell) for row in self.rows for cell in row):
            raise ValueError(f"{self.name}: a cell is not a finite number; unknown is None")


@dataclass(frozen=True, slots=True)
class Budget:
    """How many bytes there are, and who says so.

    Raises:
        ValueError: if the limit is negative.
    """

    limit: int  # bytes
    source: Source  # "cgroup memory.max", "--limit 24GiB"

    def __post_init__(self) -> None:
        """Check the size."""
        if self.limit < 0:
            raise ValueError(f"a limit of {self.limit:,} B is negative")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether ``peak`` give or take ``error`` stays within the budget (``fit.judge`` decides).

    Raises:
        ValueError: if a size is negative.
    """

    answer: Answer
    peak: int  # bytes
    error: int  # bytes either way
    budget: Budget

    def __post_init__(self) -> None:
        """Check the sizes."""
        if self.peak < 0 or self.error < 0:
            raise ValueError(f"a verdict on {self.peak:,} B ± {self.error:,} B; none is negative")


@dataclass(frozen=True, slots=True)
class Report:
    """All that one look at one subject found. Views take this and nothing else.

    Raises:
        ValueError: if timeline and tree disagree at ``instant``, or two tables have one name.
    """

    subject: str  # "net", "ram", "live", "program", "web", "game"
    target: str  # as the user named it
    root: Account  # the state at `instant`
    instant: int | None = None  # in the timeline's clock
    timeline: Timeline | None = None
    tables: tuple[Table, ...] = ()
    gaps: tuple[Gap, ...] = ()
    verdict: Verdict | None = None
    partial: bool = False  # the work was interrupted; what was found until then

    def __post_init__(self) -> None:
        """Check law 4."""
        if len({table.name for table in self.tables}) != len(self.tables):
            raise ValueError("two tables of a report have one name")
        if self.timeline is None:
            return
        if self.instant is None:
            raise ValueError("a report with a timeline says at which instant its tree stands")
        drawn = self.timeline.total(self.instant)
        if drawn != self.root.total:
            raise ValueError(
                f"at {self.instant} the series sum to {drawn:,} B, "
                f"the tree to {self.root.total:,} B"
            )

    def table(self, name: str) -> Table | None:
        """Return the table called ``name``, if the report has it."""
        return next((table for table in self.tables if table.name == name), None)


class MemcensusError(Exception):
    """Base of every error raised on purpose; its text is a full sentence for the user.

    The whole tree is drawn in ``errors.py``.
    """

    exit_code: ClassVar[int] = 3


class Overcounted(MemcensusError):
    """The parts hold more than the independently known total."""

    def __init__(self, name: str, *, total: int, explained: int, source: Source) -> None:
        """Keep both numbers and say them."""
        super().__init__(
            f"{name}: the parts hold {explained:,} B but {source.where} says {total:,} B, so "
            f"{explained - total:,} B have two owners; please report this with the command you ran"
        )
        self.total, self.explained = total, explained
