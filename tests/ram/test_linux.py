"""Kernel and processes of real images against what the guest said of itself at capture."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memcensus.ram import paging
from memcensus.ram.image import PAGE
from memcensus.ram.linux import clock, mm, resources, zones
from memcensus.text import decode

if TYPE_CHECKING:
    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")

TICK = 100  # per second, the unit of starttime in /proc/PID/stat
STATUS_RSS = 1  # column of VmRSS behind the pid
LA57 = 1 << 12  # of CR4


def test_the_banner_is_that_of_proc_version(guest: Opened) -> None:
    assert guest.kernel.banner == guest.truth.lines("version")[0]


def test_every_symbol_has_the_address_of_proc_kallsyms(guest: Opened) -> None:
    for name, address in guest.truth.symbols.items():
        if name != "__per_cpu_start":  # there are several symbols at 0
            assert guest.kernel.symbols.get(name) == address, name


def test_the_kernel_lies_where_proc_iomem_says(guest: Opened) -> None:
    code = next(row for row in guest.truth.iomem if row[3] == "Kernel code")
    text = guest.kernel.symbols.address("_text")
    assert guest.kernel.memory.physical(text) == code[1]


def test_the_resource_tree_is_proc_iomem(guest: Opened) -> None:
    ours = [(r.depth, r.start, r.end, r.name) for r in resources.read(guest.kernel)]
    assert ours == guest.truth.iomem


def test_paging_levels_are_those_of_the_processor(guest: Opened) -> None:
    registers = "\n".join(guest.truth.lines("registers"))
    cr4 = int(re.findall(r"CR4=([0-9a-f]+)", registers)[0], 16)
    assert guest.kernel.memory.levels == (5 if cr4 & LA57 else 4)


def test_root_tables_that_the_processors_used_are_known(guest: Opened) -> None:
    registers = "\n".join(guest.truth.lines("registers"))
    used = {int(cr3, 16) & ~0xFFF for cr3 in re.findall(r"CR3=([0-9a-f]+)", registers)}
    known = {*guest.processes.spaces.roots, guest.kernel.memory.root}
    # With PTI a processor in user mode uses the second table of the pair.
    assert used <= known | {root + PAGE for root in known}


def test_vmcoreinfo_agrees(guest: Opened) -> None:
    assert guest.kernel.note is not None
    assert guest.kernel.gaps == ()


def test_boot_time_is_btime(guest: Opened) -> None:
    assert abs(guest.clock.boot / 10**9 - guest.truth.btime) <= 1


def test_every_process_is_there_once(guest: Opened) -> None:
    ours = [process.pid for process in guest.processes.all]
    assert len(set(ours)) == len(ours)
    theirs = guest.truth.processes
    # kworkers come and go by themselves between the account and the stop of the machine.
    workers = {one.pid for one in guest.processes.all if one.name.startswith("kworker")}
    workers |= {row.pid for row in theirs.values() if row.name.startswith(b"kworker")}
    assert set(ours) - workers == set(theirs) - workers


def test_every_process_has_the_guests_parent_owner_and_name(guest: Opened) -> None:
    theirs = guest.truth.processes
    for process in guest.processes.all:
        row = theirs.get(process.pid)
        if row is None:
            continue
        assert (process.ppid, process.uid) == (row.ppid, row.uid)
        if not row.name.startswith(b"kworker"):  # /proc adds the work that it does
            assert process.name == decode(row.name)


def test_every_process_has_the_guests_arguments(guest: Opened) -> None:
    for process in guest.processes.all:
        row = guest.truth.processes.get(process.pid)
        if row is not None:
            assert process.arguments == decode(row.cmdline.rstrip(b"\0").replace(b"\0", b" "))


def test_the_hostile_name_is_kept_byte_for_byte(guest: Opened) -> None:
    hostile = b'\x1b[2J<b>\xff"'
    assert [one.name for one in guest.processes.all].count(decode(hostile)) == 1


def test_every_process_started_when_the_guest_says(guest: Opened) -> None:
    for process in guest.processes.all:
        row = guest.truth.processes.get(process.pid)
        if row is None:
            continue
        assert process.started is not None
        told = guest.truth.btime + row.ticks / TICK
        shown = datetime.fromisoformat(clock.rfc3339(process.started))
        assert abs(shown.timestamp() - told) <= 1


def test_resident_is_the_exact_rss_of_smaps(guest: Opened) -> None:
    rollup = guest.truth.rollup
    for process in guest.processes.all:
        if process.pid in rollup and process.pid != guest.truth.collector:
            assert process.resident == rollup[process.pid]["Rss"] * 1024, process.label


def test_resident_is_near_the_rss_of_status(guest: Opened) -> None:
    # VmRSS is not exact, as smaps above is: until Linux 6.2 each thread holds back what 64 faults
    # added (mm/memory.c, TASK_RSS_EVENTS_THRESH), and one fault maps up to 16 pages of a file
    # around it (fault_around_bytes); since then each processor holds back less than that.
    told = guest.truth.numbers("status")
    checked = 0
    for process in guest.processes.all:
        row = told.get(process.pid)
        if row is None or process.pid == guest.truth.collector or process.resident is None:
            continue
        threads = guest.truth.processes[process.pid].threads
        allowed = 65 * 16 * threads * PAGE
        assert abs(process.resident - row[STATUS_RSS] * 1024) <= allowed, process.label
        checked += 1
    assert checked >= 5


def test_the_kernels_counters_give_the_same_resident_bytes(guest: Opened) -> None:
    for process in guest.processes.all:
        if process.mm:
            assert mm.counted(guest.kernel, process.mm, process.task) == process.resident


def test_kernel_threads_have_no_memory_of_their_own(guest: Opened) -> None:
    kernel_threads = [one for one in guest.processes.all if one.kernel]
    assert kernel_threads
    assert all(one.resident == 0 and one.arguments == "" for one in kernel_threads)


def test_threads_are_those_of_the_guest(guest: Opened) -> None:
    for process in guest.processes.all:
        row = guest.truth.processes.get(process.pid)
        if row is not None:
            assert len(mm.threads(guest.kernel, process.task)) == row.threads


def test_page_tables_lead_where_the_guests_pagemap_says(guest: Opened) -> None:
    leafs = guest.processes.spaces.walk.leafs
    pages, leaf = paging.frames_of(leafs, guest.image.pages)  # a huge page is many of pagemap's
    inside = pages - (leafs.physical[leaf] >> 12)
    virtual = (leafs.address[leaf] >> np.uint64(12)).astype(np.int64) + inside
    spaces, special = leafs.space[leaf], (leafs.entry[leaf] & np.uint64(paging.SPECIAL)) != 0
    compared = 0
    for process in guest.processes.all:
        told = guest.truth.pagemap.get(process.pid)
        number = guest.processes.spaces.number(process.mm) if process.mm else None
        if told is None or number is None or process.pid == guest.truth.collector:
            continue
        mine = spaces == number
        ours = set(zip(virtual[mine].tolist(), pages[mine].tolist(), strict=True))
        frames = told[:, 1] & np.uint64((1 << 55) - 1)
        theirs = set(zip(told[:, 0].tolist(), frames.tolist(), strict=True))
        zero = set(virtual[mine & special].tolist())
        ours = {pair for pair in ours if pair[0] not in zero}
        assert {pair for pair in theirs if pair[0] not in zero} == ours, process.label
        compared += len(ours)
    assert compared > 1000


def test_managed_pages_are_memtotal(guest: Opened) -> None:
    found = zones.counters(guest.kernel, zones.read(guest.kernel))
    assert found["managed_pages"] * PAGE == guest.truth.meminfo["MemTotal"] * 1024
