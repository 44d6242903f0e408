"""Traces of torch's profiler: real ones, made here, and hand-made ones for what no CPU can show.

The oracles are the profiler's own counters, the sizes of the tensors that the recorded code makes,
and a simulation that sums live blocks after each event anew.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from memcensus.errors import Unreadable
from memcensus.model import Absence, Account, Evidence, Report, Source
from memcensus.net import profiler_trace
from memcensus.subject import HEAD, Look, silent
from memcensus.views.json import JsonView
from memcensus.views.perfetto import PerfettoView

MIB = 1 << 20
Event = dict[str, object]


def recorded(code: Callable[[], object], *, memory: bool = True, stacks: bool = False) -> profile:
    activities = [ProfilerActivity.CPU]
    prof = profile(
        activities=activities, profile_memory=memory, record_shapes=stacks, with_stack=stacks
    )
    with prof:
        code()
    return prof


def traced(folder: Path, code: Callable[[], object], *, memory: bool = True) -> Path:
    path = folder / "trace.json"
    recorded(code, memory=memory).export_chrome_trace(str(path))
    return path


def step() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(32, 100)).sum().backward()
        optimizer.step()


def read(path: Path) -> Report:
    assert profiler_trace.claims(path.read_bytes()[:HEAD], path) is not None
    return profiler_trace.census(path, path.name, silent)


def counted(path: Path) -> list[tuple[float, int]]:
    """Return the allocator's own totals with their times (us), as the file has them."""
    events = json.loads(path.read_text())["traceEvents"]
    memory = [event for event in events if event["name"] == "[memory]"]
    return sorted((event["ts"], event["args"]["Total Allocated"]) for event in memory)


def parts(account: Account) -> dict[str, int]:
    return {child.name: child.total for child in account.children}


def sites(report: Report) -> dict[str, tuple[object, object]]:
    table = report.table("sites")
    assert table is not None
    return {str(name): (size, blocks) for name, size, blocks in table.rows}


def test_the_root_is_the_profiler_s_highest_total(tmp_path: Path) -> None:
    path = traced(tmp_path, step)
    report = read(path)
    assert report.root.total == max(total for _, total in counted(path))
    assert "unexplained" not in parts(report.root)
    assert sum(int(str(size)) for size, _ in sites(report).values()) == report.root.total


def test_the_timeline_is_the_profiler_s_total_at_each_event(tmp_path: Path) -> None:
    path = traced(tmp_path, step)
    timeline = read(path).timeline
    assert timeline is not None
    totals = counted(path)
    start = totals[0][0]
    last = dict(totals)  # of several events at one time, the last
    for time, total in last.items():
        assert timeline.total(round(time * 1000) - round(start * 1000) + 1) == total


def test_blocks_stand_under_the_operators_that_ran(tmp_path: Path) -> None:
    """Two tensors live at the peak; a third, larger one was freed before."""

    def code() -> tuple[torch.Tensor, ...]:
        torch.zeros(3 * MIB, dtype=torch.uint8)
        ones = torch.ones(2 * MIB, dtype=torch.uint8)
        return ones, torch.relu(ones), torch.arange(0)

    report = read(traced(tmp_path, code))
    assert parts(report.root) == {"aten::ones": 2 * MIB, "aten::relu": 2 * MIB}
    assert sites(report)["aten::ones"] == (2 * MIB, 1)
    within = next(name for name in sites(report) if name.startswith("aten::relu"))
    assert sites(report)[within] == (2 * MIB, 1)


def test_the_optimizer_s_state_is_made_inside_its_step(tmp_path: Path) -> None:
    held = parts(read(traced(tmp_path, step)).root)
    weights = 4 * (100 * 200 + 200 + 200 * 10 + 10)
    assert held["Optimizer.step#Adam.step"] >= 2 * weights  # exp_avg and exp_avg_sq


def test_a_gzipped_trace_says_the_same(tmp_path: Path) -> None:
    path = traced(tmp_path, step)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert parts(read(packed).root) == parts(read(path).root)


def test_that_the_cpu_s_earlier_blocks_are_missing_is_a_gap(tmp_path: Path) -> None:
    report = read(traced(tmp_path, step))
    assert any("before the recording" in gap.what for gap in report.gaps)


def test_a_trace_without_memory_says_how_to_record_it(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="profile_memory=True"):
        read(traced(tmp_path, step, memory=False))


@pytest.fixture(scope="module")
def timelines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the three files of export_memory_timeline, of one run with the model made before."""
    folder = tmp_path_factory.mktemp("timeline")
    model = torch.nn.Linear(100, 200)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = torch.rand(32, 100)

    def code() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

    files = {name: folder / name for name in ("m.json", "m.json.gz", "m.raw.json.gz")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated, and still what people have
        prof = recorded(code, stacks=True)
        for path in files.values():
            prof.export_memory_timeline(str(path), device="cpu")
    return files


def test_a_memory_timeline_s_root_is_its_highest_row(timelines: dict[str, Path]) -> None:
    _, rows = json.loads(timelines["m.json"].read_text())
    report = read(timelines["m.json"])
    peak = max(rows, key=sum)
    assert report.root.total == sum(peak)
    numbers = {name: number for number, name in enumerate(profiler_trace._CATEGORIES)}
    assert parts(report.root) == {
        name: peak[number + 1] for name, number in numbers.items() if peak[number + 1]
    }
    assert report.timeline is not None


def test_the_categories_are_torch_s_own_in_torch_s_order() -> None:
    from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX

    theirs = [each.name if each else "UNKNOWN" for each in _CATEGORY_TO_INDEX]
    singular = [name.upper().replace(" ", "_").rstrip("S") for name in profiler_trace._CATEGORIES]
    assert [name.replace("TEMPORARIE", "TEMPORARY") for name in singular] == theirs


def test_a_category_that_falls_below_zero_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "m.raw.json"
    rows = [[-1, 1, 80, 0], [10**15, 4, -8, 1], [10**15 + 1, 2, 4, 0]]
    path.write_text(json.dumps(rows))
    report = read(path)
    assert parts(report.root) == {"parameters": 80}
    assert report.timeline is None
    assert any("optimizer state" in gap.why for gap in report.gaps)


def test_the_forms_of_a_memory_timeline_agree(timelines: dict[str, Path]) -> None:
    first, *others = (parts(read(path).root) for path in timelines.values())
    assert others == [first, first]


def memory(time: float, size: int, address: int, total: int, device: tuple[int, int]) -> Event:
    figures = {
        "Total Reserved": 4096,
        "Total Allocated": total,
        "Bytes": size,
        "Device Type": device[0],
        "Device Id": device[1],
        "Addr": address,
    }
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": time, "args": figures}


def operator(name: str, start: float, end: float, thread: int = 1) -> Event:
    what = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread}
    return {**what, "ts": start, "dur": end - start, "args": {"Bytes": "no event of memory"}}


def written(folder: Path, events: list[Event]) -> Path:
    path = folder / "trace.json"
    frame = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": events}
    path.write_text(json.dumps(frame))
    return path


GPU, OTHER = (1, 0), (1, 1)


def test_of_several_devices_the_largest_is_shown_and_the_others_are_gaps(tmp_path: Path) -> None:
    events = [
        operator("aten::mm", 0, 20),
        operator("aten::empty", 8, 12),
        operator("aten::add", 0, 99, thread=2),
        memory(10, 512, 0xA, 1512, GPU),  # 1000 B were there before
        memory(11, 600, 0xA, 600, OTHER),
        memory(30, -400, 0xB, 1112, GPU),
        memory(40, 2048, 0xC, 3160, GPU),
        memory(50, -512, 0xA, 2648, GPU),
    ]
    report = read(written(tmp_path, events))
    before = profiler_trace.BEFORE
    assert parts(report.root) == {before: 600, "aten::mm": 512, profiler_trace.NOWHERE: 2048}
    assert report.root.quantities[0].value == 4096
    assert sites(report)[before] == (600, None)
    gaps = {gap.what: gap for gap in report.gaps}
    assert "600 B" in gaps["the memory of cuda:1"].why
    assert report.timeline is not None
    assert report.timeline.total(0) == 1000
    assert report.timeline.total(40_001) == 2648


def test_a_peak_before_the_first_event_is_all_from_before(tmp_path: Path) -> None:
    report = read(written(tmp_path, [memory(10, -512, 0xA, 1000, GPU)]))
    assert parts(report.root) == {profiler_trace.BEFORE: 1512}


def test_a_counter_that_its_blocks_do_not_sum_to_is_a_gap(tmp_path: Path) -> None:
    events = [memory(10, 512, 0xA, 512, GPU), memory(20, 512, 0xB, 2000, GPU)]
    report = read(written(tmp_path, events))
    assert parts(report.root) == {profiler_trace.NOWHERE: 1024, "unexplained": 976}
    assert report.timeline is None
    assert any(gap.absence is Absence.CONTRADICTORY for gap in report.gaps)


def test_blocks_above_the_counter_are_refused(tmp_path: Path) -> None:
    events = [memory(10, 512, 0xA, 512, GPU), memory(20, 512, 0xB, 600, GPU)]
    with pytest.raises(Unreadable, match="contradicts itself"):
        read(written(tmp_path, events))


@given(
    st.lists(
        st.tuples(
            st.integers(1, 8),  # address: allocates where it is free, frees where it is not
            st.integers(1, 100),  # bytes
            st.integers(0, 3),  # time since the last event; 0: at the same time
            st.sampled_from(["aten::mm", "aten::add", None]),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 500),
)
def test_any_sequence_of_blocks_is_held_by_who_allocated_it(
    tmp_path_factory: pytest.TempPathFactory,
    actions: list[tuple[int, int, int, str | None]],
    before: int,
) -> None:
    live: dict[int, tuple[int, str]] = {}
    events, states, time = list[Event](), list[Counter[str]](), 0
    states.append(Counter({profiler_trace.BEFORE: before}))
    for address, size, later, name in actions:
        time += later
        freed = live.pop(address, None)
        if freed is None:
            live[address] = size, name or profiler_trace.NOWHERE
        state = Counter({profiler_trace.BEFORE: before})
        for held, owner in live.values():
            state[owner] += held
        states.append(state)
        change = size if freed is None else -freed[0]
        moment = 10 * time + len(events) / 1000  # in order, though many at nearly one time
        events.append(memory(moment, change, address, state.total(), GPU))
        if name is not None:
            events.append(operator(name, moment, moment))
    report = read(written(tmp_path_factory.mktemp("law"), events))
    peak = max(states, key=lambda state: state.total())
    assert report.root.total == peak.total()
    assert parts(report.root) == {name: size for name, size in peak.items() if size}


def test_many_changes_at_one_time_keep_the_tree_and_the_timeline_together(tmp_path: Path) -> None:
    rising = [memory(10, 8, address, 8 * address, GPU) for address in range(1, 6)]
    falling = [memory(10, -8, address, 40 - 8 * address, GPU) for address in range(1, 6)]
    report = read(written(tmp_path, rising + falling))
    assert report.root.total == 40
    assert report.timeline is not None


def test_a_long_trace_is_drawn_at_fewer_points_and_at_its_peak(tmp_path: Path) -> None:
    many = 3 * profiler_trace.MOST_TIMES
    events = [memory(n, 8, n, 8 * n, GPU) for n in range(1, many)]
    events.append(memory(many, -8, 1, 8 * many - 16, GPU))  # so that the last is not the peak
    report = read(written(tmp_path, events))
    assert report.timeline is not None
    assert all(
        len(series.times) <= profiler_trace.MOST_TIMES + 2 for series in report.timeline.series
    )


def test_operators_inside_each_other_a_million_deep_take_no_million_accounts(
    tmp_path: Path,
) -> None:
    nested = [operator("aten::mm" if n % 2 else "aten::add", n, 9999 - n) for n in range(2000)]
    report = read(written(tmp_path, [*nested, memory(5000, 8, 1, 8, GPU)]))
    assert report.root.total == 8
    assert max(len(path) for path, _ in report.root.walk()) < 20


def test_names_that_no_encoding_takes_are_escaped(tmp_path: Path) -> None:
    events = [operator("\ud800<b>", 0, 20), memory(10, 8, 1, 8, GPU)]
    assert parts(read(written(tmp_path, events)).root) == {"\\ud800<b>": 8}


HEADER = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['
HOSTILE = {
    "nested": HEADER + "[" * 100_000,
    "nested objects": HEADER + '{"a":' * 100_000,
    "NaN": HEADER + json.dumps(memory(1, 8, 1, 8, GPU)).replace("4096", "NaN") + "]}",
    "infinite": HEADER
    + json.dumps(memory(1, 8, 1, 8, GPU)).replace('"ts": 1', '"ts": 1e999')
    + "]}",
    "digits": HEADER + json.dumps(memory(1, 8, 1, 8, GPU)).replace("4096", "9" * 5000) + "]}",
    "words": HEADER + json.dumps(memory(1, 8, 1, 8, GPU)).replace("4096", '"many"') + "]}",
    "huge": HEADER + json.dumps(memory(1, 1 << 70, 1, 8, GPU)) + "]}",
    "below zero": HEADER + json.dumps(memory(1, 8, 1, -8, GPU)) + "]}",
    "no figures": HEADER + '{"ph": "i", "name": "[memory]", "ts": 1}]}',
    "no list": '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": {}}',
    "cut off": HEADER,
    "a row of words": '[[-1, 1, 80, 0], [-1, 1, "many", 0], [-1, 1, 8, 0]]',
    "no category": "[[-1, 1, 80, 0], [-1, 1, 8, 99], [-1, 1, 8, 0]]",
    "less than nothing at the peak": "[[-1, 1, 80, 0], [-1, 4, -8, 1], [-1, 1, 80, 0]]",
    "times that fall": f"[[{10**16}, 2, 80, 0], [{10**15}, 2, 80, 0], [{10**16}, 2, 1, 0]]",
    "a row of columns": f"[[{10**15}, {10**15}], [[0, 1, 2]]]",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_trace_ends_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(Unreadable) as caught:
        read(path)
    assert str(caught.value).isprintable()


def test_a_trace_beyond_the_bound_is_refused_packed_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    path.write_text(HEADER + " " * 5000)
    packed.write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(profiler_trace, "MOST_BYTES", 4000)
    for each in (path, packed):
        with pytest.raises(Unreadable, match="record fewer steps"):
            read(each)


@given(share=st.floats(0, 1, exclude_max=True), packed=st.booleans())
def test_a_trace_that_was_cut_off_is_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float, *, packed: bool
) -> None:
    path = written(tmp_path_factory.mktemp("cut"), [memory(1, 8, 1, 8, GPU)])
    raw = gzip.compress(path.read_bytes(), mtime=0) if packed else path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(Unreadable):
        profiler_trace.census(path, "cut.json", silent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    figures=st.dictionaries(st.sampled_from(["Bytes", "Addr", "Total Allocated", "x"]), JSON),
    event=st.dictionaries(st.sampled_from(["ts", "dur", "pid", "tid", "cat", "args", "ph"]), JSON),
)
def test_events_of_any_values_are_a_sentence_or_a_report(
    tmp_path_factory: pytest.TempPathFactory, figures: Event, event: Event
) -> None:
    known = memory(1, 8, 1, 8, GPU)
    args = known["args"]
    assert isinstance(args, dict)
    odd = [{**known, "args": {**args, **figures}}, {**operator("x", 1, 2), **event}]
    path = written(tmp_path_factory.mktemp("odd"), [known, *odd])
    with contextlib.suppress(Unreadable):
        assert read(path).root.total >= 8


def test_other_files_are_not_claimed() -> None:
    root = Account("traceEvents", 8, Source(Evidence.MEASURED, '"schemaVersion"'))
    report = Report("net", "deviceProperties", root)
    own = io.StringIO()
    JsonView().render([report], own, Look())
    drawn = io.StringIO()
    PerfettoView().render([report], drawn, Look())
    others = [
        own.getvalue().encode(),
        drawn.getvalue().encode(),
        b'{"architectures": ["BertModel"], "hidden_size": 768}',
        b'{"schemaVersion": 2, "mediaType": "application/json"}',
        b"[[1, 2, 3], [4, 5, 6]]",
        b"",
        gzip.compress(b"a text"),
        b"\x1f\x8b\xff",
    ]
    assert [profiler_trace.claims(head[:HEAD], None) for head in others] == [None] * len(others)
