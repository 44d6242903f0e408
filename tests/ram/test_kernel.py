"""Finding the kernel: two ways that must agree, and copies that must be refused."""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

import pytest

from memcensus.errors import NoKernel, Unreadable
from memcensus.ram.image import PAGE, Image
from memcensus.ram.linux import clock, facts, kernel, resources, vmcoreinfo
from memcensus.subject import silent
from tests.ram.conftest import Opened

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("images")


@pytest.fixture(scope="module")
def scratch(sample: Opened) -> Image:
    data = mmap.mmap(-1, sample.image.size)
    data[:] = sample.image.data[:]
    return Image("copy", data)


@pytest.fixture
def copy(sample: Opened, scratch: Image) -> Iterator[Image]:
    """A copy of the sample that may be written to; each test finds it whole."""
    yield scratch
    scratch.data[:] = sample.image.data[:]


def test_vmcoreinfo_alone_leads_to_the_same_kernel(
    guest: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_btf_places", lambda _image, _progress: iter(()))
    found = kernel.find(guest.image, silent)
    assert found.banner == guest.kernel.banner
    assert found.btf_place == guest.kernel.btf_place
    assert found.symbols.place == guest.kernel.symbols.place


def test_without_vmcoreinfo_the_kernel_is_found_and_that_is_a_gap(
    sample: Opened, copy: Image
) -> None:
    for note in list(vmcoreinfo.find(copy)):
        copy.data[note.place : note.place + 10] = bytes(10)
    found = kernel.find(copy, silent)
    assert found.memory.root == sample.kernel.memory.root
    assert [gap.what for gap in found.gaps] == ["VMCOREINFO"]


def test_a_note_that_says_otherwise_is_a_gap_with_both_numbers(sample: Opened, copy: Image) -> None:
    note = sample.kernel.note
    assert note is not None
    text = copy.read(note.place, PAGE)
    at = note.place + text.index(b"NUMBER(phys_base)=") + len("NUMBER(phys_base)=")
    copy.data[at : at + 3] = b"777"
    (gap,) = kernel.find(copy, silent).gaps
    assert gap.what == "VMCOREINFO NUMBER(phys_base)"
    right = note.number("NUMBER(phys_base)")
    wrong = next(vmcoreinfo.find(copy)).number("NUMBER(phys_base)")
    assert right is not None
    assert wrong is not None
    for number in (right, wrong):
        assert hex(number % (1 << 64)) in gap.why


def test_a_kernel_whose_page_tables_do_not_lead_back_is_refused(
    sample: Opened, copy: Image
) -> None:
    # So looks a copy that boot left behind: whole, but no processor ever ran it.
    root = sample.kernel.memory.root
    copy.data[root : root + PAGE] = bytes(PAGE)
    with pytest.raises(NoKernel, match="do not lead to the banner"):
        kernel.find(copy, silent)


def test_a_copy_in_front_of_the_kernel_is_passed_over(sample: Opened, copy: Image) -> None:
    # Types and symbols of the real kernel once more, at the start of the image.
    start = sample.kernel.symbols.place - (1 << 20) & -PAGE
    stop = sample.kernel.btf_place + (5 << 20)
    target = sample.kernel.memory.physical(sample.kernel.memory.text.start) - (stop - start) & -PAGE
    assert target > 1 << 20
    copy.data[target : target + stop - start] = copy.data[start:stop]
    found = kernel.find(copy, silent)
    assert found.btf_place == sample.kernel.btf_place


def test_types_that_were_cut_are_refused(sample: Opened, copy: Image) -> None:
    place = sample.kernel.btf_place + (1 << 20)
    copy.data[place : place + PAGE] = b"\xff" * PAGE
    with pytest.raises(NoKernel, match="breaks off"):
        kernel.find(copy, silent)


def test_a_clock_that_contradicts_itself_is_refused(sample: Opened, copy: Image) -> None:
    place = sample.clock.place + sample.kernel.types.offset("timekeeper.offs_real")
    copy.data[place : place + 8] = struct.pack("<q", 5)
    with pytest.raises(Unreadable, match="contradicts itself"):
        clock.read(kernel.find(copy, silent))


def test_dates_beyond_the_calendar_are_refused() -> None:
    assert clock.rfc3339(1_796_096_390_123_456_789) == "2026-12-01T03:39:50.123Z"
    with pytest.raises(Unreadable):
        clock.rfc3339(1 << 80)


def test_a_tree_of_ranges_in_a_circle_is_refused(sample: Opened, copy: Image) -> None:
    offset = sample.kernel.types.offset
    root = sample.kernel.symbols.address("iomem_resource")
    first = sample.kernel.memory.u64(root + offset("resource.child"))
    place = sample.kernel.memory.physical(first) + offset("resource.sibling")
    copy.data[place : place + 8] = struct.pack("<Q", first)
    with pytest.raises(Unreadable, match="circle"):
        resources.read(kernel.find(copy, silent))


def test_every_constant_can_be_looked_up_in_the_file(guest: Opened) -> None:
    for fact in facts.derive(guest.kernel, guest.clock):
        assert 0 <= fact.place < guest.image.size
        assert fact.derivation
    by_name = {fact.name: fact for fact in facts.derive(guest.kernel, guest.clock)}
    for name in ("page_offset_base", "vmalloc_base", "vmemmap_base"):
        assert int(by_name[name].value, 16) == guest.image.u64(by_name[name].place)
    assert guest.image.read(by_name["banner"].place, 13) == b"Linux version"
