"""VGG-16: configuration D of Simonyan and Zisserman, "Very deep convolutional networks", 2014.

138,357,544 parameters for a thousand classes. Convolutions are 3x3, stride 1, padding 1; pools are
2x2, stride 2. ReLU is out of place and dropout 0.5 stands where the paper trains with it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUT = (3, 224, 224)
"""Channels, height, width of the paper's images."""

_GROUPS = (
    (64, 2),
    (128, 2),
    (256, 3),
    (512, 3),
    (512, 3),
)  # (channels, convolutions) before a pool
_CLASSES = 1000


def vgg16() -> nn.Module:
    """Return the network in training mode: (N, 3, 224, 224) -> (N, 1000) scores.

    Layers have the names that the paper's released network gave them: conv1_1 ... fc8.
    """
    layers = (*_features(), ("flatten", nn.Flatten()), *_classifier())
    return nn.Sequential(OrderedDict(layers))


def _features() -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that turn (N, 3, 224, 224) into (N, 512, 7, 7)."""
    before = INPUT[0]
    for group, (channels, convolutions) in enumerate(_GROUPS, 1):
        for number in range(1, convolutions + 1):
            yield f"conv{group}_{number}", nn.Conv2d(before, channels, kernel_size=3, padding=1)
            yield f"relu{group}_{number}", nn.ReLU()
            before = channels
        yield f"pool{group}", nn.MaxPool2d(kernel_size=2)


def _classifier() -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that turn (N, 25088) into (N, 1000)."""
    before = 512 * 7 * 7
    for number in (6, 7):
        yield f"fc{number}", nn.Linear(before, 4096)
        yield f"relu{number}", nn.ReLU()
        yield f"drop{number}", nn.Dropout(0.5)
        before = 4096
    yield "fc8", nn.Linear(before, _CLASSES)
