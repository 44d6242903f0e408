"""Recorded machines: folders that look like the /proc and /sys of one."""

from __future__ import annotations

from pathlib import Path

from memcensus.live.subject import Live

MIB = 1 << 20

# A machine of 16 GiB under Linux 6.1 with a swap partition, in kB as the kernel prints them.
MEMINFO = {
    "MemTotal": 16_000_000,
    "MemFree": 2_000_000,
    "MemAvailable": 9_000_000,
    "Buffers": 300_000,
    "Cached": 7_000_000,
    "SwapCached": 40_000,
    "SwapTotal": 4_000_000,
    "SwapFree": 3_500_000,
    "Zswap": 10_000,
    "Zswapped": 30_000,
    "Dirty": 5_000,
    "Writeback": 1_000,
    "AnonPages": 4_000_000,
    "Mapped": 900_000,
    "Mlocked": 100,
    "Shmem": 600_000,
    "KReclaimable": 500_000,
    "SReclaimable": 480_000,
    "SUnreclaim": 250_000,
    "KernelStack": 20_000,
    "PageTables": 60_000,
    "SecPageTables": 0,
    "CommitLimit": 12_000_000,
    "Committed_AS": 11_000_000,
    "VmallocUsed": 90_000,
    "Percpu": 8_000,
    "AnonHugePages": 0,
    "Hugepagesize": 2_048,
    "Hugetlb": 0,
}
OUR_PROCESS = "4:memory:/\n"


def meminfo(values: dict[str, int]) -> str:
    """The text of a meminfo with these values in kB."""
    return "".join(f"{name}:{value:>14} kB\n" for name, value in values.items())


def machine(folder: Path, files: dict[str, str] | None = None, **changes: int | None) -> Live:
    """A machine with MEMINFO and ``changes`` (None: no such line), and ``files`` beside it.

    Names in ``files`` begin with proc/ or sys/; "{root}" in a content is the folder.
    """
    values = {k: v for k, v in {**MEMINFO, **changes}.items() if v is not None}
    contents = {
        "proc/meminfo": meminfo(values),
        "proc/vmstat": "pgmajfault 12\npswpin 3\npswpout 4\noom_kill 1\n",
        "proc/pressure/memory": (
            "some avg10=1.25 avg60=0.50 avg300=0.10 total=12345\n"
            "full avg10=0.25 avg60=0.00 avg300=0.00 total=345\n"
        ),
        "proc/zoneinfo": "  pagesets\n    cpu: 0\n              count:    100\n",
        "proc/sys/vm/overcommit_memory": "0\n",
        "proc/stat": "cpu 1\nbtime 1700000000\n",
        "proc/slabinfo": (
            "slabinfo - version: 2.1\n# name ...\n"
            "dentry 90 100 192 21 1 : tunables 0 0 0 : slabdata 5 5 0\n"
        ),
        "proc/iomem": "00000000-00000fff : Reserved\n100000000-4ffffffff : System RAM\n",
        "proc/self/mountinfo": "31 20 0:27 / {root}/cg/memory rw - cgroup cgroup rw,memory\n",
        "proc/self/cgroup": OUR_PROCESS,
        "cg/memory/memory.usage_in_bytes": "1000\n",
        "cg/memory/memory.stat": "total_inactive_file 10\ntotal_active_file 20\n",
        "sys/block/sda/size": "1\n",
        **(files or {}),
    }
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("{root}", str(folder)), encoding="latin-1")
    init(folder / "proc")
    return Live(folder / "proc", folder / "sys")


def init(proc: Path) -> None:
    """Process 1, with a map of one page."""
    process(proc, 1)


def process(
    proc: Path,
    pid: int,
    *,
    name: str = "init",
    state: str = "S",
    status: str = "Tgid:\t{pid}\nUid:\t0\t0\t0\t0\nVmRSS:\t     8 kB\nVmSwap:\t       4 kB\n",
    smaps_rollup: str | None = "",
) -> Path:
    """Write a process's folder."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    after = " ".join([state, "0", *("1" for _ in range(17)), "500", "0", "2"])
    (folder / "stat").write_text(f"{pid} ({name}) {after}\n", encoding="latin-1")
    (folder / "status").write_text(status.replace("{pid}", str(pid)), encoding="latin-1")
    (folder / "cmdline").write_bytes(b"/sbin/init\0--now\0")
    if smaps_rollup is not None:
        (folder / "smaps_rollup").write_text(smaps_rollup or ROLLUP, encoding="latin-1")
    return folder


FIELDS = (
    "Rss:                   8 kB\nPss:                   6 kB\n"
    "Shared_Clean:          4 kB\nShared_Dirty:          0 kB\n"
    "Private_Clean:         0 kB\nPrivate_Dirty:         4 kB\nSwap:                  4 kB\n"
)
ROLLUP = "00400000-7ffde336c000 ---p 00000000 00:00 0                          [rollup]\n" + FIELDS
