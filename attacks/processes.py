"""Attacks on ``live PID``: processes that are gone, not ours, or have no memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from attacks.attack import Attack, words


def _gone(_folder: Path) -> list[str]:
    """A number that was a process a moment ago."""
    with subprocess.Popen(["true"]) as process:  # noqa: S607
        process.wait()
    return ["live", str(process.pid)]


ATTACKS = {
    "live: a process that is gone": Attack("race", _gone, 3, "no process|not there|gone|ended"),
    "live: a kernel thread": Attack("divide by no memory", words("live", "2"), 3, "2"),
    "live: a negative number": Attack("be a flag", words("live", "--", "-1"), 3, "-1"),
    "live: a number beyond any": Attack("overflow", words("live", "9" * 30), 3, "9999"),
    "live: a word": Attack("reach a path", words("live", "../../etc"), 3, r"\.\./\.\./etc"),
    "live: digits of another script": Attack("pass isdigit", words("live", "١٢"), 3, "١٢"),
}
