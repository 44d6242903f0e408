"""The subject live as a whole: what it claims, what it costs, and who may ask."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import MemcensusError, UsageError
from memcensus.live import machine, procfs
from memcensus.live.subject import Live
from memcensus.live.verb import LiveOptions, live
from memcensus.model import Absence
from memcensus.subject import Certainty, Request, Target
from tests.live import recorded

REPOSITORY = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("word", "certainty", "because"),
    [
        ("", Certainty.SHAPE, "no target was named"),
        (".", Certainty.SHAPE, "no target was named"),
        ("1", Certainty.NAME, "a process has the number 1"),
        ("2147483646", Certainty.NO, "no process has the number 2147483646 now"),
        ("12a", Certainty.NO, "is no process number"),
        ("9" * 5000, Certainty.NO, "is no process number"),
        ("٣", Certainty.NO, "is no process number"),
        ("dump.raw", Certainty.NO, "is no process number"),
    ],
)
def test_what_it_claims_and_why(word: str, certainty: Certainty, because: str) -> None:
    claim = Live().claim(Target(word))
    assert (claim.certainty, claim.because) == (certainty, because)


def test_the_verb_takes_a_time_budget() -> None:
    report = live("", options=LiveOptions(pss_budget_ms=0), request=Request())
    assert Absence.OUT_OF_TIME in {gap.absence for gap in report.gaps}
    with pytest.raises(UsageError, match="negative"):
        live("", options=LiveOptions(pss_budget_ms=-1), request=Request())


def test_the_command_line_knows_the_flag_and_the_process() -> None:
    said = _run("--as", "json", "live", str(os.getpid()))
    report = json.loads(said.stdout)
    assert report["root"]["name"].endswith(f"[{os.getpid()}]")
    said = _run("--as", "json", "live", "--pss-budget-ms", "0")
    assert json.loads(said.stdout)["root"]["name"] == "machine"
    said = _run("live", "-5", check=False)
    assert said.returncode == 3
    assert "not a process number" in said.stderr
    assert "Traceback" not in said.stderr


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memcensus", *words]
    return subprocess.run(command, capture_output=True, text=True, check=check, cwd=REPOSITORY)


def test_shared_memory_that_a_program_takes_is_seen_in_the_machine_s() -> None:
    """Others take and give back memory meanwhile: one of five tries within a quarter."""
    size = 128 * MIB
    grown = []
    for _ in range(5):
        before = _shared()
        segment = os.memfd_create("test")
        os.ftruncate(segment, size)
        with mmap.mmap(segment, size) as area:
            for at in range(0, size, 4096):
                area[at] = 1
            grown.append(_shared() - before)
        os.close(segment)
        if grown[-1] == pytest.approx(size, rel=0.25):
            return
    pytest.fail(f"{size} B were taken, but the growth was {grown}")


def _shared() -> int:
    root = machine.look(Path("/proc"), Path("/sys"))[0]
    return next(account.total for path, account in root.walk() if path[-1] == "shared memory")


def test_each_file_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sample is cheap because of this: a file of /proc costs the kernel work at each read."""
    subject = recorded.machine(tmp_path)
    count: Counter[str] = Counter()
    real = procfs.read

    def counted(path: Path | str, limit: int = procfs.LIMIT, folder: int | None = None) -> bytes:
        if folder is None:
            count[str(path)] += 1
        return real(path, limit, folder)

    monkeypatch.setattr(procfs, "read", counted)
    subject.inspect(Target(""))
    assert count[str(subject.proc / "meminfo")] == 1
    assert not {path: times for path, times in count.items() if times > 1}


@given(st.dictionaries(st.sampled_from(sorted(recorded.MEMINFO)), st.integers(0, 10**15 - 1)))
def test_any_values_make_a_report_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, int]
) -> None:
    folder = tmp_path_factory.getbasetemp() / f"values{os.getpid()}"
    subject = Live(folder / "proc", folder / "sys")
    if not folder.exists():
        recorded.machine(folder)
    (folder / "proc/meminfo").write_text(recorded.meminfo({**recorded.MEMINFO, **changes}))
    try:
        report = subject.inspect(Target(""))
    except MemcensusError as error:
        assert "\n" not in str(error)  # noqa: PT017  (either outcome is right)
    else:
        total = report.table("memory")
        assert total is not None
        assert report.root.total == next(row[1] for row in total.rows if row[0] == "usable")


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int, str]] = []
    Live().inspect(Target(""), Request(progress=lambda *words: told.append(words)), 1)
    assert told
    assert {word[0] for word in told} == {"processes"}


# ---------------------------------------------------------------- another user


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

AS_NOBODY = """
import contextlib, io, os, sys
from memcensus import cli
words = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    cli.run(words)  # as root, so that all that is imported late is there: nobody may not read it
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.exit(cli.run(words))
"""


def _run_as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


@needs_root
def test_another_user_sees_the_machine_and_gaps_for_the_rest() -> None:
    said = _run_as_nobody("--as", "json", "live")
    assert said.returncode == 0
    report = json.loads(said.stdout)
    total = psutil.virtual_memory().total
    table = next(t for t in report["tables"] if t["name"] == "memory")
    assert next(row[1] for row in table["rows"] if row[0] == "usable") == total
    assert [child["name"] for child in report["root"]["children"]] == [
        *("in use", "modified", "standby", "free")
    ]
    whats = {gap["what"] for gap in report["gaps"]}
    assert {"slab caches", "hardware reserved"} <= whats
    assert len([what for what in whats if what.startswith("PSS of")]) == 1


@needs_root
def test_another_user_s_process_is_one_sentence_with_the_way_out() -> None:
    said = _run_as_nobody("live", str(os.getpid()))
    assert said.returncode == 3
    assert f"process {os.getpid()} is not yours" in said.stderr
    assert "run as root" in said.stderr
    assert "Traceback" not in said.stderr
