"""Loops over slices become Scans, with one more iteration if they may not run."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.loop_to_scan import LoopToPaddedScan, LoopToScan

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

PADDED = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 7]})


def _over(
    x: str, axis: int, trip: int = 4, row: str = "r = Neg(so)", opset: int = 17
) -> onnx.ModelProto:
    """A loop over the slices [B, 3] of x."""
    return parse(
        f"""g (float[{x}] x, float[B,3] s0) => (float[B,3] y, float[{trip},B,3] rows)
        <int64 n = {{{trip}}}> {{
        y, rows = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s)
            => (bool co, float[B,3] so, float[B,3] r) {{
            xt = Gather<axis={axis}>(x, i) co = Identity(ci) h = Mul(s, s) so = Sub(h, xt) {row} }}> }}""",
        opset,
    )


@pytest.mark.parametrize(("x", "axis"), [("4,B,3", 0), ("B,4,3", 1), ("B,3,4", 2), ("B,3,4", -1)])
@pytest.mark.parametrize(
    "row",
    ["r = Neg(so)", "f = Cast<to=1>(i) r = Add(so, f)", "f = Cast<to=1>(ci) r = Add(so, f)"],
)
def test_any_axis_the_iteration_number_and_the_condition(x: str, axis: int, row: str) -> None:
    """Even if another axis is empty, where onnxruntime's own transposition ends the process."""
    model = _over(x, axis, row=row)
    result, trace, _ = run_rules(model, [LoopToScan])
    assert trace.defects() == []
    assert [n.op_type for n in result.graph.node].count("Scan") == 1
    assert_equivalent(model, result, Feeds(sizes=(0, 1, 2, 3)))


def test_sizes_that_are_never_0_need_no_transpose() -> None:
    model = _over("2,4,3", 1)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
    result, trace, _ = run_rules(model, [LoopToScan])
    assert len(trace.commits()) == 1
    assert [n.op_type for n in result.graph.node] == ["Scan"]
    assert_equivalent(model, result)


def test_fewer_iterations_than_slices() -> None:
    model = _over("9,B,3", 0)
    result, trace, _ = run_rules(model, [LoopToScan])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_over("T,B,3", 0), "may read past the end"),
        (_over("3,B,3", 0), "reads no slices"),
        (_over("4,B,3", 0, trip=0), "may not run"),
        (_over("4,B,3", 0, opset=10), "before opset 11"),
    ],
)
def test_loops_that_cannot_be_scans_stay(model: onnx.ModelProto, words: str) -> None:
    assert words in reason_of(LoopToScan, model)


# --- one more iteration ---


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ("p = MatMul(s, w) so = Add(p, x)", "may fail, or be slow"),
        ("f = Cast<to=1>(i) p = Mul(x, s) so = Add(p, f)", "other than to read slices"),
        ("a = Sin(s) b = Cos(a) c = Sin(b) d = Cos(c) e = Sin(d) f = Cos(e) so = Add(f, x)",
         "takes 7 nodes"),
    ],
)  # fmt: skip
def test_a_loop_whose_additional_iteration_may_fail_or_is_slow_stays(work: str, words: str) -> None:
    text = f"""g (float[T,3,3] xs, float[3,3] s0, float[3,3] w, int64 n) => (float[3,3] y) {{
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3,3] s) => (bool co, float[3,3] so) {{
            co = Identity(ci) x = Gather(xs, i) {work} }}> }}"""
    assert words in reason_of(LoopToPaddedScan, parse(text))
    rewritten(parse(text), PADDED, 1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("final", [True, False])
def test_a_loop_that_may_not_run_gets_one_more_iteration(axis: int, final: bool) -> None:
    shape = "T,2,3" if axis == 0 else "2,T,3"
    outputs = "float[2,3] y, float[2,3] z, " if final else ""
    text = f"""g (float[{shape}] xs, float[2,3] s0, float[2,3] u0, int64 n) => ({outputs}float[R,2,3] ys, float[R,2,3] zs) {{
        y, z, ys, zs = Loop (n, , s0, u0) <body = b (int64 i, bool ci, float[2,3] s, float[2,3] u)
            => (bool co, float[2,3] so, float[2,3] uo, float[2,3] r, float[2,3] q) {{
            co = Identity(ci) x = Gather<axis={axis}>(xs, i) so = Mul(u, x) a = Sin(s) uo = Add(a, x)
            r = Identity(so) q = Identity(u) }}> }}"""
    model = parse(text)
    result, trace, _ = run_rules(model, [LoopToPaddedScan])
    assert trace.defects() == []
    assert ops(result)["Scan"] == 1
    assert_equivalent(model, result, PADDED, 1e-5)
    rewritten(model, PADDED, 1e-5)


def test_slices_of_unknown_sizes() -> None:
    model = parse("""g (float[T,A,B] xs, float[A,B] s0, int64 n) => (float[A,B] y) {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[A,B] s)
            => (bool co, float[A,B] so) {
            co = Identity(ci) x = Gather(xs, i) p = Mul(x, s) so = Sin(p) }> }""")
    result, trace, _ = run_rules(model, [LoopToPaddedScan])
    assert trace.defects() == []
    assert ops(result)["Scan"] == 1
    assert_equivalent(model, result, Feeds(sizes=(0, 1, 2, 7), values={"n": [0, 1, 2, 7]}), 1e-6)
