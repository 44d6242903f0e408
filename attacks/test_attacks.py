"""Each attack gets one sentence with the right exit code, and never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attacks import command_line, images, networks, processes, weights
from attacks.attack import Attack

ATTACKS: dict[str, Attack] = {
    **command_line.ATTACKS,
    **images.ATTACKS,
    **networks.ATTACKS,
    **processes.ATTACKS,
    **weights.ATTACKS,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gets_one_clear_sentence(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    command = [sys.executable, "-m", "memcensus", *attack.make(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.fspath(Path.cwd())}
    done = subprocess.run(
        command, capture_output=True, timeout=120, check=False, env=environment, cwd=tmp_path
    )
    said = done.stderr.decode()
    assert attack.code == done.returncode, said
    assert re.search(attack.says, said), said
    assert "Traceback" not in said
    assert "a fault in memcensus itself" not in said
    told = said + done.stdout.decode()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", told), "a control character got through"
