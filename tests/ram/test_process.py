"""The tree of processes, and task lists that somebody damaged."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcensus.errors import Unreadable
from memcensus.ram.image import Image
from memcensus.ram.linux import kernel, process
from memcensus.ram.linux.process import Process, tree
from memcensus.subject import silent

if TYPE_CHECKING:
    from memcensus.ram.linux.kernel import Kernel
    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")


def one(pid: int, ppid: int | None) -> Process:
    return Process(0, 0, pid, ppid, 0, "x", None, 0, kernel=False)


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 15), st.none() | st.integers(0, 15)))
def test_every_process_is_in_the_tree_once_and_below_its_parent(
    parents: dict[int, int | None],
) -> None:
    ordered = tree(one(pid, ppid) for pid, ppid in parents.items())
    assert sorted(process.pid for process, _ in ordered) == sorted(parents)
    depth = {process.pid: depth for process, depth in ordered}
    place = {process.pid: number for number, (process, _) in enumerate(ordered)}
    for pid, ppid in parents.items():
        if depth[pid]:
            assert ppid is not None
            assert place[ppid] < place[pid]
            assert depth[ppid] == depth[pid] - 1
        else:  # a root has no parent here, or starts a circle
            assert ppid not in parents or circular(parents, pid)


def circular(parents: dict[int, int | None], pid: int) -> bool:
    seen: set[int | None] = set()
    at: int | None = pid
    while at in parents and at not in seen:
        seen.add(at)
        at = parents[at]
    return at == pid


def copied(sample: Opened) -> Kernel:
    """Return the sample's kernel over a copy of the image that may be written to."""
    data = mmap.mmap(-1, sample.image.size)
    data[:] = sample.image.data[:]
    return kernel.find(Image("copy", data), silent)


@pytest.fixture
def patched(sample: Opened) -> Kernel:
    return copied(sample)


@pytest.fixture(scope="module")
def scratch(sample: Opened) -> Kernel:
    """A copy for many examples; each puts back what it changed."""
    return copied(sample)


def link(found: Kernel, task: int, target: int, *, back: bool = False) -> None:
    """Let a task's next, or previous, be ``target``."""
    at = found.types.offset("task_struct.tasks")
    place = found.memory.physical(task) + at + (8 if back else 0)
    found.image.data[place : place + 8] = struct.pack("<Q", (target + at) % (1 << 64))


def in_list_order(sample: Opened) -> list[Process]:
    # Until a pid is used again, the list is in the order of the starts.
    return sorted(sample.processes.all, key=lambda p: (p.started or 0, p.pid))


def test_a_loop_ends_with_a_gap_and_loses_nobody(sample: Opened, patched: Kernel) -> None:
    tasks = in_list_order(sample)
    link(patched, tasks[40].task, tasks[10].task)
    found = process.read(patched, sample.clock)
    assert "a loop" in found.gaps[0].why
    assert {p.pid for p in found.all} == {p.pid for p in tasks}


def test_a_link_to_nowhere_ends_with_a_gap_and_loses_nobody(
    sample: Opened, patched: Kernel
) -> None:
    tasks = in_list_order(sample)
    link(patched, tasks[40].task, 0xDEAD_BEEF_0000)
    found = process.read(patched, sample.clock)
    assert "broken after 41 processes" in found.gaps[0].why
    assert {p.pid for p in found.all} == {p.pid for p in tasks}


def test_two_breaks_lose_only_what_is_between(sample: Opened, patched: Kernel) -> None:
    tasks = in_list_order(sample)
    link(patched, tasks[20].task, tasks[20].task)
    link(patched, tasks[50].task, 0, back=True)
    found = process.read(patched, sample.clock)
    assert {p.pid for p in found.all} == {p.pid for p in (*tasks[:21], *tasks[50:])}
    assert found.gaps


def test_a_list_that_leads_nowhere_at_once_is_refused(sample: Opened, patched: Kernel) -> None:
    first = patched.symbols.address("init_task")
    link(patched, first, 8)
    link(patched, first, 8, back=True)
    with pytest.raises(Unreadable, match="leads to no process"):
        process.read(patched, sample.clock)


def test_fields_that_point_nowhere_are_none_with_a_gap(sample: Opened, patched: Kernel) -> None:
    victim = next(p for p in sample.processes.all if p.name == "cast")
    types, memory = patched.types, patched.memory
    for member in ("real_parent", "real_cred"):
        place = memory.physical(victim.task) + types.offset(f"task_struct.{member}")
        patched.image.data[place : place + 8] = struct.pack("<Q", 0x1234)
    place = memory.physical(victim.mm) + types.offset("mm_struct.arg_end")
    patched.image.data[place : place + 8] = struct.pack("<Q", (1 << 64) - 1)
    found = process.read(patched, sample.clock)
    row = next(p for p in found.all if p.pid == victim.pid)
    assert (row.ppid, row.uid, row.arguments) == (None, None, None)
    assert row.resident == victim.resident
    told = {gap.what for gap in found.gaps}
    fields = ("ppid", "uid", "arguments")
    assert told == {f"{field} of process {victim.pid}" for field in fields}


def test_the_owner_is_the_user_and_not_the_group(sample: Opened, patched: Kernel) -> None:
    # Every user of the guest has a group of the same number.
    victim = next(p for p in sample.processes.all if p.name == "cast")
    types, memory = patched.types, patched.memory
    owner = memory.u64(victim.task + types.offset("task_struct.real_cred"))
    place = memory.physical(owner) + types.offset("cred.uid")
    patched.image.data[place : place + 4] = struct.pack("<I", 12345)
    found = process.read(patched, sample.clock)
    assert next(p.uid for p in found.all if p.pid == victim.pid) == 12345


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_words_in_a_task_struct_never_break_the_reader(
    sample: Opened, scratch: Kernel, data: st.DataObject
) -> None:
    victim = in_list_order(sample)[60]
    size = sample.kernel.types.size("task_struct")
    whole = slice(victim.place, victim.place + size)
    words = st.tuples(st.integers(0, size // 8 - 1), st.binary(min_size=8, max_size=8))
    for at, word in data.draw(st.lists(words, max_size=20)):
        scratch.image.data[victim.place + 8 * at : victim.place + 8 * at + 8] = word
    try:
        found = process.read(scratch, sample.clock)
    finally:
        scratch.image.data[whole] = sample.image.data[whole]
    assert len(found.all) >= len(sample.processes.all) - 1
