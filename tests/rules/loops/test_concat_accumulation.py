"""Tensors that each iteration appends to become scan outputs."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.concat_accumulation import ConcatToScanOutput

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})


def _growing(
    grow: str, initial: str, opset: int = 17, going: str = "co = Identity(ci)"
) -> onnx.ModelProto:
    """A loop that makes q longer by r [B, 3] in each iteration."""
    axes = "r1 = Unsqueeze(r, at0)" if opset >= 13 else "r1 = Unsqueeze<axes=[0]>(r)"
    return parse(
        f"""g (float[B,3] x, float[N,B,3] a, int64 m) => (float[B,3] y, float[P,Q,R] w)
        <int64[1] at0 = {{0}}, int64[1] at1 = {{1}}, int64[1] three = {{3}}, int64[1] none = {{0}},
         float big = {{2}}> {{
        all = Shape(x) nb = Slice(all, at0, at1)
        front = Concat<axis=0>(none, nb, three) middle = Concat<axis=0>(nb, none, three)
        e = {initial}
        y, w = Loop (m, , x, e) <body = b (int64 i, bool ci, float[B,3] s, float[P,Q,R] q)
            => (bool co, float[B,3] so, float[P1,Q1,R1] qo) {{
            {going} so = Tanh(s) r = Neg(so) {axes} {grow} }}> }}""",
        opset,
    )


@pytest.mark.parametrize("initial", ["ConstantOfShape(front)", "Identity(a)"])
@pytest.mark.parametrize(
    "grow",
    [
        "qo = Concat<axis=0>(q, r1)",
        "qo = Concat<axis=0>(r1, q)",
        "qo = Concat<axis=-3>(q, r1)",
        "z = Exp(r1) qo = Concat<axis=0>(q, r1, z)",
        "z = Exp(r1) qo = Concat<axis=0>(r1, z, q)",
        "z = Concat<axis=0>(r1, r1, r1) qo = Concat<axis=0>(q, z)",
    ],
)
def test_growth_at_either_end(grow: str, initial: str) -> None:
    model = _growing(grow, initial)
    result, trace, _ = run_rules(model, [ConcatToScanOutput])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)
    assert rewritten(model, FEEDS, 1e-5).report.commits["ConcatToScanOutput"] == 1


@pytest.mark.parametrize(
    "grow",
    [
        "u = Unsqueeze(r, at1) qo = Concat<axis=1>(q, u)",
        "u = Unsqueeze(r, at1) v = Abs(u) qo = Concat<axis=1>(u, v, q)",
    ],
)
def test_growth_along_another_axis(grow: str) -> None:
    model = _growing(grow, "ConstantOfShape(middle)")
    result, trace, _ = run_rules(model, [ConcatToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


def test_growth_along_an_axis_of_several_elements() -> None:
    model = parse("""g (float[B,3] x, int64 m) => (float[P,3] w) {
        w = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] q) => (bool co, float[Q,3] qo) {
            co = Identity(ci) f = Cast<to=1>(i) r = Mul(x, f) qo = Concat<axis=0>(q, r) }> }""")
    result, trace, _ = run_rules(model, [ConcatToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


def test_growth_until_a_condition_ends_it() -> None:
    going = "t = ReduceMax<keepdims=0>(s) co = Less(t, big)"
    model = _growing("qo = Concat<axis=0>(q, r1)", "Identity(a)", going=going)
    result, trace, _ = run_rules(model, [ConcatToScanOutput])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, Feeds(sizes=(1, 2), values={"m": [0, 1, 2, 7]}))


@pytest.mark.parametrize(
    ("grow", "trip", "fires"),
    [("(q, r1)", "three", True), ("(q, r1)", "m", False), ("(q, r1, r1)", "three", False)],
)
def test_before_opset_14_only_single_elements_of_loops_that_run(
    grow: str, trip: str, fires: bool
) -> None:
    """There, a size of 0 in the target of a Reshape copies another size."""
    model = _growing(f"qo = Concat<axis=0>{grow}", "ConstantOfShape(front)", 12)
    next(node for node in model.graph.node if node.op_type == "Loop").input[0] = trip
    result, trace, _ = run_rules(model, [ConcatToScanOutput])
    assert bool(trace.commits()) is fires
    assert_equivalent(model, result, FEEDS)
    if not fires:
        assert "before opset 14" in reason_of(ConcatToScanOutput, model)


@pytest.mark.parametrize(
    ("grow", "initial", "words"),
    [
        ("qo = Concat<axis=0>(r1, q, r1)", "Identity(a)", "grows at neither end"),
        ("z = Concat<axis=0>(q, r1) qo = Neg(z)", "Identity(a)", "no carried value only grows"),
        ("qo = Concat<axis=0>(q, q)", "Identity(a)", "is read in the body"),
        (
            "z = ReduceSum(q, at0) v = Add(z, r1) qo = Concat<axis=0>(q, v)",
            "Identity(a)",
            "is read in the body",
        ),
        ("qo = Concat<axis=1>(q, r1)", "Identity(a)", "differ in more than one axis"),
    ],
)
def test_other_growth_stays(grow: str, initial: str, words: str) -> None:
    assert words in reason_of(ConcatToScanOutput, _growing(grow, initial))


def test_growth_in_one_branch_stays() -> None:
    grow = """c = Less(i, m) qo = If (c) <
        then_branch = t () => (float[P1,Q1,R1] u) { u = Concat<axis=0>(q, r1) },
        else_branch = z () => (float[P1,Q1,R1] v) { v = Identity(q) }>"""
    assert "no carried value only grows" in reason_of(
        ConcatToScanOutput, _growing(grow, "Identity(a)")
    )
