"""Alice's process: holds a secret, numbered pages, one file it reads and one it writes."""

import os
import signal
import sys
from pathlib import Path

# Every page starts with its own number, so a reader can tell whether it got the right one.
PAGES = 2048 if sys.argv[1] == "full" else 128

secret = b"python-secret-" + os.urandom(8).hex().encode()
pages = bytearray(PAGES * 4096)
for number in range(PAGES):
    pages[number * 4096 : number * 4096 + 8] = number.to_bytes(8, "little")
notes = os.open("/srv/ram/notes.txt", os.O_RDONLY)
out = os.open("/home/alice/out.log", os.O_WRONLY | os.O_CREAT, 0o644)
os.write(out, b"hello\n")
with Path("/run/census/known").open("ab") as known:
    known.write(b"python-secret " + secret + b"\n")
Path("/run/census/ready/alice").touch()
while True:
    signal.pause()
