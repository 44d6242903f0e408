"""A program whose memory the tests know: it forks a sibling, then takes what each line asks for.

Run as ``python holder.py FILE``. Prints "PID SIBLING", then "ok" after each line: anonymous N,
mapped, shared N, end. Memory that was asked for is touched, page by page.
"""

from __future__ import annotations

import mmap
import os
import sys

PAGE = 4096
kept: list[mmap.mmap] = []


def touch(area: mmap.mmap, *, write: bool) -> None:
    for at in range(0, len(area), PAGE):
        if write:
            area[at] = 1
        elif area[at] > 255:
            raise ValueError(at)
    kept.append(area)


def anonymous(size: int) -> None:
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    touch(area, write=True)


def mapped(path: str) -> None:
    with open(path, "rb") as file:  # noqa: PTH123  (as little as possible is imported)
        touch(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), write=False)


def main() -> None:
    size = int(sys.argv[2])
    segment = os.memfd_create("ledger")
    os.ftruncate(segment, size)
    read, write = os.pipe()
    sibling = os.fork()
    if sibling == 0:  # has the segment once it is told to, until the pipe closes
        os.close(write)
        os.read(read, 1)
        touch(mmap.mmap(segment, size), write=True)
        os.write(1, b"ok\n")
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.write(1, f"{os.getpid()} {sibling}\n".encode())
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "anonymous":
            anonymous(int(number))
        elif word == "mapped":
            mapped(sys.argv[1])
        elif word == "shared":  # here first, then in the sibling, which says ok
            touch(mmap.mmap(segment, size), write=True)
            os.write(write, b"x")
            continue
        os.write(1, b"ok\n")
    os.close(write)
    os.waitpid(sibling, 0)


if __name__ == "__main__":
    main()
