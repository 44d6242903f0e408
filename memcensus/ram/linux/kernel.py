"""The kernel in an image: found, checked, and opened for reading.

1. BTF is found by its magic, kallsyms near it by its tokens. Boot leaves stale copies of both.
2. A pair is the running kernel only if its page tables, read through its own symbols, lead from
   the banner's virtual address to the place where the banner stands. No stale copy passes.
3. VMCOREINFO, found by itself, must say the same; where it does not, that is a gap.

Every constant keeps how it was derived (``Fact``), so that it can be checked by hand.

Not covered: kernels without BTF or kallsyms, other processors than x86-64, Xen paravirtual guests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from memcensus import units
from memcensus.errors import NoKernel, Unreadable
from memcensus.model import Absence, Gap
from memcensus.ram import paging
from memcensus.ram.image import PAGE
from memcensus.ram.linux import btf, kallsyms, vmcoreinfo
from memcensus.ram.linux.memory import ADDRESSES, Memory
from memcensus.text import decode, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.ram.image import Image
    from memcensus.ram.linux.btf import Types
    from memcensus.ram.linux.kallsyms import Symbols
    from memcensus.ram.linux.vmcoreinfo import Note
    from memcensus.subject import Progress

KERNEL_MAP: Final = (
    0xFFFF_FFFF_8000_0000  # __START_KERNEL_map, arch/x86/include/asm/page_64_types.h
)
LINKED_AT: Final = KERNEL_MAP + 0x100_0000  # _text without KASLR, at the default PHYSICAL_START

# Where the areas start when KASLR does not move them, by levels of paging: mm.rst.
_UNMOVED: Final = {
    "page_offset_base": {4: 0xFFFF_8880_0000_0000, 5: 0xFF11_0000_0000_0000},
    "vmalloc_base": {4: 0xFFFF_C900_0000_0000, 5: 0xFFA0_0000_0000_0000},
    "vmemmap_base": {4: 0xFFFF_EA00_0000_0000, 5: 0xFFD4_0000_0000_0000},
}
_CHUNK: Final = 64 << 20  # bytes searched at a time
_BEFORE, _AFTER = 48 << 20, 16 << 20  # read-only data around BTF that may hold kallsyms
_CANDIDATES: Final = 32  # places that look like BTF; two are usual, thousands are an attack
_BANNER: Final = b"Linux version "


@dataclass(frozen=True, slots=True)
class Fact:
    """One constant of the kernel, how it was come by, and where in the image that stands."""

    name: str
    value: str
    derivation: str
    place: int  # physical address


@dataclass(frozen=True, slots=True)
class Kernel:
    """The running kernel of an image."""

    image: Image
    types: Types
    symbols: Symbols
    memory: Memory
    note: Note | None  # VMCOREINFO
    btf_place: int  # physical address
    vmalloc: int  # virtual address where vmalloc space starts
    vmemmap: int  # virtual address of the struct page of page 0
    gaps: tuple[Gap, ...]

    @property
    def banner(self) -> str:
        """The kernel's own words about its version and build."""
        return decode(self.memory.string(self.symbols.address("linux_banner"), 1024)).strip()

    def pointer(self, name: str) -> int:
        """Return the 64-bit value of the kernel's variable ``name``, or raise ``Unreadable``."""
        return self.memory.u64(self.symbols.address(name))

    def place(self, address: int) -> str:
        """Return file@offset of a virtual address, to look it up by hand."""
        return self.image.place(self.memory.physical(address))


def find(image: Image, progress: Progress) -> Kernel:
    """Return the running kernel of ``image``.

    Raises:
        NoKernel: if there is none; the text says which step failed.
    """
    note = next(vmcoreinfo.find(image), None)
    failures = _Failures()
    for place, symbols in _candidates(image, note, failures, progress):
        try:
            memory = _checked(image, symbols, place)
            types = btf.Types.parse(image, place)
            types.offset("task_struct.tasks")
        except Unreadable as error:
            failures.later.append(str(error))
            continue
        return _opened(image, (place, types, symbols, memory), note)
    raise NoKernel(failures.sentence(image))


@dataclass(slots=True)
class _Failures:
    """How far the search came: kept for the sentence that says why there is no kernel."""

    btf: int = 0  # places that look like a kernel's BTF
    later: list[str] = field(default_factory=list)  # why a pair of BTF and kallsyms was refused

    def sentence(self, image: Image) -> str:
        where = f"{printable(image.name)} ({units.size(image.size)} searched)"
        if self.later:
            return (
                f"a kernel's symbols stand in {where}, but none belongs to a running kernel: "
                f"{self.later[0]}"
            )
        if self.btf:
            return (
                f"BTF type data but no kallsyms symbol table was found in {where}; the image was "
                "cut short, or its kernel was built without CONFIG_KALLSYMS"
            )
        return (
            f"no BTF type data found in {where}: this is no x86-64 Linux 5.2 or later built with "
            "CONFIG_DEBUG_INFO_BTF, or the image was cut short before its kernel"
        )


def _candidates(
    image: Image, note: Note | None, failures: _Failures, progress: Progress
) -> Iterator[tuple[int, Symbols]]:
    """Yield (physical address of BTF, symbols) pairs that stand near each other.

    A pair is tried when its low address bits agree. Last, the symbols that VMCOREINFO points to.
    """
    for place in islice(_btf_places(image, progress), _CANDIDATES):
        failures.btf += 1
        for symbols in kallsyms.search(image, place - _BEFORE, place + _AFTER):
            start = symbols.get("__start_BTF")
            if start is not None and (start - place) % PAGE == 0:
                yield place, symbols
    base = None if note is None else note.number("NUMBER(phys_base)")
    tokens = None if note is None else note.address("SYMBOL(kallsyms_token_table)")
    if base is None or tokens is None:
        return
    expected = tokens - KERNEL_MAP + base
    for symbols in kallsyms.search(image, expected, expected + PAGE):
        start = symbols.get("__start_BTF")
        if start is not None:
            yield start - KERNEL_MAP + base, symbols


def _btf_places(image: Image, progress: Progress) -> Iterator[int]:
    """Yield the physical addresses where a kernel's BTF may start. It starts at a multiple of 4."""
    step = _CHUNK // PAGE
    for page in range(0, image.pages, step):
        words = image.tables[page : page + step].reshape(-1).view("<u4")
        for word in np.flatnonzero(words == btf.MAGIC).tolist():
            place = page * PAGE + 4 * word
            if btf.plausible(image, place):
                yield place
        progress("search the kernel", min(page + step, image.pages) * PAGE, image.size, "B")


def _checked(image: Image, symbols: Symbols, place: int) -> Memory:
    """Return the kernel's memory if its own page tables lead back to it.

    Raises:
        Unreadable: if they do not: a stale copy, or a part of the image is missing.
    """
    banner = symbols.address("linux_banner")
    delta = (place - symbols.address("__start_BTF")) % ADDRESSES
    text = range(symbols.address("_text"), symbols.address("_end"))
    stands = (banner + delta) % ADDRESSES
    if image.read(stands, len(_BANNER)) != _BANNER:
        raise Unreadable(f"no banner stands at {image.place(stands)}, where the symbols put it")
    five = symbols.get("__pgtable_l5_enabled")
    levels = 5 if five is not None and image.u32((five + delta) % ADDRESSES) else 4
    top = symbols.get("init_top_pgt") or symbols.address("swapper_pg_dir")
    root = (top + delta) % ADDRESSES
    led = paging.translate(image.tables, root, levels, banner)
    if led != stands:
        raise Unreadable(
            f"the page tables at {image.place(root)} do not lead to the banner at "
            f"{image.place(stands)}; it is a copy that boot left behind, or the image is damaged"
        )
    start, end = (
        _area(image, symbols, delta, name, levels) for name in ("page_offset_base", "vmalloc_base")
    )
    return Memory(image, text, delta, range(start, end), root, levels)


def _area(image: Image, symbols: Symbols, delta: int, name: str, levels: int) -> int:
    """Return where an area of the kernel's addresses starts; KASLR keeps it in a variable."""
    variable = symbols.get(name)
    if variable is None:
        return _UNMOVED[name][levels]
    return image.u64((variable + delta) % ADDRESSES)


def _opened(image: Image, parts: tuple[int, Types, Symbols, Memory], note: Note | None) -> Kernel:
    place, types, symbols, memory = parts
    vmalloc, vmemmap = (
        _area(image, symbols, memory.delta, name, memory.levels)
        for name in ("vmalloc_base", "vmemmap_base")
    )
    gaps = tuple(_contradictions(types, symbols, memory, note))
    return Kernel(image, types, symbols, memory, note, place, vmalloc, vmemmap, gaps)


def _contradictions(
    types: Types, symbols: Symbols, memory: Memory, note: Note | None
) -> Iterator[Gap]:
    """Yield a gap for everything that VMCOREINFO tells otherwise than BTF and kallsyms."""
    if note is None:
        yield Gap(
            "VMCOREINFO",
            Absence.UNREADABLE,
            "the kernel's crash note is not in the image, so what BTF and kallsyms say was not "
            "checked against a second source",
        )
        return
    where = memory.image.place(note.place)
    for name, told, ours in _compared(types, symbols, memory, note):
        if told is None:
            continue
        theirs, here = told % ADDRESSES, ours % ADDRESSES
        if theirs != here:
            yield Gap(
                f"VMCOREINFO {name}",
                Absence.CONTRADICTORY,
                f"the note at {where} says {theirs:#x}, BTF and kallsyms say {here:#x}; "
                "the image is damaged, or changed while it was saved",
            )


def _compared(
    types: Types, symbols: Symbols, memory: Memory, note: Note
) -> Iterator[tuple[str, int | None, int]]:
    """Yield (line, what the note says, what we found)."""
    phys_base = memory.delta + KERNEL_MAP
    root = symbols.get("init_top_pgt") or symbols.address("swapper_pg_dir")
    yield "KERNELOFFSET", note.address("KERNELOFFSET"), memory.text.start - LINKED_AT
    yield "NUMBER(phys_base)", note.number("NUMBER(phys_base)"), phys_base
    yield "SYMBOL(swapper_pg_dir)", note.address("SYMBOL(swapper_pg_dir)"), root
    five = note.number("NUMBER(pgtable_l5_enabled)")
    yield "NUMBER(pgtable_l5_enabled)", five, int(memory.levels == 5)
    yield "SIZE(page)", note.number("SIZE(page)"), types.size("page")
    for member in ("flags", "mapping", "private"):
        told = note.number(f"OFFSET(page.{member})")
        yield f"OFFSET(page.{member})", told, types.offset(f"page.{member}")
