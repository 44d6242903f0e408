"""Wait for a QEMU guest's account of itself, stop the guest at once, save its memory.

FOLDER holds QEMU's socket "qmp" and the growing file "truth". Afterwards "truth" has the section
"registers" more and no end line, and "raw" is the memory: offset = physical address, which holds
while the guest's RAM is one block, below 3 GB on the pc machine. Covers one QEMU per folder.
"""

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

END = b"=== END\n"


class CaptureError(Exception):
    """The guest was not captured; the text says at which step."""


class Monitor:
    """QEMU's machine protocol over a unix socket: one JSON object a line, both ways."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(path))
        self.lines = self.socket.makefile("rw", encoding="utf-8")
        self.lines.readline()  # the greeting
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: object) -> Any:  # noqa: ANN401  # as QEMU defines it
        """Return the answer to a command. Raises: CaptureError if QEMU refuses or falls silent."""
        try:
            self.lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
            self.lines.flush()
            for line in self.lines:  # events may come before the answer
                answer = json.loads(line)
                if "error" in answer:
                    raise CaptureError(f"QEMU refused {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except OSError as error:
            raise CaptureError(f"QEMU did not answer {command}: {error}") from error
        raise CaptureError(f"QEMU closed its socket instead of answering {command}")


def alive(pid: int) -> bool:
    """Say whether the process runs; one that ended and is not yet waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in {b"Z", b"X"}


def wait_for_end(truth: Path, pid: int, limit: float) -> None:
    """Return as soon as the account is whole. Raises: CaptureError after limit seconds."""
    deadline = time.monotonic() + limit
    while True:
        try:
            with truth.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(END)))
                tail = file.read()
        except FileNotFoundError:
            tail = b""
        if tail == END:
            return
        if not alive(pid):
            raise CaptureError("QEMU ended before the guest's account was whole")
        if time.monotonic() > deadline:
            raise CaptureError(f"the guest's account was not whole after {limit:.0f} seconds")
        time.sleep(0.02)


def capture(folder: Path, pid: int, megabytes: int, limit: float) -> None:
    truth = folder / "truth"
    wait_for_end(truth, pid, limit)
    monitor = Monitor(folder / "qmp")
    monitor.ask("stop")
    # Not "info mem": on a guest with 5-level paging it takes minutes.
    registers = monitor.ask("human-monitor-command", **{"command-line": "info registers -a"})
    monitor.ask("pmemsave", val=0, size=megabytes << 20, filename=str(folder / "raw"))
    monitor.ask("quit")
    account = truth.read_bytes().removesuffix(END)
    lines = "\n".join(str(registers).split("\r\n")).strip("\n")
    truth.write_bytes(account + b"=== registers\n" + lines.encode() + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pid", type=int, required=True, help="of QEMU")
    parser.add_argument("--mb", type=int, required=True, help="of the guest's memory")
    parser.add_argument("--limit", type=float, required=True, help="seconds to wait")
    chosen = parser.parse_args()
    try:
        capture(chosen.folder.resolve(), chosen.pid, chosen.mb, chosen.limit)
    except (CaptureError, OSError) as error:
        print(f"capture: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
