"""Attacks on the grammar, detection, saved reports, and where output may go."""

from __future__ import annotations

import json
import os
from pathlib import Path

from attacks.attack import Attack, file, words

REPORT: dict[str, object] = {
    "schema": 1,
    "subject": "live",
    "target": "",
    "tool": "memcensus 0.1.0",
    "partial": False,
    "root": {
        "name": "machine",
        "own": 1,
        "error": 0,
        "borrowed": 0,
        "source": {"evidence": "measured", "where": "x"},
        "quantities": [],
        "children": [],
    },
    "instant": None,
    "timeline": None,
    "tables": [],
    "gaps": [],
    "verdict": None,
}


def _report(**changes: object) -> bytes:
    return json.dumps({**REPORT, **changes}).encode()


def _root(**changes: object) -> bytes:
    root = REPORT["root"]
    if not isinstance(root, dict):
        raise TypeError(root)
    return _report(root={**root, **changes})


def _deep(levels: int) -> bytes:
    """A tree nested deeper than any recursion may go."""
    head = b'{"name":"a","own":0,"error":0,"borrowed":0,"quantities":[],"children":['
    return b'{"schema":1,"root":' + head * levels


def _self_overwrite(folder: Path) -> list[str]:
    path = folder / "evidence.json"
    path.write_bytes(_report())
    return ["show", str(path), "-o", str(path)]


def _overwrite_by_another_name(folder: Path) -> list[str]:
    path = folder / "evidence.json"
    path.write_bytes(_report())
    link = folder / "innocent.html"
    link.hardlink_to(path)
    return [str(path), "-o", str(link)]


def _no_permission(folder: Path) -> list[str]:
    path = folder / "secret.raw"
    path.write_bytes(b"x" * 4096)
    path.chmod(0)
    return [str(path)]


def _fifo(folder: Path) -> list[str]:
    """Opening a pipe that nobody writes to would wait for ever."""
    path = folder / "pipe"
    os.mkfifo(path)
    return [str(path)]


ATTACKS = {
    "an empty file": Attack("be taken for something", file("empty", b""), 3, "cannot tell what"),
    "a text file": Attack("be taken for an image", file("a.txt", b"hi\n" * 99), 3, "cannot tell"),
    "random bytes": Attack("match a magic by chance", file("r", bytes(range(256)) * 64), 3, "tell"),
    "no such file": Attack(
        "end in a traceback", words("/nowhere/model.raw"), 3, "cannot tell what"
    ),
    "a folder": Attack("be opened as a file", words("/etc"), 3, "cannot tell what"),
    "a pipe": Attack("hang the detection", _fifo, 3, "cannot tell what"),
    "an escape in the name": Attack("clear the screen", words("\x1b[2J"), 3, r"\\x1b\[2J"),
    "an unknown verb": Attack("be guessed", words("nett", "vgg16"), 2, "Unused Tokens|nett"),
    "a verb not there yet": Attack("look done", words("ram", "photos", "x"), 2, "does not work in"),
    "a size with two meanings": Attack("be off by 7 %", words("--limit", "24G"), 2, "GiB"),
    "a bad regular expression": Attack("raise re.error", words("--focus", "("), 2, "regular expr"),
    "a form that is none": Attack("be ignored", words("--as", "pdf"), 2, "pdf"),
    "a depth that is no number": Attack("raise ValueError", words("--depth", "x"), 2, "depth"),
    "a report that is itself the output": Attack("eat the evidence", _self_overwrite, 2, "itself"),
    "a link to the evidence as output": Attack(
        "eat it by another name", _overwrite_by_another_name, 2, "the target itself"
    ),
    "an output folder that is not there": Attack(
        "lose the report", lambda f: [*file("r.json", _report())(f), "-o", "/nowhere/x"], 2, "write"
    ),
    "an unreadable file": Attack("end in a traceback", _no_permission, 3, "secret.raw"),
    "JSON cut short": Attack("be half read", file("a.json", _report()[:-9], "show"), 3, "JSON"),
    "JSON nested 100,000 deep": Attack(
        "overflow the stack", file("d.json", _deep(100_000), "show"), 3, "nests deeper|JSON"
    ),
    "a number of a million digits": Attack(
        "take minutes to parse", file("n.json", b'{"schema":' + b"1" * 10**6, "show"), 3, "number"
    ),
    "a size of 400 digits": Attack(
        "overflow in a view", file("h.json", _root(own=10**400), "show"), 3, "below"
    ),
    "an escape in the subject": Attack(
        "set the window's title", file("e.json", _report(subject="\x1b]0;x\x07"), "show"), 0, ""
    ),
    "a verdict that contradicts itself": Attack(
        "say that it fits",
        file(
            "v.json",
            _report(
                verdict={
                    "answer": "fits",
                    "peak": 9,
                    "error": 0,
                    "limit": 1,
                    "limit_source": {"evidence": "measured", "where": "x"},
                }
            ),
            "show",
        ),
        3,
        "too big",
    ),
    "an endless device": Attack("be read for ever", words("show", "/dev/zero"), 3, "is a device"),
    "a very long target": Attack("fill the terminal", words("a" * 100_000), 3, r"a{200}\.\.\."),
    "another schema": Attack("be misread", file("s.json", _report(schema=2), "show"), 3, "schema"),
    "text for a size": Attack("be added", file("t.json", _root(own="9"), "show"), 3, r"root: own"),
    "a negative size": Attack("hide bytes", file("m.json", _root(own=-1), "show"), 3, "negative"),
    "true for a size": Attack("count as 1", file("b.json", _root(own=True), "show"), 3, "number"),
    "a timeline that disagrees": Attack(
        "show two totals",
        file(
            "l.json",
            _report(instant=0, timeline={"clock": "ns", "series": [], "marks": []}),
            "show",
        ),
        3,
        "law of reports",
    ),
    "half a surrogate pair": Attack(
        "break the output's encoding",
        file("u.json", _root(name="\ud800").replace(b'"own": 1', b'"own": -1'), "show"),
        3,
        "negative",
    ),
    "NaN in a table": Attack(
        "poison a sum",
        file(
            "f.json",
            _report(tables=[{"name": "t", "columns": [], "rows": [], "sources": []}]).replace(
                b'"rows": []', b'"rows": [[NaN]]'
            ),
            "show",
        ),
        3,
        "law of reports",
    ),
    "a report that is a list": Attack("be indexed", file("i.json", b"[1]", "show"), 3, "saved rep"),
    "UTF-16": Attack(
        "raise UnicodeDecodeError", file("w.json", b"\xff\xfe{\0", "show"), 3, "saved"
    ),
}
