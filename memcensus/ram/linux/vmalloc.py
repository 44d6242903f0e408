"""vmalloc space: kernel stacks, modules, and what else is mapped page by page.

Each area is a ``struct vmap_area`` with, mostly, a ``struct vm_struct`` that keeps who asked for
it (mm/vmalloc.c). Until Linux 6.8 all are in one list, since then in one for each vmap node
(d093602919ad, "mm: vmalloc: remove global vmap_area_root rb-tree").

Not covered: areas that are being freed at this moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memcensus.errors import Unreadable
from memcensus.ram.image import NotThere
from memcensus.ram.linux import mm
from memcensus.text import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcensus.model import Path
    from memcensus.ram.linux.kernel import Kernel
    from memcensus.ram.linux.process import Process

STACKS: Final = "kernel stacks"

_AREAS: Final = 1 << 20  # a busy server has some ten thousand
_MODULES: Final = 4096
_NODES: Final = 256
_PIECES: Final = 16  # of a module's memory; MOD_MEM_NUM_TYPES is 7
_IOREMAP: Final = 1  # VM_IOREMAP, include/linux/vmalloc.h
_CACHED: Final = 2  # NR_CACHED_STACKS, kernel/fork.c

# Since 6.4 a module is in several areas (ac3b43283923, "module: replace module_layout with
# module_memory"); before, it had two layouts.
_LAYOUTS: Final = ("core_layout", "init_layout")

# Who asked for an area, where that says what it is: a function's name -> the owner.
_CALLERS: Final[dict[str, Path]] = {
    "fork_idle": (STACKS, "of idle processors"),
    "pcpu_get_vm_areas": ("per-cpu data", "later chunks"),
    "pcpu_create_chunk": ("per-cpu data", "maps of later chunks"),
}


@dataclass(frozen=True, slots=True)
class Area:
    """One range of vmalloc space and whose it is."""

    start: int
    end: int
    owner: Path


def read(kernel: Kernel, processes: Iterable[Process]) -> list[Area]:
    """Return all areas that hold RAM, or raise ``Unreadable``."""
    stacks = _stacks(kernel, processes)
    modules = _modules(kernel)
    kept = _kept_stacks(kernel)
    at = {name: kernel.types.offset(f"vmap_area.{name}") for name in ("va_start", "va_end", "vm")}
    areas = []
    for place in _areas(kernel):
        start, end, vm = (kernel.memory.u64(place + at[name]) for name in at)
        if end <= start:
            continue
        module = next((name for base, name in modules if start <= base < end), None)
        if start in stacks:
            owner: Path | None = (STACKS, "of processes and threads")
        elif vm in kept:
            owner = (STACKS, "kept for the next process")
        elif module is not None:
            owner = ("kernel modules", module)
        else:
            owner = _by_caller(kernel, vm)
        if owner is not None:
            areas.append(Area(start, end, owner))
    return areas


def _by_caller(kernel: Kernel, vm: int) -> Path | None:
    """Return the owner that a vm_struct names; None for device memory, which is no RAM."""
    if not vm:
        return ("vmalloc", "vm_map_ram or early boot")
    flags = kernel.memory.u64(vm + kernel.types.offset("vm_struct.flags"))
    if flags & _IOREMAP:
        return None
    caller = kernel.memory.u64(vm + kernel.types.offset("vm_struct.caller"))
    in_kernel = caller in kernel.memory.text
    name = kernel.symbols.nearest(caller) if in_kernel else "a module's code"
    return _CALLERS.get(name, ("vmalloc", f"for {name}"))


def _areas(kernel: Kernel) -> Iterator[int]:
    link = kernel.types.offset("vmap_area.list")
    for head in _heads(kernel):
        for place in kernel.memory.chain(head, _AREAS):
            yield place - link


def _heads(kernel: Kernel) -> list[int]:
    nodes = kernel.symbols.get("vmap_nodes")
    if nodes is None:
        return [kernel.symbols.address("vmap_area_list")]
    count = min(kernel.memory.u32(kernel.symbols.address("nr_vmap_nodes")), _NODES)
    first = kernel.memory.u64(nodes) + kernel.types.offset("vmap_node.busy.head")
    return [first + number * kernel.types.size("vmap_node") for number in range(count)]


def _stacks(kernel: Kernel, processes: Iterable[Process]) -> set[int]:
    """Return where the stack of every thread starts."""
    stack = kernel.types.offset("task_struct.stack")
    found = set()
    for process in processes:
        try:
            tasks = [process.task, *mm.threads(kernel, process.task)]
        except Unreadable:  # a process that is ending has no list of threads any more
            tasks = [process.task]
        found |= {kernel.memory.u64(task + stack) for task in tasks}
    return found


def _kept_stacks(kernel: Kernel) -> set[int]:
    """Return the vm_structs of the stacks that each CPU keeps for the next fork."""
    variable = kernel.symbols.get("cached_stacks")
    if variable is None:
        return set()
    found = set()
    for cpu in mm.per_cpu_offsets(kernel):
        for number in range(_CACHED):
            try:
                found.add(kernel.memory.u64((variable + cpu + 8 * number) % (1 << 64)))
            except NotThere:
                continue
    return found - {0}


def _modules(kernel: Kernel) -> list[tuple[int, str]]:
    """Return (virtual address, module) of every piece of memory that a module has."""
    types, memory = kernel.types, kernel.memory
    link, name = types.offset("module.list"), types.offset("module.name")
    bases = _module_bases(kernel)
    found = []
    for place in memory.chain(kernel.symbols.address("modules"), _MODULES):
        module = place - link
        text = decode(memory.string(module + name, 64))
        pointers = (memory.u64(module + base) for base in bases)
        found += [(pointer, text) for pointer in pointers if pointer]
    return found


def _module_bases(kernel: Kernel) -> list[int]:
    """Return where in a ``struct module`` the pointers to its memory stand."""
    types = kernel.types
    if types.has("module.mem"):
        first = types.offset("module.mem") + types.offset("module_memory.base")
        size, count = types.size("module_memory"), types.array("module.mem")
        return [first + size * number for number in range(min(count, _PIECES))]
    base = types.offset("module_layout.base")
    return [types.offset(f"module.{layout}") + base for layout in _LAYOUTS]
