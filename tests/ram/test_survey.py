"""The census of real images against the kernel's counters and the guest's own page states."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from memcensus.ram.image import PAGE
from memcensus.ram.linux import counters, mm, page_cache, pointers, vmalloc
from memcensus.ram.linux.survey import FREE, PROCESSES, SHARED, SLAB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")

# Bits of /proc/kpageflags: include/uapi/linux/kernel-page-flags.h.
KPF_SLAB, KPF_BUDDY, KPF_ANON, KPF_NOPAGE, KPF_PGTABLE = 7, 10, 12, 20, 26
KPF_RESERVED = 32


def flag(states: NDArray[np.uint64], bit: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (states >> np.uint64(bit) & np.uint64(1)).astype(np.bool_)
    return found


@pytest.mark.parametrize(
    ("bit", "least"),
    [
        # The guest sent 0.4 MB to its host after it had read these, so some pages changed hands.
        (KPF_BUDDY, 0.99),
        (KPF_SLAB, 0.995),
        (KPF_ANON, 0.995),
        (KPF_PGTABLE, 0.999),
        (KPF_RESERVED, 1.0),
        (KPF_NOPAGE, 1.0),
    ],
)
def test_pages_are_what_proc_kpageflags_says(guest: Opened, bit: int, least: float) -> None:
    states = guest.truth.states("kpageflags")[: guest.image.pages]
    ledger, marks = guest.survey.ledger, guest.survey.marks
    ours = {
        KPF_BUDDY: lambda: ledger.under(FREE, "buddy blocks"),
        KPF_SLAB: lambda: ledger.under(SLAB),
        KPF_ANON: lambda: (
            ledger.under(PROCESSES) | ledger.under(SHARED) | ledger.under("anonymous, not mapped")
        ),
        KPF_PGTABLE: lambda: marks.typed("table"),
        KPF_RESERVED: lambda: marks.flag("reserved"),
        KPF_NOPAGE: lambda: ~marks.known,
    }[bit]()
    theirs = flag(states, bit)
    assert theirs.any() or bit == KPF_NOPAGE
    assert np.count_nonzero(ours == theirs) / len(states) >= least


def test_as_many_entries_map_a_page_as_proc_kpagecount_says(guest: Opened) -> None:
    told = guest.truth.states("kpagecount")[: guest.image.pages].astype(np.int64)
    survey = guest.survey
    ours = np.bincount(survey.mappings.entries, minlength=guest.image.pages)
    user = survey.ledger.under(PROCESSES) | survey.ledger.under(SHARED)
    user |= survey.ledger.under(page_cache.CACHE)
    # The pages that the collector itself maps changed between its account and the stop.
    number = next(p for p in guest.processes.all if p.pid == guest.truth.collector)
    space = guest.processes.spaces.number(number.mm)
    mine = survey.mappings.frames[survey.mappings.spaces == space]
    user[mine] = False
    assert np.count_nonzero(ours[user] == told[user]) / np.count_nonzero(user) >= 0.999


def test_own_pages_have_one_user_and_shared_ones_several(guest: Opened) -> None:
    told = guest.truth.states("kpagecount")[: guest.image.pages].astype(np.int64)
    collector = next(p for p in guest.processes.all if p.pid == guest.truth.collector)
    ledger = guest.survey.ledger
    own = ledger.under(PROCESSES) & ~ledger.under(PROCESSES, collector.label)
    assert np.count_nonzero(told[own] == 1) / np.count_nonzero(own) >= 0.999
    shared = ledger.under(SHARED)
    assert np.count_nonzero(shared) > 100  # the cast forked
    assert np.count_nonzero(told[shared] > 1) / np.count_nonzero(shared) >= 0.99


def test_the_kernels_counters_agree_to_the_page(guest: Opened) -> None:
    compared = list(counters.compare(guest.survey))
    assert len(compared) == len(counters.CHECKS)
    assert [row for row in compared if row[1] != row[2]] == []


def test_no_rule_failed(guest: Opened) -> None:
    assert guest.survey.gaps == []


def test_less_than_a_thousandth_is_unexplained(guest: Opened) -> None:
    nobody = int(np.count_nonzero(guest.survey.ledger.unclaimed))
    assert nobody / guest.image.pages < 0.001


def test_less_than_two_percent_is_inferred_from_pointers(guest: Opened) -> None:
    assert guest.survey.ledger.count(pointers.UNMARKED) / guest.image.pages < 0.02


def test_tables_named_by_a_pointer_have_the_size_of_the_boot_log(guest: Opened) -> None:
    log = "\n".join(guest.truth.lines("dmesg"))
    compared = 0
    for title, variable in HASH_TABLES.items():
        match = re.search(rf"{title} hash table entries: \d+ \(order: \d+, (\d+) bytes", log)
        if match is None:
            continue
        pages = guest.survey.ledger.count(pointers.UNMARKED, f"pointed to by {variable}")
        assert pages == -(-int(match[1]) // PAGE), title
        compared += 1
    assert compared >= 4


# Words of the boot log -> the variable that points at the table. Others are left out because
# something points into their middle too, so that their pages have several names.
HASH_TABLES = {
    "Table-perturb": "table_perturb",
    "MPTCP token": "token_hash",
    "UDP": "udp_table",
    "UDP-Lite": "udplite_table",
}


def test_private_and_shared_are_those_of_smaps_rollup(guest: Opened) -> None:
    # What the collector maps too has one user more or less than when it looked at the others.
    survey, users = guest.survey, guest.survey.mappings.users
    spaces = guest.processes.spaces
    entries, owner = survey.mappings.entries, survey.mappings.entry_spaces
    collector = next(p for p in guest.processes.all if p.pid == guest.truth.collector)
    also = set(entries[owner == spaces.number(collector.mm)].tolist())
    checked = 0
    for pid, told in guest.truth.rollup.items():
        process = next((p for p in guest.processes.all if p.pid == pid), None)
        if process is None or not process.mm or process is collector:
            continue
        frames = entries[owner == spaces.number(process.mm)]
        private = int(np.count_nonzero(users[frames] == 1)) * PAGE // 1024
        theirs = told["Private_Clean"] + told["Private_Dirty"]
        unsure = sum(frame in also for frame in frames.tolist()) * PAGE // 1024
        assert abs(private - theirs) <= unsure, process.label
        assert len(frames) * PAGE // 1024 == told["Rss"], process.label
        anonymous = survey.ledger.under(PROCESSES) | survey.ledger.under(SHARED)
        assert int(np.count_nonzero(anonymous[frames])) * PAGE // 1024 == told["Anonymous"]
        checked += 1
    assert checked >= 5


def test_own_and_borrowed_make_the_resident_pages(guest: Opened) -> None:
    accounts = guest.survey.ledger.accounts(guest.survey.borrowed())
    processes = next(account for account in accounts if account.name == PROCESSES)
    of_label = {process.label: process for process in guest.processes.all}
    assert len(processes.children) == len(guest.processes.spaces.roots)
    for account in processes.children:
        # A page that a process maps twice counts twice as resident, and is one page.
        assert account.own + account.borrowed <= (of_label[account.name].resident or 0)
        assert account.own + account.borrowed >= 0.9 * (of_label[account.name].resident or 0)


def test_stacks_and_modules_are_those_of_the_guest(guest: Opened) -> None:
    threads = len(guest.truth.lines("threads"))
    stack_pages = 4  # THREAD_SIZE of x86-64 without KASAN: 16 KiB
    ours = guest.survey.ledger.count(vmalloc.STACKS, "of processes and threads")
    # init_task's stack is in the kernel image; idle tasks of other processors are counted apart.
    assert abs(ours / stack_pages - threads) <= 3
    modules = {line.split()[0] for line in guest.truth.lines("modules")}
    accounts = {account.name: account for account in guest.survey.ledger.accounts()}
    named = {child.name for child in accounts["kernel modules"].children}
    assert named <= modules
    assert len(named) >= 0.9 * len(modules)


def test_slab_caches_have_the_pages_of_slabinfo(guest: Opened) -> None:
    told = {}
    for line in guest.truth.lines("slabinfo"):
        words = line.split()
        if "slabdata" in words:
            at = words.index("slabdata")
            told[words[0]] = int(words[5]) * int(words[at + 2])
    accounts = {account.name: account for account in guest.survey.ledger.accounts()}
    ours = {child.name: child.total // PAGE for child in accounts[SLAB].children}
    same = sum(ours.get(name, 0) == pages for name, pages in told.items())
    assert same / len(told) > 0.9  # the account itself moved some
    assert abs(sum(ours.values()) - sum(told.values())) / sum(told.values()) < 0.02


def test_page_tables_of_each_process_are_vmpte(guest: Opened) -> None:
    status = guest.truth.numbers("status")
    vm_pte = 5  # column behind the pid
    accounts = {account.name: account for account in guest.survey.ledger.accounts()}
    ours = {child.name: child.total for child in accounts["page tables"].children}
    for process in guest.processes.all:
        row = status.get(process.pid)
        if row is None or process.pid == guest.truth.collector:
            continue
        # VmPTE counts PTE, PMD and PUD tables: not the root and its second half, and not the
        # one P4D table that five levels need.
        uncounted = (2 if guest.kernel.memory.levels == 4 else 3) * PAGE
        assert ours[process.label] == row[vm_pte] * 1024 + uncounted, process.label


def test_threads_of_a_process_share_one_address_space(guest: Opened) -> None:
    threaded = next(p for p in guest.processes.all if p.name == "cast-threads")
    tasks = mm.threads(guest.kernel, threaded.task)
    at = guest.kernel.types.offset("task_struct.mm")
    assert len(tasks) > 8
    assert {guest.kernel.memory.u64(task + at) for task in tasks} == {threaded.mm}
