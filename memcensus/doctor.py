"""What this installation can do here, and what to install or change for the rest.

Nothing heavy is imported: a package is looked up, not loaded.
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from memcensus import __version__, budget, units
from memcensus.errors import MemcensusError
from memcensus.subject import SUBJECTS, VIEWS, installed

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's findings."""

    what: str
    good: bool
    finding: str  # what there is, or what to do


def examine() -> Iterator[Check]:
    """Yield the checks, this program first."""
    python = platform.python_version()
    yield Check("memcensus", good=True, finding=f"{__version__} on Python {python}")
    yield from _registered("subjects", SUBJECTS)
    yield from _registered("views", VIEWS)
    yield _package("torch", "net", "pip install torch==2.13.0")
    yield _program("chromium", "looking at a report here", "apt-get install chromium")
    yield from _files()
    yield _limit()


def _registered(group: str, ours: dict[str, str]) -> Iterator[Check]:
    """Check that what other packages register can be imported; ours are named in one line."""
    yield Check(group, good=True, finding=", ".join(ours))
    for name, place in installed(group, {}).items():
        module, _, attribute = place.partition(":")
        try:
            getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            yield Check(f"{group}: {name}", good=False, finding=f"{place}: {error}")
        else:
            yield Check(f"{group}: {name}", good=True, finding=place)


def _package(name: str, need: str, install: str) -> Check:
    if find_spec(name) is None:
        return Check(name, good=False, finding=f"{need} needs it: {install}")
    try:
        return Check(name, good=True, finding=version(name))
    except PackageNotFoundError:
        return Check(name, good=True, finding="there, of unknown version")


def _program(name: str, need: str, install: str) -> Check:
    path = shutil.which(name)
    finding = path or f"{need} needs it: {install}"
    return Check(name, good=path is not None, finding=finding)


_FILES = (
    ("/proc/meminfo", "live cannot work without /proc; mount it"),
    ("/proc/pressure/memory", "no pressure figures: boot with psi=1 (Linux 4.20 or newer)"),
    ("/proc/slabinfo", "no slab caches by name: run as root"),
    ("/proc/1/smaps_rollup", "PSS of your own processes only: run as root for all"),
)


def _files() -> Iterator[Check]:
    for name, otherwise in _FILES:
        readable = os.access(name, os.R_OK) and _opens(Path(name))
        yield Check(name, good=readable, finding="readable" if readable else otherwise)


def _opens(path: Path) -> bool:
    """Say whether a first byte can be read: the kernel checks some files only then."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def _limit() -> Check:
    try:
        found = budget.automatic()
    except MemcensusError as error:
        return Check("--limit auto", good=False, finding=str(error))
    finding = f"{units.size(found.limit)} from {found.source.where}"
    return Check("--limit auto", good=True, finding=finding)
