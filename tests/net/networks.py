"""Networks of the tests: five known ones from `transformers` and the paper, and small hard ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from torch.nn import functional

from memcensus.net import vgg

Maker: TypeAlias = Callable[[], nn.Module]
Loss: TypeAlias = Callable[[object, torch.Tensor], torch.Tensor]


class Scores(nn.Module):
    """A network of transformers as one from a tensor to its logits."""

    def __init__(self, network: nn.Module, argument: str, **fixed: object) -> None:
        super().__init__()
        self.network = network
        self.argument = argument
        self.fixed = fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(**{self.argument: x}, **self.fixed).logits
        return logits


def resnet50() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return Scores(
        ResNetForImageClassification(ResNetConfig.from_dict({"num_labels": 1000})), "pixel_values"
    )


def vit(**sizes: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Scores(
        ViTForImageClassification(ViTConfig.from_dict({"num_labels": 1000, **sizes})),
        "pixel_values",
    )


def bert(**sizes: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return Scores(
        BertForSequenceClassification(BertConfig.from_dict({"num_labels": 2, **sizes})), "input_ids"
    )


def gpt2(**sizes: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Scores(GPT2LMHeadModel(GPT2Config.from_dict(dict(sizes))), "input_ids", use_cache=False)


def small_vgg16() -> nn.Module:
    """VGG-16 for 64x64 pixels: its convolutions, and a classifier of the size that then fits."""
    convolutions = [layer for _, layer in vgg._features()]
    return nn.Sequential(
        *convolutions,
        nn.Flatten(),
        nn.Linear(512 * 2 * 2, 512),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(512, 1000),
    )


def images(batch: int, side: int = 224) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, side, side), torch.zeros(batch, dtype=torch.int64)


def sentences(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(batch, length, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)


def texts(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(batch, length, dtype=torch.int64), torch.ones(
        batch, length, dtype=torch.int64
    )


def cross_entropy(output: object, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over the last dimension, whatever stands before it."""
    if not isinstance(output, torch.Tensor):
        raise TypeError(output)
    return functional.cross_entropy(output.view(-1, output.size(-1)), target.view(-1))


class Shared(nn.Module):
    """One linear layer used twice, and a ReLU in place."""

    def __init__(self) -> None:
        super().__init__()
        self.once = nn.Linear(8, 8)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.once(self.relu(self.once(x)))
        return out


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(x).mean(1))
        return out


class Direct(nn.Module):
    """Calls a layer's ``forward`` itself, so that no hook runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.forward(self.inner.forward(x * 2).sin())


class Frozen(nn.Module):
    """Only the last layer learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
        self.head = nn.Linear(8, 3)
        self.body.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


class Named(nn.Module):
    """Returns a dict with scores and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": x.exp(), "logits": self.layer(x)}


@dataclass
class Answer:
    loss: torch.Tensor | None
    scores: torch.Tensor


class Typed(nn.Module):
    """Returns a dataclass, with a loss of its own or without."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.own = own

    def forward(self, x: torch.Tensor) -> Answer:
        scores = self.layer(x)
        return Answer(scores.square().mean() if self.own else None, scores)


class Recurrent(nn.Module):
    """An LSTM, whose weights its own list holds a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lstm(x.view(-1, 4, 2).repeat(1, 1, 4))[0]
        return out


class Normal(nn.Module):
    """Batch normalisation: running statistics are buffers, one is not in the state dict."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.register_buffer("scale", torch.ones(16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out * self.scale


class Recomputed(nn.Module):
    """Activation checkpointing: the middle is run again in the backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(8, 8)
        self.middle = nn.Sequential(
            nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        out: torch.Tensor = checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant)
        return out


class Sliced(nn.Module):
    """Parameters that are views of one storage, and a weight kept outside of any table."""

    def __init__(self) -> None:
        super().__init__()
        flat = torch.randn(2, 8, 8)
        self.up = nn.Parameter(flat[0])
        self.down = nn.Parameter(flat[1].t())
        self.shift = torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.up + self.shift).relu_() @ self.down


HARD: dict[str, Maker] = {
    "shared": Shared,
    "direct": Direct,
    "frozen": Frozen,
    "named": Named,
    "typed": lambda: Typed(own=False),
    "typed with a loss": lambda: Typed(own=True),
    "normal": Normal,
    "recomputed": lambda: Recomputed(reentrant=False),
    "recomputed, reentrant": lambda: Recomputed(reentrant=True),
    "sliced": Sliced,
}
"""Name -> a network from (N, 8) that is hard to count."""


class Planes(nn.Module):
    """Convolutions of images: plain, depthwise, transposed, dilated."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.Conv2d(32, 32, 3, groups=32, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 2, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 10, 3, dilation=2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x).mean((2, 3))
        return out


class Volumes(nn.Module):
    """Convolutions of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 10, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x).mean((2, 3, 4))
        return out


class View(nn.Module):
    """Turns and slices, so that a tensor is a view of another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t()[:4].t()[:, [0, 1, 2, 3, 0, 1]]


def random_network(layers: tuple[str, ...], *, frozen: bool) -> nn.Module:
    """Return a network (N, 6) -> (N, 6) of the layers named; "same" is one layer used again."""
    torch.manual_seed(0)
    same = nn.Linear(6, 6)
    makers: dict[str, Maker] = {
        "linear": lambda: nn.Linear(6, 6),
        "relu": nn.ReLU,
        "relu in place": lambda: nn.ReLU(inplace=True),
        "view": View,
        "dropout": nn.Dropout,
        "norm": lambda: nn.LayerNorm(6),
        "same": lambda: same,
    }
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    first.requires_grad_(requires_grad=not frozen)
    last.weight = same.weight  # tied
    return nn.Sequential(first, *(makers[name]() for name in layers), last)
