"""Attacks on ``net``: model code that is missing, raises, prints, exits or returns nonsense."""

from __future__ import annotations

from pathlib import Path

from attacks.attack import Attack, Make, words


def _model(code: str, *flags: str) -> Make:
    """Return a maker of a module ``their`` with ``code``; its callable is ``make``."""

    def make(folder: Path) -> list[str]:
        (folder / "their.py").write_text(code, encoding="utf-8")
        return ["net", "their:make", *(flags or ("--input", "4"))]

    return make


LINEAR = "import torch.nn as nn\ndef make(): return nn.Linear(4, 2)\n"
DICT = """
import torch.nn as nn
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x):
        return {"nothing": "a string", "number": 7}
def make(): return M()
"""
ITEM = """
import torch.nn as nn
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x):
        y = self.line(x)
        return y if y.sum().item() > 0 else y.expand(64, -1, -1).exp().sum(0)
def make(): return M()
"""
LOOP = """
import torch.nn as nn
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
    def forward(self, x):
        while x.norm() > 1: x = self.line(x)
        return x
def make(): return M()
"""
SIZE = """
import torch, torch.nn as nn
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 4)
    def forward(self, x):
        return self.line(x[torch.arange(int(x.norm())) % 1])
def make(): return M()
"""
BIG = f"their.py:8={2**62}"

ATTACKS = {
    "net: a missing module": Attack("raise", words("net", "no.such:thing"), 3, r"no\.such"),
    "net: no callable named": Attack("be guessed", words("net", "json:"), 2, "json:"),
    "net: a missing name": Attack("raise", words("net", "json:nope", "--input", "4"), 3, "nope"),
    "net: not callable": Attack("be called", words("net", "math:pi", "--input", "4"), 2, "math:pi"),
    "net: a callable that raises": Attack(
        "end in a traceback", _model("def make(): raise OSError('their own fault')"), 3, "own fault"
    ),
    "net: a module that raises": Attack("end in one", _model("1/0"), 3, "their"),
    "net: a syntax error": Attack("end in one", _model("def make(:"), 3, "their"),
    "net: a callable that exits": Attack(
        "choose our exit code", _model("import sys\ndef make(): sys.exit(0)"), 3, "exit"
    ),
    "net: endless recursion": Attack(
        "overflow the stack", _model("def make(): return make()"), 3, "recursion|Recursion"
    ),
    "net: ends the process": Attack(
        "leave with 0 and no word", _model("import os\ndef make(): os._exit(0)"), 3, "exit code 0"
    ),
    "net: aborts": Attack(
        "die by a signal", _model("import os\ndef make(): os.abort()"), 3, "SIGABRT"
    ),
    "net: an error without words": Attack(
        "raise while it is told",
        _model("class E(Exception):\n    def __str__(self): 1/0\ndef make(): raise E"),
        3,
        "raised E",
    ),
    "net: a script module": Attack(
        "refuse hooks",
        _model("import torch\ndef make(): return torch.jit.script(torch.nn.Linear(4, 2))"),
        3,
        "ScriptModule",
    ),
    "net: returns a number": Attack("be a network", _model("def make(): return 7"), 3, "7|int"),
    "net: returns None": Attack("be a network", _model("def make(): return None"), 3, "None"),
    "net: an output with no tensor": Attack("have no loss", _model(DICT), 3, "output|loss"),
    "net: control flow by value": Attack(
        "be traced one way only, and silently", _model(ITEM), 0, r"their\.py:9 reads back"
    ),
    "net: a loop that data ends": Attack(
        "run for ever", _model(LOOP), 0, r"their\.py:8 reads back.*ended after 64 reads"
    ),
    "net: a place told that reads nothing": Attack(
        "be ignored", _model(ITEM, "--input", "4", "--read", "their.py:1=true"), 2, "their.py:9"
    ),
    "net: a read told without a value": Attack(
        "be guessed", _model(ITEM, "--input", "4", "--read", "their.py:9"), 2, "--read"
    ),
    "net: a huge number told": Attack(
        "make a tensor of 2**60 rows", _model(SIZE, "--input", "4", "--read", BIG), 3, "their.py:8"
    ),
    "net: an input that does not fit": Attack(
        "end in a traceback", _model(LINEAR, "--batch", "2", "--input", "5"), 3, "5"
    ),
    "net: a batch of nothing": Attack(
        "divide by zero", _model(LINEAR, "--input", "4", "--batch", "0"), 2, "batch"
    ),
    "net: a batch below nothing": Attack(
        "go back", _model(LINEAR, "--input", "4", "--batch=-3"), 2, "batch"
    ),
    "net: a shape that is none": Attack(
        "be int()ed", words("net", "vgg16", "--input", "3xx"), 2, "3xx"
    ),
    "net: an unknown optimizer": Attack(
        "be ignored", words("net", "vgg16", "--optimizer", "lion"), 2, "lion"
    ),
    "net: a network that is not built in": Attack("be guessed", words("net", "vgg"), 2, "vgg"),
}
