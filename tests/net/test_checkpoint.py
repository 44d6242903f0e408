"""Checkpoints: what torch saved, told without loading it, and files made to harm.

The oracle is torch, whose objects are saved here and compared with what is read; for pickles it is
Python's own ``pickle`` and ``pickletools``.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import pickletools
import struct
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memcensus.errors import Unreadable
from memcensus.model import UNEXPLAINED, Account, Report
from memcensus.net import checkpoint, pickled
from memcensus.net.pickled import Call, Mapping, Value
from memcensus.subject import HEAD, Look, silent
from memcensus.views.json import JsonView

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class Config:
    """A class of the user's own, which loading would import."""

    width = 3


class Attack:
    """What torch.load would turn into a file that should not be there."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


def saved(folder: Path, content: object, *, zipped: bool = True) -> Path:
    path = folder / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


def read(path: Path) -> Report:
    assert checkpoint.claims(path.read_bytes()[:HEAD], path) is not None
    return checkpoint.census(path, path.name, silent)


def part(report: Report, *names: str) -> Account:
    """Return the account under these names."""
    found = report.root
    for name in names:
        found = next(child for child in found.children if child.name == name)
    return found


def has(report: Report, name: str) -> bool:
    return any(child.name == name for child in report.root.children)


def rows(report: Report) -> dict[str, tuple[object, ...]]:
    table = report.table("tensors")
    assert table is not None
    assert len({row[0] for row in table.rows}) == len(table.rows)
    return {str(row[0]): row[1:] for row in table.rows}


def told(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what the table must say of a tensor: dtype, shape, numbers, bytes."""
    shape = "x".join(map(str, tensor.shape))
    return str(tensor.dtype).removeprefix("torch."), shape, tensor.numel(), tensor.nbytes


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20))


def trained(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(4, 10)).sum().backward()
    optimizer.step()
    return optimizer


@FORMATS
def test_every_tensor_is_told_as_the_state_dict_has_it(tmp_path: Path, *, zipped: bool) -> None:
    state = network().state_dict()
    report = read(saved(tmp_path, state, zipped=zipped))
    found = rows(report)
    assert found.keys() == state.keys()
    assert all(found[name][:4] == told(tensor) for name, tensor in state.items())
    assert part(report, "tensors").total == sum(tensor.nbytes for tensor in state.values())


@FORMATS
def test_the_parts_sum_to_the_file_and_nothing_is_left(tmp_path: Path, *, zipped: bool) -> None:
    model = network()
    content = {"model": model.state_dict(), "optimizer": trained(model).state_dict(), "epoch": 3}
    path = saved(tmp_path, content, zipped=zipped)
    report = read(path)
    assert report.root.total == path.stat().st_size
    assert not has(report, UNEXPLAINED)
    if zipped:
        with zipfile.ZipFile(path) as archive:
            members = sum(info.file_size for info in archive.infolist())
        frame = part(report, "zip headers").total + part(report, "alignment padding").total
        assert frame == path.stat().st_size - members


@FORMATS
def test_the_optimizer_s_state_has_an_account(tmp_path: Path, *, zipped: bool) -> None:
    model = network()
    optimizer = trained(model).state_dict()
    content = {"model": model.state_dict(), "optimizer": optimizer}
    report = read(saved(tmp_path, content, zipped=zipped))
    states = {
        f"optimizer.state.{number}.{name}": tensor
        for number, state in optimizer["state"].items()
        for name, tensor in state.items()
    }
    assert part(report, "optimizer state").total == sum(t.nbytes for t in states.values())
    found = rows(report)
    assert {name: found[name][:4] for name in states} == {n: told(t) for n, t in states.items()}


@FORMATS
def test_a_whole_model_has_the_names_of_its_state_dict(tmp_path: Path, *, zipped: bool) -> None:
    model = network()
    report = read(saved(tmp_path, [model, model.state_dict()], zipped=zipped))
    names = list(model.state_dict())
    assert list(rows(report)) == [f"{place}.{name}" for place in (0, 1) for name in names]
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    assert report.root.quantities[1].value == numbers  # each once, though saved under two names


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32),
    torch.uint64,
]


@FORMATS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(tmp_path: Path, dtype: torch.dtype, *, zipped: bool) -> None:
    tensor = torch.zeros(3, 5, dtype=dtype)
    report = read(saved(tmp_path, {"x": tensor}, zipped=zipped))
    assert rows(report)["x"][:4] == told(tensor)
    assert part(report, "tensors").total == tensor.nbytes
    assert not has(report, UNEXPLAINED)


@FORMATS
def test_tied_weights_are_owned_once(tmp_path: Path, *, zipped: bool) -> None:
    one = torch.nn.Parameter(torch.rand(7, 5))
    report = read(saved(tmp_path, {"a": one, "b": one, "c": one.data.T}, zipped=zipped))
    assert part(report, "tensors", "a").total == one.nbytes
    assert part(report, "tensors", "b").total == part(report, "tensors", "c").total == 0
    assert part(report, "tensors", "b").borrowed == one.nbytes
    assert part(report, "tensors", "c").borrowed == one.nbytes
    assert rows(report)["c"][1] == "5x7"


@FORMATS
def test_a_view_of_a_storage_shows_what_is_saved_with_it(tmp_path: Path, *, zipped: bool) -> None:
    big = torch.zeros(1000)
    content = {"low": big[10:30], "high": big[20:50], "far": big[900:990:3]}
    report = read(saved(tmp_path, content, zipped=zipped))
    far = 4 * (29 * 3 + 1)  # bytes from its first to behind its last element
    assert part(report, "tensors", "low").total == 20 * 4
    assert part(report, "tensors", "high").total == 20 * 4
    assert part(report, "tensors", "high").borrowed == 10 * 4
    assert part(report, "tensors", "far").total == far
    beyond = part(report, "storages beyond tensors").total
    assert beyond == big.untyped_storage().nbytes() - 40 * 4 - far


@FORMATS
def test_expanded_tensors_hold_what_their_storage_holds(tmp_path: Path, *, zipped: bool) -> None:
    content = {"wide": torch.zeros(1).expand(1000, 1000), "none": torch.zeros(0, 5)}
    report = read(saved(tmp_path, content, zipped=zipped))
    assert part(report, "tensors").total == 4
    assert rows(report)["wide"][2] == 1_000_000


@FORMATS
def test_sparse_and_quantized_tensors_have_their_parts(tmp_path: Path, *, zipped: bool) -> None:
    sparse = torch.eye(4).to_sparse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one is beta, the other deprecated; both are saved
        rowwise = torch.eye(4).to_sparse_csr()
        scales, zeros = torch.ones(3, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
        quantized = torch.quantize_per_channel(torch.ones(3, 5), scales, zeros, 0, torch.qint8)
        content = {"s": sparse, "r": rowwise, "q": quantized}
        found = rows(read(saved(tmp_path, content, zipped=zipped)))
    assert found["s.indices"][:4] == told(sparse.indices())
    assert found["s.values"][:4] == told(sparse.values())
    assert found["r.compressed_indices"][:4] == told(rowwise.crow_indices())
    assert found["r.plain_indices"][:4] == told(rowwise.col_indices())
    assert found["r.values"][:4] == told(rowwise.values())
    assert found["q"][:4] == ("qint8", "3x5", 15, 15)
    assert found["q.quantizer.1"][:4] == told(scales)
    assert found["q.quantizer.2"][:4] == told(zeros)


def test_a_meta_tensor_has_no_bytes_and_is_a_gap(tmp_path: Path) -> None:
    report = read(saved(tmp_path, {"m": torch.empty(4, 3, device="meta"), "x": torch.ones(2)}))
    assert rows(report)["m"] == ("float32", "4x3", 12, 0, 0, "meta")
    assert part(report, "tensors").total == 8
    assert any("meta" in gap.why for gap in report.gaps)


@FORMATS
def test_a_bare_storage_is_counted(tmp_path: Path, *, zipped: bool) -> None:
    storage = torch.ones(5).untyped_storage()
    report = read(saved(tmp_path, [storage], zipped=zipped))
    assert part(report, "tensors", "0").total == storage.nbytes() == 20


def test_a_tensor_alone_and_names_nested_in_lists(tmp_path: Path) -> None:
    assert list(rows(read(saved(tmp_path, torch.ones(3))))) == ["tensor"]
    content = {"nets": [{"w": torch.ones(1)}, (torch.ones(2),)], 7: torch.ones(3)}
    found = rows(read(saved(tmp_path, content)))
    assert list(found) == ["nets.0.w", "nets.1.0", "7"]


def test_storages_that_nobody_names_are_shown(tmp_path: Path) -> None:
    path = saved(tmp_path, {"x": torch.ones(3)})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/data/99", bytes(1234))
    report = read(path)
    assert part(report, "unused storages").total == 1234
    assert report.root.total == path.stat().st_size


@FORMATS
def test_a_class_of_the_user_is_a_gap_and_is_read(tmp_path: Path, *, zipped: bool) -> None:
    config = Config()
    config.weight = torch.ones(6)  # type: ignore[attr-defined]
    report = read(saved(tmp_path, {"config": config}, zipped=zipped))
    assert any(f"{Config.__module__}.Config" in gap.why for gap in report.gaps)
    table = report.table("globals")
    assert table is not None
    known = {f"{row[0]}.{row[1]}": row[3] for row in table.rows}
    assert known[f"{Config.__module__}.Config"] == "unknown"
    assert known["torch.FloatStorage"] == "known"
    assert rows(report)["config.weight"][:4] == told(torch.ones(6))


def test_torch_s_own_globals_are_no_gap(tmp_path: Path) -> None:
    model = network()
    content = {"model": model, "optimizer": trained(model).state_dict(), "size": torch.Size([1])}
    assert read(saved(tmp_path, content)).gaps == ()


@FORMATS
def test_a_checkpoint_that_imports_os_is_refused_unrun(tmp_path: Path, *, zipped: bool) -> None:
    canary = tmp_path / "canary"
    path = saved(tmp_path, {"x": torch.ones(3), "y": Attack(canary)}, zipped=zipped)
    with pytest.raises(Unreadable, match=r"would import posix\.system") as caught:
        read(path)
    at = int(str(caught.value).partition("(byte ")[2].partition(")")[0].replace(",", ""))
    assert path.read_bytes()[at:].startswith(b"cposix\nsystem\n")
    assert caught.value.exit_code == 3
    assert not canary.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_bare_pickle_that_imports_os_is_refused(tmp_path: Path, protocol: int) -> None:
    canary, path = tmp_path / "canary", tmp_path / "model.pth"
    path.write_bytes(pickle.dumps([1, Attack(canary)], protocol))
    with pytest.raises(Unreadable, match=r"posix\.system"):
        read(path)
    assert not canary.exists()


ATTACKS = {
    "os by name": b"cos\nsystem\n(S'id'\ntR.",
    "instance": b"(S'id'\nios\nsystem\n.",
    "eval": b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "old eval": b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.",
    "getattr": b"\x80\x02cbuiltins\ngetattr\n.",
    "runpy": b"\x80\x04\x8c\x05runpy\x8c\x08run_path\x93.",
    "through torch": b"\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93.",
    "computed": b"\x80\x04ccollections\nOrderedDict\n)R\x8c\x06system\x93.",
    "submodule": b"\x80\x02cimportlib.util\nfind_spec\n.",
}


@pytest.mark.parametrize("stream", ATTACKS.values(), ids=ATTACKS)
def test_every_way_to_reach_out_is_refused(tmp_path: Path, stream: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(stream)
    with pytest.raises(Unreadable, match="import"):
        read(path)


def archive(folder: Path, stream: bytes, *, packed: bool = False) -> Path:
    """Return a zip archive with ``stream`` for data.pkl."""
    path = folder / "model.pt"
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("archive/data.pkl", stream)
    return path


def laughs() -> bytes:
    """Return a list of two lists of two lists ..., each kept and named twice."""
    steps = b"".join(b"(h\x00h\x00lq\x00" for _ in range(60))
    return b"\x80\x02]q\x00" + steps + b"."


HOSTILE = {
    "repeats itself": laughs(),
    "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b"\x80\x02N" + b"\x85" * 100_000 + b".",
    "deep calls": b"\x80\x02" + b"cmy\nbox\n" * 1000 + b")" + b"R\x85" * 1000 + b".",
    "a long of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a string of 2^63 bytes": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "a huge number": b"\x80\x02\x8b\x00\x10\x00\x00" + b"\x7f" * 4096 + b".",
    "digits": b"I" + b"9" * 5000 + b"\n.",
    "an empty stack": b"\x80\x020.",
    "no mark": b"\x80\x02t.",
    "no memo": b"\x80\x02h\x05.",
    "no end": b"\x80\x02]",
    "no pickle": b"\xff\xff",
    "a buffer": b"\x80\x05\x97.",
    "nothing": b"",
}


@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pickle_ends_in_one_sentence(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        read(archive(tmp_path, stream))
    assert str(caught.value).isprintable()


def test_a_list_that_holds_itself_is_read_once(tmp_path: Path) -> None:
    report = read(archive(tmp_path, b"\x80\x02]q\x00h\x00a."))
    assert rows(report) == {}


def tensor_stream(size: str, stride: str, offset: str = "I0\n", numel: str = "I3\n") -> bytes:
    """Return a pickle of one float tensor on storage 0; protocol 0 shows its figures."""
    storage = f"(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\n{numel}tQ"
    return f"ctorch._utils\n_rebuild_tensor_v2\n({storage}{offset}{size}{stride}I00\nNtR.".encode()


def test_a_device_s_name_is_made_safe_too(tmp_path: Path) -> None:
    stream = tensor_stream("(I3\nt", "(I1\nt").replace(b"Vcpu", b"V\\ud800")
    assert rows(read(with_storage(archive(tmp_path, stream))))["tensor"][5] == "\\ud800"


SENSELESS = {
    "beyond the storage": tensor_stream("(I4\nt", "(I1\nt"),
    "negative size": tensor_stream("(I-1\nt", "(I1\nt"),
    "negative stride": tensor_stream("(I2\nt", "(I-1\nt"),
    "negative offset": tensor_stream("(I2\nt", "(I1\nt", "I-4\n"),
    "huge": tensor_stream("(I9223372036854775807\nI9223372036854775807\nt", "(I0\nI0\nt"),
    "a thousand dimensions": tensor_stream("(" + "I1\n" * 1000 + "t", "(" + "I1\n" * 1000 + "t"),
    "words for sizes": tensor_stream("(Vtwo\nt", "(I1\nt"),
    "sizes without strides": tensor_stream("(I1\nI1\nt", "(I1\nt"),
    "no storage": b"ctorch._utils\n_rebuild_tensor_v2\n(NI0\n(I1\nt(I1\nttR.",
    "no arguments": b"ctorch._utils\n_rebuild_tensor_v2\n(tR.",
}


def with_storage(path: Path) -> Path:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data/0", bytes(12))
    return path


def test_the_hand_made_tensor_is_read_where_its_figures_fit(tmp_path: Path) -> None:
    stream = tensor_stream("(I3\nt", "(I1\nt")
    report = read(with_storage(archive(tmp_path, stream)))
    assert rows(report)["tensor"][:4] == ("float32", "3", 3, 12)


def test_an_ordered_dictionary_of_python_2_has_its_names(tmp_path: Path) -> None:
    """Python 2 wrote OrderedDict([["w", tensor]]), a call with all its items."""
    tensor = tensor_stream("(I3\nt", "(I1\nt").removesuffix(b".")
    stream = b"ccollections\nOrderedDict\n(((Vw\n" + tensor + b"lltR."
    assert list(rows(read(with_storage(archive(tmp_path, stream))))) == ["w"]


@pytest.mark.parametrize("little", [True, False])
def test_the_lengths_of_a_legacy_file_are_in_its_own_byte_order(
    tmp_path: Path, *, little: bool
) -> None:
    path = tmp_path / "model.pth"
    heads = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": little}]
    count = (3).to_bytes(8, "little" if little else "big")
    behind = b"left over"
    pickles = [pickle.dumps(head, 2) for head in heads]
    pickles += [tensor_stream("(I3\nt", "(I1\nt"), pickle.dumps(["0"], 2)]
    path.write_bytes(b"".join(pickles) + count + bytes(12) + behind)
    report = read(path)
    assert rows(report)["tensor"][:4] == ("float32", "3", 3, 12)
    assert part(report, UNEXPLAINED).total == len(behind)


@pytest.mark.parametrize("stream", SENSELESS.values(), ids=SENSELESS)
def test_a_tensor_that_makes_no_sense_is_refused(tmp_path: Path, stream: bytes) -> None:
    with pytest.raises(Unreadable, match="the tensor"):
        read(with_storage(archive(tmp_path, stream)))


def test_a_tensor_without_its_storage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="not there"):
        read(archive(tmp_path, tensor_stream("(I3\nt", "(I1\nt")))


def test_packed_members_are_refused_before_they_are_unpacked(tmp_path: Path) -> None:
    """A megabyte of zeros packs to a kilobyte; a bomb is the same with more zeros."""
    with pytest.raises(Unreadable, match="packed"):
        read(archive(tmp_path, bytes(1 << 20), packed=True))
    path = archive(tmp_path, pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", bytes(1 << 20))
    with pytest.raises(Unreadable, match="packed"):
        read(path)


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, pickle.dumps({}, 2))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/data.pkl", pickle.dumps({}, 2))
    with pytest.raises(Unreadable, match="twice"):
        read(path)


@pytest.mark.parametrize(("field", "figures"), [(42, [0]), (20, [99, 99])])
def test_members_that_overlap_are_refused(tmp_path: Path, field: int, figures: list[int]) -> None:
    """An entry's offset is that of the first, or it is longer than the room it has."""
    path = archive(tmp_path, pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data/0", bytes(64))
    raw = bytearray(path.read_bytes())
    second = raw.index(b"PK\x01\x02", raw.index(b"PK\x01\x02") + 1)
    struct.pack_into(f"<{len(figures)}L", raw, second + field, *figures)
    path.write_bytes(raw)
    with pytest.raises(Unreadable, match=r"overlaps|behind all members"):
        read(path)


def test_names_that_climb_out_of_a_folder_only_stand_for_bytes(tmp_path: Path) -> None:
    path = archive(tmp_path, pickle.dumps({}, 2))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as file:
        file.writestr("../../etc/passwd", b"root")
    report = read(path)
    assert part(report, "other members").total == 4
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.pt"]


@FORMATS
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_checkpoint_that_was_cut_off_is_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float, *, zipped: bool
) -> None:
    path = saved(tmp_path_factory.mktemp("cut"), network().state_dict(), zipped=zipped)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(Unreadable):
        checkpoint.census(path, "cut.pt", silent)


@FORMATS
@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)
)
def test_damage_is_a_sentence_or_a_report_that_adds_up(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[float, int]], *, zipped: bool
) -> None:
    path = saved(tmp_path_factory.mktemp("flip"), {"a": {"b": torch.ones(3)}}, zipped=zipped)
    raw = bytearray(path.read_bytes())
    for share, flip in flips:
        raw[int(len(raw) * share)] ^= flip
    path.write_bytes(raw)
    with contextlib.suppress(Unreadable):
        assert checkpoint.census(path, "flip.pt", silent).root.total == len(raw)


def test_other_files_are_not_claimed(tmp_path: Path) -> None:
    document = tmp_path / "text.docx"
    with zipfile.ZipFile(document, "w") as file:
        file.writestr("word/document.xml", "<x/>")
    snapshot = pickle.dumps({"segments": [{"device": Config()}], "device_traces": [[]]}, 4)
    others = [b"", b"{}", b'{"traceEvents": []}', b"cold\nwinter\nnights", b"\x7fELF", snapshot]
    assert checkpoint.claims(document.read_bytes()[:HEAD], document) is None
    assert [checkpoint.claims(head, None) for head in others] == [None] * len(others)


def test_a_zip_is_claimed_by_the_list_at_its_end(tmp_path: Path) -> None:
    """The first member need not be data.pkl, as in archives of torch before 2."""
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/version", "3\n")
        file.writestr("archive/data.pkl", pickle.dumps({}, 2))
    assert checkpoint.claims(path.read_bytes()[:HEAD], path) is not None
    assert rows(read(path)) == {}


def test_the_code_of_a_torchscript_archive_is_a_gap(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and files of it are not rare
        torch.jit.save(torch.jit.script(model), path)
    report = read(path)
    assert any("TorchScript" in gap.what for gap in report.gaps)
    assert part(report, "code").total > 0
    states = model.state_dict().values()
    assert part(report, "tensors").total == sum(tensor.nbytes for tensor in states)


def test_a_pickle_of_something_else_says_so(tmp_path: Path) -> None:
    path = tmp_path / "counts.pkl"
    path.write_bytes(pickle.dumps(OrderedDict(a=1), 2))
    with pytest.raises(Unreadable, match=r"not one of torch\.save"):
        read(path)


def test_names_with_escapes_are_kept_and_harmless(tmp_path: Path) -> None:
    report = read(saved(tmp_path, {"\x1b[31m<b>\ud800": torch.ones(1), "x" * 5000: torch.ones(1)}))
    names = list(rows(report))
    JsonView().render([report], io.TextIOWrapper(io.BytesIO(), "utf-8"), Look())
    assert names[0] == "\x1b[31m<b>\\ud800"  # views escape what moves a cursor
    assert len(names[1]) < 300


NUMBERS = st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
PLAIN = st.recursive(
    st.none() | NUMBERS | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


def built(value: Value) -> object:
    """Return the Python object that plain symbols stand for."""
    if isinstance(value, list):
        return [built(item) for item in value]
    if isinstance(value, tuple):
        return tuple(built(item) for item in value)
    if isinstance(value, Mapping):
        return {built(key): built(item) for key, item in value.pairs}
    if isinstance(value, Call):  # bytes before protocol 3: _codecs.encode(text, "latin1")
        assert isinstance(value.args, tuple)
        return str(value.args[0]).encode("latin1") if value.args else b""
    return value


@given(plain=PLAIN, protocol=st.integers(0, 5))
def test_plain_pickles_mean_what_python_says(plain: object, protocol: int) -> None:
    raw = pickle.dumps(plain, protocol)
    found = pickled.read(io.BytesIO(raw + b"more"), "x")
    assert built(found.value) == pickle.loads(raw) == plain  # noqa: S301 (made one line above)
    assert found.size == len(raw)


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_a_sentence(raw: bytes) -> None:
    try:
        found = pickled.read(io.BytesIO(b"\x80\x04" + raw), "x")
    except Unreadable:
        return
    assert found.size <= len(raw) + 2


def test_every_opcode_has_its_step() -> None:
    assert {opcode.name for opcode in pickletools.opcodes} == pickled._STEPS.keys()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12))
def test_taking_intervals_counts_each_byte_once(spans: list[tuple[int, int]]) -> None:
    taken, held = checkpoint._Taken(), set[int]()
    for start, size in spans:
        span = set(range(start, start + size))
        assert taken.take(start, start + size) == len(span - held)
        held |= span
