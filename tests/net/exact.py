"""Networks of many kinds, small enough to be trained for real beside the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional

from tests.net import networks

Inputs: TypeAlias = Mapping[str, object] | Sequence[object]


@dataclass(frozen=True)
class Case:
    """A network and what it is fed."""

    make: networks.Maker
    inputs: Inputs


class Block(nn.Module):
    """Two convolutions, each normalised, with ReLU in place."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class UNet(nn.Module):
    """Two levels with skips that wait for the way up."""

    def __init__(self, width: int = 8, inputs: int = 1) -> None:
        super().__init__()
        self.down = nn.ModuleList([Block(inputs, width), Block(width, 2 * width)])
        self.bottom = Block(2 * width, 4 * width)
        self.rise = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2),
                nn.ConvTranspose2d(2 * width, width, 2, stride=2),
            ]
        )
        self.up = nn.ModuleList([Block(4 * width, 2 * width), Block(2 * width, width)])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for rise, block in zip(self.rise, self.up, strict=True):
            x = block(torch.cat([rise(x), skips.pop()], 1))
        out: torch.Tensor = self.head(x)
        return out


class Recurrent(nn.Module):
    """A recurrent network over (N, T, 12), and its last state's scores."""

    def __init__(self, kind: str, *, both: bool = False, layers: int = 1) -> None:
        super().__init__()
        self.cells = getattr(nn, kind)(12, 20, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(40 if both else 20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.cells(x)[0][:, -1])
        return out


class Cells(nn.Module):
    """An LSTM written out step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(12, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 20), x.new_zeros(len(x), 20)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state[0]


class Functional(nn.Module):
    """No module does the work: views, einsum, operators of torch.nn.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12, 12) / 3)
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("ntc,hcd->nhtd", x, self.weight)
        x = functional.softplus(x) * self.scale
        x = functional.layer_norm(x.transpose(1, 2).flatten(2), (48,))
        x = functional.gelu(x).view(*x.shape[:2], 4, 12).sum(2)
        x = functional.dropout(x, 0.1, self.training)
        return functional.pad(x.roll(1, 1), (1, 1)).cumsum(1)[:, -1]


class Doubles(nn.Module):
    """Numbers of several types in one network, and a loss in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16).to(torch.bfloat16)
        self.second = nn.Linear(16, 8)
        self.third = nn.Linear(8, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.to(torch.bfloat16)).float()
        out: torch.Tensor = self.third(self.second(x).double())
        return out.mean(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, weights = self.attend(x, x, x)
        scores: torch.Tensor = (out.mean(1) + weights.sum()).exp()
        return scores


class Regression(nn.Module):
    """Losses of one number, whose storage is as large as what they were worked out over."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 6)
        self.loss = loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        if self.loss.startswith("binary"):
            out = out.sigmoid()
        return {"loss": getattr(functional, self.loss)(out, y), "out": out}


class Own(torch.autograd.Function):
    """A square root that keeps what it returns."""

    @staticmethod
    def forward(ctx: BackwardCFunction, x: torch.Tensor) -> torch.Tensor:
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: BackwardCFunction, *grads: torch.Tensor) -> torch.Tensor:
        (root,) = ctx.saved_tensors
        gradient: torch.Tensor = grads[0] / (2 * root)
        return gradient


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Own.apply(self.layer(x).abs() + 1)  # type: ignore[no-untyped-call]
        return out.prod(1)


class Holder:
    """Keeps a tensor, and is no module."""

    def __init__(self) -> None:
        self.table = torch.ones(16)


class Held(nn.Module):
    """Uses a tensor that an object of its own keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 16)
        self.holder = Holder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out * self.holder.table


class Language(nn.Module):
    """A network of transformers that brings its own loss."""

    def __init__(
        self, kind: str, sizes: Mapping[str, object], *, checkpointed: bool = False
    ) -> None:
        import transformers

        super().__init__()
        name = f"{kind}Config"
        config = getattr(transformers, name)(use_cache=False, **sizes)
        head = "ForCausalLM" if hasattr(transformers, f"{kind}ForCausalLM") else "LMHeadModel"
        self.network = getattr(transformers, f"{kind}{head}")(config)
        if checkpointed:
            self.network.activation_checkpointing_enable()

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        out = self.network(input_ids=ids, attention_mask=mask, labels=ids)
        return {"loss": out.loss, "logits": out.logits}


_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}


def _llama(kind: str = "Llama", *, checkpointed: bool = False, **sizes: object) -> networks.Maker:
    """Return a maker of a small network whose sizes go by LLaMA's names."""
    return lambda: Language(kind, {**_LLAMA, **sizes}, checkpointed=checkpointed)


def _images(count: int, channels: int, side: int) -> tuple[torch.Tensor]:
    return (torch.randn(count, channels, side, side),)


def _steps(count: int, length: int = 7) -> tuple[torch.Tensor]:
    return (torch.randn(count, length, 12),)


def _ids(count: int, length: int = 9) -> tuple[torch.Tensor]:
    return (torch.arange(count * length).view(count, length) % 101,)


_ROWS = torch.randn(5, 12)
_HALF = torch.full((5, 6), 0.5)

CASES: dict[str, Case] = {
    "u-net": Case(UNet, _images(2, 1, 32)),
    "u-net, wide": Case(lambda: UNet(16, 3), _images(1, 3, 64)),
    "planes": Case(networks.Planes, _images(2, 3, 16)),
    "volumes": Case(networks.Volumes, (torch.randn(2, 3, 6, 8, 8),)),
    "lstm": Case(lambda: Recurrent("LSTM"), _steps(5)),
    "lstm, two layers, both ways": Case(
        lambda: Recurrent("LSTM", both=True, layers=2), _steps(3, 20)
    ),
    "gru, two layers": Case(lambda: Recurrent("GRU", layers=2), _steps(5)),
    "rnn, both ways": Case(lambda: Recurrent("RNN", both=True), _steps(5)),
    "lstm cells": Case(Cells, _steps(5)),
    "functional": Case(Functional, _steps(5)),
    "several types": Case(Doubles, (_ROWS,)),
    "multihead attention": Case(Attention, _steps(2)),
    "encoder": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 3, 24, batch_first=True), 2, enable_nested_tensor=False
        ),
        _steps(2),
    ),
    "encoder and decoder": Case(
        lambda: nn.Transformer(12, 3, 1, 1, 24, batch_first=True), (*_steps(2), *_steps(2, 4))
    ),
    "mse": Case(lambda: Regression("mse_loss"), {"x": _ROWS, "y": _HALF}),
    "smooth l1": Case(lambda: Regression("smooth_l1_loss"), {"x": _ROWS, "y": _HALF}),
    "binary": Case(lambda: Regression("binary_cross_entropy"), {"x": _ROWS, "y": _HALF}),
    "binary, logits": Case(
        lambda: Regression("binary_cross_entropy_with_logits"), {"x": _ROWS, "y": _HALF}
    ),
    "soft margin": Case(lambda: Regression("soft_margin_loss"), {"x": _ROWS, "y": _HALF}),
    "own autograd function": Case(Custom, (_ROWS,)),
    "held outside": Case(Held, (_ROWS,)),
    "llama": Case(_llama(), _ids(2)),
    "llama, checkpointed": Case(_llama(checkpointed=True), _ids(2)),
    "llama, eager attention": Case(_llama(attn_implementation="eager"), _ids(2)),
    "mixtral": Case(_llama("Mixtral", num_local_experts=4), _ids(2)),
    "qwen3": Case(_llama("Qwen3", head_dim=8), _ids(2)),
    "gpt2": Case(
        lambda: Language("GPT2", {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 101}),
        _ids(2),
    ),
    "opt": Case(_llama("OPT", ffn_dim=64, word_embed_proj_dim=32), _ids(2)),
}
"""Name -> a network; its loss is the default one (``memcensus.net.loss``)."""
