"""What a pickle says, without doing what it says: opcodes of protocols 0 to 5 on symbols.

A pickle is a program for a small stack machine that may import anything and call it. This machine
imports nothing and calls nothing: a global is kept as its two names, a call as the thing called and
its arguments. Source: the opcodes' documentation in Python's ``pickletools``, whose ``genops``
splits the stream; it never calls anything either, and reads through ``Bounded`` here.

Not covered: buffers outside the stream (protocol 5) are refused.
"""

from __future__ import annotations

import pickletools
import re
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias, cast

from memcensus.errors import LONGEST, Unreadable
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MOST_BYTES = 256 << 20
"""Of one pickle. Tensors' bytes lie outside of it, so that real ones stay far below."""
MOST_OPCODES = 4_000_000
"""About 25 of them describe one tensor."""
MOST_BITS = 8192
"""Of one integer."""
MOST_REPEATED = 1_000_000
"""Parts that ``walk`` looks at more than once, because their container has several names."""
MOST_NESTED = 200
"""Containers inside each other; a module inside another takes four."""
_SMALL = 10_000  # parts that are looked at in any case
_LONGEST = 100  # characters of a name that a sentence repeats

Value: TypeAlias = (
    "bool | int | float | str | bytes | tuple[Value, ...] | list[Value] "
    "| Mapping | Global | Call | Persistent | None"
)
"""What a pickle builds. Containers may hold themselves: never hash, compare or print one."""


@dataclass(frozen=True, slots=True)
class Global:
    """A name that unpickling would import."""

    module: str
    name: str
    at: int  # byte of the file at which the opcode stands

    def __str__(self) -> str:
        """Return the dotted name, safe to print and not too long."""
        shown = f"{self.module}.{self.name}"
        return printable(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}...")


@dataclass(slots=True, eq=False)
class Mapping:
    """A dictionary; a key that comes twice is listed twice."""

    pairs: list[tuple[Value, Value]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Call:
    """What unpickling would call, and what it would do to the result."""

    what: Value  # a Global, but for a pickle that calls the result of a call
    args: Value
    pairs: list[tuple[Value, Value]] = field(default_factory=list)  # result[key] = value
    items: list[Value] = field(default_factory=list)  # result.append(item), .add(item)
    states: list[Value] = field(default_factory=list)  # result.__setstate__(state)


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """Something outside of the pickle, by the name under which the program finds it."""

    name: Value


@dataclass(frozen=True, slots=True)
class Pickled:
    """A pickle read to its end."""

    value: Value
    globals: tuple[Global, ...]  # each time one is named
    persistent: tuple[Persistent, ...]
    opcodes: int
    size: int  # bytes


def suspicious(named: Global) -> bool:
    """Say whether importing and calling it can run programs, code or files of somebody's choice.

    A name with dots reaches through a harmless module for what that has imported itself.
    """
    first = named.module.partition(".")[0]
    if first in _BUILT_IN:
        return named.name not in _PLAIN
    return first in _REACHES_OUT or not _REACHES_OUT.isdisjoint(named.name.split(".")[:-1])


_BUILT_IN = frozenset({"builtins", "__builtin__"})
_DATA = (
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple "
    "long unicode xrange Ellipsis NotImplemented"
)
_TOOLS = (
    "os posix nt sys subprocess shutil socket runpy importlib imp pkgutil zipimport builtins "
    "__builtin__ ctypes _ctypes cffi pty pdb bdb code codeop timeit cProfile profile trace "
    "doctest pickle _pickle cPickle dill cloudpickle joblib marshal shelve multiprocessing "
    "threading _thread asyncio signal site sysconfig platform commands popen2 webbrowser http "
    "httplib urllib urllib2 urllib3 requests ftplib smtplib poplib imaplib telnetlib xmlrpc "
    "socketserver ssl mmap fcntl gc inspect operator _operator io _io tempfile glob fileinput "
    "linecache atexit pip setuptools venv ensurepip idlelib lib2to3"
)
_PLAIN = frozenset(_DATA.split())
_REACHES_OUT = frozenset(_TOOLS.split())
"""First names of modules that no tensor needs: each can run something, or reach what can."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A value and where it lies."""

    path: tuple[str, ...]
    value: Value
    above: tuple[Value, ...]  # the containers around it


Labelled: TypeAlias = "Iterable[tuple[str | None, Value]]"
"""Parts of a value with their names; None: the part goes by the name of the whole."""


def walk(found: Pickled, inside: Callable[[Call], Labelled], place: str) -> Iterator[Place]:
    """Yield the value and all it holds, in order; ``inside`` tells the parts of a call.

    A container that holds itself is not entered again; one that is named twice is.

    Raises:
        Unreadable: if it goes too deep, or repeats itself to too many parts.
    """
    stack, looked = [Place((), found.value, ())], 0
    most = found.opcodes + min(found.opcodes, MOST_REPEATED) + _SMALL  # each part has an opcode
    while stack:
        here = stack.pop()
        yield here
        if any(each is here.value for each in here.above):
            continue
        parts = list(_parts(here.value, inside))
        looked += len(parts)
        if looked > most or len(here.above) > MOST_NESTED:
            raise Unreadable(
                f"{place}: containers lie more than {MOST_NESTED} deep inside each other, or "
                f"repeat each other to more than {most:,} parts; no tensors need that"
            )
        above = (*here.above, here.value)
        stack.extend(
            Place(here.path if label is None else (*here.path, label), part, above)
            for label, part in reversed(parts)
            if isinstance(part, (tuple, list, Mapping, Call, Persistent))
        )


def _parts(value: Value, inside: Callable[[Call], Labelled]) -> Labelled:
    if isinstance(value, (tuple, list)):
        return ((str(number), part) for number, part in enumerate(value))
    if isinstance(value, Mapping):
        return by_key(value.pairs)
    return inside(value) if isinstance(value, Call) else ()


def by_key(pairs: list[tuple[Value, Value]]) -> Labelled:
    """Return the values of a dictionary under their keys."""
    return ((_label(key, number), part) for number, (key, part) in enumerate(pairs))


def _label(key: Value, number: int) -> str | None:
    if isinstance(key, str):
        return None if key in _MODULE_STATE else clean(key)
    return str(key) if isinstance(key, int) else f"key {number}"


_MODULE_STATE = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a torch module that the names of its state dict leave out."""


def clean(text: str) -> str:
    """Return text of a pickle, not too long, that every encoding takes."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return cut.encode("utf-8", "backslashreplace").decode()


def shown(text: str) -> str:
    """Return ``clean`` text that is safe to print."""
    return printable(clean(text))


def items_of(args: tuple[Value, ...]) -> list[tuple[Value, Value]]:
    """Return the items of an OrderedDict([[key, value], ...]), as Python 2 wrote it."""
    items = args[0] if args and isinstance(args[0], list) else []
    pairs = [item for item in items if isinstance(item, (list, tuple)) and len(item) == 2]
    return [(pair[0], pair[1]) for pair in pairs]


def imports(head: bytes) -> bool:
    """Say whether a file that starts with ``head`` is a pickle that names a global early on.

    Text can look like a pickle of protocol 0 or 1: such a one must end within ``head``.
    """
    named = last = ""
    try:
        for opcode, _, _ in pickletools.genops(head):
            last = opcode.name
            named = last if last in _IMPORTS else named
    except ValueError:  # the head ends before the pickle does, or it is none
        return bool(named) and re.match(rb"\x80[\x02-\x05]", head) is not None
    return bool(named) and last == "STOP"


_IMPORTS = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"})


class Readable(Protocol):
    """The part of a binary file that is read here."""

    def read(self, size: int = ..., /) -> bytes:
        """Return at most ``size`` bytes."""

    def readline(self, size: int = ..., /) -> bytes:
        """Return a line."""

    def seek(self, offset: int, whence: int = ..., /) -> int:
        """Go to a byte."""

    def tell(self) -> int:
        """Say at which byte it stands."""


class Bounded:
    """A file that no format can make us read in one huge piece, whatever lengths it claims.

    Raises:
        Unreadable: from ``read``, if more than ``most`` bytes are asked for and there.
    """

    def __init__(self, file: Readable, most: int, place: str) -> None:
        """Read ``file``, called ``place`` in errors."""
        self._file, self._most, self._place = file, most, place

    def read(self, size: int = -1, /) -> bytes:
        """Return at most ``size`` bytes, all that are left for -1."""
        if 0 <= size <= self._most:
            return self._file.read(size)
        piece = self._file.read(self._most + 1)
        if len(piece) > self._most:
            raise Unreadable(
                f"{self._place}: a field of {size:,} B ends beyond the {self._most:,} B that are "
                "read; the file is damaged or made to fill memory"
            )
        return piece

    def readline(self, size: int = -1, /) -> bytes:
        """Return a line of at most ``most`` bytes."""
        return self._file.readline(self._most if size < 0 else min(size, self._most))

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a byte."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Say at which byte it stands."""
        return self._file.tell()


def read(file: Readable, place: str, origin: int = 0) -> Pickled:
    """Return what the pickle at the position of ``file`` says; ``file`` then stands behind it.

    ``place`` names the file in errors; ``origin`` is added to positions, where ``file`` is a part
    of another one.

    Raises:
        Unreadable: if it is damaged, ends early, or needs more than the bounds above.
    """
    start = file.tell()
    machine, count = _Machine(place), 0
    try:
        stream = cast("IO[bytes]", Bounded(file, MOST_BYTES, place))  # genops asks for no more
        for count, (opcode, arg, position) in enumerate(pickletools.genops(stream)):
            at = start if position is None else position
            if count >= MOST_OPCODES or at - start > MOST_BYTES:
                raise Unreadable(
                    f"{place}: more than {MOST_OPCODES:,} opcodes or {MOST_BYTES:,} B in one "
                    "pickle; what is this big is no description of tensors"
                )
            machine.at = at + origin
            _STEPS[opcode.name](machine, arg)
    except ValueError as error:  # genops: unknown opcode, ends early, not a number
        raise Unreadable(
            f"{place}: the pickle is damaged or cut off behind byte {machine.at:,}: "
            f"{printable(str(error)[:_LONGEST])}; get the file again"
        ) from error
    named, outside = tuple(machine.globals), tuple(machine.persistent)
    return Pickled(machine.pop(), named, outside, count + 1, file.tell() - start)


def trusted(file: Readable, place: str, origin: int = 0) -> Pickled:
    """Return what ``read`` does, if no global in it can run what its author wants.

    Raises:
        Unreadable: naming the first that can, or as ``read``.
    """
    found = read(file, place, origin)
    bad = next((named for named in found.globals if suspicious(named)), None)
    if bad is not None:
        raise Unreadable(
            f"{place}: loading it would import {bad} (byte {bad.at:,}), which no checkpoint needs "
            "and attacks use; nothing was executed; do not load this file with torch.load or pickle"
        )
    return found


class _Machine:
    """The stack, the marks on it and the memo."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.at = 0  # byte of the opcode
        self.stack: list[Value] = []
        self.marked: list[list[Value]] = []  # the stacks below each mark
        self.memo: dict[int, Value] = {}
        self.globals: list[Global] = []
        self.persistent: list[Persistent] = []

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        if not self.stack:
            raise self.damaged("takes from an empty stack")
        return self.stack.pop()

    def called(self, why: str) -> Call:
        """Return the top of the stack, which must be something that is called."""
        top = self.stack[-1] if self.stack else None
        if not isinstance(top, Call):
            raise self.damaged(why)
        return top

    def pop_marked(self) -> list[Value]:
        """Return what lies above the last mark, and forget the mark."""
        if not self.marked:
            raise self.damaged("finds no mark on the stack")
        above, self.stack = self.stack, self.marked.pop()
        return above

    def pop_pairs(self) -> list[tuple[Value, Value]]:
        flat = self.pop_marked()
        if len(flat) % 2:
            raise self.damaged("finds a key without a value")
        return list(zip(flat[::2], flat[1::2], strict=True))

    def named(self, module: Value, name: Value) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.damaged("imports a name that is computed, as only an attack does")
        found = Global(module, name, self.at)
        self.globals.append(found)
        return found

    def damaged(self, what: str) -> Unreadable:
        return Unreadable(
            f"{self.place}: the pickle's opcode at byte {self.at:,} {what}; nothing was executed; "
            "get the file again from where you trust it"
        )


_Step: TypeAlias = "Callable[[_Machine, object], None]"


def _nothing(machine: _Machine, arg: object) -> None:
    """Do nothing: PROTO, FRAME, STOP."""


def _pushed(make: Callable[[_Machine], Value]) -> _Step:
    """Return the step that pushes what ``make`` takes from the stack and makes of it."""
    return lambda machine, _: machine.push(make(machine))


def _literal(machine: _Machine, arg: object) -> None:
    if isinstance(arg, int) and arg.bit_length() > MOST_BITS:
        raise machine.damaged(f"holds an integer of {arg.bit_length():,} bits")
    if isinstance(arg, bytearray):
        arg = bytes(arg)
    if not isinstance(arg, (bool, int, float, str, bytes)):
        raise machine.damaged("has no argument")
    machine.push(arg)


def _tuple_of(count: int) -> _Step:
    return _pushed(lambda machine: tuple([machine.pop() for _ in range(count)][::-1]))


def _add(machine: _Machine, items: list[Value]) -> None:
    if machine.stack and isinstance(machine.stack[-1], list):
        machine.stack[-1].extend(items)
    else:
        machine.called("finds no list to put items into").items.extend(items)


def _update(machine: _Machine, pairs: list[tuple[Value, Value]]) -> None:
    if machine.stack and isinstance(machine.stack[-1], Mapping):
        machine.stack[-1].pairs.extend(pairs)
    else:
        machine.called("finds no dictionary to put a key into").pairs.extend(pairs)


def _set_item(machine: _Machine, _: object) -> None:
    value, key = machine.pop(), machine.pop()
    _update(machine, [(key, value)])


def _drop(machine: _Machine, _: object) -> None:
    """Drop the top; where a mark is the top, the mark."""
    if machine.stack or not machine.marked:
        machine.pop()
    else:
        machine.pop_marked()


def _drop_marked(machine: _Machine, _: object) -> None:
    machine.pop_marked()


def _duplicate(machine: _Machine, _: object) -> None:
    top = machine.pop()
    machine.stack += [top, top]


def _mark(machine: _Machine, _: object) -> None:
    machine.marked.append(machine.stack)
    machine.stack = []


def _recall(machine: _Machine, arg: object) -> None:
    if not isinstance(arg, int) or arg not in machine.memo:
        raise machine.damaged(f"recalls {arg}, which was never kept")
    machine.push(machine.memo[arg])


def _keep(machine: _Machine, arg: object) -> None:
    top = machine.pop()
    machine.push(top)
    machine.memo[arg if isinstance(arg, int) else len(machine.memo)] = top


def _global(machine: _Machine, arg: object) -> None:
    module, _, name = str(arg).partition(" ")
    machine.push(machine.named(module, name))


def _stack_global(machine: _Machine, _: object) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(machine.named(module, name))


def _extension(machine: _Machine, arg: object) -> None:
    """Stand for a global by a number that only the program knows that wrote it."""
    machine.push(machine.named("copyreg", f"extension {arg}"))


def _call(machine: _Machine, _: object) -> None:
    args, what = machine.pop(), machine.pop()
    machine.push(Call(what, args))


def _call_with_names(machine: _Machine, _: object) -> None:
    names, args, what = machine.pop(), machine.pop(), machine.pop()
    machine.push(Call(what, args, states=[names]))


def _instance(machine: _Machine, arg: object) -> None:
    args = tuple(machine.pop_marked())
    module, _, name = str(arg).partition(" ")
    machine.push(Call(machine.named(module, name), args))


def _object(machine: _Machine, _: object) -> None:
    parts = machine.pop_marked()
    if not parts:
        raise machine.damaged("makes an object of no class")
    machine.push(Call(parts[0], tuple(parts[1:])))


def _build(machine: _Machine, _: object) -> None:
    state = machine.pop()
    if machine.stack and isinstance(machine.stack[-1], Call):
        machine.stack[-1].states.append(state)
        return
    machine.push(Call(machine.pop(), None, states=[state]))


def _persistent(machine: _Machine, arg: object) -> None:
    found = Persistent(arg if isinstance(arg, str) else machine.pop())
    machine.persistent.append(found)
    machine.push(found)


def _refused(machine: _Machine, _: object) -> None:
    raise machine.damaged("takes a buffer from outside the file, which is not there")


def _set_of(items: list[Value], kind: str, at: int) -> Call:
    return Call(Global("builtins", kind, at), (), items=items)


_LITERALS = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8"
)

_STEPS: dict[str, _Step] = {
    **dict.fromkeys(_LITERALS.split(), _literal),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _nothing),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _recall),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _keep),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), _extension),
    **dict.fromkeys(("NEXT_BUFFER", "READONLY_BUFFER"), _refused),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _call),
    **dict.fromkeys(
        ("APPENDS", "ADDITEMS"), lambda machine, _: _add(machine, machine.pop_marked())
    ),
    **dict.fromkeys(("PERSID", "BINPERSID"), _persistent),
    "NONE": _pushed(lambda _: None),
    "NEWTRUE": _pushed(lambda _: True),
    "NEWFALSE": _pushed(lambda _: False),
    "EMPTY_TUPLE": _pushed(lambda _: ()),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": _pushed(lambda machine: tuple(machine.pop_marked())),
    "EMPTY_LIST": _pushed(lambda _: []),
    "LIST": _pushed(lambda machine: machine.pop_marked()),
    "APPEND": lambda machine, _: _add(machine, [machine.pop()]),
    "EMPTY_DICT": _pushed(lambda _: Mapping()),
    "DICT": _pushed(lambda machine: Mapping(machine.pop_pairs())),
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _update(machine, machine.pop_pairs()),
    "EMPTY_SET": _pushed(lambda machine: _set_of([], "set", machine.at)),
    "FROZENSET": _pushed(lambda m: _set_of(m.pop_marked(), "frozenset", m.at)),
    "POP": _drop,
    "DUP": _duplicate,
    "MARK": _mark,
    "POP_MARK": _drop_marked,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "NEWOBJ_EX": _call_with_names,
    "INST": _instance,
    "OBJ": _object,
    "BUILD": _build,
}
