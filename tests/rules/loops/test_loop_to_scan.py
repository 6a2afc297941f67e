"""Loops over slices that surely run are Scans."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.loop_to_scan import LoopToScan

from ...equivalence import assert_equivalent, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of


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
    """Also where another axis is empty: onnxruntime's own transposing would end the process."""
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
        (_over("T,B,3", 0), "may be read beyond its end"),
        (_over("3,B,3", 0), "reads no slices"),
        (_over("4,B,3", 0, trip=0), "may not run at all"),
        (_over("4,B,3", 0, opset=10), "before opset 11"),
    ],
)
def test_other_loops_stay(model: onnx.ModelProto, words: str) -> None:
    assert words in reason_of(LoopToScan, model)
