"""What is said of a figure: labels and values, made fit to be shown on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from memcensus.model import Evidence
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memcensus.model import Source

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Fact: TypeAlias = tuple[str, str]
"""A label and its value, as they are shown."""

MOST_LETTERS = 400
"""Letters of a text from a target that are shown."""

EVIDENCE = {
    Evidence.MEASURED: "read from the memory itself or from the kernel",
    Evidence.COMPUTED: "follows exactly from declared shapes and types, or is total - parts",
    Evidence.ESTIMATED: "a model of behaviour; carries an error",
    Evidence.ASSUMED: "a default that nobody confirmed",
}


def facts_of(source: Source) -> Iterator[Fact]:
    """Yield what a source says."""
    yield source.evidence, EVIDENCE[source.evidence]
    yield "where", clip(source.where) or "not said"
    if source.meaning:
        yield "meaning", clip(source.meaning)


def clip(text: str, most: int = MOST_LETTERS) -> str:
    """Return ``text`` as a page may show it: no control characters, not without end."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most:,} more letters)"
    return printable(text)
