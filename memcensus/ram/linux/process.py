"""The processes of an image: the kernel's task list, read from ``init_task`` in both directions.

The list is a circle through every process (include/linux/sched/signal.h, for_each_process). Where
it is broken or runs in a loop, it is followed backwards from its other end too, and a gap says so.

Not covered: threads as rows of their own, processes that ended, and those that somebody unlinked
from the list to hide them; the names that a pid namespace gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from memcensus.errors import Unreadable
from memcensus.model import Absence, Gap
from memcensus.ram.image import NotThere
from memcensus.ram.linux import mm
from memcensus.text import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcensus.ram.linux.clock import Clock
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.mm import Spaces

_KERNEL_THREAD: Final = 0x0020_0000  # PF_KTHREAD, include/linux/sched.h
_WORKER: Final = 0x20  # PF_WQ_WORKER
_COMM: Final = 16  # bytes, TASK_COMM_LEN
_MEMBERS: Final = ("tasks", "tgid", "comm", "real_parent", "real_cred", "mm", "flags")
_SHOWN: Final = 5  # pids that a gap names

_LINKS = Struct("<QQ")  # next, prev


@dataclass(frozen=True, slots=True)
class Process:
    """One process. None is "could not be read", and a gap says why."""

    task: int  # virtual address of the task_struct
    place: int  # physical address of the task_struct
    pid: int
    ppid: int | None
    uid: int | None  # real uid
    name: str
    started: int | None  # nanoseconds since 1970-01-01 UTC
    mm: int  # virtual address of the mm_struct; 0: a kernel thread, or a process that has ended
    kernel: bool  # a kernel thread
    arguments: str | None = None  # as ps(1) shows them: separated by spaces
    resident: int | None = None  # bytes

    @property
    def label(self) -> str:
        """A name that no other process has: "bash [812]"."""
        return f"{self.name} [{self.pid}]"


@dataclass(frozen=True, slots=True)
class Processes:
    """All processes, parents before children, with their address spaces."""

    all: tuple[Process, ...]
    depths: tuple[int, ...]  # in the tree; 0: no parent here
    spaces: Spaces
    gaps: tuple[Gap, ...]

    def owner(self, space: int) -> Process:
        """Return the first process that uses an address space."""
        address = self.spaces.addresses[space]
        return next(process for process in self.all if process.mm == address)


def read(kernel: Kernel, clock: Clock | None) -> Processes:
    """Return the processes of ``kernel``.

    Raises:
        Unreadable: if not even one could be read.
    """
    troubles = _Troubles()
    tasks, gaps = _tasks(kernel)
    found = list(_read_all(kernel, tasks, clock, troubles))
    if not found:
        raise Unreadable(
            f"the kernel's task list at {kernel.place(kernel.symbols.address('init_task'))} leads "
            "to no process; the part of the image that holds them is missing or damaged"
        )
    addresses = dict.fromkeys(process.mm for process in found if process.mm)
    spaces = mm.walk(kernel, list(addresses))
    whole = [_with_memory(kernel, process, spaces, troubles) for process in found]
    ordered = tree(whole)
    return Processes(
        tuple(process for process, _ in ordered),
        tuple(depth for _, depth in ordered),
        spaces,
        (*gaps, *troubles.gaps(), *_walk_gaps(spaces)),
    )


def tree(processes: Iterable[Process]) -> list[tuple[Process, int]]:
    """Return (process, depth) with parents before children and children by pid.

    Every process is there once, also where the parents form a circle or are not there.
    """
    by_pid = {process.pid: process for process in sorted(processes, key=lambda one: one.pid)}
    children: dict[int, list[Process]] = {}
    roots: list[Process] = []
    for process in by_pid.values():
        parent = by_pid.get(process.ppid) if process.ppid is not None else None
        if parent is None or parent is process:
            roots.append(process)
        else:
            children.setdefault(parent.pid, []).append(process)
    ordered: dict[int, tuple[Process, int]] = {}
    # A circle has no root; what hangs below one starts at one of the circle's own.
    for start in (*roots, *(_top(process, by_pid) for process in by_pid.values())):
        waiting = [(start, 0)]
        while waiting:
            process, depth = waiting.pop()
            if process.pid in ordered:
                continue
            ordered[process.pid] = (process, depth)
            below = children.get(process.pid, ())
            waiting += [(child, depth + 1) for child in reversed(below)]
    return list(ordered.values())


def _top(process: Process, by_pid: dict[int, Process]) -> Process:
    """Return the first ancestor, or where the ancestors start to repeat."""
    seen: set[int] = set()
    while process.pid not in seen:
        seen.add(process.pid)
        parent = by_pid.get(process.ppid) if process.ppid is not None else None
        process = parent or process
    return process


class _Troubles:
    """Fields that could not be read, told as one gap for each field."""

    def __init__(self) -> None:
        self._fields: dict[str, list[tuple[int, str]]] = {}

    def add(self, field: str, pid: int, why: str) -> None:
        """Keep that ``field`` of process ``pid`` is missing."""
        self._fields.setdefault(field, []).append((pid, why))

    def gaps(self) -> Iterator[Gap]:
        """Yield one gap for each field, with the first pids and the first reason."""
        for field, missing in self._fields.items():
            pids = ", ".join(str(pid) for pid, _ in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN:,} more" if len(missing) > _SHOWN else ""
            yield Gap(f"{field} of process {pids}{more}", Absence.UNREADABLE, f"{missing[0][1]}")


def _tasks(kernel: Kernel) -> tuple[list[int], list[Gap]]:
    """Return the virtual addresses of all task_structs behind ``init_task``, and what is broken."""
    first = kernel.symbols.address("init_task")
    forward, broken = _follow(kernel, first, 0, {first})
    if broken is None:
        return forward, []
    backward, _ = _follow(kernel, first, 1, {first, *forward})
    why = (
        f"the task list is broken after {len(forward):,} processes: {broken}; "
        f"{len(backward):,} more were found from its other end, and some may be missing"
    )
    return forward + backward[::-1], [Gap("processes", Absence.UNPARSABLE, why)]


def _follow(
    kernel: Kernel, first: int, direction: int, seen: set[int]
) -> tuple[list[int], str | None]:
    """Return the tasks from ``first`` in one direction, and why the circle did not close."""
    link_at = kernel.types.offset("task_struct.tasks")
    limit = kernel.image.size // kernel.types.size("task_struct")
    tasks: list[int] = []
    task = first
    while len(tasks) <= limit:
        try:
            links = _LINKS.unpack(kernel.memory.read(task + link_at, _LINKS.size))
            task = (links[direction] - link_at) % (1 << 64)
            if task == first:
                return tasks, None
            kernel.memory.physical(task)
        except NotThere as error:
            return tasks, str(error)
        if task in seen:
            return tasks, f"it returns to the task at {kernel.place(task)}, a loop"
        seen.add(task)
        tasks.append(task)
    return tasks, f"it has more than {limit:,} links"


def _read_all(
    kernel: Kernel, tasks: list[int], clock: Clock | None, troubles: _Troubles
) -> Iterator[Process]:
    offset = kernel.types.offset
    at = {name: offset(f"task_struct.{name}") for name in _MEMBERS}
    # Since 5.5; until then the same clock was called real_start_time.
    names = ("start_boottime", "real_start_time")
    start = next(name for name in (*names, "start_time") if kernel.types.has(f"task_struct.{name}"))
    at["start"], at["uid"] = offset(f"task_struct.{start}"), offset("cred.uid")
    pids: set[int] = set()
    for task in tasks:
        try:
            process = _process(kernel, task, at, clock, troubles)
        except NotThere as error:
            troubles.add("all fields", 0, str(error))
            continue
        if process.pid in pids:
            troubles.add("the second task_struct", process.pid, "two processes have this pid")
            continue
        pids.add(process.pid)
        yield process


def _process(
    kernel: Kernel, task: int, at: dict[str, int], clock: Clock | None, troubles: _Troubles
) -> Process:
    memory = kernel.memory
    pid = memory.s32(task + at["tgid"])

    def through(field: str, pointer: str, member: int) -> int | None:
        try:
            return memory.u32(memory.u64(task + at[pointer]) + member)
        except NotThere as error:
            troubles.add(field, pid, str(error))
            return None

    ppid = through("ppid", "real_parent", at["tgid"])
    uid = through("uid", "real_cred", at["uid"])
    since_boot = memory.u64(task + at["start"])
    flags = memory.u32(task + at["flags"])
    return Process(
        task,
        memory.physical(task),
        pid,
        ppid,
        uid,
        _name(kernel, task, at["comm"], flags),
        None if clock is None else clock.boot + since_boot,
        memory.u64(task + at["mm"]),
        bool(flags & _KERNEL_THREAD),
    )


def _name(kernel: Kernel, task: int, comm: int, flags: int) -> str:
    """Return the name as /proc/PID/comm has it (fs/proc/array.c, proc_task_name).

    A kernel thread whose name is longer than ``comm`` keeps the whole of it in its ``kthread``
    (d6986ce24fc0, "kthread: dynamically allocate memory to store kthread's full name", 5.17);
    for a worker of a queue /proc does not look there, and adds what it works on, which we do not.
    """
    types, memory = kernel.types, kernel.memory
    short = memory.read(task + comm, _COMM).partition(b"\0")[0]
    threaded = flags & (_KERNEL_THREAD | _WORKER) == _KERNEL_THREAD
    if threaded and types.has("kthread.full_name") and types.has("task_struct.worker_private"):
        try:
            thread = memory.u64(task + types.offset("task_struct.worker_private"))
            whole = memory.u64(thread + types.offset("kthread.full_name"))
            return decode(memory.string(whole, 64) if whole else short)
        except NotThere:
            return decode(short)
    return decode(short)


def _with_memory(kernel: Kernel, process: Process, spaces: Spaces, troubles: _Troubles) -> Process:
    """Return the process with its arguments and resident bytes."""
    if not process.mm:  # has no memory of its own: a kernel thread, or ended and not waited for
        return _completed(process, "", 0)
    number = spaces.number(process.mm)
    if number is None:
        troubles.add("memory", process.pid, "its page tables are not in the image")
        return process
    resident = spaces.resident[number]
    try:
        told = mm.counted(kernel, process.mm, process.task)
        if told != resident:
            difference = (
                f"its page tables map {resident:,} B, the kernel's counters say {told:,} B; "
                "the image is damaged, or changed while it was saved"
            )
            troubles.add("agreement about resident memory", process.pid, difference)
    except Unreadable as error:
        troubles.add("counters of resident memory", process.pid, str(error))
    try:
        raw = mm.arguments(kernel, process.mm, spaces.roots[number])
    except Unreadable as error:
        troubles.add("arguments", process.pid, str(error))
        return _completed(process, None, resident)
    return _completed(process, decode(raw.rstrip(b"\0").replace(b"\0", b" ")), resident)


def _completed(process: Process, arguments: str | None, resident: int) -> Process:
    return replace(process, arguments=arguments, resident=resident)


def _walk_gaps(spaces: Spaces) -> Iterator[Gap]:
    walk = spaces.walk
    if walk.lost:
        yield Gap(
            f"{walk.lost:,} page tables of processes",
            Absence.UNREADABLE,
            "they lie outside of the image, so what they map is missing",
        )
    if walk.cut:
        yield Gap(
            "some page tables of processes",
            Absence.UNPARSABLE,
            "they map more than the machine's memory could hold many times over; they are damaged "
            "and were left out",
        )
