"""``net`` as a subject: claims, reports, verdicts and the command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from memcensus import cli
from memcensus.errors import NeedsExtra
from memcensus.model import Answer, Budget, Evidence, Report, Source
from memcensus.net.options import NetOptions
from memcensus.net.subject import BUILT_IN, Net
from memcensus.subject import Certainty, Look, Request, Target, load_view


@pytest.fixture(scope="module")
def report() -> Report:
    return Net().inspect(Target("vgg16"), Request(), NetOptions(batch=2, optimizer="adam"))


def test_built_in_names_are_claimed_and_callables_never(tmp_path: Path) -> None:
    assert Net().claim(Target("vgg16")).certainty == Certainty.NAME
    claim = Net().claim(Target("package.module:callable"))
    assert claim.certainty == Certainty.NO
    assert "only where net is named" in claim.because
    assert Net().claim(Target("vgg16", tmp_path)).certainty == Certainty.NO  # a file of that name
    assert Net().claim(Target("resnet")).certainty == Certainty.NO


def test_built_in_words_are_the_networks_there_are() -> None:
    from memcensus.net.target import BUILT_IN as NETWORKS

    assert set(NETWORKS) == set(BUILT_IN)


def test_every_byte_of_the_report_has_an_owner_and_a_source(report: Report) -> None:
    kinds = [child.name for child in report.root.children]
    assert kinds[:3] == ["parameters", "gradients", "optimizer state"]
    assert "unexplained" not in kinds
    for path, account in report.root.walk():
        assert account.source.where, path
        if account.own:
            assert not account.children or account.source.where
    assert sum(child.total for child in report.root.children) == report.root.total


def test_optimizer_state_is_twice_the_parameters_and_a_count_for_each(report: Report) -> None:
    """Adam keeps two moments of each parameter, and its step number as a float32."""
    by_name = {child.name: child for child in report.root.children}
    parameters = by_name["parameters"].total
    assert parameters == 138_357_544 * 4
    assert by_name["gradients"].total <= parameters
    assert by_name["optimizer state"].total == 2 * parameters + 32 * 4


def test_marks_and_tables(report: Report) -> None:
    assert report.timeline is not None
    labels = [label for _, label in report.timeline.marks]
    assert labels == ["forward", "loss", "backward", "optimizer"]
    assert {table.name for table in report.tables} == {"owners", "layers", "saved", "step"}
    quantities = {quantity.name for quantity in report.root.quantities}
    assert "peak of the first step" in quantities


@pytest.mark.parametrize("name", ["table", "tree", "json", "csv"])
def test_every_view_shows_it(report: Report, name: str) -> None:
    out = io.StringIO()
    load_view(name).render([report], out, Look())
    assert "vgg16" in out.getvalue()


def test_a_budget_is_judged_with_the_kernels_allowance(report: Report) -> None:
    peak = report.root.total
    for limit, answer in (
        (2 * peak, Answer.FITS),
        (peak // 2, Answer.TOO_BIG),
        (peak, Answer.TOO_CLOSE),
        (peak * 102 // 100, Answer.TOO_CLOSE),  # 2 % at least are allowed for kernels' scratch
    ):
        budget = Budget(limit - 1, Source(Evidence.ASSUMED, "test"))
        options = NetOptions(batch=2, optimizer="adam")
        judged = Net().inspect(Target("vgg16"), Request(budget), options).verdict
        assert judged is not None
        assert judged.answer is answer


def test_without_torch_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memcensus.net.subject.find_spec", lambda _: None)
    with pytest.raises(NeedsExtra, match="pip install torch"):
        Net().inspect(Target("vgg16"))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "memcensus.net.census", None)  # as a broken torch would do
    with pytest.raises(NeedsExtra, match="pip install torch"):
        Net().inspect(Target("vgg16"))


def test_the_command_line_takes_the_flags(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    words = ["net", "vgg16", "--batch", "2", "--optimizer", "sgd-momentum", "--dtype", "bfloat16"]
    assert cli.run([*words, "--input", "3x224x224", "-o", str(out)]) == 0
    told = json.loads(out.read_text(encoding="utf-8"))
    root = told["root"] if "root" in told else told["reports"][0]["root"]
    parameters = next(child for child in root["children"] if child["name"] == "parameters")
    sizes = [leaf["own"] for layer in parameters["children"] for leaf in layer["children"]]
    assert sum(sizes) == 138_357_544 * 2
    assert cli.run(["net", "vgg16", "--optimizer", "lion"]) == 2
    assert cli.run(["net", "vgg16", "--dtype", "float8"]) == 2
    assert cli.run(["net", "vgg16", "--mode", "dream"]) == 2
    assert cli.run(["net", "vgg16", "--device", "abacus"]) == 2
    assert cli.run(["net", "vgg16", "--accumulate", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_importing_the_subject_and_the_verb_loads_no_torch() -> None:
    script = "import sys, memcensus.net.verb, memcensus.net.subject; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy"} & set(loaded)
