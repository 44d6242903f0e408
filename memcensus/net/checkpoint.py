"""What a PyTorch checkpoint (.pt, .pth, .bin) holds, read without unpickling it.

Two formats, both from ``torch/serialization.py`` of torch 2.13. Since 1.6 ``torch.save`` writes a
zip archive whose members are stored, not packed: ``archive/data.pkl`` describes the tensors, and
``archive/data/N`` are the bytes of one storage each. Before, it wrote five pickles (a magic number,
a version, the machine, the object, the storages' keys) and then each storage behind its length.
What the pickles say is interpreted by ``pickled``, which imports nothing and calls nothing.

Each byte of a storage belongs to the first tensor that lies over it; tensors that share it borrow.

Not covered: the tar format of torch 0.1; packed storages; the code of TorchScript archives (a gap);
arrays inside a pickle itself, which are part of its size.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import IO, TYPE_CHECKING, cast

from memcensus.errors import LONGEST, Unreadable, unreadable
from memcensus.model import Absence, Account, Column, Evidence, Gap, Quantity, Report, Source, Table
from memcensus.net import pickled
from memcensus.net.accounts import Node
from memcensus.net.pickled import Bounded, Call, Global, Mapping, Persistent, clean, shown
from memcensus.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Literal

    from memcensus.net.pickled import Labelled, Pickled, Place, Value
    from memcensus.subject import Progress

MOST_DIRECTORY = 32 << 20
"""Bytes of a zip archive's list of members: some 300,000 storages."""
MOST_TENSORS = 500_000
MOST_DEPTH = 64
"""Parts of a tensor's name that become accounts inside each other."""
_MOST_DIMENSIONS = 64
_MOST_NAMED = 20  # names that one sentence lists

_ZIP = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3L2H")  # a member's header, APPNOTE 4.3.7
_NOTES = (12, 16, 20, 24)  # bytes of the note behind a member's data, APPNOTE 4.3.9
_PADDING = 0x4246  # "FB", the extra field with which torch aligns storages
_NUMBER = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
_MAGIC = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\n" + re.escape(_NUMBER), re.DOTALL)

_ELEMENTS = (
    ("Double", "float64", 64),
    ("Float", "float32", 32),
    ("Half", "float16", 16),
    ("BFloat16", "bfloat16", 16),
    ("Long", "int64", 64),
    ("Int", "int32", 32),
    ("Short", "int16", 16),
    ("Char", "int8", 8),
    ("Byte", "uint8", 8),
    ("Untyped", "uint8", 8),
    ("Bool", "bool", 8),
    ("ComplexDouble", "complex128", 128),
    ("ComplexFloat", "complex64", 64),
    ("QInt32", "qint32", 32),
    ("QInt8", "qint8", 8),
    ("QUInt8", "quint8", 8),
    ("QUInt4x2", "quint4x2", 4),
    ("QUInt2x4", "quint2x4", 2),
)
"""Class of a storage without the word Storage, what its elements are, bits of one."""
_STORAGES = {f"{kind}Storage": dtype for kind, dtype, _ in _ELEMENTS}
_BITS = {dtype: bits for _, dtype, bits in _ELEMENTS} | {"uint64": 64, "uint32": 32, "uint16": 16}
_BYTE = re.compile(r"float8_\w+|float4_e2m1fn_x2")  # dtypes of which one byte holds an element

_REBUILT = {
    **dict.fromkeys(("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_qtensor")),
    "_rebuild_tensor_v3": 6,
}
"""Calls of (storage, offset, shape, strides, ...) -> which argument is the dtype, if any is."""
_QUANTIZED = "_rebuild_qtensor"  # its fourth argument holds the scales
_META = "_rebuild_meta_tensor_no_storage"  # (dtype, shape, strides, ...)
_WRAPPED = re.compile(r"_rebuild_parameter(_with_state)?|_rebuild_device_tensor_from_cpu_tensor")
"""Calls that make another kind of tensor of their first argument."""
_SUBCLASSED = re.compile(r"_rebuild_from_type(_v2)?")
"""Calls of (rebuilder, class, its arguments, ...)."""
_SPARSE = re.compile(r"_rebuild_sparse(_csr)?_tensor")
"""Calls of (layout, (tensors, shape, ...))."""
_PARTS = {2: ("indices", "values"), 3: ("compressed_indices", "plain_indices", "values")}
"""Tensors that a sparse one consists of -> their names."""
_REBUILDERS = frozenset({"torch._utils", "torch._tensor", "collections"})

_KNOWN = re.compile(
    r"torch\.(_utils\._rebuild_\w+|_tensor\._rebuild_\w+|serialization\._get_layout|Size|device"
    r"|Tensor|(cuda\.|storage\.)?\w+Storage|nn\.(modules|parameter)\.[\w.]+|per_\w+|sparse_\w+"
    r"|strided|(u?int|float|bfloat|complex|qu?int|bool)\w*)"
    r"|collections\.\w+|copy_?reg\._reconstructor|_codecs\.encode|(__builtin__|builtins)\.\w+"
    r"|numpy\.(_?core\.multiarray\.(_reconstruct|scalar)|dtype|ndarray)"
)
"""Globals that torch's own files name; importing them runs nothing of the file's author."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A tensor: a name for some bytes of a storage."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    storage: str | None  # None: a tensor without bytes, on the device "meta"
    span: tuple[int, int] | None  # bytes of the storage; None: all of it
    optimizer: bool  # lies in the state of an optimizer
    device: str


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes of the file: those of a storage, or of a member of the archive."""

    at: int
    size: int
    packed: bool = False


@dataclass(slots=True)
class _Archive:
    """What is in a file, whichever format it has."""

    place: str
    size: int
    storages: dict[str, _Stretch] = field(default_factory=dict)
    uses: list[_Use] = field(default_factory=list)
    globals: Counter[tuple[str, str]] = field(default_factory=Counter)
    overheads: list[Account] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def part(self, name: str, size: int, where: str) -> None:
        """Account for bytes that no tensor has."""
        if size:
            source = Source(Evidence.MEASURED, f"{self.place}: {where}")
            self.overheads.append(Account(name, size, source))

    def trusted(self, file: IO[bytes], where: str, origin: int = 0) -> Pickled:
        """Read a pickle, and note what it would import."""
        found = pickled.trusted(file, where, origin)
        self.globals.update((each.module, each.name) for each in found.globals)
        return found

    def damaged(self, name: str, what: str) -> Unreadable:
        """Return the error for a member, storage or tensor that makes no sense."""
        return Unreadable(
            f"{self.place}: {shown(name)} {what}; the file is damaged, cut off or made to "
            "mislead: get it again from where you trust it"
        )


def claims(head: bytes, path: Path | None) -> str | None:
    """Say why a file that starts with ``head`` is a checkpoint, or a pickle that imports."""
    if head.startswith(_ZIP):
        return _zip_claim(head, path)
    if _MAGIC.match(head):
        return "starts with the magic number of torch.save before 1.6"
    if b"segments" not in head and pickled.imports(head):
        return "a pickle that imports something on loading"
    return None


def census(path: Path, name: str, progress: Progress) -> Report:
    """Return whose the file's bytes are: tensors by name, optimizer state, pickles, the archive.

    Raises:
        Unreadable: if it is damaged, not of torch.save, or would run something on loading.
    """
    try:
        with path.open("rb") as file:
            archive = _Archive(printable(name), file.seek(0, io.SEEK_END))
            file.seek(0)
            _read(file, archive, progress)
    except OSError as error:
        raise unreadable(name, error) from error
    return _report(archive)


def _read(file: IO[bytes], archive: _Archive, progress: Progress) -> None:
    head = file.read(64)
    file.seek(0)
    if head.startswith(_ZIP):
        _read_zip(file, archive, progress)
    elif _MAGIC.match(head):
        _read_legacy(file, archive, progress)
    else:
        pickled.trusted(file, archive.place)
        raise Unreadable(
            f"{archive.place}: a pickle, but not one of torch.save, and what it holds cannot be "
            "read without loading it; nothing was executed; save the state_dict with torch.save"
        )


def _zip_claim(head: bytes, path: Path | None) -> str | None:
    because = "a zip archive with data.pkl, as torch.save writes it"
    if re.match(rb"[^/\0]+/data\.pkl", head[_LOCAL.size :]):
        return because
    try:
        with path.open("rb") if path is not None else io.BytesIO(head) as file:
            members, _ = _members(file, "")
    except (OSError, Unreadable):
        return None
    return because if any(each.filename.endswith("/data.pkl") for each in members) else None


def _members(file: IO[bytes], place: str) -> tuple[list[zipfile.ZipInfo], int]:
    """Return the members in the order of their place, and where the list of them begins.

    Raises:
        Unreadable: if there is no such list, or it is too long.
    """
    stream = cast("IO[bytes]", Bounded(file, MOST_DIRECTORY, place))  # ZipFile asks for no more
    try:
        with zipfile.ZipFile(stream) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.header_offset)
            return members, archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise Unreadable(
            f"{place}: a zip archive without a readable list of its members "
            f"({printable(str(error)[:LONGEST])}): it is damaged or cut off; get the file again"
        ) from error


def _read_zip(file: IO[bytes], archive: _Archive, progress: Progress) -> None:
    """Check each member's place and header; account for all that is not a member's data."""
    infos, directory = _members(file, archive.place)
    members: dict[str, _Stretch] = {}
    end, headers, aligned = 0, archive.size - directory, 0
    for done, info in enumerate(infos):
        if info.filename in members or info.header_offset < end:
            raise archive.damaged(info.filename, "comes twice, or overlaps another member")
        flags, header, padding = _header(file, info, archive)
        start = info.header_offset + header + padding
        end = start + info.compress_size
        if end > directory:
            raise archive.damaged(info.filename, f"ends at {end:,}, behind all members")
        behind = (infos[done + 1].header_offset if done + 1 < len(infos) else directory) - end
        headers += header + (behind if flags & 8 and behind in _NOTES else 0)
        aligned += padding
        packed = info.compress_type != zipfile.ZIP_STORED
        members[info.filename] = _Stretch(start, info.compress_size, packed)
        progress("members", done + 1, len(infos), "member")
    archive.part("zip headers", headers, "local headers, notes and the list of members")
    archive.part("alignment padding", aligned, "extra fields FB of the members")
    _describe(file, archive, members)


def _header(file: IO[bytes], info: zipfile.ZipInfo, archive: _Archive) -> tuple[int, int, int]:
    """Return a member's flags, and the bytes of its own header without and of its padding.

    Raises:
        Unreadable: if the header is not there, or the member is encrypted.
    """
    file.seek(info.header_offset)
    raw = file.read(_LOCAL.size)
    if len(raw) < _LOCAL.size or not raw.startswith(_ZIP):
        raise archive.damaged(info.filename, f"has no header at byte {info.header_offset:,}")
    flags: int
    _, _, flags, *_, named, extra = _LOCAL.unpack(raw)
    stored = info.compress_type == zipfile.ZIP_STORED
    if (flags | info.flag_bits) & 1 or (stored and info.compress_size != info.file_size):
        raise archive.damaged(info.filename, "is encrypted, or is stored but has two sizes")
    file.seek(named, io.SEEK_CUR)
    padding = _padding(file.read(extra))
    return flags, _LOCAL.size + named + extra - padding, padding


def _padding(extra: bytes) -> int:
    """Return the bytes of the extra fields that only align."""
    at, found = 0, 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == _PADDING and at + 4 + size <= len(extra):
            found += 4 + size
        at += 4 + size
    return found


def _describe(file: IO[bytes], archive: _Archive, members: dict[str, _Stretch]) -> None:
    """Read the pickles of an archive, find the storages, and account for the other members."""
    main = next((name for name in members if name.endswith("/data.pkl")), None)
    if main is None:
        raise Unreadable(f"{archive.place}: a zip archive without data.pkl; torch.save writes one")
    prefix = main.removesuffix("data.pkl")
    folders = {main: f"{prefix}data/", f"{prefix}constants.pkl": f"{prefix}constants/"}
    kinds = defaultdict[str, list[str]](list)
    for name, member in members.items():
        kind = _kind(name, prefix, tuple(folders.values()))
        kinds[kind].append(name)
        big = kind == "pickles" and member.size > pickled.MOST_BYTES
        if big or (member.packed and kind in ("storages", "pickles")):
            raise archive.damaged(name, "is packed, as torch.save never does, or too big")
        if kind == "storages":
            archive.storages[name] = member
        if kind == "pickles":
            file.seek(member.at)
            data, where = io.BytesIO(file.read(member.size)), f"{archive.place}: {shown(name)}"
            found = archive.trusted(data, where, member.at)
            archive.uses += _uses(found, folders[name], archive) if name in folders else []
    for kind in ("pickles", "code", "other members"):
        size = sum(members[name].size for name in kinds[kind])
        archive.part(kind, size, ", ".join(map(shown, kinds[kind][:_MOST_NAMED])))
    if kinds["code"]:
        why = f"{len(kinds['code']):,} files, neither read nor run; what they allocate is unknown"
        archive.gaps.append(Gap("the code of this TorchScript archive", Absence.UNCOUNTED, why))


def _kind(name: str, prefix: str, folders: tuple[str, ...]) -> str:
    if name.startswith(folders):
        return "storages"
    if name.endswith(".pkl"):
        return "pickles"
    return "code" if name.startswith(f"{prefix}code/") else "other members"


def _read_legacy(file: IO[bytes], archive: _Archive, progress: Progress) -> None:
    """Read the five pickles, then the length of each storage."""
    pickles = [archive.trusted(file, archive.place) for _ in range(5)]
    _, _, machine, content, keys = pickles
    archive.uses += _uses(content, "", archive)
    archive.part("pickles", sum(each.size for each in pickles), "the first five")
    names = keys.value if isinstance(keys.value, list) else [None]
    found = [each for each in map(_reference, content.persistent) if each is not None]
    widths = {key: max(8, _BITS.get(dtype, 8)) // 8 for dtype, key, _, _ in found}
    order: Literal["little", "big"] = "little" if _is_little(machine.value) else "big"
    for done, key in enumerate(names):
        if not isinstance(key, str) or key not in widths or key in archive.storages:
            raise archive.damaged(f"storage {done} of the list", "is of no tensor, or comes twice")
        count = int.from_bytes(file.read(8), order, signed=True)
        at, size = file.tell(), count * widths[key]
        if count < 0 or at + size > archive.size:
            what = f"holds {count:,} elements from byte {at:,} on, of {archive.size:,} B in all"
            raise archive.damaged(f"storage {key}", what)
        archive.storages[key] = _Stretch(at, size)
        file.seek(size, io.SEEK_CUR)
        progress("storages", done + 1, len(names), "storage")
    archive.part("storage lengths", 8 * len(names), "8 B before each storage")


def _is_little(machine: Value) -> bool:
    pairs = machine.pairs if isinstance(machine, Mapping) else []
    return all(value is not False for key, value in pairs if key == "little_endian")


def _reference(value: Value) -> tuple[str, str, str, int] | None:
    """Return dtype, key, device and count of ("storage", class, key, device, count, ...)."""
    match value:
        case Persistent(name=("storage", Global(name=kind), str(key), str(device), int(count), *_)):
            return _STORAGES.get(kind, clean(kind)), key, clean(device), count
    return None


def _uses(found: Pickled, folder: str, archive: _Archive) -> Iterator[_Use]:
    """Yield each tensor of a pickle, in order; ``folder`` is put before storages' keys.

    Raises:
        Unreadable: if a tensor's figures make no sense, or there are too many.
    """
    optimizers: set[int] = set()
    count = 0
    for place in pickled.walk(found, _inside, archive.place):
        if _is_optimizer(place.value):
            optimizers.add(id(place.value))
        use = _use(
            place, folder, archive, optimizer=not optimizers.isdisjoint(map(id, place.above))
        )
        if use is not None:
            count += 1
            yield use
        if count > MOST_TENSORS:
            raise Unreadable(f"{archive.place}: more than {MOST_TENSORS:,} names of tensors")


def _is_optimizer(value: Value) -> bool:
    """Say whether this is the state dict of an optimizer."""
    pairs = value.pairs if isinstance(value, (Mapping, Call)) else []
    keys = {key for key, _ in pairs[:8] if isinstance(key, str)}
    return {"state", "param_groups"} <= keys


def _inside(call: Call) -> Labelled:
    """Yield what a call holds, under the names that a state dict would give it."""
    args = call.args if isinstance(call.args, tuple) else ()
    what = _rebuilder(call)
    if what in _REBUILT:
        yield from [("quantizer", args[4])] if what == _QUANTIZED and len(args) > 4 else []
    elif _WRAPPED.fullmatch(what):
        yield from ((None, part) for part in args[:1])
    elif _SUBCLASSED.fullmatch(what):
        yield from [(None, Call(args[0], args[2]))] if len(args) > 2 else []
    elif _SPARSE.fullmatch(what) and len(args) > 1 and isinstance(args[1], tuple):
        parts = [each for each in args[1] if isinstance(each, Call) and _rebuilder(each)]
        yield from zip(_PARTS.get(len(parts), ()), parts, strict=False)
    else:
        first = pickled.items_of(args) if what == "OrderedDict" else []
        yield from pickled.by_key(first) if first else ((None, part) for part in args)
        yield from pickled.by_key(call.pairs)
        yield from ((str(number), part) for number, part in enumerate(call.items))
        yield from ((None, part) for part in call.states)


def _rebuilder(call: Call) -> str:
    """Return the name of the function of torch that is called, "" for any other."""
    what = call.what
    return what.name if isinstance(what, Global) and what.module in _REBUILDERS else ""


def _use(place: Place, folder: str, archive: _Archive, *, optimizer: bool) -> _Use | None:
    """Return the tensor or bare storage that a value is."""
    path = tuple(".".join(place.path).split(".")) if place.path else ("tensor",)
    path = (*path[: MOST_DEPTH - 1], *filter(None, [".".join(path[MOST_DEPTH - 1 :])]))
    bare = _reference(place.value)
    if bare is not None:
        dtype, key, device, count = bare
        return _Use(path, dtype, (count,), folder + key, None, optimizer, device)
    what = _rebuilder(place.value) if isinstance(place.value, Call) else ""
    if not isinstance(place.value, Call) or (what not in _REBUILT and what != _META):
        return None
    name, args = f"the tensor {'.'.join(path)}", place.value.args
    if not isinstance(args, tuple) or len(args) < 4:
        raise archive.damaged(name, "is not told in full")
    if what == _META:
        shape = _sizes(args[1], name, archive)
        return _Use(path, _dtype_of(args[0]), shape, None, None, optimizer, "meta")
    found, offset, at = _reference(args[0]), args[1], _REBUILT[what]
    shape, strides = _sizes(args[2], name, archive), _sizes(args[3], name, archive)
    if found is None or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise archive.damaged(name, "has no storage, or no place in it")
    if len(shape) != len(strides) or prod(shape) >= 1 << 63:
        raise archive.damaged(name, "has sizes and strides that do not match, or is too big")
    dtype, key, device, _ = found
    dtype = dtype if at is None or len(args) <= at else _dtype_of(args[at])
    span = _span(offset, shape, strides, _BITS.get(dtype, 8 if _BYTE.fullmatch(dtype) else None))
    return _Use(path, dtype, shape, folder + key, span, optimizer, device)


def _dtype_of(value: Value) -> str:
    return clean(value.name) if isinstance(value, Global) else "?"


def _sizes(value: Value, name: str, archive: _Archive) -> tuple[int, ...]:
    """Return sizes or strides, none negative; ``torch.Size`` is a call of one tuple."""
    if isinstance(value, Call) and isinstance(value.args, tuple) and len(value.args) == 1:
        value = value.args[0]
    listed = value if isinstance(value, tuple) else (None,)
    sizes = tuple(each for each in listed if isinstance(each, int) and 0 <= each < 1 << 63)
    if len(sizes) != len(listed) or len(sizes) > _MOST_DIMENSIONS:
        raise archive.damaged(name, "has a shape that is no short list of numbers, all 0 or more")
    return sizes


def _span(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...], bits: int | None
) -> tuple[int, int] | None:
    """Return the bytes from a tensor's first to behind its last element."""
    if bits is None:
        return None
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    elements = last + 1 if all(shape) else 0
    return offset * bits // 8, -(-(offset + elements) * bits // 8)


@dataclass(slots=True)
class _Taken:
    """The bytes of one storage that tensors lie over, as intervals that do not touch."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def take(self, start: int, end: int) -> int:
        """Add an interval; return how many of its bytes were free."""
        if start >= end:
            return 0
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        old = list(zip(self.starts[first:last], self.ends[first:last], strict=True))
        held = sum(max(0, min(end, to) - max(start, since)) for since, to in old)
        self.starts[first:last] = [min(start, *(since for since, _ in old), start)]
        self.ends[first:last] = [max(end, *(to for _, to in old), end)]
        return end - start - held


def _report(archive: _Archive) -> Report:
    tops, table = _placed(archive)
    held = [node.account(name, Evidence.MEASURED) for name, node in tops.items() if node.children]
    source = Source(Evidence.MEASURED, f"{archive.place}: size of the file")
    root = Account.explain(archive.place, archive.size, source, [*held, *archive.overheads])
    uses = zip(archive.uses, (row[5] for row in table.rows), strict=True)  # and bytes that it owns
    numbers = sum(prod(use.shape) for use, owned in uses if owned and not use.optimizer)
    quantities = (
        Quantity("tensors", len(archive.uses), "tensor"),
        Quantity("numbers outside of optimizer state", numbers, "number"),
    )
    root = Account(root.name, root.own, source, root.children, quantities=quantities)
    imported = _globals(archive)
    gaps = _gaps(archive, imported)
    return Report("net", archive.place, root, tables=(table, imported), gaps=gaps)


def _placed(archive: _Archive) -> tuple[dict[str, Node], Table]:
    """Give each byte of a storage to the first tensor over it; account for what none lies over."""
    taken, owned = defaultdict[str, _Taken](_Taken), Counter[str]()
    tops = {"tensors": Node(), "optimizer state": Node()}
    rows, sources = [], []
    for use in archive.uses:
        start, end, where = _bounds(use, archive)
        own = taken[use.storage].take(start, end) if use.storage is not None else 0
        owned[use.storage or ""] += own
        top = tops["optimizer state" if use.optimizer else "tensors"]
        top.put(use.path, own, where, borrowed=end - start - own)
        shape, name = "x".join(map(str, use.shape)), ".".join(use.path)
        rows.append((name, use.dtype, shape, prod(use.shape), end - start, own, use.device))
        sources.append(Source(Evidence.MEASURED, where))
    beyond = sum(archive.storages[key].size - owned[key] for key in taken)
    archive.part("storages beyond tensors", beyond, "storages - the tensors that lie over them")
    lost = {key: each.size for key, each in archive.storages.items() if key not in taken}
    named = ", ".join(map(shown, list(lost)[:_MOST_NAMED]))
    archive.part("unused storages", sum(lost.values()), named)
    return tops, Table("tensors", _TENSORS, tuple(rows), tuple(sources))


_TENSORS = (
    *(Column("name"), Column("dtype"), Column("shape"), Column("numbers", "number")),
    *(Column("bytes", "B"), Column("owned", "B"), Column("device")),
)
_GLOBALS = (Column("module"), Column("name"), Column("count"), Column("kind"))


def _bounds(use: _Use, archive: _Archive) -> tuple[int, int, str]:
    """Return the bytes of the storage that a tensor lies over, and where that is."""
    if use.storage is None:
        return 0, 0, f"{archive.place}: on the device meta, without bytes"
    name, storage = f"the tensor {'.'.join(use.path)}", archive.storages.get(use.storage)
    if storage is None:
        raise archive.damaged(name, f"lies in {shown(use.storage)}, which is not there")
    start, end = use.span or (0, storage.size)
    if end > storage.size:
        raise archive.damaged(name, f"ends at byte {end:,} of a storage of {storage.size:,} B")
    where = f"{archive.place}@{storage.at + start:#x}, storage {shown(use.storage)}"
    return start, end, where


def _globals(archive: _Archive) -> Table:
    """Return what loading would import, most often named first."""
    rows = tuple(
        (clean(m), clean(n), count, "known" if _KNOWN.fullmatch(f"{m}.{n}") else "unknown")
        for (m, n), count in archive.globals.most_common()
    )
    source = Source(Evidence.MEASURED, f"{archive.place}: opcodes of the pickles")
    return Table("globals", _GLOBALS, rows, (source,) * len(rows))


def _gaps(archive: _Archive, imported: Table) -> tuple[Gap, ...]:
    foreign = [
        f"{shown(str(m))}.{shown(str(n))}" for m, n, _, how in imported.rows if how != "known"
    ]
    gaps = list(archive.gaps)
    if foreign:
        more = f" and {len(foreign) - _MOST_NAMED:,} more" if foreign[_MOST_NAMED:] else ""
        why = (
            f"loading would import {', '.join(foreign[:_MOST_NAMED])}{more}; nothing was executed, "
            "and only tensors in plain sight inside them are listed"
        )
        gaps.append(Gap("classes that are not torch's own", Absence.UNSUPPORTED, why))
    meta = sum(use.storage is None for use in archive.uses)
    if meta:
        why = f"{meta:,} tensors lie on the device meta, which has no bytes to save"
        gaps.append(Gap("the bytes of tensors", Absence.UNREADABLE, why))
    return tuple(gaps)
