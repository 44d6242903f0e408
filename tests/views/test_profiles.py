"""The forms that other tools open: pprof, read back by protoc, and the trace event format."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given

from memcensus.errors import UsageError
from memcensus.model import Report
from memcensus.subject import Look
from memcensus.views.perfetto import PerfettoView
from memcensus.views.pprof import PprofView, profile
from tests.strategies import reports
from tests.views import censuses

ALL = Look()
PROTOC = shutil.which("protoc")
_ENTRY = re.compile(r"\s*(\d+)(?:: (.*)| \{)|\s*\}")


def _bytes(report: Report, look: Look = ALL) -> bytes:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8")
    PprofView().render([report], out, look)
    return gzip.decompress(raw.getvalue())


def _decoded(content: bytes) -> str:
    """Return what protoc, which knows nothing of the format, finds in ``content``."""
    done = subprocess.run(
        [str(PROTOC), "--decode_raw"], input=content, capture_output=True, check=True
    )
    return done.stdout.decode()


@pytest.mark.skipif(PROTOC is None, reason="protoc is not installed (protobuf-compiler)")
def test_protoc_reads_the_samples_and_their_stacks() -> None:
    text = _decoded(profile({("net", "parameters"): 300, ("net", "gradients", "fc"): 70000}))
    top = [line for line in text.splitlines() if not line.startswith(" ")]
    assert top == ["1 {", "}", "2 {", "}", "2 {", "}", *["4 {", "}", "5 {", "}"] * 4, *top[22:]]
    assert top[22:] == ["14: 1", '6: ""', '6: "memory"', '6: "bytes"', *top[26:]]
    assert top[26:] == [f'6: "{name}"' for name in ("net", "parameters", "gradients", "fc")]
    # the leaf first: "parameters" is location 2, "net" 1; 70000 is a varint of three bytes
    assert re.search(r'2 \{\n  1: "\\002\\001"\n  2: "\\254\\002"\n\}', text)
    assert re.search(r'2 \{\n  1: "\\004\\003\\001"\n  2: "\\360\\242\\004"\n\}', text)


@given(reports())
def test_a_profile_holds_every_byte_of_a_report_once(report: Report) -> None:
    sizes = [int(n) for n in _samples(_bytes(report))]
    assert sum(sizes) == report.root.total


def _samples(content: bytes) -> Iterator[int]:
    """Yield the bytes of each sample, by a reader of the wire format that shares no code."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        if tag & 7 == 0:
            _, at = _varint(content, at)
            continue
        length, at = _varint(content, at)
        if tag >> 3 == 2:
            inner = content[at : at + length]
            _, place = _varint(inner, 0)
            skip, place = _varint(inner, place)
            place += skip + 1
            _, place = _varint(inner, place)
            yield _varint(inner, place)[0]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:
            return value, at


def test_a_profile_needs_a_place_for_bytes() -> None:
    with pytest.raises(UsageError, match=r"-o profile.pb.gz"):
        PprofView().render([], io.StringIO(), Look())


@given(reports())
def test_counters_hold_the_timeline(report: Report) -> None:
    out = io.StringIO()
    PerfettoView().render([report], out, Look())
    events = json.loads(out.getvalue())["traceEvents"]
    assert events[0]["ph"] == "M"
    counters = [event for event in events if event["ph"] == "C"]
    if report.timeline is None:
        assert sum(event["args"]["bytes"] for event in counters) == sum(
            child.total for child in report.root.children
        )
        return
    drawn = [size for series in report.timeline.series for size in series.sizes]
    assert [event["args"]["bytes"] for event in counters] == drawn
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_focus_keeps_what_it_finds() -> None:
    look = Look(focus=re.compile("nothing is called so"))
    out = io.StringIO()
    PerfettoView().render([censuses.net()], out, look)
    kinds = {event["ph"] for event in json.loads(out.getvalue())["traceEvents"]}
    assert "C" not in kinds
    assert not list(_samples(_bytes(censuses.net(), look)))
