"""Forks a small tree of processes, each with one kind of memory that a census must get right.

They are forks of one interpreter: most of their pages are its pages, shared copy-on-write.
"""

import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

FULL = sys.argv[1] == "full"
PAGE = 4096
READY = Path("/run/census/ready")
KEPT: list[object] = []  # what a role holds as long as its process lives


def name(comm: str) -> None:
    """Give the calling thread a name of its own, as prctl(PR_SET_NAME) would."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(comm)


def fork(comm: str, role: Callable[[], object]) -> None:
    """Start a child, wait until its role is set up, and leave it waiting for ever."""
    if os.fork() == 0:
        name(comm)
        KEPT.append(role())
        (READY / comm).touch()
        while True:
            signal.pause()
    while not (READY / comm).exists():
        time.sleep(0.05)


def fill(memory: bytearray | mmap.mmap, pages: range, mark: bytes) -> None:
    for page in pages:
        memory[page * PAGE : page * PAGE + 16] = mark + page.to_bytes(8, "little")


def threads() -> object:
    def work(number: int) -> None:
        name(f"worker-{number:02d}")
        started.release()
        while True:
            time.sleep(100000)

    started = threading.Semaphore(0)
    count = 24 if FULL else 8
    threading.stack_size(256 << 10)
    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    for _ in range(count):
        started.acquire()  # counts the threads, guards nothing
    return started


def share(pages: range) -> mmap.mmap:
    """Map one tmpfs file as two processes do; each writes its half, the second reads it all."""
    size = 2 * len(pages) * PAGE
    file = os.open("/srv/ram/shared.bin", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(file, size)
    memory = mmap.mmap(file, size, mmap.MAP_SHARED)
    fill(memory, pages, b"SHARED__")
    if pages.start:
        sum(memory[::PAGE])
    return memory


def family() -> object:
    """Share anonymous pages with a child, which makes a quarter of them its own."""
    count = 1024 if FULL else 128
    memory = bytearray(count * PAGE)
    fill(memory, range(count), b"PARENT__")

    def child() -> object:
        fill(memory, range(count // 4), b"CHILD___")
        fork("cow-grandchild", lambda: memory)
        return memory

    fork("cow-child", child)
    return memory


def network() -> object:
    """An established pair with unread bytes, a client of nc, a UDP socket, an IPv6 listener."""
    server = socket.create_server(("127.0.0.1", 8080))
    client = socket.create_connection(("127.0.0.1", 8080))
    accepted, _ = server.accept()
    client.send(b"GET /exfil HTTP/1.1\r\nHost: evil.example\r\nCookie: sid=abc123\r\n\r\n")
    to_nc = socket.create_connection(("127.0.0.1", 4444))
    to_nc.send(b"hello nc")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 9999))
    sixth = socket.create_server(("::1", 6666), family=socket.AF_INET6)
    left, right = socket.socketpair()
    left.send(b"never read")
    return server, client, accepted, to_nc, datagrams, sixth, left, right


HALF = 128 if FULL else 32
name("cast")
fork("cast-threads", threads)
fork("cast-share-1", lambda: share(range(HALF)))
fork("cast-share-2", lambda: share(range(HALF, 2 * HALF)))
fork("cast-family", family)
fork("cast-network", network)
(READY / "cast").touch()
while True:
    signal.pause()
