"""Inputs from the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import UsageError
from memcensus.net.inputs import DTYPES, Input, parse, parse_all


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3x224x224", Input(None, None, (2, 3, 224, 224))),
        ("128", Input(None, None, (2, 128))),
        ("int64:128", Input(None, "int64", (2, 128))),
        ("ids:128", Input("ids", None, (2, 128))),
        ("ids:int64:128", Input("ids", "int64", (2, 128))),
    ],
)
def test_the_documented_forms(text: str, expected: Input) -> None:
    assert parse(text, 2) == expected


def test_several_by_commas_or_by_repeating() -> None:
    apart = parse_all(["a:int64:5", "b:int64:5"], 1)
    assert parse_all(["a:int64:5, b:int64:5"], 1) == apart
    assert [each.name for each in apart] == ["a", "b"]


NO_INPUTS = (
    *("", ":", "x", "3x", "x3", "3X3", "-3", "3x-3", "0", "3x0", "a:b:c:3", "ids:int:3", "1:3"),
    *("é:3", "9" * 13, "x".join("1" * 16), "999999999x999999999", "a:float32:", "\x1b[2J:3"),
    "\u0663x3",  # an Arabic three
)


@pytest.mark.parametrize("text", NO_INPUTS)
def test_what_is_no_input_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--input"):
        parse(text, 1)


def test_an_argument_is_named_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_all(["a:3", "a:4"], 1)


@given(st.text(max_size=40), st.integers())
def test_no_text_ends_in_anything_but_an_input_or_a_sentence(text: str, batch: int) -> None:
    try:
        inputs = parse_all([text], batch)
    except UsageError:
        return
    assert all(each.shape[0] == batch for each in inputs)


def test_every_type_is_one_of_torch() -> None:
    import torch

    assert all(isinstance(getattr(torch, name), torch.dtype) for name in DTYPES)
