"""Which autograd node keeps which tensor: the answer to "who saved this activation?".

After the forward the graph is walked from the loss; each node tells what it keeps through its
``_saved_*`` attributes (tools/autograd/gen_autograd_functions.py), a custom ``autograd.Function``
through ``saved_tensors``. Not seen: tensors that a custom function hides in other attributes, and
what ``saved_tensors_hooks`` packed into something that is no tensor.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from memcensus.net.call import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.autograd.graph import Node

_RAW = "_raw_saved_"


def savers(
    root: Node | None, readable: Callable[[Node], bool]
) -> Iterator[tuple[Node, str, torch.Tensor]]:
    """Yield (node, name of what it keeps, the tensor) for the graph under ``root``.

    What nodes that are not ``readable`` keep is not touched: to ask a checkpointed one would make
    it compute its forward again.
    """
    names: dict[type, tuple[str, ...]] = {}
    seen = set()
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        kind = type(node)
        if kind not in names:
            names[kind] = tuple(n.removeprefix(_RAW) for n in dir(kind) if n.startswith(_RAW))
        if readable(node):
            yield from _kept(node, names[kind])
        waiting.extend(below for below, _ in node.next_functions if below is not None)


def _kept(node: Node, names: tuple[str, ...]) -> Iterator[tuple[Node, str, torch.Tensor]]:
    for name in names:
        saved: object = None
        with suppress(RuntimeError):  # it was overwritten in place: the backward will tell
            saved = getattr(node, f"_saved_{name}", None)
        for tensor in tensors_in((saved,)):
            yield node, name, tensor
    if hasattr(node, "saved_tensors"):
        for at, tensor in enumerate(node.saved_tensors):
            if isinstance(tensor, torch.Tensor):
                yield node, str(at), tensor
