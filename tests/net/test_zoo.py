"""The networks that others measured have as many parameters as their authors published."""

from __future__ import annotations

import sys

import pytest

from benchmarks import zoo

PUBLISHED = {
    "openai-community-gpt2": 124_439_808,
    "distilbert-distilgpt2": 81_912_576,
    "cerebras-Cerebras-GPT-111M": 111_050_496,
    "facebook-opt-125m": 125_239_296,
    "facebook-opt-350m": 331_196_416,
    "EleutherAI-gpt-neo-125M": 125_198_592,
    "T5-small": 60_506_624,
    "t5-base": 222_903_552,
}
"""Numbers of the models' cards; tied ones count once."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_transformer_is_rebuilt_with_its_published_size(name: str) -> None:
    network = zoo.network(name)
    assert zoo.is_transformer(name)
    assert sum(parameter.numel() for parameter in network.parameters()) == PUBLISHED[name]
    assert {parameter.device.type for parameter in network.parameters()} == {"meta"}


def test_every_transformer_of_the_tables_has_its_size_here() -> None:
    assert zoo._TRANSFORMERS.keys() == PUBLISHED.keys()


def test_a_perceptron_is_rebuilt_from_its_list() -> None:
    text = "[('linear', 20, 220), ('batch_normalization', 20, 40), ('ReLU', 20, 0),"
    text += " ('dropout', 20, 0), ('linear', 3, 63), ('Softmax', 3, 0)]"
    network = zoo.perceptron(text, 10)
    numbers = [sum(p.numel() for p in layer.parameters()) for layer in network.children()]
    assert numbers == [220, 40, 0, 0, 63, 0]
    with pytest.raises(ValueError, match="'abacus' is no layer"):
        zoo.perceptron("[('abacus', 1, 0)]", 10)


def test_a_network_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(zoo.Missing, match="torchvision is not installed"):
        zoo.network("ResNet101")
