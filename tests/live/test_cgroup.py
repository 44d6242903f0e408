"""The limit that binds, on recorded trees of cgroup v1, v2, hybrid machines and containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus import budget
from memcensus.live import cgroup
from memcensus.live.cgroup import Level
from memcensus.model import Answer, Budget, Evidence, Source
from memcensus.subject import Request, Target
from tests.live import recorded

NO_LIMIT_V1 = "9223372036854771712"  # PAGE_COUNTER_MAX in bytes
SLACK = 512 << 20  # bytes that others in the same group may take between two looks

V2_MOUNT = "30 20 0:26 / {root}/cg rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "31 20 0:27 / {root}/cg/memory rw - cgroup cgroup rw,memory\n"
V2_JOB = {
    "proc/self/mountinfo": V2_MOUNT,
    "proc/self/cgroup": "0::/user/job\n",
    "cg/user/job/memory.max": "max\n",
    "cg/user/job/memory.high": "300000000\n",
    "cg/user/job/memory.current": "200000000\n",
    "cg/user/job/memory.swap.current": "7000\n",
    "cg/user/job/memory.swap.max": "max\n",
    "cg/user/job/memory.events": "low 0\nhigh 5\nmax 2\noom 1\noom_kill 3\n",
    "cg/user/job/memory.stat": "anon 1\ninactive_file 50000\nactive_file 6000\n",
    "cg/user/memory.max": "500000000\n",
    "cg/user/memory.current": "400000000\n",
    "cg/user/memory.stat": (
        "inactive_file 90000000\nactive_file 10000000\nslab_reclaimable 5000000\n"
    ),
}
V1_JOB = {
    "proc/self/mountinfo": V1_MOUNT,
    "proc/self/cgroup": "4:memory:/a/b\n3:cpu:/a\n",
    "cg/memory/a/b/memory.limit_in_bytes": "700000000\n",
    "cg/memory/a/b/memory.usage_in_bytes": "600000000\n",
    "cg/memory/a/b/memory.stat": (
        "inactive_file 1\ntotal_inactive_file 100000000\ntotal_active_file 3\n"
        "hierarchical_memory_limit 700000000\ntotal_swap 9\n"
    ),
    "cg/memory/a/b/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "cg/memory/memory.limit_in_bytes": NO_LIMIT_V1 + "\n",
    "cg/memory/memory.usage_in_bytes": "900000000\n",
}

# name -> (files, limit that binds, its place, what cannot be given back, how far off)
TREES: dict[str, tuple[dict[str, str], int, str, int, int]] = {
    "v2, the parent is tighter": (
        *(V2_JOB, 500_000_000, "cg/user/memory.max"),
        *(310_000_000, 15_000_000),
    ),
    "v1": (
        *(V1_JOB, 700_000_000, "a/b/memory.limit_in_bytes"),
        *(500_000_000, 3),
    ),
    "hybrid: v2 is mounted without the controller": (
        {
            **V1_JOB,
            "proc/self/mountinfo": V1_MOUNT
            + "32 20 0:28 / {root}/cg/unified rw - cgroup2 cgroup2 rw\n",
            "proc/self/cgroup": "4:memory:/a/b\n0::/a\n",
            "cg/unified/a/cgroup.procs": "1\n",
        },
        *(700_000_000, "a/b/memory.limit_in_bytes"),
        *(500_000_000, 3),
    ),
    "a container sees its own group as the root": (
        {
            "proc/self/mountinfo": "30 20 0:26 / {root}/cg ro - cgroup2 cgroup ro\n",
            "proc/self/cgroup": "0::/\n",
            "cg/memory.max": "400000000\n",
            "cg/memory.current": "100000000\n",
            "cg/memory.stat": "inactive_file 1000\n",
        },
        *(400_000_000, "cg/memory.max"),
        *(99_999_000, 0),
    ),
    "v1 in a container: the tightest group is above the mount": (
        {
            **V1_JOB,
            "cg/memory/a/b/memory.stat": (
                "total_inactive_file 0\nhierarchical_memory_limit 650000000\n"
            ),
        },
        *(650_000_000, "memory.stat:hierarchical_memory_limit"),
        *(600_000_000, 0),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_group_that_binds_decides_with_its_own_usage(name: str, tmp_path: Path) -> None:
    files, limit, where, peak, error = TREES[name]
    report = recorded.machine(tmp_path, files).inspect(Target(""))
    assert report.verdict is not None
    assert report.verdict.budget.limit == limit
    assert report.verdict.budget.source.where.endswith(where)
    assert (report.verdict.peak, report.verdict.error) == (peak, error)
    assert report.verdict.answer == Answer.FITS
    table = report.table("cgroup")
    assert table is not None
    assert limit in {row[2] for row in table.rows if row[3]}


@pytest.mark.parametrize("name", [name for name in TREES if "above" not in name])
def test_the_limit_is_the_one_that_limit_auto_finds(name: str, tmp_path: Path) -> None:
    """budget.py walks the tree by itself; both must come to the same group."""
    live = recorded.machine(tmp_path, TREES[name][0])
    found = budget.automatic(live.proc)
    report = live.inspect(Target(""), Request(found))
    assert report.verdict is not None
    assert report.verdict.budget == found
    assert report.verdict.peak == TREES[name][3]


def test_every_figure_of_each_group_has_a_row_with_its_file(tmp_path: Path) -> None:
    report = recorded.machine(tmp_path, V2_JOB).inspect(Target(""))
    table = report.table("cgroup")
    assert table is not None
    found = {(Path(str(row[0])).name, row[1]): row[2] for row in table.rows}
    assert found == {
        ("job", "high"): 300_000_000,
        ("job", "usage"): 200_000_000,
        ("job", "swap"): 7_000,
        ("job", "inactive file"): 50_000,
        ("job", "active file"): 6_000,
        ("user", "limit"): 500_000_000,
        ("user", "usage"): 400_000_000,
        ("user", "inactive file"): 90_000_000,
        ("user", "active file"): 10_000_000,
        ("user", "reclaimable slab"): 5_000_000,
    }
    assert all(Path(s.where.removeprefix("cgroup ").split(":")[0]).exists() for s in table.sources)
    killed = report.table("killed")
    assert killed is not None
    assert [row[1] for row in killed.rows] == [3]


def test_without_a_group_that_binds_the_machine_decides(tmp_path: Path) -> None:
    files = {**V2_JOB, "cg/user/memory.max": f"{1 << 50}\n"}
    report = recorded.machine(tmp_path, files).inspect(Target(""))
    assert report.verdict is not None
    assert report.verdict.budget.source.where.endswith("meminfo:MemTotal")
    # MemTotal - MemAvailable; standby + free is 2,000 + 7,240 + 2,000 ... kB, reckoned by hand:
    # Buffers 300,000 + Cached 7,000,000 + SwapCached 40,000 - Shmem 600,000 - modified 6,000
    # + KReclaimable 500,000 = 7,234,000; + MemFree 2,000,000 = 9,234,000; MemAvailable 9,000,000
    assert report.verdict.peak == 7_000_000 * 1024
    assert report.verdict.error == 234_000 * 1024


def test_a_size_that_the_user_gives_is_compared_with_the_machine(tmp_path: Path) -> None:
    small = Budget(1 << 30, Source(Evidence.MEASURED, "--limit 1GiB"))
    report = recorded.machine(tmp_path, V2_JOB).inspect(Target(""), Request(small))
    assert report.verdict is not None
    assert report.verdict.answer == Answer.TOO_BIG
    assert report.verdict.peak == 7_000_000 * 1024


def test_no_memory_controller_is_a_gap(tmp_path: Path) -> None:
    files = {"proc/self/mountinfo": "22 1 0:21 / /proc rw - proc proc rw\n"}
    report = recorded.machine(tmp_path, files).inspect(Target(""))
    assert "cgroup limit" in {gap.what for gap in report.gaps}


@pytest.mark.parametrize("content", ["-5", "1e9", "", "\xff", "9" * 4000, "max max"])
def test_a_limit_that_is_none_is_a_gap(content: str, tmp_path: Path) -> None:
    report = recorded.machine(tmp_path, {**V2_JOB, "cg/user/memory.max": content}).inspect(
        Target("")
    )
    assert "cgroup limit" in {gap.what for gap in report.gaps}
    assert report.verdict is not None
    assert report.verdict.budget.limit == 16_000_000 * 1024


def test_figures_that_contradict_give_no_verdict(tmp_path: Path) -> None:
    files = {**V2_JOB, "cg/user/memory.stat": "inactive_file 999999999\n"}
    report = recorded.machine(tmp_path, files).inspect(Target(""))
    assert report.verdict is None
    assert "verdict on the cgroup" in {gap.what for gap in report.gaps}


def test_a_file_that_may_not_be_read_is_a_gap(tmp_path: Path) -> None:
    """A folder in a file's place fails to be read for root too."""
    files = {name: text for name, text in V2_JOB.items() if name != "cg/user/job/memory.max"}
    live = recorded.machine(tmp_path, files)
    (tmp_path / "cg/user/job/memory.max").mkdir()
    report = live.inspect(Target(""))
    assert "cgroup memory.max" in {gap.what for gap in report.gaps}


@given(st.lists(st.integers(1, 1 << 40), max_size=6), st.integers(1, 1 << 40))
def test_the_smallest_limit_below_the_host_binds(limits: list[int], host: int) -> None:
    levels = [
        Level(
            Path(f"/{at}"),
            {"limit": cgroup.Figure(limit, Source(Evidence.MEASURED, str(at)))},
            None,
        )
        for at, limit in enumerate(limits)
    ]
    found = cgroup.binding(levels, host)
    below = [limit for limit in limits if limit < host]
    assert (found.size("limit") if found else None) == min(below, default=None)


@pytest.mark.skipif(
    not any(group.usage_file.exists() for group in budget.memory_cgroups()),
    reason="this machine shows no memory control group",
)
def test_this_machine_s_own_groups_are_read_without_a_gap() -> None:
    levels, gaps = cgroup.read(Path("/proc"))
    groups = [group for group in budget.memory_cgroups() if group.usage_file.exists()]
    assert [level.folder for level in levels] == [group.folder for group in groups]
    assert not gaps
    for level, group in zip(levels, groups, strict=True):
        said = int(group.usage_file.read_text())
        assert level.size("usage") == pytest.approx(said, abs=SLACK)
        assert level.size("limit") == group.limit()
