"""What the grammar promises and this version has not got: it says so, and exits with 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcensus import __version__
from memcensus.errors import NotYet

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS: dict[tuple[str, ...], str] = {
    **dict.fromkeys(
        [
            ("ram", word)
            for word in (
                *("files", "sockets", "history", "modules", "photos", "keys", "strings"),
                *("find", "screen", "timeline", "dump", "formats", "acquire", "symbols"),
            )
        ],
        "ram and ram processes work",
    ),
    **dict.fromkeys(
        [("net", word) for word in ("fit", "design", "convert", "train", "export", "trace")],
        "net TARGET works",
    ),
    **dict.fromkeys([("program",), ("web",), ("game",), ("case",)], "net, ram and live work"),
}
"""Verbs of the grammar that this version has not got -> what it has."""

FLAGS = frozenset({"--watch", "--serve", "--record", "--case", "--spread"})
"""Flags of the grammar that this version has not got."""


def refuse(tokens: Sequence[str]) -> None:
    """Raise NotYet if the words name a verb or a flag that this version has not got."""
    words = tuple(tokens[:2])
    for verb in (words[:1], words):
        if verb in VERBS:
            raise NotYet(
                f"memcensus {' '.join(verb)} does not work in version {__version__}: "
                f"{VERBS[verb]}, docs/roadmap.md says what comes next, and a file of that name "
                f"is reached as ./{verb[-1]}"
            )
    for flag in (token.partition("=")[0] for token in tokens):
        if flag in FLAGS:
            raise NotYet(
                f"{flag} does not work in version {__version__}; docs/roadmap.md says what comes "
                "next, and --help what there is"
            )
