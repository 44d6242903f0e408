"""GPUs to plan for: how much memory torch sees on them, and what is taken before the first tensor.

``seen`` is what ``torch.cuda.get_device_properties`` reports, in GiB with the two decimals of an
out-of-memory message ("a total capacity of 79.10 GiB"); it is less than the data sheet says, as ECC
and the driver keep a part. For cards whose message was not found it is the sheet's figure less 2 %,
marked as assumed. Not covered: MIG slices, several GPUs of one name, cards of other makers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from memcensus import units
from memcensus.errors import UsageError
from memcensus.model import Budget, Evidence, Source

_GIB = 1 << 30
_MIB = 1 << 20
_UNSEEN = 0.02  # of a card whose message was not found
_HOPPER = (9, 0)
_ANY = (8, 0)


@dataclass(frozen=True, slots=True)
class Context:
    """What CUDA and the libraries take on a device for one process."""

    size: int  # bytes
    error: int  # bytes either way
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of GPU."""

    name: str  # as --device takes it: "rtx3060"
    title: str
    capability: tuple[int, int]  # compute capability, which decides the attention kernel
    memory: int  # bytes that torch sees
    evidence: Evidence
    context: Context

    @property
    def budget(self) -> Budget:
        """All that one process alone on the device can have."""
        where = f"--device {self.name}: {self.title}, {units.size(self.memory)}"
        return Budget(self.memory, Source(self.evidence, where, "the memory that torch sees"))

    @property
    def workspace(self) -> int:
        """Bytes that cuBLAS keeps for each thread (CUDABlas, ``getChosenWorkspaceSize``)."""
        return 32 * _MIB if self.capability >= _HOPPER else 2 * 4 * _MIB + 8 * 16 * 1024


def find(text: str) -> Device:
    """Return the device that ``--device TEXT`` names: a card, or ``cuda:SIZE`` for any other.

    Raises:
        UsageError: if it is not known.
    """
    name = re.sub(r"[^a-z0-9:.]", "", text.lower())  # "A100-40GB", "rtx 3060"
    kind, colon, size = name.partition(":")
    if kind == "cuda" and colon:
        return Device(text, "a GPU of this size", _ANY, units.parse(size), _SAID, _CONTEXT)
    for prefix in ("", *_BRANDS):
        card = _CARDS.get(name.removeprefix(prefix))
        if card is not None:
            return _device(name.removeprefix(prefix), card)
    near = get_close_matches(name, _CARDS, n=3) or ["h100", "rtx3060"]
    raise UsageError(
        f"--device {text}: no such GPU in the table; take {', '.join(near)}, or its size, as "
        "cuda:24GiB (all names: docs/net.md)"
    )


def known() -> tuple[Device, ...]:
    """Return all devices of the table, the smallest first."""
    devices = (_device(name, card) for name, card in _CARDS.items())
    return tuple(sorted(devices, key=lambda device: device.memory))


@dataclass(frozen=True, slots=True)
class _Card:
    title: str
    capability: tuple[int, int]
    sheet: float  # GiB
    seen: float | None = None  # GiB


_BRANDS = ("nvidia", "geforce", "tesla", "nvidiageforce")
_SAID = Evidence.ASSUMED
_CONTEXT = Context(
    450 * _MIB,
    250 * _MIB,
    "reports of 200 to 700 MB: pytorch#28113, #20532, #31767, and #107667 for CUDA 11.7 and later, "
    "which load kernels when they are first used",
)


def _device(name: str, card: _Card) -> Device:
    if card.seen is None:
        memory = int(card.sheet * _GIB * (1 - _UNSEEN)) // _MIB * _MIB
        return Device(name, card.title, card.capability, memory, Evidence.ASSUMED, _CONTEXT)
    memory = int(card.seen * _GIB)
    return Device(name, card.title, card.capability, memory, Evidence.MEASURED, _CONTEXT)


_CARDS = {
    # Cards of the years in which convolutional networks were taught with 3, 4, 6 and 12 GB in mind.
    "gtx780ti": _Card("GeForce GTX 780 Ti (2013)", (3, 5), 3),
    "gtx10603gb": _Card("GeForce GTX 1060 3GB (2016)", (6, 1), 3, 3.00),
    "gtx980": _Card("GeForce GTX 980 (2014)", (5, 2), 4),
    "gtx1050ti": _Card("GeForce GTX 1050 Ti (2016)", (6, 1), 4, 4.00),
    "gtx1650": _Card("GeForce GTX 1650 (2019)", (7, 5), 4),
    "titan": _Card("GeForce GTX TITAN (2013)", (3, 5), 6),
    "gtx1060": _Card("GeForce GTX 1060 (2016)", (6, 1), 6, 6.00),
    "gtx1660ti": _Card("GeForce GTX 1660 Ti (2019)", (7, 5), 6, 5.81),
    "rtx2060": _Card("GeForce RTX 2060 (2019)", (7, 5), 6, 5.79),
    "gtx1080": _Card("GeForce GTX 1080 (2016)", (6, 1), 8, 7.93),
    "rtx2070": _Card("GeForce RTX 2070 (2018)", (7, 5), 8),
    "rtx4060": _Card("GeForce RTX 4060 (2023)", (8, 9), 8, 8_318_222_336 / _GIB),
    "gtx1080ti": _Card("GeForce GTX 1080 Ti (2017)", (6, 1), 11, 10.91),
    "rtx2080ti": _Card("GeForce RTX 2080 Ti (2018)", (7, 5), 11, 10.76),
    "titanx": _Card("GeForce GTX TITAN X (2015)", (5, 2), 12),
    "k40": _Card("Tesla K40 (2013)", (3, 5), 12),
    "k80": _Card("Tesla K80, one of its two GPUs (2014)", (3, 7), 12),
    "rtx3060": _Card("GeForce RTX 3060 (2021)", (8, 6), 12, 12_622_168_064 / _GIB),
    "rtx3080": _Card("GeForce RTX 3080 (2020)", (8, 6), 10, 9.78),
    "rtx4070": _Card("GeForce RTX 4070 (2023)", (8, 9), 12),
    "p100": _Card("Tesla P100 (2016)", (6, 0), 16, 15.90),
    "v100": _Card("Tesla V100 16GB (2017)", (7, 0), 16, 15.78),
    "t4": _Card("Tesla T4 (2018)", (7, 5), 16, 14.57),
    "rtx4080": _Card("GeForce RTX 4080 (2022)", (8, 9), 16),
    "rtx5080": _Card("GeForce RTX 5080 (2025)", (12, 0), 16, 15.47),
    "rtx3090": _Card("GeForce RTX 3090 (2020)", (8, 6), 24, 23.67),
    "rtx4090": _Card("GeForce RTX 4090 (2022)", (8, 9), 24, 23.65),
    "a10g": _Card("A10G (2021)", (8, 6), 24, 22.20),
    "l4": _Card("L4 (2023)", (8, 9), 24, 22.05),
    "v10032gb": _Card("Tesla V100 32GB (2018)", (7, 0), 32, 31.75),
    "rtx5090": _Card("GeForce RTX 5090 (2025)", (12, 0), 32, 31.36),
    "a10040gb": _Card("A100 40GB (2020)", (8, 0), 40, 39.56),
    "a40": _Card("A40 (2020)", (8, 6), 48, 44.35),
    "a6000": _Card("RTX A6000 (2020)", (8, 6), 48, 47.54),
    "l40s": _Card("L40S (2023)", (8, 9), 48, 44.52),
    "a100": _Card("A100 80GB (2021)", (8, 0), 80, 79.15),
    "h100": _Card("H100 80GB (2022)", (9, 0), 80, 79.10),
    "rtxpro6000": _Card("RTX PRO 6000 Blackwell (2025)", (12, 0), 96),
    "h200": _Card("H200 (2024)", (9, 0), 141, 139.80),
    "b200": _Card("B200 (2025)", (10, 0), 180, 178.35),
}
"""From 3 GB in 2013 to 180 GB; ``sheet`` as the maker says, ``seen`` as torch's messages say."""
