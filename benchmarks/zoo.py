"""Builds the networks that others measured, without weights: on torch's meta device.

Convolutional ones come from torchvision (and Xception from timm), transformers from transformers
with the sizes of their published configurations written out here, so that nothing is fetched; the
multilayer perceptrons are rebuilt from the list of their layers.
"""

from __future__ import annotations

import ast
from importlib import import_module
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

_Sizes = dict[str, int | float | bool | str | list[object] | None]

_TEN_CLASSES = frozenset({"MnasNet", "MobeNetV3Large", "MobeNetV3Small"})
_CONVOLUTIONAL = {
    "ConvNeXtBase": "convnext_base",
    "ConvNeXtTiny": "convnext_tiny",
    "MnasNet": "mnasnet1_0",
    "MobeNetV3Large": "mobilenet_v3_large",
    "MobeNetV3Small": "mobilenet_v3_small",
    "MobileNetV2": "mobilenet_v2",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
    "vgg16": "vgg16",
    "resnet50": "resnet50",
    "mobilenetV2": "mobilenet_v2",
    "efficientnet": "efficientnet_b0",
}
"""Name in the tables -> constructor in torchvision.models."""

_NEEDS_NUMBERS = frozenset({"RegNetX400MF", "RegNetY400MF"})
"""Their constructors compute widths with tensors, which meta cannot; 20 MB of weights each."""

_GPT2: _Sizes = {"vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 12}
_OPT: _Sizes = {"vocab_size": 50272, "max_position_embeddings": 2048, "dropout": 0.1}
_T5: _Sizes = {"vocab_size": 32128, "d_kv": 64, "decoder_start_token_id": 0}
_TRANSFORMERS: dict[str, tuple[str, str, _Sizes]] = {
    "openai-community-gpt2": ("GPT2Config", "GPT2LMHeadModel", _GPT2),
    "distilbert-distilgpt2": ("GPT2Config", "GPT2LMHeadModel", {**_GPT2, "n_layer": 6}),
    "cerebras-Cerebras-GPT-111M": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            **_GPT2,
            "n_layer": 10,
            "n_inner": 3072,
            "n_positions": 2048,
            "activation_function": "gelu",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    ),
    "facebook-opt-125m": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            **_OPT,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "ffn_dim": 3072,
            "num_attention_heads": 12,
            "word_embed_proj_dim": 768,
        },
    ),
    "facebook-opt-350m": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            **_OPT,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "EleutherAI-gpt-neo-125M": (
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": 50257,
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
            "max_position_embeddings": 2048,
            "window_size": 256,
        },
    ),
    "T5-small": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**_T5, "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    ),
    "t5-base": (
        "T5Config",
        "T5ForConditionalGeneration",
        {**_T5, "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    ),
}
"""Name in the tables -> configuration class, model class, sizes that are not its defaults."""

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        nn.ELU,
        nn.GELU,
        nn.Identity,
        nn.LeakyReLU,
        nn.Mish,
        nn.PReLU,
        nn.ReLU,
        nn.SELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softplus,
        nn.Tanh,
    )
}


class Missing(Exception):
    """A network cannot be built here; the text says what is not installed."""


def network(name: str) -> nn.Module:
    """Return the network that the tables call ``name``, in training mode, on meta where it can be.

    Raises:
        Missing: if the package that it comes from is not installed.
        KeyError: if the name is none of the tables'.
    """
    with torch.device("cpu" if name in _NEEDS_NUMBERS else "meta"):
        if name in _TRANSFORMERS:
            return _transformer(*_TRANSFORMERS[name]).train()
        if name == "Xception":
            return _made("timm", "create_model", "xception", num_classes=1000).train()
        if name == "inception":  # its own first weights need real numbers, which no byte depends on
            made = _made(
                "torchvision.models",
                "inception_v3",
                weights=None,
                aux_logits=False,
                init_weights=False,
            )
            return made.train()
        classes = 10 if name in _TEN_CLASSES else 1000
        kind = _CONVOLUTIONAL[name]
        return _made("torchvision.models", kind, weights=None, num_classes=classes).train()


def is_transformer(name: str) -> bool:
    """Return whether the network of that name takes tokens and gives its own loss."""
    return name in _TRANSFORMERS


def perceptron(layers: str, inputs: int, *, dropout: float = 0.5) -> nn.Module:
    """Return the network of ``layers``, "[('linear', outputs, parameters), ...]", on meta.

    No byte depends on the probability of ``dropout``, if it is neither 0 nor 1.

    Raises:
        ValueError: if the text is no such list or names a layer that none of the tables has.
    """
    parts: list[nn.Module] = []
    width = inputs
    with torch.device("meta"):
        for kind, outputs, _ in ast.literal_eval(layers):
            parts.append(_layer(kind, width, outputs, dropout))
            width = outputs
    return nn.Sequential(*parts)


def _layer(kind: str, width: int, outputs: int, dropout: float) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, outputs)
    if kind == "batch_normalization":
        return nn.BatchNorm1d(width)
    if kind == "dropout":
        return nn.Dropout(dropout)
    if kind == "Softmax":
        return nn.Softmax(dim=1)
    if kind not in _ACTIVATIONS:
        raise ValueError(f"{kind!r} is no layer of the table; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[kind]()


def _transformer(config: str, model: str, sizes: _Sizes) -> nn.Module:
    return _made("transformers", model, _made("transformers", config, **sizes))


def _made(package: str, name: str, *arguments: object, **named: object) -> nn.Module:
    """Call ``name`` of ``package``; what it returns is a module or a module's configuration."""
    try:
        call: Callable[..., nn.Module] = getattr(import_module(package), name)
    except ImportError as error:
        raise Missing(f"{package.partition('.')[0]} is not installed ({error})") from error
    return call(*arguments, **named)
