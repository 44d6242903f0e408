"""What was found out about the kernel, each constant with its derivation: the table ``kernel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memcensus.ram.linux import clock as clocks
from memcensus.ram.linux.kernel import KERNEL_MAP, LINKED_AT, Fact
from memcensus.ram.linux.memory import ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcensus.ram.linux.clock import Clock
    from memcensus.ram.linux.kernel import Kernel

_SECOND: Final = 10**9  # nanoseconds


def derive(kernel: Kernel, clock: Clock | None) -> Iterator[Fact]:
    """Yield the constants of ``kernel``, the most telling first."""
    symbols, memory = kernel.symbols, kernel.memory
    banner = memory.physical(symbols.address("linux_banner"))
    yield Fact("banner", kernel.banner, "text at linux_banner", banner)
    if clock is not None:
        at = clock.place
        boot, up = clocks.rfc3339(clock.boot), f"{clock.uptime / _SECOND:.0f} s"
        yield Fact("boot time", boot, f"{clock.variable}: offs_real - offs_boot", at)
        now = clocks.rfc3339(clock.boot + clock.uptime)
        yield Fact("time of the image", now, f"{clock.variable}: xtime_sec, the last tick", at)
        yield Fact("uptime", up, "time of the image - boot time", at)
    yield _image(kernel)
    yield from _layout(kernel)
    yield from _structures(kernel)


def _image(kernel: Kernel) -> Fact:
    image = kernel.image
    value = f"raw, {image.size:,} B" + (f", unpacked from {image.packing}" if image.packing else "")
    unpacked = " in what was unpacked" if image.packing else ""
    return Fact("image", value, f"physical address = offset{unpacked}; @ in sources is both", 0)


def _layout(kernel: Kernel) -> Iterator[Fact]:
    memory = kernel.memory
    start = (memory.text.start + memory.delta) % ADDRESSES
    slide = memory.text.start - LINKED_AT
    yield Fact("virtual slide", hex(slide), f"_text - {LINKED_AT:#x}: KASLR", start)
    yield Fact("kernel at physical", hex(start), "_text - __start_BTF + place of BTF", start)
    phys_base = hex(memory.delta + KERNEL_MAP - ADDRESSES)  # below 0 if KASLR slid less than that
    yield Fact("phys_base", phys_base, f"kernel at physical - (_text - {KERNEL_MAP:#x})", start)
    yield _area(kernel, "page_offset_base", memory.direct.start, "direct map of all RAM")
    yield _area(kernel, "vmalloc_base", kernel.vmalloc, "vmalloc space")
    yield _area(kernel, "vmemmap_base", kernel.vmemmap, "struct page of page 0")
    five = kernel.symbols.get("__pgtable_l5_enabled")
    place = memory.root if five is None else memory.physical(five)
    yield Fact("paging levels", str(memory.levels), "__pgtable_l5_enabled, proved by a walk", place)
    root = "init_top_pgt; its tables lead from linux_banner to where the banner stands"
    yield Fact("root table", hex(memory.root), root, memory.root)


def _area(kernel: Kernel, name: str, value: int, meaning: str) -> Fact:
    variable = kernel.symbols.get(name)
    if variable is None:
        return Fact(name, hex(value), f"{meaning}: fixed in this kernel", kernel.memory.root)
    return Fact(name, hex(value), f"{meaning}: the variable", kernel.memory.physical(variable))


def _structures(kernel: Kernel) -> Iterator[Fact]:
    types = f"{len(kernel.types.starts) - 1:,} types"
    btf = "magic 0xeb9f; low address bits and page tables agree with kallsyms"
    yield Fact("BTF", types, btf, kernel.btf_place)
    symbols = f"{len(kernel.symbols):,} symbols"
    tokens = "tokens 0 to 9; markers, index and relative_base agree"
    yield Fact("kallsyms", symbols, tokens, kernel.symbols.place)
    if kernel.note is not None:
        lines = f"{len(kernel.note.lines)} lines"
        second = "OSRELEASE= at the start of a page; a second source for the above"
        yield Fact("VMCOREINFO", lines, second, kernel.note.place)
