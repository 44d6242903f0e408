"""An image cut in half is analysed as far as it goes, and that is said first."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import zstandard

REPOSITORY = Path(__file__).parent.parent
SAMPLE = REPOSITORY / "samples" / "linux.raw.zst"
TRUTH = REPOSITORY / "samples" / "linux.truth.zst"


def test_half_of_the_shipped_image_still_names_its_processes(tmp_path: Path) -> None:
    raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(SAMPLE.read_bytes())).read()
    half = tmp_path / "half.raw"
    half.write_bytes(raw[: len(raw) // 2])
    command = [sys.executable, "-m", "memcensus", "ram", str(half)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [*command, "--as", "json"], capture_output=True, text=True, check=False, env=environment
    )
    assert 0 == done.returncode, done.stderr
    report = json.loads(done.stdout)
    assert "the image was cut short" in report["gaps"][0]["why"]
    assert "the image was cut short" in done.stderr.splitlines()[0]
    (table,) = (table for table in report["tables"] if table["name"] == "processes")
    found = {row[0] for row in table["rows"]}
    assert found <= _pids() | {0}
    assert len(found) > len(_pids()) // 2


def _pids() -> set[int]:
    """Return the process numbers that the guest itself told."""
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(TRUTH.read_bytes())) as reader:
        text = reader.read().decode("ascii")
    section = re.search(r"^=== ps\n(.*?)^===", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = (line for line in section.group(1).splitlines() if not line.startswith("#"))
    return {int(line.split()[0]) for line in lines}
