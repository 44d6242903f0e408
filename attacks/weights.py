"""Attacks on the files that ``net`` reads: checkpoints that run programs, archives that lie."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

from attacks.attack import Attack, Make, file


class Runs:
    """Unpickled, runs a program."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch owned",)


def _archive(members: dict[str, bytes], packed: int = zipfile.ZIP_STORED) -> Make:
    """Return a maker of a checkpoint with ``members``, in the layout of torch.save."""

    def make(folder: Path) -> list[str]:
        with zipfile.ZipFile(folder / "their.pt", "w", packed) as archive:
            for name, content in {"archive/version": b"3\n", **members}.items():
                archive.writestr(name, content)
        return ["net", "their.pt"]

    return make


def _event(size: object, address: object = 1) -> bytes:
    arguments = {"Bytes": size, "Addr": address, "Device Type": 0, "Device Id": -1}
    event = {"ph": "i", "name": "[memory]", "ts": 1, "args": arguments}
    return json.dumps({"schemaVersion": 1, "traceEvents": [event]}).encode()


_PICKLE = "archive/data.pkl"
_DEEP = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."
_LONG = b"\x80\x02" + b"N0" * 20_000_000 + b"N."

ATTACKS = {
    "weights: a pickle that runs a program": Attack(
        "run it", file("their.pkl", pickle.dumps(Runs()), "net"), 3, "system.*nothing was executed"
    ),
    "weights: the same, found by detection": Attack(
        "run it", file("their.pkl", pickle.dumps(Runs())), 3, "system.*nothing was executed"
    ),
    "weights: a checkpoint that runs a program": Attack(
        "run it", _archive({_PICKLE: pickle.dumps(Runs(), 2)}), 3, "system.*nothing was executed"
    ),
    "weights: a global that only looks harmless": Attack(
        "reach os through torch",
        _archive({_PICKLE: b"\x80\x02ctorch.serialization\nos.system\n(Vtrue\ntR."}),
        3,
        "os.system",
    ),
    "weights: a packed pickle": Attack(
        "unpack to gigabytes", _archive({_PICKLE: _LONG}, zipfile.ZIP_DEFLATED), 3, "is packed"
    ),
    "weights: containers without end": Attack(
        "overflow the stack", _archive({_PICKLE: _DEEP}), 3, "deep inside"
    ),
    "weights: a member outside of the folder": Attack(
        "be written there", _archive({_PICKLE: pickle.dumps({}, 2), "../../owned": b"x"}), 0, ""
    ),
    "weights: an archive cut off": Attack(
        "be read as empty",
        file("their.pt", b"PK\x03\x04" + bytes(5000), "net"),
        3,
        "no kind that net",
    ),
    "weights: a pickle cut off": Attack(
        "be read as empty", _archive({_PICKLE: pickle.dumps({"a": 1}, 2)[:-4]}), 3, "their.pt"
    ),
    "weights: a trace of impossible sizes": Attack(
        "overflow a sum", file("their.json", _event(10**30), "net"), 3, "64 bits"
    ),
    "weights: a trace of words for numbers": Attack(
        "be added", file("their.json", _event("many"), "net"), 3, "their.json"
    ),
}
