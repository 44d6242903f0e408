"""The tree and the timeline from a trace, without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcensus.model import Overcounted
from memcensus.net.block import Block, Kind, Layer, Made, Peak, Phase, Trace
from memcensus.net.owners import MOST_TIMES, timeline, tree
from memcensus.net.plan import Plan
from memcensus.net.tables import layers, owners, steps

MADE = Made(("a", "b"), "aten.add", (2, 3), "float32", 4)


def _trace(blocks: tuple[Block, ...], ops: int) -> Trace:
    """A trace whose running counter is the plain sum of what lives at each time."""
    sums = [sum(block.at(time) for block in blocks) for time in range(ops + 1)]
    peak = Peak(max(sums), sums.index(max(sums)), Phase.FORWARD, "aten.add", ("a",))
    marks = ((0, Phase.FORWARD), (ops // 2, Phase.BACKWARD))
    layer = Layer(("a", "b"), "Linear", "2x3", 1, 6)
    return Trace(peak, ops, peak, ops, blocks, marks, (layer,), bound=0, kept=peak.size)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    ops = draw(st.integers(1, 40))
    blocks = []
    for _ in range(draw(st.integers(1, 12))):
        born = draw(st.integers(0, ops - 1))
        died = draw(st.none() | st.integers(born + 1, ops))
        path = tuple(draw(st.lists(st.sampled_from("abc"), max_size=3)))
        made = Made(path, draw(st.sampled_from(["weight", "aten.add", "a"])), (1,), "int8", 1)
        sizes = [(born, draw(st.integers(1, 99)))]
        if draw(st.booleans()):
            last = ops if died is None else died
            sizes.append((draw(st.integers(born + 1, last)), draw(st.integers(0, 99))))
        blocks.append(Block(draw(st.sampled_from(Kind)), made, tuple(sizes), died))
    return _trace(tuple(blocks), ops)


@given(traces())
def test_tree_and_timeline_agree_with_the_running_counter(trace: Trace) -> None:
    root = tree("net", trace, "built")
    assert root.total == trace.peak.size
    assert all(account.name != "unexplained" for _, account in root.walk())
    drawn = timeline("net", trace)
    for time in range(trace.ops + 1):
        assert drawn.total(time) == sum(block.at(time) for block in trace.blocks)
    at_peak = {series.path: series.at(trace.peak.time) for series in drawn.series}
    kinds = {("net", child.name): child.total for child in root.children}
    assert kinds == {path: size for path, size in at_peak.items() if size}


@given(traces())
def test_the_owners_table_holds_every_byte_of_the_tree_largest_first(trace: Trace) -> None:
    table = owners(tree("net", trace, ""))
    sizes = [int(row[3] or 0) for row in table.rows]
    assert sum(sizes) == trace.peak.size
    assert sizes == sorted(sizes, reverse=True)


def test_a_long_step_is_drawn_at_few_times_and_its_peak_is_among_them() -> None:
    ops = 3 * MOST_TIMES
    blocks = tuple(
        Block(Kind.TEMPORARIES, MADE, ((time, 10 + time % 7),), time + 1) for time in range(ops)
    )
    peak = Peak(90 + 10 + 5000 % 7, 5000, Phase.FORWARD, "aten.add", ())
    lone = Block(Kind.SAVED, MADE, ((5000, 90),), 5001)
    short = _trace((), 1)
    trace = replace(short, peak=peak, ops=ops, blocks=(*blocks, lone))
    drawn = timeline("net", trace)
    assert all(len(series.times) <= MOST_TIMES + 8 for series in drawn.series)
    assert drawn.total(trace.peak.time) == trace.peak.size


def test_a_source_can_be_checked_by_hand() -> None:
    root = tree("net", _trace((Block(Kind.SAVED, MADE, ((0, 24),), None),), 1), "")
    accounts = dict(root.walk())
    leaf = accounts["net", "saved activations", "a", "b", "aten.add"]
    assert leaf.own == 24
    assert leaf.source.where == "2x3 x 4 B (float32) of aten.add"


@pytest.mark.parametrize(
    ("sizes", "died"), [((), None), (((3, 1), (2, 1)), None), (((3, 1),), 2), (((0, 1), (4, 2)), 3)]
)
def test_a_life_out_of_order_cannot_be_built(
    sizes: tuple[tuple[int, int], ...], died: int | None
) -> None:
    with pytest.raises(ValueError, match=r"aten\.add"):
        Block(Kind.SAVED, MADE, sizes, died)


def test_blocks_beyond_the_counter_are_an_error() -> None:
    block = Block(Kind.SAVED, MADE, ((0, 24),), None)
    trace = _trace((block,), 1)
    wrong = replace(trace, blocks=(block, block))
    with pytest.raises(Overcounted, match="24 B"):
        tree("net", wrong, "")


def test_tables_say_what_a_layer_saved_and_where_the_peaks_were() -> None:
    trace = _trace((Block(Kind.SAVED, MADE, ((0, 24),), None),), 1)
    assert layers(trace).rows == (("a.b", "Linear", "2x3", 1, 6, 0, 24),)
    assert [row[:4] for row in steps(trace, Plan()).rows] == [
        ("first", 24, "forward", "aten.add"),
        ("second", 24, "forward", "aten.add"),
    ]
