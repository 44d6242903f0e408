"""The repository keeps its own rules."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from memcensus import absent
from memcensus.subject import SUBJECTS, VIEWS

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "memcensus"
HARD_LIMIT = 600  # lines of a file written by hand

SOURCES = sorted(
    path
    for folder in ("memcensus", "tests", "attacks", "benchmarks", "samples")
    for path in (REPOSITORY / folder).rglob("*")
    if path.suffix in {".py", ".js", ".css", ".j2", ".sh"} and "__pycache__" not in path.parts
)
MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_file_grows_without_end(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= HARD_LIMIT


def test_no_file_is_named_for_what_does_not_fit_elsewhere() -> None:
    words = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [path for path in SOURCES if path.stem in words]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_public_name_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    named = [node for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"]
    assert ast.get_docstring(tree), f"{path.name} has no docstring"
    assert not [node.name for node in named if not ast.get_docstring(node)]


def test_no_error_is_swallowed_and_no_pickle_is_loaded() -> None:
    forbidden = re.compile(
        r"except\s*:|except (Base)?Exception\b|pickle\.loads?\(|\beval\(|\bexec\(|os\.system"
    )
    assert not [
        f"{path.name}: {match.group()}"
        for path in MODULES
        if (match := forbidden.search(path.read_text(encoding="utf-8")))
    ]


def test_importing_the_package_imports_nothing_heavy_and_no_subject() -> None:
    script = "import memcensus.cli, sys; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "torch", "rich.table", "jinja2", "zstandard", "playwright", "psutil"}
    assert not heavy & set(loaded)
    assert not [
        name for name in loaded if name.startswith(tuple(f"memcensus.{s}" for s in SUBJECTS))
    ]


def test_claiming_a_target_imports_nothing_heavy() -> None:
    script = (
        "import sys; from memcensus.subject import *\n"
        "[load_subject(verb).claim(Target('nothing')) for verb in SUBJECTS]; print(*sys.modules)"
    )
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "torch", "rich", "zstandard"} & set(loaded)


def test_locks_hold_hashes_and_no_addresses() -> None:
    for name in ("run.lock", "dev.lock"):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        assert "://" not in text
        entries = re.split(r"^(?=[a-z0-9][^\s;]*==)", text, flags=re.MULTILINE)[1:]
        assert entries
        assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


def test_every_dependency_is_named_with_its_licence() -> None:
    listed = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8")
    text = (REPOSITORY / "dev.lock").read_text(encoding="utf-8")
    names = set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", text, re.MULTILINE))
    assert not sorted(name for name in names if f"| {name} |" not in listed)


def test_readme_is_short_and_lists_only_what_works() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    shown = set(re.findall(r"(?:memcensus|\./run) ((?:net|ram|program|web|game|case) ?\w*)", text))
    assert not {words for words in shown if tuple(words.split()) in absent.VERBS}


def test_every_view_and_subject_loads_by_its_name() -> None:
    from memcensus.subject import load_subject, load_view

    assert [load_subject(verb).name for verb in SUBJECTS] == list(SUBJECTS)
    assert [load_view(name).name for name in VIEWS] == list(VIEWS)


def test_the_schema_is_frozen() -> None:
    """Later work may add keys to the schema; what stands in it stays."""
    schema = json.loads((PACKAGE / "views" / "report.schema.json").read_text(encoding="utf-8"))
    required = {name: set(part.get("required", ())) for name, part in schema["$defs"].items()}
    assert set(schema["required"]) >= {
        *("schema", "subject", "target", "tool", "partial", "root", "instant", "timeline"),
        *("tables", "gaps", "verdict"),
    }
    assert required["account"] == {
        *("name", "own", "error", "borrowed", "source", "quantities", "children")
    }
    assert required["source"] == {"evidence", "where"}
    assert required["verdict"] == {"answer", "peak", "error", "limit", "limit_source"}
    assert required["table"] == {"name", "columns", "rows", "sources"}
    assert required["gap"] == {"what", "absence", "why"}
