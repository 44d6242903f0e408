"""From an image to its report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memcensus import fit
from memcensus.errors import Unreadable
from memcensus.model import (
    UNEXPLAINED,
    Absence,
    Account,
    Budget,
    Column,
    Evidence,
    Gap,
    Report,
    Source,
    Table,
)
from memcensus.ram.census import Entry
from memcensus.ram.image import PAGE
from memcensus.ram.linux import clock as clocks
from memcensus.ram.linux import (
    counters,
    facts,
    kernel,
    page_cache,
    process,
    resources,
    rules,
    survey,
)
from memcensus.ram.linux.memory import ADDRESSES
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.model import Verdict
    from memcensus.ram.image import Image
    from memcensus.ram.linux.clock import Clock
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.process import Processes
    from memcensus.ram.linux.survey import Survey
    from memcensus.subject import Request

PROCESS_COLUMNS: Final = (
    *(Column(name) for name in ("pid", "ppid", "uid", "name", "arguments", "started")),
    Column("resident", "B"),
    Column("depth"),
)
KERNEL_COLUMNS: Final = tuple(Column(name) for name in ("constant", "value", "derivation"))
"""Columns of the two tables; scripts rely on the names."""


def make(image: Image, target: str, request: Request) -> Report:
    """Return the report on ``image``. An interrupt after the processes are known makes it partial.

    Raises:
        NoKernel: if there is no kernel.
        Unreadable: if there is no process.
    """
    found = kernel.find(image, request.progress)
    gaps: list[Gap] = [*image.gaps, *_cut(found), *found.gaps]
    clock = _clock(found, gaps)
    processes = process.read(found, clock)
    tables = (_process_table(image, processes, gaps), _kernel_table(image, found, clock))
    gaps += processes.gaps
    gaps += _swap(found)
    work: Survey | None = None
    verdict: Verdict | None = None
    partial = False
    try:
        work = survey.Survey.start(found, processes)
        rules.run(work, request.progress)
        gaps += work.gaps
        gaps += _checked(work)
        verdict = _verdict(work, request)
    except KeyboardInterrupt:
        partial = True
        gaps += [] if work is None else work.gaps
        why = "it was interrupted; pages that no rule had reached are unexplained"
        gaps.append(Gap("the rest of the census", Absence.OUT_OF_TIME, why))
    root = _root(image, work)
    gaps += _unexplained(root, marks=work is not None and work.pages is not None)
    return Report(
        "ram", target, root, tables=tables, gaps=tuple(gaps), verdict=verdict, partial=partial
    )


def _root(image: Image, work: Survey | None) -> Account:
    """Return the account of the whole file: the owners, the rest, and a cut page at its end."""
    rest = image.size % PAGE
    source = Source(Evidence.MEASURED, f"{image.name}: {image.pages * PAGE:#x}-{image.size:#x}")
    tail = [Entry(("part of a page at the end",), source, rest)] if rest else []
    if work is None:
        parts = tuple(Account(entry.path[0], rest, source) for entry in tail)
    else:
        parts = work.ledger.accounts((*work.borrowed(), *tail))
    whole = Source(Evidence.MEASURED, f"{image.name}: 0x0-{image.size:#x}")
    return Account.explain("image", image.size, whole, parts)


def _cut(found: Kernel) -> Iterator[Gap]:
    """Yield a gap if the kernel knows RAM behind the end of the file."""
    image = found.image
    kernel_end = (found.memory.text.stop + found.memory.delta) % ADDRESSES
    try:
        end = resources.ram_end(found)
    except Unreadable:
        end = image.size
    if kernel_end > image.size:
        yield Gap(
            "the rest of the memory",
            Absence.UNREADABLE,
            f"{printable(image.name)} ends at {image.size:,} B, inside the kernel's own data, "
            f"which go on to {kernel_end:,} B: the image was cut short, and the rest is missing",
        )
    elif end > image.size:
        yield Gap(
            "the rest of the memory",
            Absence.UNREADABLE,
            f"{printable(image.name)} ends at {image.size:,} B, but the kernel's memory went up to "
            f"{end:,} B (max_pfn): the image was cut short, and what lay behind is missing",
        )
    if image.size % PAGE:
        yield Gap(
            "the last page",
            Absence.UNREADABLE,
            f"{printable(image.name)} holds {image.size:,} B, which is no whole number of pages: "
            f"of the last one only {image.size % PAGE:,} B are there",
        )


def _clock(found: Kernel, gaps: list[Gap]) -> Clock | None:
    try:
        return clocks.read(found)
    except Unreadable as error:
        gaps.append(Gap("times", Absence.UNREADABLE, str(error)))
        return None


def _swap(found: Kernel) -> Iterator[Gap]:
    """Yield a gap if the machine had swap: what was moved there is in no image of its RAM."""
    try:
        pages = found.pointer("total_swap_pages")
    except Unreadable:
        return
    if pages:
        why = f"the machine had {pages * PAGE:,} B of swap, and what lay there is not in the image"
        yield Gap("swapped-out memory", Absence.UNSUPPORTED, why)


def _process_table(image: Image, processes: Processes, gaps: list[Gap]) -> Table:
    rows = []
    for one, depth in zip(processes.all, processes.depths, strict=True):
        started = _date(one.started, one.pid, gaps)
        row = (one.pid, one.ppid, one.uid, one.name, one.arguments, started, one.resident, depth)
        rows.append(row)
    places = (image.place(one.place) for one in processes.all)
    sources = tuple(Source(Evidence.MEASURED, place) for place in places)
    return Table("processes", PROCESS_COLUMNS, tuple(rows), sources)


def _date(moment: int | None, pid: int, gaps: list[Gap]) -> str | None:
    if moment is None:
        return None
    try:
        return clocks.rfc3339(moment)
    except Unreadable as error:
        gaps.append(Gap(f"start of process {pid}", Absence.UNPARSABLE, str(error)))
        return None


def _kernel_table(image: Image, found: Kernel, clock: Clock | None) -> Table:
    known = list(facts.derive(found, clock))
    rows = tuple((fact.name, fact.value, fact.derivation) for fact in known)
    sources = tuple(Source(Evidence.MEASURED, image.place(fact.place)) for fact in known)
    return Table("kernel", KERNEL_COLUMNS, rows, sources)


def _checked(work: Survey) -> Iterator[Gap]:
    """Yield what the kernel's own counters say otherwise."""
    if work.pages is None:
        return
    try:
        yield from counters.differences(work)
    except Unreadable as error:
        yield Gap("the kernel's counters", Absence.UNREADABLE, str(error))


def _verdict(work: Survey, request: Request) -> Verdict | None:
    """Judge what cannot be dropped against the machine's RAM.

    None where the census is not whole: the sum would be a guess.
    """
    if work.pages is None or work.kernel.image.size < work.ram_size:
        return None
    ledger, pages = work.ledger, work.pages
    files = ledger.under(page_cache.CACHE) & ~ledger.under(page_cache.CACHE, page_cache.SHARED)
    clean = files & ~(pages.flag("dirty") | pages.flag("writeback"))[pages.head]
    needed = work.ram & ~ledger.under(survey.FREE) & ~clean
    where = f"{work.kernel.image.name}: System RAM of iomem_resource"
    meaning = "against it: RAM that is neither free nor a clean page of a file"
    budget = request.budget or Budget(work.ram_size, Source(Evidence.MEASURED, where, meaning))
    return fit.judge(int(needed.sum()) * PAGE, 0, budget)


def _unexplained(root: Account, *, marks: bool) -> Iterator[Gap]:
    rest = sum(child.own for child in root.children if child.name == UNEXPLAINED)
    if not rest:
        return
    why = "the kernel keeps no mark on them, and nothing that was read points at them"
    if not marks:
        why = "the kernel's marks on pages were not read, so free and used cannot be told apart"
    yield Gap(
        "the owner of some pages",
        Absence.UNCOUNTED if marks else Absence.UNREADABLE,
        f"{rest:,} B belong to no rule of the census: {why}",
    )
