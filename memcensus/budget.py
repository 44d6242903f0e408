"""Which limit decides: the host's memory, a cgroup's (v1 and v2), the process's rlimit, or a flag.

The smallest wins, and its ``Source`` says which one it was. Swap is not counted: a peak that only
fits with swap does not fit in the sense the user asks for.

Not covered: GPU memory, memory policies (cpuset, NUMA), and limits that a container runtime keeps
outside the kernel.
"""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memcensus import units
from memcensus.errors import Unreadable, unreadable
from memcensus.model import Budget, Evidence, Source

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")

# cgroup v1 writes "no limit" as the largest page multiple of a signed long (kernel mm/memcontrol.c,
# PAGE_COUNTER_MAX); anything of that size is no limit on any machine.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One memory cgroup of a process's ancestry."""

    folder: Path
    version: int  # 1 or 2

    @property
    def limit_file(self) -> Path:
        """The file with the hard limit."""
        return self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")

    @property
    def usage_file(self) -> Path:
        """The file with the bytes charged now."""
        return self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes")

    def limit(self) -> int | None:
        """Return the hard limit in bytes, None where there is none or it cannot be read."""
        text = _read(self.limit_file)
        if not text.isdecimal() or int(text) >= _NO_LIMIT:
            return None
        return int(text)


def memory_cgroups(pid: str = "self", proc: Path = PROC) -> Iterator[Cgroup]:
    """Yield the memory cgroups of ``pid`` from its own up to the root that is mounted here.

    Both hierarchies of a hybrid machine are followed; a v2 hierarchy without the memory controller
    simply has no limit files.
    """
    mounts = list(_cgroup_mounts(proc / pid / "mountinfo"))
    for line in _read(proc / pid / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            if mount.version == version:
                yield from _ancestry(mount, Path(path))


def host_memory(proc: Path = PROC) -> Budget:
    """Return MemTotal, the memory the kernel manages.

    Raises:
        Unreadable: if /proc/meminfo is not there or has no MemTotal.
    """
    path = proc / "meminfo"
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise unreadable(path, error, "mount /proc, or give --limit a size") from error
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split()[0].isdecimal():
            where = f"{path}:MemTotal"
            return Budget(int(value.split()[0]) * 1024, Source(Evidence.MEASURED, where))
    raise Unreadable(f"{path} has no line MemTotal; give --limit a size")


def automatic(proc: Path = PROC) -> Budget:
    """Return the smallest limit that binds this process: ``--limit auto``.

    Raises:
        Unreadable: if not even the host's memory can be read.
    """
    candidates = [host_memory(proc), *_cgroup_budgets(proc), *_rlimit_budgets()]
    return min(candidates, key=lambda budget: budget.limit)


def parse(text: str) -> Budget:
    """Return the budget that ``--limit TEXT`` asks for: a size, or "auto".

    Raises:
        UsageError: if the size cannot be understood.
        Unreadable: if "auto" finds no limit.
    """
    if text == "auto":
        return automatic()
    where = f"--limit {text}"
    return Budget(units.parse(text), Source(Evidence.MEASURED, where))


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: Path  # the cgroup that the mount point shows; not "/" in a container
    point: Path


def _cgroup_mounts(mountinfo: Path) -> Iterator[_Mount]:
    """Read the cgroup mounts: proc(5), "/proc/pid/mountinfo"."""
    for line in _read(mountinfo).splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        if kinds[0] == "cgroup2":
            yield _Mount(2, _unescaped(fields[3]), _unescaped(fields[4]))
        elif kinds[0] == "cgroup" and "memory" in kinds[2].split(","):
            yield _Mount(1, _unescaped(fields[3]), _unescaped(fields[4]))


def _unescaped(field: str) -> Path:
    r"""Return a path as it is: the kernel writes blanks as \040 (fs/proc_namespace.c, mangle)."""
    return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field))


def _ancestry(mount: _Mount, path: Path) -> Iterator[Cgroup]:
    """Yield the folders from ``path`` up to the mount point."""
    try:
        inside = path.relative_to(mount.root)
    except ValueError:  # the process's cgroup lies outside of what is mounted here
        inside = Path()
    folder = mount.point / inside
    while True:
        yield Cgroup(folder, mount.version)
        if folder == mount.point:
            return
        folder = folder.parent


def _cgroup_budgets(proc: Path) -> Iterator[Budget]:
    for cgroup in memory_cgroups(proc=proc):
        limit = cgroup.limit()
        if limit is not None:
            yield Budget(limit, Source(Evidence.MEASURED, f"cgroup {cgroup.limit_file}"))


def _rlimit_budgets() -> Iterator[Budget]:
    for name, which in (("RLIMIT_AS", resource.RLIMIT_AS), ("RLIMIT_DATA", resource.RLIMIT_DATA)):
        soft, _ = resource.getrlimit(which)
        if soft != resource.RLIM_INFINITY:
            yield Budget(soft, Source(Evidence.MEASURED, f"setrlimit {name} (ulimit)"))


def _read(path: Path) -> str:
    """Return the text, "" where the file cannot be read: then it sets no limit."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
