"""One process by mapping: psutil agrees, and what a program takes is seen where it belongs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import MemcensusError, Unreadable
from memcensus.live import mapping, smaps
from memcensus.live.subject import Live
from memcensus.model import Account, Report
from memcensus.subject import Request, Target
from tests.live import recorded

MIB = 1 << 20
SHARED = 24 * MIB
FILE = 8 * MIB
SLACK = 2 * MIB
"""What the interpreter itself may take between two looks: its arenas and one huge page."""


class Holder:
    """The program of holder.py, running."""

    def __init__(self, file: Path) -> None:
        program = Path(__file__).with_name("holder.py")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", program, file, str(SHARED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid, self.sibling = map(int, self._line().split())

    def ask(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())
        self.process.stdin.flush()
        assert self._line() == b"ok\n"

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def look(self) -> Report:
        return Live().inspect(Target(str(self.pid)))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    file = tmp_path / "mapped file"
    file.write_bytes(os.urandom(FILE))
    held = Holder(file)
    yield held
    held.process.communicate()


def kinds(report: Report) -> Counter[str]:
    """Bytes owned by each kind of mapping."""
    return Counter({child.name: child.total for child in report.root.children})


def leaf(report: Report, part: str) -> Account:
    found = [a for path, a in report.root.walk() if part in path[-1] and not a.children]
    assert len(found) == 1
    return found[0]


def test_anonymous_memory_is_seen_as_anonymous(holder: Holder) -> None:
    before = kinds(holder.look())
    holder.ask(f"anonymous {48 * MIB}")
    grown = kinds(holder.look())
    grown.subtract(before)
    assert grown["anonymous"] == pytest.approx(48 * MIB, abs=SLACK)
    assert sum(grown.values()) == pytest.approx(48 * MIB, abs=SLACK)


def test_a_segment_shared_with_a_sibling_is_borrowed_and_owned_by_neither(holder: Holder) -> None:
    before = holder.look()
    holder.ask("shared")
    report = holder.look()
    segment = leaf(report, "memfd:ledger")
    assert segment.borrowed == SHARED  # every page, to the byte
    assert segment.own == 0
    assert {q.name: q.value for q in segment.quantities} == {"Rss": SHARED, "Pss": SHARED // 2}
    assert report.root.total - before.root.total == pytest.approx(0, abs=SLACK)


def test_a_mapped_file_is_seen_by_its_path(holder: Holder) -> None:
    holder.ask("mapped")
    file = leaf(holder.look(), "mapped file")
    assert file.own + file.borrowed == FILE
    assert file.own == FILE  # nobody else has mapped it


def test_psutil_has_the_same_sums_and_mappings(holder: Holder) -> None:
    holder.ask(f"anonymous {4 * MIB}")
    holder.ask("mapped")
    theirs = psutil.Process(holder.pid)
    full, report = None, holder.look()
    while full is None or full != theirs.memory_full_info():
        # the program holds still, but the pages of its libraries are shared with others that do not
        full, report = theirs.memory_full_info(), holder.look()
    maps = theirs.memory_maps(grouped=True)
    quantities = {q.name: q.value for q in report.root.quantities}
    assert report.root.total == full.uss
    assert quantities == {"Rss": full.rss, "Pss": full.pss, "Swap": full.swap}
    table = report.table("mappings")
    assert table is not None
    ours: Counter[str] = Counter()
    for row in table.rows:
        ours[str(row[1]) or "[anon]"] += int(str(row[3]))
    assert dict(ours) == {m.path: m.rss for m in maps}


def test_the_sums_of_the_table_are_those_of_the_tree(holder: Holder) -> None:
    report = holder.look()
    table = report.table("mappings")
    assert table is not None
    names = [column.name for column in table.columns]
    assert names == [
        *("kind", "path", "size", "resident", "pss", "private", "shared", "swap"),
        *("permissions", "address"),
    ]
    private = sum(int(str(row[5])) for row in table.rows)
    shared = sum(int(str(row[6])) for row in table.rows)
    assert report.root.total == private
    assert shared == sum(account.borrowed for _, account in report.root.walk())
    assert not report.gaps


def test_a_process_that_holds_still_is_read_once(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    folder = recorded.process(live.proc, 9)
    (folder / "smaps").write_text("00400000-00401000 rw-p 00000000 00:00 0 \n" + recorded.FIELDS)
    told: list[int] = []
    request = Request(progress=lambda _what, done, _total, _unit: told.append(done))
    report = live.inspect(Target("9"), request)
    assert told == [1]
    assert (report.root.total, report.root.children[0].borrowed) == (4096, 4096)


# ---------------------------------------------------------------- what cannot be shown


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("0", "no process number"),
        ("-5", "not a process number"),
        ("word", "not a process number"),
        ("٣", "not a process number"),
        ("9" * 4000, "no process number"),
        ("2147483647", "no process 2147483647"),
        ("\x1b[2J", r"\\x1b\[2J"),
    ],
)
def test_what_is_no_process_is_one_sentence(word: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says) as caught:
        Live().inspect(Target(word))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_zombie_holds_nothing_and_is_called_one() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with pytest.raises(Unreadable, match="has ended and holds no memory"):
        Live().inspect(Target(str(child.pid)))
    child.wait()


def test_a_kernel_thread_has_no_map(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    recorded.process(live.proc, 2, name="kthreadd", status="Tgid:\t2\nUid:\t0\t0\t0\t0\n")
    with pytest.raises(Unreadable, match="kernel thread"):
        live.inspect(Target("2"))


def test_a_thread_names_its_process(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    recorded.process(live.proc, 77, status="Tgid:\t70\nUid:\t0\t0\t0\t0\nVmRSS:\t4 kB\n")
    with pytest.raises(Unreadable, match="memcensus live 70"):
        live.inspect(Target("77"))


def test_a_process_that_never_holds_still_is_a_gap(tmp_path: Path) -> None:
    live = recorded.machine(tmp_path)
    folder = recorded.process(live.proc, 9, name="busy")
    page = "00400000-00401000 rw-p 00000000 00:00 0 \n" + recorded.FIELDS
    twice = page + page.replace("00400000-00401000", "00500000-00501000")
    (folder / "smaps").write_text(twice)
    report = live.inspect(Target("9"))
    assert report.gaps[0].what == "one state of the process"
    assert report.root.total == 2 * 4096


@given(st.binary(max_size=500))
def test_random_bytes_for_smaps_raise_nothing_but_ours(raw: bytes) -> None:
    _try(raw)


LINES = ["00400000-00401000 rw-p 00000000 00:00 0 \n", "f-0 r--p 0 0:0 0\n", *recorded.FIELDS]


@given(st.lists(st.sampled_from([*LINES, *recorded.FIELDS.splitlines(keepends=True)])))
def test_shuffled_lines_of_smaps_raise_nothing_but_ours(lines: list[str]) -> None:
    _try("".join(lines).encode())


def _try(raw: bytes) -> None:
    try:
        found = list(smaps.parse(raw.splitlines(keepends=True), Path("smaps")))
    except MemcensusError as error:
        assert "smaps" in str(error)  # noqa: PT017  (either outcome is right)
    else:
        assert all(m.size >= 0 and m.private >= 0 for m in found)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (b"", "anonymous"),
        (b"[heap]", "heap"),
        (b"[stack]", "stack"),
        (b"[anon:glibc: malloc]", "named anonymous"),
        (b"/memfd:x (deleted)", "shared memory"),
        (b"/SYSV00000000 (deleted)", "shared memory"),
        (b"/dev/shm/a", "shared memory"),
        (b"/dev/dri/card0", "devices"),
        (b"anon_inode:[io_uring]", "devices"),
        (b"[vdso]", "vdso and vvar"),
        (b"/usr/lib/a\\012b", "files"),
        (b"relative", "anonymous"),
    ],
)
def test_the_kind_is_told_by_the_beginning_of_the_path(path: bytes, kind: str) -> None:
    assert mapping.kind(path) == kind
