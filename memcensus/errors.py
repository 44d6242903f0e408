"""The tree of errors. Each is one sentence with the value, the place and the way out.

::

    MemcensusError         exit 3
    ├── Overcounted        exit 3   the parts hold more than the known total: a bug, or a race
    ├── UsageError         exit 2   the command line asks for something that makes no sense
    │   ├── NotYet         exit 2   a verb of the grammar that does not work in this version
    │   └── NeedsExtra     exit 2   a package or program is missing; says how to install it
    └── Unreadable         exit 3   the target is not there, not readable, or not what it should be
        ├── NoSubject      exit 3   no subject knows what the target is
        ├── NoKernel       exit 3   a RAM image in which no kernel could be found
        ├── NotThere       exit 3   an address that is not in the image (ram/image.py)
        ├── NoSuchMember   exit 3   a type that this kernel has not got (ram/linux/btf.py)
        └── ModelFailed    exit 3   the user's own model code raised

A subject raises one of these when there is nothing to report; as soon as there is something, what
is missing becomes a ``Gap`` of the report instead.
"""

from __future__ import annotations

import errno
from typing import ClassVar

from memcensus.model import MemcensusError, Overcounted

__all__ = [
    "LONGEST",
    "MemcensusError",
    "ModelFailed",
    "NeedsExtra",
    "NoKernel",
    "NoSubject",
    "NotYet",
    "Overcounted",
    "Unreadable",
    "UsageError",
    "unreadable",
]


class UsageError(MemcensusError):
    """The command line asks for something that makes no sense."""

    exit_code: ClassVar[int] = 2


class NotYet(UsageError):
    """A verb of the grammar that does not work in this version."""


class NeedsExtra(UsageError):
    """A package or program is missing; the text says how to install it."""


class Unreadable(MemcensusError):
    """The target is not there, not ours to read, or not what it should be."""


class NoSubject(Unreadable):
    """No subject knows what the target is."""


class NoKernel(Unreadable):
    """A RAM image in which no kernel could be found."""


class ModelFailed(Unreadable):
    """The user's own model code raised."""


def unreadable(path: object, error: OSError, way_out: str = "") -> Unreadable:
    """Return the error for a failed open or read: the path, the system's reason, the way out."""
    name = str(path)
    shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
    reason = error.strerror or type(error).__name__
    hint = _BY_NUMBER.get(error.errno) or way_out or _WAY_OUT.get(type(error), _LOOK)
    return Unreadable(f"cannot read {shown}: {reason.lower()}; {hint}")


LONGEST = 200
"""Characters of a name that a sentence repeats."""

_LOOK = "check the path and try again"
_BY_NUMBER: dict[int | None, str] = {
    errno.ENOMEM: "free some memory, or raise the limit (ulimit -v)",
    errno.ENAMETOOLONG: "check the name",
    errno.ELOOP: "the link leads back to itself",
}
_WAY_OUT: dict[type[OSError], str] = {
    FileNotFoundError: "check the name",
    PermissionError: "run as a user who may read it, or as root",
    IsADirectoryError: "name a file inside it",
    ProcessLookupError: "the process has ended; name one that runs",
}
