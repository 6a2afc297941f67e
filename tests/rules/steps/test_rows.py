"""Loops without states: rows that need no loop, windows, repeated slices."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import rewrite
from looplift.rules.vectorization.independent_scan_outputs import VectorizeScanOutputs
from looplift.rules.vectorization.ragged_repeat import RaggedRepeat
from looplift.rules.vectorization.sliding_windows import VectorizeSlidingWindows

from ...equivalence import (
    assert_equal,
    assert_equivalent,
    ops,
    outcome,
    rewritten,
    run_rules,
    session,
)
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

COUNTS = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 2, 7]})
LENGTHS = Feeds(sizes=(1, 2, 7))


@pytest.mark.parametrize("row", ["x", "w", "i", "u", "k"])
def test_rows_that_are_there_already(row: str) -> None:
    text = f"""g (float[T,2,3] xs, float[2,3] w, int64 n) => (rs) <bool true = {{1}}, float k = {{3}}> {{
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) <float[2] u = {{1, 2}}> {{
            co = Identity(ci) x = Gather(xs, i) r = Identity({row}) }}> }}"""
    assert "Loop" not in ops(rewritten(parse(text), COUNTS).model)


@pytest.mark.parametrize(("axis", "way"), [(0, 0), (1, 0), (-1, 1), (0, 1)])
@pytest.mark.parametrize(("source", "back"), [(0, 0), (1, 1), (2, 0)])
def test_rows_of_a_scan(axis: int, way: int, source: int, back: int) -> None:
    shape = ["2", "3"]
    shape.insert(source, "T")
    text = f"""g (float[{",".join(shape)}] xs, float[2,3] w) => (rs, ws) {{
        rs, ws = Scan <num_scan_inputs=1, scan_input_axes=[{source}], scan_input_directions=[{back}],
            scan_output_axes=[{axis},{axis}], scan_output_directions=[{way},{way}],
            body = b (float[2,3] x) => (r, q) {{ r = Neg(x) q = Identity(w) }}> (xs) }}"""
    assert "Scan" not in ops(rewritten(parse(text), LENGTHS).model)


def test_rows_that_depend_on_a_state_stay() -> None:
    text = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
        y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so, float[3] row) {
            p = Mul(s, x) so = Sin(p) row = Neg(p) }> (s0, xs) }"""
    assert "all rows depend on states" in reason_of(VectorizeScanOutputs, parse(text))


WINDOWS = {
    "from the first": ("i", "4", 6),
    "from the third": ("Add(i, two)", "3", 5),
    "every other": ("Mul(i, two)", "2", 4),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("start", "extent", "trips"), WINDOWS.values(), ids=WINDOWS)
def test_windows_are_gathered_at_once(axis: int, start: str, extent: str, trips: int) -> None:
    shape = "9,2,3" if axis == 0 else "2,9,3"
    place = "Identity(i)" if start == "i" else start
    text = f"""g (float[{shape}] xs) => (rs) <bool true = {{1}}, int64 n = {{{trips}}}, int64 two = {{2}},
        int64[1] ax = {{{axis}}}, int64[1] zero = {{0}}, int64[1] extent = {{{extent}}}> {{
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {{
            co = Identity(ci) p = {place} b = Unsqueeze(p, zero) e = Add(b, extent)
            w = Slice(xs, b, e, ax) q = Softmax<axis={axis}>(w) r = ReduceMax<keepdims=0>(q) }}> }}"""
    model = parse(text)
    _, trace, _ = run_rules(model, [VectorizeSlidingWindows])
    assert [c.rule for c in trace.commits()] == ["VectorizeSlidingWindows"]
    assert "Loop" not in ops(rewritten(model, tolerance=1e-5).model)


def test_windows_over_an_open_axis() -> None:
    text = """g (float[B,T,3] xs) => (float[R,B,3] rs) <bool true = {1}, int64 one = {1}, int64 three = {3}, int64[1] first = {0}, int64[1] second = {1}, int64[1] four = {4}> {
        all = Shape(xs) t = Gather(all, one) n = Sub(t, three)
        rs = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, float[Q,3] r) {
            co = Identity(ci) k = Unsqueeze(i, first) e = Add(k, four)
            w = Slice(xs, k, e, second) r = ReduceMean<axes=[1], keepdims=0>(w) }> }"""
    feeds = Feeds(sizes=(1, 2), fixed={"T": 9})
    assert "Loop" not in ops(rewritten(parse(text), feeds, 1e-5).model)


def test_windows_that_reach_beyond_the_end_stay() -> None:
    """A Slice shortens the last ones."""
    text = """g (float[9,3] xs) => (float[3] y) <int64 n = {9}, int64[1] zero = {0}, int64[1] four = {4}, float[3] s0 = {0, 0, 0}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) k = Unsqueeze(i, zero) e = Add(k, four)
            w = Slice(xs, k, e, zero) m = ReduceMean<axes=[0], keepdims=0>(w) so = Max(s, m) }> }"""
    _, trace, _ = run_rules(parse(text), [VectorizeSlidingWindows])
    assert trace.commits() == []
    rewritten(parse(text), tolerance=1e-5)


def _regulator(sizes: str, axis: int, shape: str) -> str:
    return f"""g (float[N,{shape}] xs, int64[N] d) => (y) <int64 zero = {{0}}> {{
        all = Shape(xs) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
        l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float) q) => (bool co, seq(float) qo)
            <int64[1] first = {{0}}, int64[1] one = {{1}}, int64[1] four = {{4}}, int64[1] ax = {{{axis}}}> {{
            x = Gather(xs, i) row = Unsqueeze(x, ax) c = Gather(d, i) k = Unsqueeze(c, first)
            sizes = Concat<axis=0>({sizes}) r = Expand(row, sizes) qo = SequenceInsert(q, r)
            co = Identity(ci) }}>
        y = ConcatFromSequence<axis={axis}>(l) }}"""


REGULATORS = {
    "rows": ("k, one", 0, "3"),
    "columns": ("one, k", 1, "3"),
    "expanded otherwise": ("four, k, one", 1, "1,2"),
}


@pytest.mark.parametrize(("sizes", "axis", "shape"), REGULATORS.values(), ids=REGULATORS)
def test_slices_are_repeated(sizes: str, axis: int, shape: str) -> None:
    model = parse(_regulator(sizes, axis, shape))
    result = rewritten(model, Feeds(sizes=(1, 2, 5)))
    assert not ops(result.model).keys() & {"Loop", "ConcatFromSequence"}
    for counts in ([0, 3, 1, 0, 2], [0], [4], [1, 1]):
        feeds = Feeds(fixed={"N": len(counts)}, values={"d": [counts]})
        assert_equivalent(model, result.model, feeds)


def test_a_list_that_is_read_otherwise_stays() -> None:
    text = _regulator("k, one", 0, "3").replace(
        "qo = SequenceInsert(q, r)", "qo = SequenceInsert(q, r, zero)"
    )
    _, trace, _ = run_rules(parse(text), [RaggedRepeat])
    assert trace.commits() == []
    rewritten(parse(text), Feeds(sizes=(1, 2, 5)))


def test_pieces_of_no_elements_do_not_tell_the_sizes() -> None:
    """onnxruntime joins a piece of shape [0, 5] to one of shape [2, 3]."""
    model = parse("""g (float[N,1] xs, int64[N,2] d) => (y) <int64 zero = {0}> {
        all = Shape(xs) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
        l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float) q) => (bool co, seq(float) qo)
            <int64[1] first = {0}> {
            x = Gather(xs, i) row = Unsqueeze(x, first) sizes = Gather(d, i)
            r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
        y = ConcatFromSequence<axis=0>(l) }""")
    result = rewrite(model)
    assert "Loop" not in ops(result.model)
    xs = np.array([[1], [2], [3]], np.float32)
    for sizes in ([[0, 5], [2, 3], [1, 3]], [[2, 3], [0, 5], [1, 3]], [[0, 5], [0, 3], [0, 1]]):
        feed = {"xs": xs, "d": np.array(sizes, np.int64)}
        expected = outcome(session(model), feed)
        assert expected is not None
        assert_equal(expected, outcome(session(result.model), feed))
