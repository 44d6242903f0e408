"""The example of CONTRIBUTING.md works as it stands."""

from __future__ import annotations

import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from memcensus import subject
from memcensus.errors import Unreadable
from memcensus.subject import Look, Subject, Target, detect, load_view

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    assert len(code.group(1).splitlines()) <= 45
    (tmp_path / "folder_subject.py").write_text(code.group(1), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(subject.SUBJECTS, "folder", "folder_subject:Folder")
    module = importlib.import_module("folder_subject")
    yield cast("Subject", module.Folder())
    del sys.modules["folder_subject"]


def test_the_example_counts_every_byte_once(folder: Subject, tmp_path: Path) -> None:
    place = tmp_path / "some folder"
    place.mkdir()
    (place / "a").write_bytes(b"x" * 1000)
    (place / "b").write_bytes(b"y" * 24)
    target = Target.parse(str(place))
    assert type(folder) is type(detect(target))
    report = folder.inspect(target)
    assert 1024 == report.root.total
    out = io.StringIO()
    load_view("table").render([report], out, Look())
    assert "1 KiB" in out.getvalue()


def test_the_example_refuses_what_is_no_folder(folder: Subject) -> None:
    with pytest.raises(Unreadable, match="name one"):
        folder.inspect(Target.parse("/etc/passwd"))
