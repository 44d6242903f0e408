"""Which outputs the default loss learns from."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from memcensus.errors import ModelFailed
from memcensus.net.loss import default_loss, leaves_of, target_of

SCORES = torch.arange(12.0).view(4, 3)
TOKENS = torch.arange(24.0).view(2, 4, 3)
NUMBERS = torch.tensor([1, 2])


@dataclass
class Output:
    loss: torch.Tensor | None
    hidden: torch.Tensor
    logits: torch.Tensor


def test_scores_of_classes_give_the_cross_entropy() -> None:
    target = target_of(SCORES)
    assert target is not None
    assert target.tolist() == [0, 0, 0, 0]
    expected = functional.cross_entropy(SCORES, torch.zeros(4, dtype=torch.int64))
    assert default_loss(SCORES, target) == expected


@pytest.mark.parametrize(
    ("output", "total"),
    [
        (TOKENS, TOKENS.sum()),
        ((SCORES, TOKENS), SCORES.sum() + TOKENS.sum()),
        ([NUMBERS, {"deep": TOKENS}], TOKENS.sum()),
        ({"a": SCORES, "b": SCORES}, 2 * SCORES.sum()),
        (Output(None, SCORES, TOKENS), TOKENS.sum()),
        ({"loss": None, "logits": TOKENS, "hidden": SCORES}, TOKENS.sum()),
    ],
)
def test_everything_else_is_summed(output: object, total: torch.Tensor) -> None:
    assert target_of(output) is None
    assert default_loss(output, None) == total


def test_a_loss_of_its_own_is_taken() -> None:
    own = torch.tensor(3.5)
    for output in (Output(own, SCORES, SCORES), {"loss": own, "logits": SCORES}):
        assert target_of(output) is None
        assert default_loss(output, None) is own


def test_a_model_output_of_transformers_is_read_by_its_logits() -> None:
    from transformers.modeling_outputs import ImageClassifierOutput

    output = ImageClassifierOutput(logits=SCORES)
    assert target_of(output) is not None
    assert len(leaves_of(output)) == 1


@pytest.mark.parametrize("output", [None, 3, "text", NUMBERS, (), {"ids": NUMBERS}])
def test_nothing_to_learn_from_is_an_error(output: object) -> None:
    with pytest.raises(ModelFailed, match="without a floating tensor"):
        target_of(output)
