"""Three reports as the three subjects make them, with hostile names; made by hand, not measured."""

from __future__ import annotations

from memcensus.fit import judge
from memcensus.model import (
    Absence,
    Account,
    Budget,
    Cell,
    Clock,
    Column,
    Evidence,
    Gap,
    Quantity,
    Report,
    Series,
    Source,
    Table,
    Timeline,
)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

HOSTILE = (
    "<script>window.owned=1</script>",
    "</script><script>window.owned=2</script>",
    '"><img src=x onerror=window.owned=3>',
    "javascript:window.owned=4",
    "<!--<script>",
    "' onfocus='window.owned=5",
    "\u202egpj.exe",
    "a\x1b[31mb\x00c",
)


def measured(where: str, meaning: str = "") -> Source:
    return Source(Evidence.MEASURED, where, meaning)


def computed(where: str, meaning: str = "") -> Source:
    return Source(Evidence.COMPUTED, where, meaning)


def live() -> Report:
    """This machine as the task manager shows it: in use | modified | standby | free."""
    meminfo = "/proc/meminfo:"

    def held(name: str, size: int, field: str, meaning: str = "") -> Account:
        return Account(name, size, measured(meminfo + field, meaning))

    processes = Account(
        "processes",
        0,
        computed("sum of PSS", "pages in use by programs; shared pages are divided among them"),
        (
            Account("postgres [812]", 1300 * MIB, measured("/proc/812/smaps_rollup:Pss")),
            Account("chromium [2210]", 905 * MIB, measured("/proc/2210/smaps_rollup:Pss")),
            Account("python3 [4711]", 640 * MIB, measured("/proc/4711/smaps_rollup:Pss")),
            Account("sshd [611]", 6 * MIB, measured("/proc/611/smaps_rollup:Pss")),
        ),
    )
    kernel = Account(
        "kernel",
        0,
        computed("sum of parts"),
        (
            held("unreclaimable slab", 210 * MIB, "SUnreclaim", "the non-paged pool"),
            held("page tables", 48 * MIB, "PageTables"),
            held("kernel stacks", 11 * MIB, "KernelStack"),
        ),
    )
    used = Account("in use", 0, computed("MemTotal - standby - free"), (processes, kernel))
    standby = Account(
        "standby",
        0,
        computed("Cached + SReclaimable - Dirty - Shmem", "what the kernel can drop at once"),
        (
            held("page cache", 2900 * MIB, "Cached"),
            held("reclaimable slab", 330 * MIB, "SReclaimable"),
        ),
    )
    parts = (
        used,
        held("modified", 64 * MIB, "Dirty", "must be written before it can be reused"),
        standby,
        held("free", 1100 * MIB, "MemFree"),
    )
    root = Account.explain("this machine", 8 * GIB, measured(meminfo + "MemTotal"), parts)
    limit = Budget(6 * GIB, measured("cgroup /sys/fs/cgroup/memory.max"))
    rows: tuple[tuple[Cell, ...], ...] = (
        (812, "postgres", 1300 * MIB, 1800 * MIB, 0.25),
        (2210, "chromium", 905 * MIB, 1500 * MIB, 12.5),
        (4711, "python3", 640 * MIB, 700 * MIB, None),
        (611, "sshd", 6 * MIB, 9 * MIB, 0.0),
    )
    columns = (
        *(Column("pid"), Column("name"), Column("proportional", "B"), Column("resident", "B")),
        Column("processor", "%"),
    )
    table = Table(
        "processes",
        columns,
        rows,
        tuple(measured(f"/proc/{row[0]}/smaps_rollup", "shared pages divided") for row in rows),
    )
    gaps = (
        Gap("processes of other users", Absence.UNREADABLE, "no right to read smaps; run as root"),
        Gap("12 processes", Absence.OUT_OF_TIME, "the 0.5 s were spent; --time 5s reads them"),
    )
    return Report("live", "", root, None, None, (table,), gaps, judge(used.total, 0, limit))


def net() -> Report:
    """A training step: memory rises in forward and falls in backward; the tree is the peak."""
    kinds = {
        "parameters": [528] * 200,
        "optimizer state": [1056] * 200,
        "saved activations": [*range(0, 1200, 12), *range(1200, 0, -12)],
        "gradients": [0] * 100 + [min(528, 6 * at) for at in range(100)],
        "temporaries": [(at * 37) % 90 for at in range(200)],
        "inputs": [19] * 200,
    }
    totals = [sum(sizes[at] for sizes in kinds.values()) for at in range(200)]
    instant = totals.index(max(totals))
    series = tuple(
        Series(("training step", kind), tuple(range(200)), tuple(size * MIB for size in sizes))
        for kind, sizes in kinds.items()
    )
    marks = ((0, "forward starts"), (100, "backward starts"), (190, "optimizer steps"))
    accounts = tuple(
        _by_layer(kind, sizes[instant] * MIB) for kind, sizes in kinds.items() if sizes[instant]
    )
    root = Account("training step", 0, computed("sum of storages alive at the peak step"), accounts)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (f"features.{at}", ("ReLU", "Conv2d")[at % 2], f"64x{at}x224", at * 36 * KIB, at * 10**9)
        for at in range(30)
    )
    columns = (
        *(Column("name"), Column("kind"), Column("output shape"), Column("weights", "B")),
        Column("work", "FLOP"),
    )
    table = Table("layers", columns, rows, tuple(computed("N*Cout*Hout*Wout*4") for _ in rows))
    verdict = judge(root.total, 256 * MIB, Budget(3 * GIB, measured("--limit 3GiB")))
    return Report(
        "net", "vgg16", root, instant, Timeline(Clock.STEP, series, marks), (table,), (), verdict
    )


def _by_layer(kind: str, size: int) -> Account:
    """Split ``size`` over 16 layers, most of it in the first ones, to the byte."""
    shares = [size * 2 // ((at + 2) * (at + 1)) // 3 for at in range(15)]
    layers = [
        Account(f"features.{at}", share, computed("N*C*H*W*4")) for at, share in enumerate(shares)
    ]
    rest = Account("classifier", size - sum(shares), Source(Evidence.ESTIMATED, "by proportion"))
    return Account(kind, 0, computed("sum over modules"), (*layers, rest))


def ram(processes: int = 80) -> Report:
    """A RAM image with many processes; some have names that were made to attack its reader."""
    names = [HOSTILE[at] if at < len(HOSTILE) else f"worker-{at}" for at in range(processes)]
    owners = tuple(
        Account(
            f"{name} [{at + 1}]",
            (at * 7919 % 97 + 1) * 64 * KIB,
            measured(f"image.raw@{0x1A498000 + at * 0x2C00:#x}", f"task_struct.comm = {name}"),
            borrowed=at * 4096,
            quantities=(Quantity("pages", (at * 7919 % 97 + 1) * 16, "page"),),
        )
        for at, name in enumerate(names)
    )
    parts = (
        Account("kernel image", 33 * MIB, measured("kallsyms:_text-_end")),
        Account("page tables", 5 * MIB, measured("struct page type: table")),
        Account("private pages", 0, computed("sum over processes"), owners),
        Account("page cache", 61 * MIB, measured("address_space.nrpages")),
        Account("free", 200 * MIB, Source(Evidence.ESTIMATED, "free_area"), error=MIB),
    )
    root = Account.explain("image", 768 * MIB, measured("image.raw: 0x0-0x30000000"), parts)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (at + 1, at // 2, name, f"/bin/{name} -v", owner.total, at * 1.5 if at % 9 else None)
        for at, (name, owner) in enumerate(zip(names, owners, strict=True))
    )
    columns = (
        *(Column("pid"), Column("ppid"), Column("name"), Column("arguments")),
        *(Column("resident", "B"), Column("started", "s")),
    )
    table = Table("processes", columns, rows, tuple(owner.source for owner in owners))
    gaps = (
        Gap("swap", Absence.UNREADABLE, "no swap file was given"),
        Gap(HOSTILE[0], Absence.UNPARSABLE, HOSTILE[2]),
    )
    return Report("ram", HOSTILE[2], root, None, None, (table,), gaps, None, partial=True)


def large(accounts: int = 50_000, rows: int = 20_000) -> Report:
    """More than a page can hold."""
    source = measured("image.raw@0x1000")
    groups = tuple(
        Account(
            f"group {group}",
            0,
            source,
            tuple(
                Account(f"part {at}", (at * group) % 977 + 1, source)
                for at in range(accounts // 50)
            ),
        )
        for group in range(50)
    )
    cells = tuple((at, f"name {at * 7919 % rows}", at * 31 % 4096) for at in range(rows))
    table = Table(
        "files", (Column("inode"), Column("path"), Column("cached", "B")), cells, (source,) * rows
    )
    return Report("ram", "large.raw", Account("image", 0, source, groups), tables=(table,))
