"""Which limit decides, on recorded trees of cgroup v1, v2 and hybrid machines, and on this one."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from memcensus import budget
from memcensus.errors import Unreadable, UsageError

MEMINFO = "MemTotal:       1048576 kB\nMemFree: 1 kB\n"
NO_LIMIT_V1 = "9223372036854771712"  # PAGE_COUNTER_MAX in bytes, as cgroup v1 prints it

# (mountinfo lines, /proc/self/cgroup, {limit file: content}) -> the limit that must win
TREES = {
    "v2, the parent is tighter": (
        ["30 20 0:26 / {root}/cg rw - cgroup2 cgroup2 rw"],
        "0::/user/job",
        {"cg/user/job/memory.max": "800000000", "cg/user/memory.max": "500000000"},
        (500_000_000, "user/memory.max"),
    ),
    "v2, no limit anywhere": (
        ["30 20 0:26 / {root}/cg rw - cgroup2 cgroup2 rw"],
        "0::/user/job",
        {"cg/user/job/memory.max": "max"},
        (1 << 30, "MemTotal"),
    ),
    "v1": (
        ["31 20 0:27 / {root}/cg/memory rw shared:9 - cgroup cgroup rw,memory"],
        "4:memory:/a/b\n3:cpu:/a",
        {
            "cg/memory/a/b/memory.limit_in_bytes": "700000000",
            "cg/memory/memory.limit_in_bytes": NO_LIMIT_V1,
        },
        (700_000_000, "a/b/memory.limit_in_bytes"),
    ),
    "hybrid: v2 is mounted without the controller": (
        [
            "31 20 0:27 / {root}/cg/memory rw - cgroup cgroup rw,memory",
            "32 20 0:28 / {root}/cg/unified rw - cgroup2 cgroup2 rw",
        ],
        "4:memory:/a\n0::/a",
        {"cg/memory/a/memory.limit_in_bytes": "600000000", "cg/unified/a/cgroup.procs": "1"},
        (600_000_000, "memory/a/memory.limit_in_bytes"),
    ),
    "a container sees its own cgroup as the mount's root": (
        ["30 20 0:26 /docker/abc {root}/cg ro - cgroup2 cgroup ro"],
        "0::/docker/abc",
        {"cg/memory.max": "400000000"},
        (400_000_000, "cg/memory.max"),
    ),
    "a namespaced process's path lies outside of the mount": (
        ["30 20 0:26 /docker/abc {root}/cg ro - cgroup2 cgroup ro"],
        "0::/../other",
        {"cg/memory.max": "300000000"},
        (300_000_000, "cg/memory.max"),
    ),
    "a mount point with a blank in its name": (
        ["30 20 0:26 / {root}/c\\040g rw - cgroup2 cgroup2 rw"],
        "0::/job",
        {"c g/job/memory.max": "200000000"},
        (200_000_000, "job/memory.max"),
    ),
    "hostile contents set no limit": (
        ["30 20 0:26 / {root}/cg rw - cgroup2 cgroup2 rw", "garbage", "- -", "1 2 3 4 5 - x"],
        "0::/a\nno colon\n:::::",
        {"cg/a/memory.max": "-5", "cg/memory.max": "\x00\xff1e9"},
        (1 << 30, "MemTotal"),
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_the_smallest_limit_among_host_and_ancestors_wins(name: str, tmp_path: Path) -> None:
    mounts, cgroup, files, (limit, where) = TREES[name]
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text(MEMINFO)
    lines = "\n".join(line.format(root=tmp_path) for line in mounts)
    (tmp_path / "self" / "mountinfo").write_text(lines)
    (tmp_path / "self" / "cgroup").write_text(cgroup)
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    found = budget.automatic(tmp_path)
    assert limit == found.limit
    assert found.source.where.endswith(where)


def test_host_memory_is_what_psutil_says() -> None:
    assert psutil.virtual_memory().total == budget.host_memory().limit


def test_an_rlimit_decides_when_it_is_the_smallest() -> None:
    script = "from memcensus import budget; b = budget.automatic(); print(b.limit, b.source.where)"

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (500_000_000, 500_000_000))

    command = [sys.executable, "-c", script]
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=limit_memory,
    )
    assert said.stdout.startswith("500000000 setrlimit RLIMIT_AS")


def test_without_proc_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="give --limit a size"):
        budget.automatic(tmp_path)
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(Unreadable, match="no line MemTotal"):
        budget.automatic(tmp_path)


def test_a_named_size_says_that_the_user_named_it() -> None:
    assert budget.parse("2GiB").source.where == "--limit 2GiB"
    with pytest.raises(UsageError):
        budget.parse("much")
