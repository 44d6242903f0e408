"""Grammar, streams and exit codes, with a subject made for the purpose."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest

from memcensus import absent, cli, subject
from memcensus.errors import Unreadable
from memcensus.model import Absence, Account, Column, Evidence, Gap, Report, Source, Table
from memcensus.subject import Certainty, Claim, Request, Target

HERE = Source(Evidence.MEASURED, "tests")


class Jar:
    """A subject of 1000 bytes; a file that starts with "jar" is one."""

    name: ClassVar[str] = "jar"
    summary: ClassVar[str] = "a jar"

    def claim(self, target: Target) -> Claim:
        sure = target.head.startswith(b"jar")
        return Claim(Certainty.MAGIC if sure else Certainty.NO, "jars start with jar")

    def inspect(self, target: Target, request: Request = Request()) -> Report:  # noqa: B008
        request.progress("biscuits", 1, 2, "biscuit")
        if target.text == "broken":
            raise Unreadable("the jar is broken; take another")
        if target.text == "interrupted":
            raise KeyboardInterrupt
        root = Account("jar", 0, HERE, (Account("jam", 900, HERE), Account("air", 100, HERE)))
        table = Table("processes", (Column("pid"),), ((7,),), (HERE,))
        gaps = (Gap("the lid", Absence.UNREADABLE, "it is\x1b[2J stuck"),)
        partial = target.text == "half"
        return Report("jar", target.text, root, tables=(table,), gaps=gaps, partial=partial)


class Twin(Jar):
    """A subject as sure about jars as the other."""

    name: ClassVar[str] = "twin"


@pytest.fixture(autouse=True)
def _jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(subject.SUBJECTS, "jar", f"{__name__}:Jar")


Output = pytest.CaptureFixture[str]


def test_the_report_goes_to_stdout_and_gaps_to_stderr(capsys: Output) -> None:
    assert 0 == cli.run(["jar", "x"])
    said = capsys.readouterr()
    assert "jam" in said.out
    assert said.out.rstrip().splitlines()[-1].startswith("no verdict")
    assert "gap: the lid (unreadable): it is\\x1b[2J stuck" in said.err
    assert "lid" not in said.out


@pytest.mark.parametrize(
    ("limit", "code", "word"), [("2KB", 0, "fits"), ("1000", 0, "fits"), ("999B", 1, "too big")]
)
def test_a_limit_decides_the_exit_code(capsys: Output, limit: str, code: int, word: str) -> None:
    assert code == cli.run(["jar", "x", "--limit", limit])
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last.startswith(word)
    assert f"--limit {limit}" in last


def test_an_error_bar_across_the_limit_is_code_4(tmp_path: Path, capsys: Output) -> None:
    root = Account("x", 1000, HERE, error=10)
    from memcensus.views.json import dumps

    path = tmp_path / "r.json"
    path.write_text(dumps(Report("net", "x", root)))
    assert 4 == cli.run(["show", str(path), "--limit", "1005B"])
    assert "too close to call" in capsys.readouterr().out


def test_a_second_word_shows_its_table(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.SECOND_WORDS, "jar", {"processes": "who is in it"})
    assert 0 == cli.run(["jar", "processes", "x"])
    out = capsys.readouterr().out
    assert "processes" in out
    assert "jam" not in out


def test_a_target_finds_its_subject_and_a_tie_names_both(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"jar of jam")
    assert 0 == cli.run([str(path)])
    assert "jam" in capsys.readouterr().out
    monkeypatch.setitem(subject.SUBJECTS, "twin", f"{__name__}:Twin")
    assert 2 == cli.run([str(path)])
    said = capsys.readouterr().err
    assert "memcensus jar" in said
    assert "memcensus twin" in said


def test_what_nobody_claims_lists_what_was_tried(capsys: Output) -> None:
    assert 3 == cli.run(["nonsense"])
    said = capsys.readouterr().err
    assert "jar: jars start with jar" in said
    assert "name the kind: memcensus <kind> nonsense" in said


def test_an_error_is_one_sentence_with_its_own_code(capsys: Output) -> None:
    assert 3 == cli.run(["jar", "broken"])
    assert "memcensus: the jar is broken; take another\n" == capsys.readouterr().err


def test_ctrl_c_is_130_and_partial_results_are_kept(capsys: Output) -> None:
    assert 130 == cli.run(["jar", "interrupted"])
    assert "interrupted" in capsys.readouterr().err
    assert 130 == cli.run(["jar", "half"])
    assert "partial" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["json", "html", "csv", "txt"])
def test_the_suffix_of_the_output_names_its_form(
    tmp_path: Path, capsys: Output, suffix: str
) -> None:
    path = tmp_path / f"out.{suffix}"
    assert 0 == cli.run(["jar", "x", "-o", str(path)])
    text = path.read_text()
    starts = {"json": '{"schema":1', "html": "<!doctype html", "csv": "path,", "txt": "jar: x"}
    assert text.lower().startswith(starts[suffix])
    said = capsys.readouterr()
    assert "jar: no verdict" in said.out
    assert str(path) in said.err
    assert [path] == list(tmp_path.iterdir()), "a part file was left behind"


def test_a_saved_report_is_itself_a_target(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "r.json"
    cli.run(["jar", "x", "-o", str(path)])
    capsys.readouterr()
    for words in (["show", str(path)], [str(path)]):
        assert 0 == cli.run([*words, "--as", "json"])
        assert json.loads(path.read_text()) == json.loads(capsys.readouterr().out)


def test_diff_of_two_saved_reports(tmp_path: Path, capsys: Output) -> None:
    one, two = tmp_path / "1.json", tmp_path / "2.json"
    cli.run(["jar", "x", "-o", str(one)])
    two.write_text(one.read_text().replace('"own":900', '"own":1900'))
    capsys.readouterr()
    assert 0 == cli.run(["diff", str(one), str(one)])
    assert "no difference" in capsys.readouterr().out
    assert 0 == cli.run(["diff", str(one), str(two)])
    assert re.search(r"\+1000 B +900 B +1\.86 KiB +jam", capsys.readouterr().out)
    assert 0 == cli.run(["diff", str(one), str(two), "--as", "json"])
    assert [["jam"]] == [c["path"] for c in json.loads(capsys.readouterr().out)["accounts"]]
    assert 2 == cli.run(["diff", str(one), str(two), "--as", "html"])


@pytest.mark.parametrize("verb", absent.VERBS, ids=" ".join)
def test_a_verb_that_is_not_there_says_so(verb: tuple[str, ...], capsys: Output) -> None:
    assert 2 == cli.run([*verb, "anything"])
    said = capsys.readouterr().err
    assert f"memcensus {' '.join(verb)} does not work in version" in said
    assert 1 == len(said.strip().splitlines())


@pytest.mark.parametrize("flag", [*sorted(absent.FLAGS), "--record=h100"])
def test_a_flag_that_is_not_there_says_so(flag: str, capsys: Output) -> None:
    assert 2 == cli.run(["live", flag, "x"])
    assert f"{flag.partition('=')[0]} does not work in version" in capsys.readouterr().err


def test_output_survives_a_locale_without_utf8_and_a_reader_that_leaves(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    from memcensus.views.json import dumps

    many = tuple(Account(f"名{n}", n + 1, HERE) for n in range(5000))
    report.write_text(dumps(Report("net", "x", Account("x", 0, HERE, many))), encoding="utf-8")
    command = f"'{sys.executable}' -m memcensus show '{report}' --as csv | head -2"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        check=False,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())},
    )
    assert b"" == done.stderr
    assert "x/名" in done.stdout.decode() or done.stdout.decode().startswith("path,")


@pytest.mark.parametrize("view", ["table", "tree", "csv", "json", "html"])
def test_a_reader_that_leaves_early_changes_no_exit_code(tmp_path: Path, view: str) -> None:
    report = tmp_path / "r.json"
    from memcensus.views.json import dumps

    rows = tuple((n, "x" * 100) for n in range(20_000))
    table = Table("t", (Column("n"), Column("x")), rows, (HERE,) * len(rows))
    report.write_text(dumps(Report("net", "x", Account("x", 0, HERE), tables=(table,))))
    command = f"'{sys.executable}' -m memcensus show '{report}' --table t --as {view}; echo $? >&2"
    done = subprocess.run(
        ["sh", "-c", f"({command}) | true"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert b"0\n" == done.stderr


@pytest.mark.parametrize(
    ("streams", "code", "said"),
    [
        (">&-", 0, "stdout is closed"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
        (">/dev/full", 2, "cannot write to stdout: no space left"),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_fault_of_ours(
    tmp_path: Path, streams: str, code: int, said: str
) -> None:
    report = tmp_path / "r.json"
    from memcensus.views.json import dumps

    report.write_text(dumps(Report("net", "x", Account("x", 5, HERE))))
    command = f"'{sys.executable}' -m memcensus show '{report}' {streams}"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert code == done.returncode, done.stderr
    assert said in done.stderr
    assert "fault" not in done.stdout + done.stderr


def test_a_person_who_presses_ctrl_c_gets_130_and_no_traceback(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)  # opening it waits, as long work would
    command = [sys.executable, "-m", "memcensus", "show", str(pipe)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    ) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not _waits(process.pid):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert 130 == process.returncode
    assert b"memcensus: interrupted" in said
    assert b"Traceback" not in said


def _waits(pid: int) -> bool:
    """Say whether the process waits for a writer of the pipe."""
    try:
        return (
            "fifo" in Path(f"/proc/{pid}/wchan").read_text()
            or "wait_for_partner" in Path(f"/proc/{pid}/stack").read_text()
        )
    except OSError:
        return False


def test_a_terminal_gets_colour_and_no_color_is_honoured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for switched_off in (False, True):
        if switched_off:
            monkeypatch.setenv("NO_COLOR", "1")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        cli.run(["jar", "x"])
        assert switched_off != ("\x1b[" in terminal.getvalue())


def test_doctor_names_what_is_missing_and_how_to_get_it(capsys: Output) -> None:
    assert 0 == cli.run(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok") and "memcensus" in line for line in lines)
    assert any("--limit auto" in line for line in lines)
    assert all(line.startswith(("ok ", "missing ")) for line in lines)


def test_help_of_every_verb_has_words(capsys: Output) -> None:
    assert 0 == cli.run(["--help"])
    text = capsys.readouterr().out
    for verb in ("live", "net", "ram", "show", "diff", "doctor"):
        assert re.search(rf"│ {verb} +\w", text)
