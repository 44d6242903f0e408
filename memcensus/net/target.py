"""What the user pointed ``net`` at: a built-in network, or ``package.module:callable``.

The callable takes no argument and returns a Module, or (module, inputs, loss). ``inputs`` is a
tensor, a tuple or list of arguments, or a dict of named ones; ``loss`` is called with the output,
or None for the default of ``loss``. A Module in the callable's place is taken as it is.

The current folder is searched first. The network is built on the meta device, where weights have
shapes but no memory; where its code cannot do that, such as an init that reads a number back, it is
built for real and let go.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from memcensus.errors import ModelFailed, Unreadable, UsageError
from memcensus.net import vgg
from memcensus.net.model_code import Attempt, ModelCode, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcensus.net.inputs import Input

    Loss: TypeAlias = Callable[[object], object]

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

BUILT_IN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg16": (vgg.vgg16, vgg.INPUT)
}
"""Name -> the network and the shape of one sample."""

ON_META = "built on the meta device"
FOR_REAL = "built for real, as its code cannot do without numbers"


@dataclass(frozen=True, slots=True)
class Training:
    """A network and what its step is fed."""

    module: nn.Module
    arguments: tuple[object, ...] | None  # None: the callable brought none
    keywords: dict[str, object]
    loss: Loss | None  # None: the default
    built: str  # how, for the source of the parameters' sizes


def load(text: str, *, on_meta: bool = True) -> Training:
    """Return what the target named ``text`` trains; ``on_meta``: try without memory first.

    Raises:
        UsageError: if ``text`` has the wrong form, or names what cannot be called as it is.
        Unreadable: if the module or the name in it is not there.
        ModelFailed: if the code raises or returns something else.
    """
    make = BUILT_IN[text][0] if text in BUILT_IN else _find(text)
    if isinstance(make, nn.Module):
        return _training(make, text, "as the code holds it")
    made: object = None
    attempt = Attempt()
    if on_meta:
        with attempt, torch.device("meta"):
            made = make()
        if attempt.error is None:
            return _training(made, text, ON_META)
    with ModelCode(f"{text}()"):
        made = make()
    return _training(made, text, FOR_REAL)


def feed(training: Training, inputs: tuple[Input, ...]) -> Training:
    """Return ``training`` with ``inputs`` of the command line, on the meta device.

    Raises:
        UsageError: if the network has no argument of that name.
    """
    known = _arguments(training.module)
    floating = _floating(training.module)
    arguments: list[object] = []
    keywords: dict[str, object] = {}
    for each in inputs:
        dtype = floating if each.dtype is None else getattr(torch, each.dtype)
        tensor = torch.empty(each.shape, dtype=dtype, device="meta")
        if each.name is None:
            arguments.append(tensor)
        elif known is None or each.name in known:
            keywords[each.name] = tensor
        else:
            raise UsageError(
                f"--input {each.name}: the network's forward has no argument of that name; it has "
                f"{', '.join(known) or 'none'}"
            )
    return replace(training, arguments=tuple(arguments), keywords=keywords)


def _find(text: str) -> Callable[[], object]:
    """Return what ``package.module:callable`` names."""
    module_name, colon, name = text.partition(":")
    if not colon or not _DOTTED.fullmatch(module_name) or not _DOTTED.fullmatch(name):
        raise UsageError(
            f"{text!r} is no network; net takes {', '.join(BUILT_IN)} or package.module:callable "
            "(for a file models.py in this folder: models:make)"
        )
    found: object = _import(module_name)
    for part in name.split("."):
        with Attempt() as attempt:
            found = getattr(found, part)
        if attempt.error is not None:
            raise Unreadable(_absent(text, part, found)) from attempt.error
    if not callable(found):
        raise UsageError(
            f"{text} is a {type(found).__name__}, which cannot be called; name a function that "
            "returns a torch.nn.Module"
        )
    _check_takes_nothing(found, text)
    return found


def _import(name: str) -> object:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with Attempt() as attempt:
        return importlib.import_module(name)
    error = attempt.error
    if isinstance(error, ModuleNotFoundError) and _is_prefix(error.name, name):
        raise Unreadable(
            f"cannot import {name}: there is no module {error.name} in {folder} or on Python's "
            f"path; run from the folder that holds {name.partition('.')[0]}, or check the name"
        ) from error
    if error is None:
        raise ModelFailed(f"importing {name} ended without a module; check the name")
    raise ModelFailed(sentence(f"importing {name}", error)) from error


def _absent(text: str, part: str, where: object) -> str:
    file = getattr(where, "__file__", None) or getattr(where, "__name__", "it")
    return f"{text}: there is no {part!r} in {file}; name a function that returns a torch.nn.Module"


def _check_takes_nothing(make: object, text: str) -> None:
    if isinstance(make, nn.Module) or not callable(make):
        return
    try:
        needed = [
            p.name
            for p in inspect.signature(make).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (ValueError, TypeError):  # a callable of C without a signature
        return
    if needed:
        raise UsageError(
            f"{text} needs the argument {needed[0]!r}, and net calls it without any; name a "
            "function that takes none, such as one with defaults"
        )


def _training(made: object, text: str, built: str) -> Training:
    """Return what a callable's answer asks for."""
    module = made[0] if isinstance(made, tuple) and made else made
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelFailed(
            f"{text} returned a ScriptModule, whose calls cannot be followed; return the "
            "torch.nn.Module that it was made from"
        )
    if isinstance(made, nn.Module):
        return Training(made, None, {}, None, built)
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        shown = type(made).__name__
        if isinstance(made, tuple):
            shown = f"({', '.join(type(part).__name__ for part in made)})"
        raise ModelFailed(
            f"{text} returned {shown}; it must return a torch.nn.Module, or (module, inputs, loss)"
        )
    module, inputs = made[0], made[1]
    loss = made[2] if len(made) == 3 else None
    if loss is not None and not callable(loss):
        raise ModelFailed(
            f"{text} returned a {type(loss).__name__} for the loss; it must be a function of the "
            "network's output, or None"
        )
    if isinstance(inputs, dict):
        return Training(module, (), {str(key): part for key, part in inputs.items()}, loss, built)
    if inputs is None:
        return Training(module, None, {}, loss, built)
    arguments = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return Training(module, arguments, {}, loss, built)


def _arguments(module: nn.Module) -> list[str] | None:
    """Return the names of forward's arguments, None if it takes any or cannot be asked."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _floating(module: nn.Module) -> torch.dtype:
    """Return the type of the first floating weight: what an image is fed as."""
    floating = (p.dtype for p in module.parameters() if p.dtype.is_floating_point)
    return next(floating, torch.float32)


def _is_prefix(missing: str | None, name: str) -> bool:
    return missing is not None and (name == missing or name.startswith(f"{missing}."))
