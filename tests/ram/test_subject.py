"""The subject from end to end: what it claims, what it reports, and what it says to bad input."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from memcensus.errors import NoKernel, Unreadable
from memcensus.model import Absence, Answer, Budget, Evidence, Source
from memcensus.ram import report
from memcensus.ram.image import PAGE, Image
from memcensus.ram.subject import Ram
from memcensus.subject import Certainty, Look, Request, Target, detect
from memcensus.views import json
from tests.ram.conftest import REPOSITORY, SAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memcensus.model import Report
    from tests.ram.conftest import Opened

pytestmark = pytest.mark.xdist_group("images")

MIB = 1 << 20


@pytest.fixture(scope="session")
def whole() -> Report:
    return Ram().inspect(Target.parse(str(SAMPLE)))


@pytest.fixture(scope="session")
def raw(sample: Opened, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The sample, unpacked."""
    path = tmp_path_factory.mktemp("image") / "sample.raw"
    path.write_bytes(sample.image.data[:])
    yield path
    path.unlink()  # pytest would keep it for three runs


def shortened(raw: Path, size: int) -> Image:
    with raw.open("rb") as file:
        return Image("cut.raw", mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def kernel_end(sample: Opened) -> int:
    """Bytes that a cut image must have so that the kernel is in it."""
    return sample.kernel.memory.physical(sample.kernel.memory.text.stop - 1) + 1


def test_the_sample_is_recognised() -> None:
    assert Ram().claim(Target.parse(str(SAMPLE))).certainty == Certainty.SHAPE
    assert detect(Target.parse(str(SAMPLE))).name == "ram"


def test_a_raw_image_is_recognised_whatever_its_name(raw: Path, tmp_path: Path) -> None:
    other = tmp_path / "evidence"
    other.symlink_to(raw)
    assert Ram().claim(Target.parse(str(other))).certainty == Certainty.SHAPE


@pytest.mark.parametrize(
    ("name", "content", "certainty"),
    [
        ("a.raw", os.urandom(2 * MIB), Certainty.NAME),
        ("a.vmem", bytes(2 * MIB), Certainty.NAME),
        ("small.raw", os.urandom(MIB - 1), Certainty.NO),
        ("text.raw", b"one line of text\n" * 100_000, Certainty.NO),
        ("long.txt", b"one line of text\n" * 100_000, Certainty.NO),
        ("cut.raw", "\N{SNOWMAN}".encode() * 500_000, Certainty.NO),  # 4096 ends inside a letter
        ("empty.raw", b"", Certainty.NO),
        ("other.zst", zstandard.compress(b"x" * 100), Certainty.NO),
        ("dump.mem.zst", zstandard.compress(b"x" * 100), Certainty.SHAPE),
    ],
)
def test_claims_rest_on_evidence(
    tmp_path: Path, name: str, content: bytes, certainty: Certainty
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert Ram().claim(Target.parse(str(path))).certainty == certainty


def test_words_and_folders_are_not_claimed(tmp_path: Path) -> None:
    assert Ram().claim(Target.parse("vgg16")).certainty == Certainty.NO
    assert Ram().claim(Target.parse(str(tmp_path))).certainty == Certainty.NO


def test_the_parts_are_the_file(whole: Report, sample: Opened) -> None:
    assert whole.root.total == sample.image.size
    assert whole.root.total_error == 0


def test_no_account_stands_for_a_single_page_of_many(whole: Report) -> None:
    assert len(list(whole.root.walk())) < 500


def test_every_row_names_its_place_in_the_file(whole: Report, sample: Opened) -> None:
    table = whole.table("processes")
    assert table is not None
    names = [column.name for column in table.columns]
    assert names[:7] == ["pid", "ppid", "uid", "name", "arguments", "started", "resident"]
    assert [column.unit for column in table.columns if column.name == "resident"] == ["B"]
    places = {p.pid: f"{SAMPLE.name}@{p.place:#x}" for p in sample.processes.all}
    assert [source.where for source in table.sources] == [places[row[0]] for row in table.rows]  # type: ignore[index]  # a pid is an int


def test_parents_stand_before_their_children(whole: Report) -> None:
    table = whole.table("processes")
    assert table is not None
    seen = {0}
    for row in table.rows:
        assert row[1] in seen
        assert isinstance(row[0], int)
        seen.add(row[0])


def test_the_table_of_constants_says_how_each_was_derived(whole: Report, sample: Opened) -> None:
    table = whole.table("kernel")
    assert table is not None
    values = {row[0]: row[1] for row in table.rows}
    assert values["banner"] == sample.truth.lines("version")[0]
    assert values["paging levels"] == "4"
    told = sample.truth.symbols["_text"] - 0xFFFFFFFF81000000
    assert values["virtual slide"] == hex(told)
    assert all(row[2] for row in table.rows)


def test_a_report_survives_json(whole: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with path.open("w", encoding="utf-8") as out:
        json.JsonView().render([whole], out, Look())
    assert json.load(path) == [whole]


def test_the_verdict_is_against_the_machines_memory(whole: Report, sample: Opened) -> None:
    assert whole.verdict is not None
    assert whole.verdict.answer == Answer.FITS
    ram = [row for row in sample.truth.iomem if row[3] == "System RAM"]
    pages = sum((end + 1) // PAGE - -(-start // PAGE) for _, start, end, _ in ram)
    assert whole.verdict.budget.limit == pages * PAGE
    # What cannot be dropped is less than what MemFree leaves over, and more than what is
    # anonymous. The guest freed and took some between its account and the stop.
    told = sample.truth.meminfo
    assert whole.verdict.peak <= pages * PAGE - told["MemFree"] * 1024 + 4 * MIB
    assert whole.verdict.peak >= told["AnonPages"] * 1024


def test_a_limit_is_judged_against(raw: Path) -> None:
    budget = Budget(MIB, Source(Evidence.MEASURED, "--limit 1MiB"))
    found = Ram().inspect(Target.parse(str(raw)), Request(budget))
    assert found.verdict is not None
    assert (found.verdict.answer, found.verdict.budget) == (Answer.TOO_BIG, budget)


def test_an_interrupted_census_keeps_the_processes(raw: Path, whole: Report) -> None:
    def interrupt(what: str, done: int, total: int, unit: str) -> None:  # noqa: ARG001  (Progress)
        if (what, done) == ("census", 4):
            raise KeyboardInterrupt

    found = Ram().inspect(Target.parse(str(raw)), Request(progress=interrupt))
    assert found.partial
    assert found.root.total == whole.root.total
    table, complete = found.table("processes"), whole.table("processes")
    assert table is not None
    assert complete is not None
    assert table.rows == complete.rows
    assert Absence.OUT_OF_TIME in {gap.absence for gap in found.gaps}


def test_a_cut_image_says_so_first(sample: Opened, raw: Path) -> None:
    size = kernel_end(sample) + 5 * PAGE + 7
    found = report.make(shortened(raw, size), "cut.raw", Request())
    ram = max(end + 1 for _, _, end, name in sample.truth.iomem if name == "System RAM")
    assert f"{size:,} B" in found.gaps[0].why
    assert f"{ram:,} B" in found.gaps[0].why
    assert found.root.total == size
    table = found.table("processes")
    assert table is not None
    known = {p.pid: p.name for p in sample.processes.all}
    assert len(table.rows) > 0
    assert all(known[int(str(row[0]))] == row[3] for row in table.rows)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_the_parts_are_the_file_for_any_cut(sample: Opened, raw: Path, data: st.DataObject) -> None:
    size = data.draw(st.integers(kernel_end(sample), sample.image.size))
    found = report.make(shortened(raw, size), "cut.raw", Request())
    assert found.root.total == size


def test_an_image_cut_in_half_is_read_or_refused_with_the_reason(guest: Opened) -> None:
    half = guest.image.size // 2
    data = mmap.mmap(-1, half)
    data[:] = guest.image.data[:half]
    image = Image("half.raw", data)
    if guest.kernel.memory.root + MIB <= half:  # KASLR puts the kernel anywhere
        found = report.make(image, "half.raw", Request())
        assert "the image was cut short" in found.gaps[0].why
        assert found.root.total == half
    else:
        with pytest.raises(NoKernel, match=r"half\.raw"):
            report.make(image, "half.raw", Request())


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_a_cut_inside_the_kernel_behind_its_page_tables_is_read(
    sample: Opened, raw: Path, share: float
) -> None:
    tables, end = sample.kernel.memory.root + MIB, kernel_end(sample)
    size = tables + round(share * (end - tables))
    found = report.make(shortened(raw, size), "cut.raw", Request())
    assert "the image was cut short" in found.gaps[0].why
    table = found.table("processes")
    assert table is not None
    assert len(table.rows) > 50


def test_a_cut_compressed_image_is_read_as_far_as_it_goes(tmp_path: Path, sample: Opened) -> None:
    packed = SAMPLE.read_bytes()
    path = tmp_path / "cut.raw.zst"
    path.write_bytes(packed[: len(packed) * 99 // 100])
    found = Ram().inspect(Target.parse(str(path)))
    assert "cut short or damaged" in found.gaps[0].why
    assert found.root.total < sample.image.size


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"just text\n", "holds 10 B"),
        (b"just text\n" * 200_000, "no BTF type data found"),
        (os.urandom(3 * MIB + 5), "no BTF type data found"),
        (bytes(MIB), "no BTF type data found"),
        (b"\x28\xb5\x2f\xfd" + os.urandom(100), "bad.raw"),
    ],
)
def test_bad_images_get_one_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.raw"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=words) as caught:
        Ram().inspect(Target.parse(str(path)))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_what_is_no_file_gets_one_sentence(tmp_path: Path) -> None:
    for target in (str(tmp_path), str(tmp_path / "gone.raw"), ""):
        with pytest.raises(Unreadable) as caught:
            Ram().inspect(Target.parse(target))
        assert "\n" not in str(caught.value)


def test_the_image_is_never_written_to(raw: Path) -> None:
    raw.chmod(0o444)
    before = raw.stat()
    Ram().inspect(Target.parse(str(raw)))
    after = raw.stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)


def test_the_subject_is_cheap_to_import() -> None:
    code = "import sys, memcensus.ram.subject; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout == "False\n"
