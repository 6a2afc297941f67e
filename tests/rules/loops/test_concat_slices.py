"""A Slice of a Concat that lies within one operand reads that operand."""

from __future__ import annotations

import onnx
import pytest

from looplift.rewrite.engine.reasons import reasons_at
from looplift.rules.loops.concat_slices import SliceOperandOfConcat

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(sizes=(7, 1, 2), values={"n": [1, 2, 7]})


def _model(cut: str, *, chunk: str = "4", cache: int = 2, opset: int = 17) -> onnx.ModelProto:
    """A cache c [B, 2] and chunks x; `cut` makes the next cache d of w, and r is read of all."""
    return parse(
        f"""g (float[T,B,{chunk}] xs, float[B,{cache}] c0, int64 n) => (float[B,{cache}] y, ys)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}},
         int64[1] four = {{4}}, int64[1] six = {{6}}, int64[1] back = {{-2}}, int64[1] far = {{-4}},
         int64[1] end = {{9223372036854775807}}, int64[1] minus = {{-1}}> {{
        y, ys = Loop (n, , c0) <body = b (int64 i, bool ci, float[B,{cache}] c) => (bool co, float[B,{cache}] d, r) {{
            co = Identity(ci) x = Gather(xs, i) w = Concat<axis=1>(c, x) {cut} r = Softmax<axis=1>(w) }}> }}""",
        opset,
    )


CUTS = {
    "from the end": "d = Slice(w, back, end, one)",
    "from the front": "d = Slice(w, four, six, one)",
    "in the middle": "d = Slice(w, three, minus, one)",
    "between": "d = Slice(w, far, back, one)",
    "of the first operand": "e = Slice(w, zero, two, one) d = Sin(e)",
    "at a computed position": """s = Shape(w) k = Gather(s, one) m = Sub(k, two) d = Slice(w, m, end, one)""",
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_within_one_operand(cut: str) -> None:
    model = _model(cut)
    result, trace, _ = run_rules(model, [SliceOperandOfConcat])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == ["SliceOperandOfConcat"]
    assert_equivalent(model, result, FEEDS)
    rewritten(model, FEEDS, 1e-6)


def test_chunks_that_are_known_to_be_long_enough() -> None:
    model, feeds = (
        _model(CUTS["from the end"], chunk="C"),
        Feeds(sizes=(7, 2), values={"n": [1, 7]}),
    )
    assert "is not within one operand" in reason_of(SliceOperandOfConcat, model)
    result = rewritten(model, feeds, 1e-6, dims=["C>=2"])
    assert "Loop" not in ops(result.model)


def test_operands_that_may_not_fit() -> None:
    """The Concat fails if they have different numbers of rows."""
    text = """g (float[T,B,4] xs, float[C,2] c0, int64 n) => (float[D,2] y)
        <int64[1] one = {1}, int64[1] back = {-2}, int64[1] end = {9223372036854775807}> {
        y = Loop (n, , c0) <body = b (int64 i, bool ci, float[D,2] c) => (bool co, float[D,2] d) {
            co = Identity(ci) x = Gather(xs, i) w = Concat<axis=1>(c, x) d = Slice(w, back, end, one) }> }"""
    assert "differ in more than one axis" in reason_of(SliceOperandOfConcat, parse(text))
    rewritten(parse(text), FEEDS)


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_old_opsets(opset: int) -> None:
    model = _model(CUTS["from the end"], opset=opset)
    result, trace, _ = run_rules(model, [SliceOperandOfConcat])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)


DECLINED = {
    "of both operands": ("e = Slice(w, one, three, one) d = Sin(e)", "is not within one operand"),
    "backwards": ("d = Slice(w, minus, far, one, minus) e = Neg(d)", "it does not slice the axis"),
    "along another axis": ("e = Slice(w, zero, one, zero) d = Slice(x, zero, two, one)", "it does not slice the axis"),
    "that may be empty": ("k = Unsqueeze(i, zero) e = Slice(w, k, two, one) d = Slice(x, zero, two, one)", "before it ends"),
    "at an unknown position": ("k = Cast<to=7>(x) m = ReduceMax<keepdims=0>(k) o = Unsqueeze(m, zero) e = Slice(w, o, two, one) d = Slice(x, zero, two, one)", "its start is not known"),
}  # fmt: skip


@pytest.mark.parametrize(("cut", "words"), DECLINED.values(), ids=DECLINED)
def test_other_slices_stay(cut: str, words: str) -> None:
    model = _model(cut)
    _, trace, engine = run_rules(model, [SliceOperandOfConcat])
    assert trace.commits() == []
    reasons = [reason for node in engine.index.walk() for reason in reasons_at(engine, node)]
    assert any(words in reason.sentence for reason in reasons)
    rewritten(model, FEEDS, 1e-6)
