"""One process by mapping: what it has that nobody else has, and what it shares.

The root's total is the memory that would be free if the process ended (USS): known independently
from smaps_rollup, and equal to the sum over its mappings. Pages that others have too are borrowed:
used here, owned by none of them alone. Rss and Pss stand beside it as quantities.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from memcensus import text
from memcensus.errors import Unreadable
from memcensus.live import process
from memcensus.live.processes import Row
from memcensus.live.processes import table as processes_table
from memcensus.model import (
    Absence,
    Account,
    Column,
    Evidence,
    Gap,
    Quantity,
    Report,
    Source,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from memcensus.live.process import Process
    from memcensus.live.smaps import Mapped
    from memcensus.subject import Progress, Request

ATTEMPTS = 3
"""Readings of a process that changes while it is read, before a Gap says so."""

# (beginning of the path, kind), the first that fits; source: fs/proc/task_mmu.c, mm/shmem.c,
# ipc/shm.c, kernel Documentation/filesystems/proc.rst 3.1
_KINDS = (
    (b"[heap]", "heap"),
    (b"[stack", "stack"),
    (b"[anon:", "named anonymous"),  # prctl(PR_SET_VMA_ANON_NAME), since v5.17
    (b"[anon_shmem:", "shared memory"),
    (b"[", "vdso and vvar"),  # [vdso], [vvar], [vsyscall], [uprobes]
    (b"/dev/shm/", "shared memory"),
    (b"/memfd:", "shared memory"),
    (b"/SYSV", "shared memory"),
    (b"/dev/zero", "shared memory"),  # MAP_SHARED | MAP_ANONYMOUS
    (b"/anon_hugepage", "huge pages"),
    (b"/dev/", "devices"),
    (b"anon_inode:", "devices"),
    (b"/", "files"),
    (b"", "anonymous"),
)
_MEANINGS = {
    "heap": "the area that brk(2) moves: small allocations of C programs",
    "stack": "the first thread's stack; other threads' stacks are anonymous",
    "named anonymous": "anonymous memory that the program gave a name",
    "anonymous": "memory without a file: large allocations, arenas, threads' stacks",
    "shared memory": "tmpfs (/dev/shm), memfd, System V and shared anonymous segments",
    "huge pages": "pages of hugetlbfs; Rss and Pss do not count them",
    "devices": "memory of drivers: graphics buffers, io_uring rings",
    "files": "programs, libraries and other files, with the copies made on writing",
    "vdso and vvar": "code and data that the kernel maps into each process",
}
_OWN = (
    "pages that no other process has: what would be free if it ended. Windows: Task Manager's "
    '"memory" (private working set)'
)
_COLUMNS = (
    *(Column("kind"), Column("path"), Column("size", "B"), Column("resident", "B")),
    *(Column("pss", "B"), Column("private", "B"), Column("shared", "B"), Column("swap", "B")),
    *(Column("permissions"), Column("address", "address")),
)


def inspect(word: str, proc: Path, request: Request) -> Report:
    """Return the report on the process whose number is ``word``.

    Raises:
        Unreadable: if there is no such process, it has no memory map, or is not ours to read.
    """
    pid = number(word)
    try:
        with process.folder(proc, pid) as opened:
            found = process.read(opened, pid)
            _refuse_mapless(found)
            rollup, mapped, agree = _consistent(opened, proc / str(pid), request.progress)
    except PermissionError as error:
        raise Unreadable(
            f"process {pid} is not yours: its memory map may be read by its owner and by root; "
            f"run as root"
        ) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise Unreadable(
            f"there is no process {pid} (any more); ps -e lists those that run"
        ) from error
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise Unreadable(f"process {pid}: {reason}; check that {proc} is procfs") from error
    row = Row(found, rollup.pss, rollup.private)
    gaps = [] if agree else [_race(rollup, mapped)]
    return Report(
        "live",
        word,
        _root(found, rollup, mapped, proc / str(pid)) if agree else _seen(found, mapped, proc),
        tables=(
            processes_table([row], proc, process.boot_time(proc)),
            table(mapped, proc / str(pid)),
        ),
        gaps=tuple(gaps),
    )


def number(word: str) -> int:
    """Return the process number that ``word`` is.

    Raises:
        Unreadable: if it is none: the target was meant to be a process, or nothing.
    """
    shown = text.printable(word)
    if not (word.isascii() and word.isdecimal()):
        raise Unreadable(
            f"{shown!r} is not a process number; ps -e lists them, and without one live shows "
            f"this machine"
        )
    pid = int(word) if len(word) <= 10 else 0
    if not 0 < pid < 1 << 31:
        raise Unreadable(
            f"{shown} is no process number: they run from 1 to 4194304; ps -e lists them"
        )
    return pid


def kind(path: bytes) -> str:
    """Return what a mapping of ``path`` is, as the user thinks of it."""
    return next(word for start, word in _KINDS if path.startswith(start))


def table(mapped: Sequence[Mapped], folder: Path) -> Table:
    """Return the table ``mappings``, in order of address, sizes in bytes."""
    return Table(
        "mappings",
        _COLUMNS,
        tuple(
            (
                *(kind(m.path), text.decode(m.path), m.size, m.resident, m.pss, m.private),
                *(m.shared, m.swap, m.permissions, m.start),
            )
            for m in mapped
        ),
        tuple(Source(Evidence.MEASURED, f"{folder}/smaps:{m.start:x}-{m.end:x}") for m in mapped),
    )


def _refuse_mapless(found: Process) -> None:
    pid, name = found.pid, text.printable(found.name)
    if found.group != pid:
        raise Unreadable(
            f"{pid} is a thread of process {found.group}, whose memory it uses: "
            f"memcensus live {found.group}"
        )
    if found.ended:
        raise Unreadable(
            f"process {pid} ({name}) has ended and holds no memory; only its exit code waits for "
            f"its parent {found.ppid}"
        )
    if found.resident is None:
        raise Unreadable(
            f"process {pid} ({name}) is a kernel thread and has no memory map; what the kernel "
            f"holds is shown by memcensus live"
        )


def _consistent(opened: int, path: Path, progress: Progress) -> tuple[Mapped, list[Mapped], bool]:
    """Return a rollup and the mappings, and whether they are of one state of the process."""
    for attempt in range(1, ATTEMPTS + 1):
        progress("readings of the mappings", attempt, ATTEMPTS, "reading")
        rollup, mapped = process.rollup(opened, path), list(process.mappings(opened, path))
        agree = sum(m.private for m in mapped) == rollup.private
        if agree or attempt == ATTEMPTS:
            return rollup, mapped, agree
    raise RuntimeError("a loop over at least one attempt has ended without one")


def _root(found: Process, rollup: Mapped, mapped: Sequence[Mapped], folder: Path) -> Account:
    where = f"{folder}/smaps_rollup:Private_Clean + Private_Dirty + Private_Hugetlb"
    whole = Account.explain(
        f"{found.name} [{found.pid}]",
        rollup.private,
        Source(Evidence.MEASURED, where, _OWN),
        _parts(mapped, folder),
    )
    return _beside(whole, rollup.resident, rollup.pss, rollup.swap)


def _seen(found: Process, mapped: Sequence[Mapped], proc: Path) -> Account:
    """Return the account of a process that never held still: the sum of its mappings."""
    folder = proc / str(found.pid)
    where = f"{folder}/smaps: sum of Private_Clean + Private_Dirty + Private_Hugetlb"
    whole = Account(
        f"{found.name} [{found.pid}]",
        0,
        Source(Evidence.COMPUTED, where, _OWN),
        tuple(_parts(mapped, folder)),
    )
    sums = (sum(getattr(m, name) for m in mapped) for name in ("resident", "pss", "swap"))
    return _beside(whole, *sums)


def _beside(whole: Account, resident: int, pss: int, swap: int) -> Account:
    quantities = (
        Quantity("Rss", resident, "B"),
        Quantity("Pss", pss, "B"),
        Quantity("Swap", swap, "B"),
    )
    return Account(whole.name, whole.own, whole.source, whole.children, quantities=quantities)


def _race(rollup: Mapped, mapped: Sequence[Mapped]) -> Gap:
    private = sum(m.private for m in mapped)
    return Gap(
        "one state of the process",
        Absence.UNREADABLE,
        f"it changed during {ATTEMPTS} readings: smaps_rollup says {rollup.private:,} B are its "
        f"own, its mappings sum to {private:,} B; stop it (kill -STOP) for a still picture",
    )


def _parts(mapped: Iterable[Mapped], folder: Path) -> list[Account]:
    """Return an account for each kind, and in it one for each path."""
    groups: dict[str, dict[bytes, list[Mapped]]] = defaultdict(lambda: defaultdict(list))
    for m in mapped:
        groups[kind(m.path)][_identity(m.path)].append(m)
    return [_kind_account(word, by_path, folder) for word, by_path in groups.items()]


def _identity(path: bytes) -> bytes:
    """Return what mappings of one thing have in common; memory without a name is all one."""
    return b"" if path in {b"[heap]", b"[stack]"} else path


def _kind_account(word: str, by_path: dict[bytes, list[Mapped]], folder: Path) -> Account:
    source = Source(
        Evidence.COMPUTED, f"{folder}/smaps: sum over mappings of the kind", _MEANINGS[word]
    )
    if set(by_path) == {b""}:
        return _leaf(word, by_path[b""], folder, source.meaning)
    children = tuple(
        _leaf(text.decode(path), of_path, folder, "") for path, of_path in by_path.items()
    )
    return Account(word, 0, source, children)


def _leaf(name: str, mapped: list[Mapped], folder: Path, meaning: str) -> Account:
    where = (
        f"{folder}/smaps:{mapped[0].start:x}"
        + (f" and {len(mapped) - 1} more" if len(mapped) > 1 else "")
        + ": Private_Clean + Private_Dirty + Private_Hugetlb"
    )
    quantities = tuple(
        Quantity(title, size, "B")
        for title, size in (
            ("Rss", sum(m.resident for m in mapped)),
            ("Pss", sum(m.pss for m in mapped)),
            ("Swap", sum(m.swap for m in mapped)),
        )
        if size
    )
    return Account(
        name,
        sum(m.private for m in mapped),
        Source(Evidence.MEASURED, where, meaning),
        borrowed=sum(m.shared for m in mapped),
        quantities=quantities,
    )
