r"""Write the guest's own account of itself to the host: what the kernel says at capture.

Reading perturbs what is read. So the account is taken twice and the first one thrown away: that
pass pulls in the files and the heap that the second one needs. The second reads what changes
least first, the state of every page last, and only then writes. After that this process sleeps:
the host stops the machine at once. Its pids are in the section "collector".

Layout: a line "=== NAME" opens a section. Bytes that are no printable ASCII are written \xNN;
what comes from processes is in hex, what is large is deflated (zlib) and in base64. What could
not be read says "unreadable: REASON" in its place.
"""

import binascii
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

PAGE = 4096
SYMBOLS = (
    b"_text _stext _etext _end _sdata _edata __bss_start __bss_stop __init_begin __init_end "
    b"init_task init_top_pgt init_mm phys_base page_offset_base vmalloc_base vmemmap_base "
    b"__pgtable_l5_enabled linux_banner __start_BTF __stop_BTF __start_rodata __end_rodata "
    b"kallsyms_names kallsyms_token_table kallsyms_num_syms sys_call_table init_pid_ns "
    b"init_net modules tk_core tcp_hashinfo udp_table node_data contig_page_data mem_section "
    b"vm_node_stat vm_zone_stat _totalram_pages slab_caches super_blocks vmap_area_list "
    b"__per_cpu_offset __per_cpu_start __per_cpu_end empty_zero_page log_buf"
).split()
ODD = re.compile(rb"[^\t\n\x20-\x7e]|^(?===)", re.MULTILINE)  # "===" opens a section


def plain(text: bytes) -> bytes:
    r"""Return text as ASCII lines: other bytes as \xNN, and no line looks like a section."""
    return ODD.sub(lambda odd: b"\\x%02x" % odd[0][0] if odd[0] else b"\\", text)


def read(path: str) -> bytes:
    """Return a whole file of /proc, read without a buffer of our own between."""
    with Path(path).open("rb", buffering=0) as file:
        return file.readall()


def page_states(name: str) -> bytes:
    """Return one of the two files of u64 per page; they refuse a size that is no multiple of 8."""
    file = os.open(f"/proc/{name}", os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(file, 8 << 20), b""))
    finally:
        os.close(file)


def attempt(account: Callable[[], bytes]) -> bytes:
    try:
        return account()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unreadable: {error}".encode()


def command(*argv: str) -> bytes:
    done = subprocess.run(argv, capture_output=True, check=False)  # noqa: S603  # our own words
    if done.returncode:
        return b"unreadable: %s ended with %d: %s" % (
            argv[0].encode(),
            done.returncode,
            done.stderr,
        )
    return done.stdout


def packed(data: bytes) -> bytes:
    return binascii.b2a_base64(zlib.compress(data, 6))


def hexadecimal(data: bytes) -> bytes:
    return binascii.hexlify(data) or b"-"


def numbers(folder: str) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())  # noqa: PTH208


def has_memory(pid: int) -> bool:
    """Say whether this is a process of user space: PF_KTHREAD is not among its flags."""
    return not int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[6]) & 0x200000


def each(head: str, account: Callable[[int], bytes], *, kernel: bool = False) -> bytes:
    """Return one block of lines for each process, kernel threads only if asked for.

    A process that cannot be read says so in its line.
    """
    lines = [b"# " + head.encode()]
    for pid in numbers("/proc"):
        try:
            text = account(pid) if kernel or has_memory(pid) else b""
        except OSError as error:
            text = f"{pid} unreadable: {error.strerror}".encode()
        if text:
            lines.append(text.rstrip(b"\n"))
    return b"\n".join(lines)


def fields(status: bytes, names: bytes) -> list[bytes]:
    """Return the first value of these fields of a status file, "-" for one that is not there."""
    found = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    return [(found.get(name, b"-").split() or [b"-"])[0] for name in names.split()]


def process(pid: int) -> bytes:
    stat = read(f"/proc/{pid}/stat")
    comm = stat[stat.index(b"(") + 1 : stat.rindex(b")")]
    after = stat[stat.rindex(b")") + 2 :].split()  # field 3, the state, is the first here
    status = read(f"/proc/{pid}/status")
    found = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    uid, euid = found[b"Uid"].split()[:2]
    gid, egid = found[b"Gid"].split()[:2]
    return b" ".join(
        (
            b"%d %s" % (pid, after[1]),
            *(uid, euid, gid, egid, after[19], after[17], after[0]),
            hexadecimal(comm),
            hexadecimal(read(f"/proc/{pid}/cmdline")),
        )
    )


def threads(pid: int) -> bytes:
    lines = []
    for tid in numbers(f"/proc/{pid}/task"):
        stat = read(f"/proc/{pid}/task/{tid}/stat")
        comm = stat[stat.index(b"(") + 1 : stat.rindex(b")")]
        start = stat[stat.rindex(b")") + 2 :].split()[19]
        lines.append(b"%d %d %s %s" % (pid, tid, start, hexadecimal(comm)))
    return b"\n".join(lines)


STATUS = b"VmSize VmRSS RssAnon RssFile RssShmem VmPTE VmData VmStk VmExe VmLib VmSwap"


def status(pid: int) -> bytes:
    return b" ".join((b"%d" % pid, *fields(read(f"/proc/{pid}/status"), STATUS)))


def links(pid: int) -> bytes:
    """Return the open files, the program and the current folder of a process, in hex."""
    lines = []
    for name in ("exe", "cwd", *(f"fd/{fd}" for fd in numbers(f"/proc/{pid}/fd"))):
        try:
            target = hexadecimal(os.readlink(f"/proc/{pid}/{name}".encode()))  # noqa: PTH115
        except FileNotFoundError:  # the descriptor of our own listing is closed by now
            continue
        lines.append(b"%d %s %s" % (pid, name.encode(), target))
    return b"\n".join(lines)


def prefixed(pid: int, name: str) -> bytes:
    return b"\n".join(b"%d %s" % (pid, line) for line in read(f"/proc/{pid}/{name}").splitlines())


def rollup(pid: int) -> bytes:
    lines = read(f"/proc/{pid}/smaps_rollup").splitlines()[1:]
    return b"\n".join(b"%d %s" % (pid, b" ".join(line.split()[:2])) for line in lines)


def environment(pid: int) -> bytes:
    return b"%d %s" % (pid, hexadecimal(read(f"/proc/{pid}/environ")))


def pagemap(pid: int) -> bytes:
    """Return pairs of u64 for every present page: its virtual page, its entry of pagemap."""
    pairs = array("Q")
    file = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY)
    try:
        for line in read(f"/proc/{pid}/maps").splitlines():
            start, end = (int(side, 16) // PAGE for side in line.split()[0].split(b"-"))
            if start >> 51:
                continue  # vsyscall belongs to the kernel
            entries = array("Q", os.pread(file, (end - start) * 8, start * 8))
            for page, entry in enumerate(entries, start):
                if entry >> 63:
                    pairs.append(page)
                    pairs.append(entry)
    finally:
        os.close(file)
    return b"%d %d %s" % (pid, len(pairs) // 2, packed(pairs.tobytes()))


def known_files() -> bytes:
    folders = (Path("/srv/ram"), Path("/srv/census"), Path("/srv/vault"))
    files = [str(file) for folder in folders for file in sorted(folder.iterdir()) if file.is_file()]
    return command("md5sum", *files, "/etc/passwd", "/usr/bin/bash")


def kallsyms() -> bytes:
    lines = read("/proc/kallsyms").splitlines()
    kernel = (line for line in lines if not line.endswith(b"]"))
    return b"\n".join(line for line in kernel if line.split()[2] in SYMBOLS)


def boot_time() -> bytes:
    return next(line[6:] for line in read("/proc/stat").splitlines() if line.startswith(b"btime "))


def clock() -> bytes:
    return b"date %.9f\nuptime %s\nticks_per_second %d" % (
        time.time(),
        read("/proc/uptime").split()[0],
        os.sysconf("SC_CLK_TCK"),
    )


# The order is the order of reading: what stays first, what moves last.
STILL: dict[str, Callable[[], bytes]] = {
    "version": lambda: read("/proc/version"),
    "cmdline": lambda: read("/proc/cmdline"),
    "btime": boot_time,
    "kallsyms": kallsyms,
    "iomem": lambda: read("/proc/iomem"),
    "modules": lambda: read("/proc/modules"),
    "mounts": lambda: read("/proc/mounts"),
    "dmesg": lambda: command("dmesg"),
    "md5sums": known_files,
    "known": lambda: read("/run/census/known"),
    "typed": lambda: read("/run/census/typed"),
    "lstart": lambda: command("ps", "-eo", "pid=,lstart="),
    "sockets": lambda: command("ss", "-tuanpe"),
    "unix": lambda: command("ss", "-xanp"),
    "collector": lambda: b"%d" % os.getpid(),
}
MOVING: dict[str, Callable[[], bytes]] = {
    "ps": lambda: each(
        "pid ppid uid euid gid egid starttime threads state comm-hex cmdline-hex",
        process,
        kernel=True,
    ),
    "threads": lambda: each("pid tid starttime comm-hex", threads, kernel=True),
    "environ": lambda: each("pid environ-hex", environment),
    "links": lambda: each("pid name target-hex", links),
    "maps": lambda: each("pid line-of-maps", lambda pid: prefixed(pid, "maps")),
    "smaps_rollup": lambda: each("pid field kB", rollup),
    "pagemap": lambda: each("pid pages base64-of-zlib-of-u64-pairs", pagemap),
    "statm": lambda: each(
        "pid size resident shared text lib data dirty, in pages",
        lambda pid: prefixed(pid, "statm"),
    ),
    "status": lambda: each("pid " + STATUS.decode() + ", in kB", status),
    "vmallocinfo": lambda: read("/proc/vmallocinfo"),
    "slabinfo": lambda: read("/proc/slabinfo"),
    "zoneinfo": lambda: read("/proc/zoneinfo"),
    "buddyinfo": lambda: read("/proc/buddyinfo"),
    "vmstat": lambda: read("/proc/vmstat"),
    "meminfo": lambda: read("/proc/meminfo"),
    "clock": clock,
}
PAGES = ("kpagecount", "kpageflags")  # 8 bytes a page from page 0, up to a whole memory section


def account(*, lean: bool) -> bytes:
    texts = {name: plain(attempt(section)) for name, section in STILL.items()}
    if lean:  # files that no one maps make the image larger and teach nothing
        Path("/proc/sys/vm/drop_caches").write_text("3")
    texts |= {name: plain(attempt(section)) for name, section in MOVING.items()}
    pages = {name: attempt(partial(page_states, name)) for name in PAGES}
    for name, data in pages.items():
        texts[name] = data if data.startswith(b"unreadable") else packed(data)
    sections = (
        b"=== %s\n%s\n" % (name.encode(), text.strip(b"\n")) for name, text in texts.items()
    )
    return b"".join(sections) + b"=== END\n"


lean = sys.argv[1] == "small"
account(lean=lean)  # the warm-up: nothing of it is kept
time.sleep(1)  # what the first pass set in motion comes to rest
text = account(lean=lean)
# The port of virtio-serial, which is a file on the host. Missing, it must not come into being.
port = os.open(next(Path("/dev").glob("vport*p*")), os.O_WRONLY)
rest = memoryview(text)
while rest:
    rest = rest[os.write(port, rest) :]
while True:
    signal.pause()
