"""Numbers, pressure, events, slab, compressed stores: recorded, hostile, and this machine's."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.live import (
    arc,
    compressed,
    machine,
    meminfo,
    memory,
    pressure,
    slab,
    vmstat,
    zoneinfo,
)
from memcensus.model import Absence, Account, Cell, Gap, Report, Table
from memcensus.subject import Target
from tests.live import recorded

PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cells(table: Table | None) -> dict[Cell, Cell]:
    assert table is not None
    return {row[0]: row[1] for row in table.rows}


def whats(report: Report) -> set[str]:
    return {gap.what for gap in report.gaps}


def look(folder: Path, files: dict[str, str] | None = None, **changes: int | None) -> Report:
    return recorded.machine(folder, files, **changes).inspect(Target(""))


# ---------------------------------------------------------------- the numbers


def test_each_number_is_what_its_formula_gives_by_hand(tmp_path: Path) -> None:
    files = {"sys/block/zram0/mm_stat": "4096000 1000 1024000 0 2048000 0 0 0 0\n"}
    found = cells(look(tmp_path, files).table("memory"))
    # kB, reckoned from recorded.MEMINFO by hand
    assert {name: int(str(size)) / 1024 for name, size in found.items()} == {
        "in use": 16_000_000 - 2_000_000 - 7_240_000,
        "modified": 5_000 + 1_000,
        "standby": 6_734_000 + 500_000,
        "free": 2_000_000,
        "cached": 7_240_000,
        "usable": 16_000_000,
        "available": 9_000_000,
        "available (standby + free)": 9_234_000,
        "in use (compressed)": 10_000 + 1_000,
        "compressed data": 30_000 + 4_000,
        "committed": 11_000_000,
        "commit limit": 12_000_000,
        "paged pool": 500_000,
        "non-paged pool": 250_000 + 20_000 + 60_000 + 0 + 8_000,
        "shared memory": 600_000,
        "mapped files": 900_000,
        "locked": 100,
        "swap used": 500_000,
        "swap size": 4_000_000,
        "hardware reserved": (16 << 20) - 16_000_000,
    }


def test_every_number_says_what_it_means_in_both_systems(tmp_path: Path) -> None:
    table = look(tmp_path).table("memory")
    assert table is not None
    for row, source in zip(table.rows, table.sources, strict=True):
        assert source.meaning == row[2]
        assert row[3]
        assert source.where


@pytest.mark.parametrize(("policy", "word"), [("0", "advisory"), ("1", "advisory"), ("2", "refus")])
def test_the_commit_limit_is_advisory_unless_it_is_enforced(
    policy: str, word: str, tmp_path: Path
) -> None:
    files = {"proc/sys/vm/overcommit_memory": policy}
    table = look(tmp_path, files).table("memory")
    assert table is not None
    assert word in next(str(row[2]) for row in table.rows if row[0] == "committed")


def test_a_number_that_is_missing_is_a_gap_and_not_zero(tmp_path: Path) -> None:
    report = look(tmp_path, MemAvailable=None, SwapFree=None, Mapped=None)
    found = cells(report.table("memory"))
    assert [found[name] for name in ("available", "swap used", "mapped files")] == [None] * 3
    assert {"available", "swap used", "mapped files"} <= whats(report)
    assert report.verdict is not None  # the other sense of available is there
    assert report.verdict.peak == (16_000_000 - 9_234_000) * 1024


def test_more_swap_free_than_there_is_is_a_gap_and_not_negative(tmp_path: Path) -> None:
    report = look(tmp_path, SwapFree=5_000_000)
    assert cells(report.table("memory"))["swap used"] is None
    assert "swap used" in whats(report)


def test_swap_and_commitment_are_those_of_psutil_and_the_kernel() -> None:
    live = machine.look(PROC, Path("/sys"))[1]
    found = cells(memory.table(live)[0])
    theirs = psutil.swap_memory()
    assert found["swap size"] == theirs.total
    lines = dict(line.split(":") for line in (PROC / "meminfo").read_text().splitlines())
    assert found["commit limit"] == int(lines["CommitLimit"].split()[0]) * 1024


# ---------------------------------------------------------------- compressed stores


def test_what_compressed_stores_hold_and_take(tmp_path: Path) -> None:
    files = {
        "sys/block/zram0/mm_stat": "  3000000 900000 1000000 0 1000000 0 0 0 0\n",
        "sys/block/zram1/mm_stat": "0 0 0 0 0 0 0 0 0\n",
    }
    table = look(tmp_path, files).table("compressed")
    assert table is not None
    assert table.rows == (
        ("zswap", 30_000 * 1024, 10_000 * 1024, 3.0),
        ("zram0", 3_000_000, 1_000_000, 3.0),
    )


@pytest.mark.parametrize("content", ["", "1 2", "-1 2 3", "x y z", "9" * 99 + " 1 1"])
def test_a_zram_device_that_tells_nothing_is_a_gap(content: str, tmp_path: Path) -> None:
    report = look(tmp_path, {"sys/block/zram0/mm_stat": content})
    assert "zram0" in whats(report)
    assert cells(report.table("memory"))["in use (compressed)"] is None


def test_zswap_before_5_19_is_a_gap_where_it_is_on(tmp_path: Path) -> None:
    switch = "sys/module/zswap/parameters/enabled"
    on = look(tmp_path / "a", {switch: "Y\n"}, Zswap=None, Zswapped=None)
    off = look(tmp_path / "b", {switch: "N\n"}, Zswap=None, Zswapped=None)
    assert "zswap" in whats(on)
    assert "zswap" not in whats(off)


# ---------------------------------------------------------------- pressure, events, slab


def test_pressure_is_read_with_its_shares(tmp_path: Path) -> None:
    table = look(tmp_path).table("pressure")
    assert table is not None
    assert table.rows == (("some", 1.25, 0.5, 0.1, 12345), ("full", 0.25, 0.0, 0.0, 345))


def test_a_kernel_without_pressure_is_a_gap(tmp_path: Path) -> None:
    table, gaps = pressure.read(tmp_path)
    assert not table.rows
    assert "psi=1" in gaps[0].why
    assert "memory pressure" in whats(look(tmp_path, {"proc/pressure/memory": "some avg10=x\n"}))


def test_events_are_those_of_psutil() -> None:
    before = psutil.swap_memory()
    found = cells(vmstat.read(PROC)[0])
    after = psutil.swap_memory()
    assert before.sin <= int(str(found["pages swapped in"])) * 4096 <= after.sin
    assert before.sout <= int(str(found["pages swapped out"])) * 4096 <= after.sout


@pytest.mark.skipif(not os.access("/proc/slabinfo", os.R_OK), reason="slabinfo is root's")
def test_the_slab_caches_sum_to_what_meminfo_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab, "TOP", 1 << 20)
    table, gaps = slab.read(PROC)
    assert not gaps
    total = meminfo.read(PROC).value("SReclaimable + SUnreclaim")
    assert total is not None
    # kmalloc beyond two pages is unreclaimable slab in meminfo and in no cache (mm/slub.c)
    sizes = [int(str(row[1])) for row in table.rows]
    assert 0.8 * total < sum(sizes) < 1.05 * total
    assert sizes == sorted(sizes, reverse=True)


def test_free_pages_at_each_cpu_are_summed(tmp_path: Path) -> None:
    lines = "  pages free 9\n  pagesets\n  cpu: 0\n     count: 7\n     high: 9\n     count: 5\n"
    recorded.machine(tmp_path, {"proc/zoneinfo": lines})
    found = zoneinfo.read(tmp_path / "proc")
    assert isinstance(found, Account)
    assert found.total == 12 * PAGE


def test_files_that_are_not_there_are_gaps_each(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    for name in ("vmstat", "slabinfo", "zoneinfo", "iomem", "pressure/memory"):
        (live.proc / name).unlink()
    (live.sys / "block/sda/size").unlink()
    (live.sys / "block/sda").rmdir()
    (live.sys / "block").rmdir()
    report = live.inspect(Target(""))
    assert whats(report) == {
        *("events", "slab caches", "free pages at each CPU", "hardware reserved"),
        *("memory pressure", "zram"),
    }
    assert {gap.absence for gap in report.gaps} == {Absence.UNREADABLE}


def test_files_whose_addresses_are_hidden_are_gaps(tmp_path: Path) -> None:
    hidden = "00000000-00000000 : System RAM\n"
    assert "hardware reserved" in whats(look(tmp_path, {"proc/iomem": hidden}))


# ---------------------------------------------------------------- hostile bytes


@given(st.binary(max_size=400))
def test_random_bytes_in_any_file_raise_nothing(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    proc = tmp_path_factory.getbasetemp() / f"bytes{os.getpid()}"
    for name in ("pressure/memory", "vmstat", "slabinfo", "zoneinfo", "spl/kstat/zfs/arcstats"):
        path = proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    device = proc / "block/zram0"
    device.mkdir(parents=True, exist_ok=True)
    (device / "mm_stat").write_bytes(raw)
    for _, gaps in (pressure.read(proc), vmstat.read(proc), slab.read(proc), arc.read(proc)):
        assert all(gap.absence == Absence.UNPARSABLE for gap in gaps)
    assert isinstance(zoneinfo.read(proc), Account | Gap)
    stores, _ = compressed.read(meminfo.parse(raw, proc), proc)
    assert all(store.size >= 0 for store in stores)
