"""All processes: who they are as ps says, their shares as psutil says, within the time given."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import MemcensusError
from memcensus.live import process, processes
from memcensus.model import Absence, Cell, Gap, Table
from memcensus.subject import silent
from tests.live import recorded

PROC = Path("/proc")
COLUMNS = [
    *("pid", "ppid", "uid", "name", "arguments", "started"),
    *("resident", "pss", "private", "swap"),
]


def rows(found: Table) -> dict[int, dict[str, Cell]]:
    return {int(str(row[0])): dict(zip(COLUMNS, row, strict=True)) for row in found.rows}


def recorded_rows(
    folder: Path, budget_ms: int = 1000, clock: float | None = None
) -> tuple[dict[int, dict[str, Cell]], list[Gap]]:
    tick = itertools.count(0.0, clock or 0.0)
    table, gaps = processes.read(folder, budget_ms, silent, lambda: next(tick))
    return rows(table), list(gaps)


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    """A program that holds still once it has said so."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_a_process_is_who_ps_and_psutil_say() -> None:
    child = sleeper("two words", "ü")
    theirs = psutil.Process(child.pid)
    found, full = {}, None
    while full is None or full != theirs.memory_full_info():
        # others start and end, and with them its libraries' pages become shared and private again
        full = theirs.memory_full_info()
        found = rows(processes.read(PROC, 60_000, silent)[0])[child.pid]
    command = ["ps", "-o", "ppid=,uid=,comm=", "-p", str(child.pid)]
    ps = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [str(found["ppid"]), str(found["uid"]), found["name"]] == ps
    assert found["arguments"] == " ".join(theirs.cmdline())
    assert found["resident"] == theirs.memory_info().rss
    assert (found["pss"], found["private"], found["swap"]) == (full.pss, full.uss, full.swap)
    started = datetime.strptime(str(found["started"]), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert started.timestamp() == pytest.approx(theirs.create_time(), abs=1)
    child.communicate()


def test_the_columns_are_those_that_scripts_rely_on() -> None:
    assert [column.name for column in processes.COLUMNS] == COLUMNS
    assert [column.unit for column in processes.COLUMNS[6:]] == ["B"] * 4


def test_without_time_the_resident_bytes_are_there_and_one_gap() -> None:
    found, gaps = processes.read(PROC, 0, silent)
    mapped = [row for row in found.rows if row[6]]
    assert mapped
    assert {row[7] for row in mapped} == {None}
    late = [gap for gap in gaps if gap.absence == Absence.OUT_OF_TIME]
    assert len(late) == 1
    assert f"{len(mapped)} not reached within 0 ms" in late[0].why


def test_the_biggest_are_measured_first(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    for pid, kib in ((10, 100), (11, 900), (12, 500)):
        status = f"Tgid:\t{pid}\nUid:\t0\t5\t0\t0\nVmRSS:\t{kib} kB\nVmSwap:\t0 kB\n"
        recorded.process(live.proc, pid, status=status)
    found, gaps = recorded_rows(live.proc, budget_ms=25, clock=0.01)
    measured = [pid for pid, row in found.items() if row["pss"] is not None]
    assert sorted(measured) == [11, 12]  # the clock reads 10 ms, then 20 ms, then 30 ms
    assert gaps[0].what == "PSS of 2 processes"
    assert found[11]["uid"] == 5  # the effective one


def test_one_that_ended_meanwhile_is_no_gap(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    (live.proc / "50").mkdir()  # listed, and gone before its stat is read
    found, gaps = recorded_rows(live.proc)
    assert list(found) == [1]
    assert not gaps


def test_a_number_that_is_given_to_another_process_meanwhile_is_left_out(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    folder = recorded.process(live.proc, 60)

    def clock() -> float:  # read after all processes were looked at and before they are measured
        stat = (folder / "stat").read_text().replace(" 500 ", " 501 ")
        (folder / "stat").write_text(stat)
        return 0.0

    table, gaps = processes.read(live.proc, 1000, silent, clock)
    assert list(rows(table)) == [1]
    assert not gaps


def test_kernel_threads_and_zombies_have_zero_bytes_which_is_known(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    nothing = "Tgid:\t{pid}\nUid:\t0\t0\t0\t0\n"
    recorded.process(live.proc, 2, name="kthreadd", status=nothing, smaps_rollup=None)
    recorded.process(live.proc, 3, name="gone", state="Z", status=nothing, smaps_rollup=None)
    found, gaps = recorded_rows(live.proc)
    assert [found[pid][name] for pid in (2, 3) for name in COLUMNS[6:]] == [0] * 8
    assert not gaps


def test_a_kernel_before_4_14_has_its_smaps_summed(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    folder = recorded.process(live.proc, 4, smaps_rollup=None)
    page = "00400000-00401000 rw-p 00000000 00:00 0 \n" + recorded.FIELDS
    (folder / "smaps").write_text(page + page)
    found, gaps = recorded_rows(live.proc)
    assert (found[4]["pss"], found[4]["private"]) == (12 * 1024, 8 * 1024)
    assert not gaps


@pytest.mark.parametrize("name", ["a) S 1", "(((", ")", "a\nVmRSS: 9 kB", "\xff\xfe", ""])
def test_a_name_cannot_pass_for_other_fields(name: str, tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    recorded.process(live.proc, 4, name=name)
    found, gaps = recorded_rows(live.proc)
    assert found[4]["name"] == name.encode("latin-1").decode("utf-8", "backslashreplace")
    assert (found[4]["ppid"], found[4]["resident"]) == (0, 8192)
    assert not gaps


def test_a_folder_that_is_not_as_the_manual_says_is_counted(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    for pid, (file, content) in enumerate(
        [("stat", b"\x00"), ("stat", b"4 (x) S -"), ("status", b""), ("smaps_rollup", b"x")], 5
    ):
        (recorded.process(live.proc, pid) / file).write_bytes(content)
    _, gaps = recorded_rows(live.proc)
    assert [gap.what for gap in gaps] == ["PSS of 4 processes"]
    assert "4 with files that are not as proc(5) says" in gaps[0].why


def test_a_machine_that_hides_other_users_processes_says_so(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    (live.proc / "1").rename(live.proc / "99")
    _, gaps = recorded_rows(live.proc)
    assert [gap.what for gap in gaps] == ["processes of others"]


def test_a_long_command_line_is_cut_and_says_so() -> None:
    child = sleeper("x" * 100_000)
    found = rows(processes.read(PROC, 0, silent)[0])[child.pid]
    assert str(found["arguments"]).endswith("x [cut after 32,768 bytes]")
    child.communicate()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_random_bytes_for_a_process_raise_nothing_but_ours(
    tmp_path_factory: pytest.TempPathFactory, stat: bytes, status: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"random{os.getpid()}" / "7"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("stat", stat), ("status", status), ("cmdline", stat)):
        (folder / name).write_bytes(content)
    with process.folder(folder.parent, 7) as opened:
        try:
            process.read(opened, 7)
        except MemcensusError as error:
            assert "/proc/7/" in str(error)  # noqa: PT017  (either outcome is right)


def test_processes_that_come_and_go_are_no_fault() -> None:
    """A parent that forks children as fast as it can, each gone at once."""
    code = "import os\nwhile True:\n  p = os.fork()\n  p or os._exit(0)\n  os.waitpid(p, 0)"
    parent = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            table, gaps = processes.read(PROC, 1000, silent)
            assert len(table.rows) > 1
            assert not [gap for gap in gaps if "not as proc(5)" in gap.why]
    finally:
        parent.kill()
        parent.wait()
