"""Finds the blocks that a network repeats: what is sharded or checkpointed one by one.

A block is a child of a ModuleList or Sequential whose children are all of one class. Of each class
it is asked whether most of its blocks have a twin, with parameters of the same shapes: the layers
of a transformer have, the four stages of a ResNet have not, but the bottlenecks inside them do. Of
the classes that pass, the one whose blocks hold the most numbers is taken, so the outer one where
blocks lie in blocks.

Not seen: blocks that are attributes of their own ("layer1", "layer2") and in no container.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, TypeAlias

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

    Found: TypeAlias = list[tuple[str, nn.Module]]  # (path, block)
    Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def blocks(module: nn.Module) -> tuple[str, ...]:
    """Return the paths of the repeated blocks in their order, () if nothing is repeated."""
    found: dict[type, Found] = defaultdict(list)
    for path, block in _of_one_class(module):
        found[type(block)].append((path, block))
    repeated = [group for group in found.values() if _have_twins(group)]
    if not repeated:
        return ()
    largest = max(repeated, key=_numbers)  # of equal ones the first, which is the outer one
    return tuple(_outermost([path for path, _ in largest]))


def _of_one_class(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children of every container that holds at least two of one class."""
    for path, container in module.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        children = list(container.named_children())  # a child that is there twice comes once
        if len(children) > 1 and len({type(child) for _, child in children}) == 1:
            for name, child in children:
                yield (f"{path}.{name}" if path else name), child


def _have_twins(group: Found) -> bool:
    """Return whether at least half of the blocks have parameters like another's."""
    shapes = [_shapes(block) for _, block in group]
    times = Counter(shapes)
    twins = sum(1 for each in shapes if each and times[each] > 1)
    return 2 * twins >= len(shapes)


def _shapes(block: nn.Module) -> Shapes:
    return tuple(tuple(parameter.shape) for parameter in block.parameters())


def _numbers(group: Found) -> int:
    sizes = {id(p): p.numel() for _, block in group for p in block.parameters()}
    return sum(sizes.values())


def _outermost(paths: list[str]) -> Iterator[str]:
    """Yield the paths that lie in none of the others: a block may hold blocks of its own class."""
    known = set(paths)
    for path in paths:
        names = path.split(".")
        if not any(".".join(names[:depth]) in known for depth in range(1, len(names))):
            yield path
