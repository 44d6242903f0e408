"""The README's promises, as a newcomer would try them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SAMPLE = REPOSITORY / "samples" / "linux.raw.zst"


def memcensus(*words: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memcensus", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=cwd
    )


def test_this_machine_adds_up() -> None:
    done = memcensus("live", "--as", "json")
    assert 0 == done.returncode, done.stderr
    root = json.loads(done.stdout)["root"]
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    total = re.search(r"MemTotal: +(\d+) kB", text)
    assert total is not None
    assert int(total.group(1)) * 1024 == _sum(root)
    assert ["in use", "modified", "standby", "free"] == [c["name"] for c in root["children"]]


def test_a_vgg16_in_training_adds_up() -> None:
    pytest.importorskip("torch", reason="torch is not installed: make .venv/torch")
    done = memcensus("net", "vgg16", "--batch", "32", "--optimizer", "adam", "--as", "json")
    assert 0 == done.returncode, done.stderr
    # Measured at the dispatcher of a real CPU step: notes of the project, table of 12 real runs.
    assert 4_540_247_816 == _sum(json.loads(done.stdout)["root"])


def test_the_readme_shows_what_the_command_prints() -> None:
    pytest.importorskip("torch", reason="torch is not installed: make .venv/torch")
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = re.search(r"\$ \./run (net vgg16 [^\n]*)\n(.*?)\.\.\.\n([^\n]*)\n```", text, re.DOTALL)
    assert block is not None
    done = memcensus(*block.group(1).split())
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    shown = block.group(2).splitlines()
    assert shown == lines[: len(shown)]
    assert block.group(3) == lines[-1]


def test_the_shipped_image_names_its_processes() -> None:
    done = memcensus("ram", "processes", str(SAMPLE))
    assert 0 == done.returncode, done.stderr
    assert re.search(r"1 +0 +0 +init", done.stdout)
    assert "\x1b" not in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith(("fits", "too"))


def test_three_censuses_become_one_page(tmp_path: Path) -> None:
    files = []
    for name, words in {"live": ["live"], "ram": ["ram", str(SAMPLE)]}.items():
        files.append(str(tmp_path / f"{name}.json"))
        assert 0 == memcensus(*words, "-o", files[-1]).returncode
    files.append(str(REPOSITORY / "samples" / "vgg16.json"))
    page = tmp_path / "demo.html"
    done = memcensus("show", *files, "-o", str(page))
    assert 0 == done.returncode, done.stderr
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", html)


def test_run_works_from_any_folder(tmp_path: Path) -> None:
    if not (REPOSITORY / ".venv" / "ready").exists():
        pytest.skip("./run would build an environment: there is no .venv here")
    done = subprocess.run(
        [str(REPOSITORY / "run"), "--version"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert 0 == done.returncode, done.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)


def _sum(account: dict[str, object]) -> int:
    """Add up own bytes, as any reader of the JSON would."""
    own, children = account["own"], account["children"]
    if not isinstance(own, int) or not isinstance(children, list):
        raise TypeError(account)
    return own + sum(_sum(child) for child in children)
