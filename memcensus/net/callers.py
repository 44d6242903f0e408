"""For which module an operator runs.

In the forward it is the module whose call is under way; in the backward the one whose forward made
the autograd node that runs now, found by the node's sequence number. A module whose ``forward`` is
called directly does not announce itself: its operators count for its caller.

Facts: torch 2.13, torch/csrc/autograd/function.h ("sequence_nr").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr as _sequence_number
from torch._C._autograd import _top_saved_tensors_default_hooks as _saving_hooks
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._pytree import tree_leaves

from memcensus.net.block import LOSS, NETWORK, OPTIMIZER, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.autograd.graph import Node

    from memcensus.model import Path

NOWHERE: Path = ()
_BESIDE: dict[Phase, Path] = {Phase.LOSS: (LOSS,), Phase.OPTIMIZER: (OPTIMIZER,)}


@dataclass(slots=True)
class Calls:
    """What one module returned, and how often it was called."""

    count: int = 0
    output: str = ""


class Callers:
    """Listens to the calls of a network and its children.

    Attributes:
        phase: the part of the step that is under way.
        calls: per module path, what the module returned since ``calls`` was emptied.
        outermost: called as a module's call begins (True) and ends (False) that no other's is in.
    """

    def __init__(self, module: nn.Module, outermost: Callable[[bool], None]) -> None:
        """Listen until ``close``."""
        self.phase = Phase.FORWARD
        self.calls: dict[Path, Calls] = {}
        self._outermost = outermost
        self._stack: list[Path] = []
        self._hooked: set[int] = set()  # numbers of nodes whose saved tensors hooks stand for
        self._paths_of_nodes: dict[int, Path] = {}
        self._nodes = _sequence_number()
        self._paths = {id(m): path_of(name) for name, m in module.named_modules()}
        self._paths_of_parameters = {
            id(p): path_of(name)[:-1] for name, p in module.named_parameters()
        }
        # Hooks for all modules: some take slower ways if they have hooks of their own.
        self._hooks = [
            register_module_forward_pre_hook(self._call),
            # always_call: a recomputation that has all it needs stops by an exception.
            register_module_forward_hook(self._return, always_call=True),
        ]

    def close(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()

    def enter(self, phase: Phase) -> None:
        """Begin a part of the step."""
        self.note_nodes()
        self.phase = phase

    def here(self) -> Path:
        """Return the path of the module that an operator runs for now."""
        if self._stack:
            return self._stack[-1]
        if self.phase is not Phase.BACKWARD:
            return _BESIDE.get(self.phase, NOWHERE)
        node = torch._C._current_autograd_node()  # noqa: SLF001  (torch has no public name for it)
        number = getattr(node, "_sequence_nr", None)
        if number is None:  # no node: this is the gradient of the loss, before the first one
            return _BESIDE[Phase.LOSS]
        variable = getattr(node, "variable", None)  # AccumulateGrad, which has no forward
        if variable is not None:
            return self._paths_of_parameters.get(id(variable), NOWHERE)
        return self._paths_of_nodes.get(number(), NOWHERE)

    def stands_for(self, parameter: torch.Tensor, path: Path) -> None:
        """Say that the gradient of ``parameter`` is made for the module at ``path``."""
        self._paths_of_parameters[id(parameter)] = path

    def of_node(self, node: Node) -> str:
        """Return the dotted path of the module whose forward made ``node``."""
        return ".".join(self._paths_of_nodes.get(_number(node), NOWHERE)) or NETWORK

    def readable(self, node: Node) -> bool:
        """Return whether ``node`` keeps its tensors as they are, and not what a hook made of them.

        To ask a checkpointed one would make it compute its forward again.
        """
        return _number(node) not in self._hooked

    def note_nodes(self) -> None:
        """Note which module made the autograd nodes since the last look: their numbers follow."""
        now = _sequence_number()
        if now > self._nodes:
            path = self._stack[-1] if self._stack else _BESIDE.get(self.phase, NOWHERE)
            for number in range(self._nodes, now):
                self._paths_of_nodes[number] = path
            if _saving_hooks(False) is not None:  # noqa: FBT003  (its only argument, by position)
                self._hooked.update(range(self._nodes, now))
        self._nodes = now

    def _call(self, module: nn.Module, _arguments: object) -> None:
        if id(module) not in self._paths:
            return  # none of the network's: a loss, or made on the way
        self.note_nodes()
        if not self._stack:
            self._outermost(True)  # noqa: FBT003  (its only argument)
        self._stack.append(self._paths[id(module)])

    def _return(self, module: nn.Module, _arguments: object, output: object) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        self.note_nodes()
        while self._stack and self._stack.pop() != path:
            pass  # calls that ended by an exception
        calls = self.calls.setdefault(path, Calls())
        calls.count += 1
        tensors = (leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        calls.output = next(("x".join(map(str, t.shape)) for t in tensors), calls.output)
        if not self._stack:
            self._outermost(False)  # noqa: FBT003  (its only argument)


def path_of(name: str) -> Path:
    """Return the parts of a dotted name."""
    return tuple(name.split(".")) if name else NOWHERE


def _number(node: Node) -> int:
    number: int = node._sequence_nr()  # noqa: SLF001  (torch has no public name for it)
    return number
