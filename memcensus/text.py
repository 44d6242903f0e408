"""Text out of a target: bytes that may be anything, made safe to keep and safe to print.

A process name, a path or a page title comes from memory that somebody else wrote. ``decode`` keeps
every byte of it; ``printable`` is what a terminal may see of it. HTML escaping is the template's.
"""

from __future__ import annotations

import unicodedata

# Cc: control (ESC, newline, C1); Cf: format (bidi overrides, zero width); Cs: lone surrogates;
# Zl, Zp: line and paragraph separators; Co, Cn: private or not assigned, shown anyhow.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})


def decode(raw: bytes) -> str:
    r"""Return ``raw`` as text; bytes that are no valid UTF-8 become \xNN."""
    return raw.decode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    r"""Return ``text`` with everything that could move a cursor or hide a letter as \x1b, \u202e.

    One line in, one line out; ordinary text comes back unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
