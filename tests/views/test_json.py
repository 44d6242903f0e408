"""The report format against its schema, by a validator that is not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcensus.views.json as view
from memcensus.errors import Unreadable
from memcensus.model import Report
from tests.strategies import reports

SCHEMA = json.loads((Path(view.__file__).parent / "report.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# Written by hand from the design, not by the code: what any later version must go on reading.
CONTRACT = """
{"schema": 1, "subject": "ram", "target": "dump.raw", "tool": "memcensus 0.1.0", "partial": false,
 "root": {"name": "image", "own": 0, "error": 0, "borrowed": 0,
          "source": {"evidence": "measured", "where": "dump.raw: 0x0-0x20000000"},
          "quantities": [{"name": "pages", "value": 131072, "unit": "page"}],
          "children": [{"name": "free", "own": 4096, "error": 0, "borrowed": 0, "quantities": [],
                        "source": {"evidence": "measured", "where": "buddy"}, "children": []}]},
 "instant": 0,
 "timeline": {"clock": "ns", "series": [{"path": ["image", "free"], "times": [0], "sizes": [4096]}],
              "marks": [[0, "backward starts"]]},
 "tables": [{"name": "processes",
             "columns": [{"name": "pid", "unit": null}, {"name": "resident", "unit": "B"}],
             "rows": [[1, 4096]],
             "sources": [{"evidence": "measured", "where": "dump.raw@0x1a498000"}]}],
 "gaps": [{"what": "swap", "absence": "unreadable", "why": "no swap file was given"}],
 "verdict": {"answer": "fits", "peak": 1, "error": 0, "limit": 2,
             "limit_source": {"evidence": "measured", "where": "cgroup memory.max"}},
 "added by a later version": [1, 2, 3]}
"""


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@given(reports())
def test_every_report_is_valid_by_the_schema(report: Report) -> None:
    VALIDATOR.validate(json.loads(view.dumps(report)))


def test_the_contract_is_valid_and_read_and_what_is_new_is_ignored() -> None:
    VALIDATOR.validate(json.loads(CONTRACT))
    (report,) = view.loads(CONTRACT)
    assert 4096 == report.root.total
    assert "free" == report.root.children[0].name
    assert ((0, "backward starts"),) == (report.timeline and report.timeline.marks)
    assert ((1, 4096),) == report.tables[0].rows
    assert "no swap file was given" == report.gaps[0].why
    assert 2 == (report.verdict and report.verdict.budget.limit)


@given(st.data())
def test_no_change_of_one_value_ends_in_a_traceback(data: st.DataObject) -> None:
    document = json.loads(CONTRACT)
    put, _ = data.draw(st.sampled_from(_places(document)))
    put(data.draw(st.none() | st.integers() | st.text() | st.lists(st.integers())))
    with suppress(Unreadable):  # anything else fails the test
        VALIDATOR.validate(json.loads(view.dumps(*view.loads(json.dumps(document)))))


@given(st.integers(0, len(CONTRACT.strip()) - 1))
def test_a_file_cut_anywhere_is_refused_in_a_sentence(length: int) -> None:
    with pytest.raises(Unreadable, match="report"):
        view.loads(CONTRACT.strip()[:length])


@given(st.binary(max_size=200))
def test_a_file_of_anything_is_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "anything.json"
    path.write_bytes(b"{" + raw)
    with pytest.raises(Unreadable, match=r"anything\.json"):
        view.load(path)


def _places(value: object) -> list[tuple[Callable[[object], None], object]]:
    """Return a setter for each place of the document, with what stands there."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return []
    here = [(partial(value.__setitem__, key), child) for key, child in pairs]
    return here + [place for _, child in pairs for place in _places(child)]
