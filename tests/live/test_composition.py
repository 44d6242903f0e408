"""The composition bar sums to MemTotal, or a Gap says why it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import Unreadable
from memcensus.live import composition, machine
from memcensus.live.arc import Arc
from memcensus.live.compressed import Store
from memcensus.live.inuse import Beside
from memcensus.live.meminfo import Meminfo, read
from memcensus.live.subject import Live
from memcensus.model import UNEXPLAINED, Account, Evidence, Source
from memcensus.subject import Target
from tests.live import recorded

HERE = Path("/proc/meminfo")
BAR = ["in use", "modified", "standby", "free"]
PAGE = 4096
SLACK = 256 << 20
"""Bytes by which two looks at this machine may differ: others work on it at the same time."""

sizes = st.integers(0, 1 << 40)


def part(account: Account, *path: str) -> Account:
    for name in path:
        account = next(child for child in account.children if child.name == name)
    return account


# ---------------------------------------------------------------- laws


@given(st.lists(sizes, min_size=16, max_size=16))
def test_consistent_counters_are_split_exactly(values: list[int]) -> None:
    """Build a machine from its owners; the bar must give each back."""
    (free, dirty, written, clean, shared, reclaimable, arc_loose, arc_kept) = values[:8]
    (anonymous, slab, stacks, tables, percpu, vmalloc, store, rest) = values[8:]
    beside = Beside(
        Arc(arc_loose + arc_kept, arc_kept, Path("arcstats")),
        [Store("zram0", store * 3, store, Source(Evidence.MEASURED, "mm_stat"))],
    )
    info = Meminfo(
        HERE,
        {
            "MemTotal": sum(values),
            "MemFree": free,
            "Buffers": clean // 3,
            "Cached": clean - clean // 3 + dirty + written + shared,
            "SwapCached": 0,
            "Shmem": shared,
            "Dirty": dirty,
            "Writeback": written,
            "KReclaimable": reclaimable,
            "AnonPages": anonymous,
            "SUnreclaim": slab,
            "KernelStack": stacks,
            "PageTables": tables,
            "Percpu": percpu,
            "VmallocUsed": vmalloc + stacks,
        },
    )
    root, parts, gaps = composition.account(info, beside)
    assert not gaps
    assert parts is not None
    assert [child.name for child in root.children] == BAR
    assert root.total == sum(values)
    assert dirty + written == part(root, "modified").total
    assert clean + reclaimable + arc_loose == part(root, "standby").total
    assert part(root, "in use", "anonymous").total == anonymous
    assert part(root, "in use", "shared memory").total == shared
    assert part(root, "in use", "compressed: zram0").total == store
    assert part(root, "in use", "ZFS cache that stays").total == arc_kept
    assert part(root, "in use", "kernel").total == slab + stacks + tables + percpu + vmalloc
    assert rest == sum(
        child.total for child in part(root, "in use").children if child.name == UNEXPLAINED
    )


@given(
    st.dictionaries(st.sampled_from(sorted({*recorded.MEMINFO, "Bounce"} - {"MemTotal"})), sizes),
    sizes,
    st.tuples(sizes, sizes),
)
def test_any_counters_sum_or_a_gap_says_why_not(
    fields: dict[str, int], total: int, arc: tuple[int, int]
) -> None:
    info = Meminfo(HERE, {**fields, "MemTotal": total})
    root, parts, gaps = composition.account(info, Beside(Arc(*arc, Path("arcstats"))))
    assert root.total == total
    assert all(account.own >= 0 for _, account in root.walk())
    if parts is None:
        assert gaps[0].what == "composition"
        assert {child.name for child in root.children} <= {"free", UNEXPLAINED}
    else:
        assert [child.name for child in root.children] == BAR
        assert total == parts.in_use + parts.modified + parts.standby + parts.free
        overfull = not part(root, "in use").children and part(root, "in use").total
        assert not overfull or any(gap.what == "what is in use" for gap in gaps)


def test_without_memtotal_there_is_nothing_to_account_for() -> None:
    with pytest.raises(Unreadable, match="no line MemTotal"):
        composition.account(Meminfo(HERE, {"MemFree": 1}))


# ---------------------------------------------------------------- this machine


def test_the_parts_are_those_of_free_and_psutil() -> None:
    words = subprocess.run(["free", "-b", "-w"], capture_output=True, text=True, check=True).stdout
    total, _, free, shared, buffers, cache, available = map(int, words.splitlines()[1].split()[1:])
    theirs = psutil.virtual_memory()
    root, found, _ = machine.look(Path("/proc"), Path("/sys"))
    assert root.total == total == theirs.total
    assert part(root, "free").total == pytest.approx(free, abs=SLACK)
    assert part(root, "in use", "shared memory").total == pytest.approx(shared, abs=SLACK)
    # free -w: cache is Cached + SReclaimable; it calls shared memory cached, which we do not
    assert part(root, "standby").total + part(root, "modified").total + shared == pytest.approx(
        buffers + cache, abs=SLACK
    )
    assert found.available == pytest.approx(available, abs=SLACK)
    assert found.available == pytest.approx(theirs.available, abs=SLACK)


def test_this_machine_is_explained_without_a_contradiction() -> None:
    report = Live().inspect(Target(""), pss_budget_ms=0)
    assert [child.name for child in report.root.children] == BAR
    assert all(account.source.where for _, account in report.root.walk())
    assert not [gap for gap in report.gaps if gap.what in {"composition", "what is in use"}]


# ---------------------------------------------------------------- recorded machines


def test_a_kernel_before_4_20_has_sreclaimable_for_kreclaimable(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path, KReclaimable=None, Percpu=None, SecPageTables=None)
    root, _, gaps = machine.look(live.proc, live.sys)
    assert not gaps
    found = part(root, "standby", "reclaimable kernel objects")
    assert found.total == 480_000 * 1024
    assert found.source.where.endswith("meminfo:SReclaimable")


def test_a_counter_that_must_be_there_is_a_gap_and_not_zero(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path, Shmem=None)
    root, _, gaps = machine.look(live.proc, live.sys)
    assert "has no Shmem" in gaps[0].why
    assert [child.name for child in root.children] == ["free", UNEXPLAINED]
    live = recorded.machine(tmp_path, SUnreclaim=None)
    root, _, gaps = machine.look(live.proc, live.sys)
    assert [gap.what for gap in gaps] == ["unreclaimable slab"]
    assert [child.name for child in root.children] == BAR


def test_swap_cache_is_standby_and_anonymous_the_least_it_can_be(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path, SwapCached=5_000_000, Cached=2_000_000)
    root, _, gaps = machine.look(live.proc, live.sys)
    assert not gaps
    assert part(root, "in use", "anonymous").total == 0
    assert "at least 0" in part(root, "in use", "anonymous").source.where


def test_zfs_gives_back_what_is_above_its_minimum(tmp_path: Path) -> None:
    arcstats = "name type data\nhits 4 1\nc_min 4 1000000\nc_max 4 9000000\nsize 4 3000000\n"
    plain, _, _ = machine.look(*_folders(recorded.machine(tmp_path / "a")))
    files = {"proc/spl/kstat/zfs/arcstats": arcstats}
    with_zfs, look, gaps = machine.look(*_folders(recorded.machine(tmp_path / "b", files)))
    assert not gaps
    grown = part(with_zfs, "standby").total - part(plain, "standby").total
    assert grown == 2_000_000
    assert part(with_zfs, "in use", "ZFS cache that stays").total == 1_000_000
    assert look.available == 9_000_000 * 1024 + 2_000_000
    assert "arcstats:size - c_min" in part(with_zfs, "in use").source.where


def test_zfs_larger_than_what_is_used_is_a_gap_and_no_negative_part(tmp_path: Path) -> None:
    arcstats = f"c_min 4 0\nsize 4 {1 << 50}\n"
    live = recorded.machine(tmp_path, {"proc/spl/kstat/zfs/arcstats": arcstats})
    root, _, gaps = machine.look(live.proc, live.sys)
    assert gaps[0].what == "composition"
    assert "arcstats" in gaps[0].why
    assert root.total == 16_000_000 * 1024


def test_a_container_that_says_more_free_than_total_is_not_believed(tmp_path: Path) -> None:
    """The negative "used" of glances issue 3358: lxcfs and the host's values mixed."""
    live = recorded.machine(tmp_path, MemTotal=1_000_000)
    report = live.inspect(Target(""))
    assert report.root.total == 1_000_000 * 1024
    assert report.gaps[0].what == "composition"
    assert report.verdict is None


def test_counters_that_race_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = recorded.machine(tmp_path)
    good = read(live.proc)
    torn = Meminfo(good.path, {**good.fields, "Dirty": 1 << 50})
    readings = iter([torn, torn, good])
    monkeypatch.setattr("memcensus.live.meminfo.read", lambda _: next(readings))
    root, _, gaps = machine.look(live.proc, live.sys)
    assert not gaps
    assert [child.name for child in root.children] == BAR


@pytest.mark.parametrize(("short", "split"), [(0, True), (1, False)])
def test_one_byte_too_much_is_a_contradiction(short: int, split: bool) -> None:  # noqa: FBT001
    names = ("MemFree", "Buffers", "Cached", "SwapCached", "Shmem", "Dirty", "Writeback")
    info = Meminfo(HERE, {**dict.fromkeys(names, 0), "KReclaimable": 5, "MemTotal": 5 - short})
    root, parts, gaps = composition.account(info)
    assert (parts is not None) == split
    assert root.total == 5 - short
    assert split or "hold 5 B" in gaps[0].why


def test_huge_pages_before_4_19_are_their_number_times_their_size(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path, Hugetlb=None)
    with (live.proc / "meminfo").open("a") as file:
        file.write("HugePages_Total:       3\nHugePages_Free:        1\n")
    root, _, gaps = machine.look(live.proc, live.sys)
    assert not gaps
    found = part(root, "in use", "huge pages")
    assert found.total == 3 * 2048 * 1024
    assert found.source.where.endswith("HugePages_Total * Hugepagesize")


def test_free_pages_at_a_cpu_that_do_not_fit_are_left_out_with_a_gap(tmp_path: Path) -> None:
    files = {"proc/zoneinfo": f"     count: {1 << 36}\n"}
    root, _, gaps = machine.look(*_folders(recorded.machine(tmp_path, files)))
    assert [gap.what for gap in gaps] == ["free pages at each CPU"]
    assert part(root, "in use").children


def _folders(live: Live) -> tuple[Path, Path]:
    return live.proc, live.sys
