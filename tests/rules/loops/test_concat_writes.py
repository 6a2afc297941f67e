"""Slices of carried values that are replaced by a Concat of what surrounds them."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.concat_writes import ConcatToScatter

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..downgrade import downgraded
from ..reasons import reason_of

FEEDS = Feeds(sizes=(0, 1, 2, 5), values={"m": [0, 1, 2]}, most=40)
CONSTANTS = """int64 nil = {0}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2},
    int64[1] far = {2147483647}, int64[2] zeros = {0, 0}, int64[2] rest = {-1, -1},
    int64[3] minus = {-1, -1, -1}, int64[3] ends = {2147483647, 2147483647, 2147483647},
    int64[0] none = {}, int32[1] zero6 = {0}, int32[1] one6 = {1}, int32[1] far6 = {2147483647}"""
AT = "at = Unsqueeze(i, zero) next = Add(at, one)"
LEFT = "left = Slice(q, zero, at, zero)"
RIGHT = "right = Slice(q, next, far, zero)"
WHOLE = "qo = Concat<axis = 0>(left, r, right)"
AS_SIZES = """size = Concat<axis = 0>(at, rest) from = Concat<axis = 0>(zero, zeros)
    sum = Add(from, size) open = Equal(size, minus) to = Where(open, ends, sum)
    left = Slice(q, from, to) after = Concat<axis = 0>(next, zeros) right = Slice(q, after, ends)"""


def _model(
    left: str = LEFT, right: str = RIGHT, whole: str = WHOLE, at: str = AT, trip: str = "n",
    row: str = "zero", sizes: str = "T,B,3",
) -> onnx.ModelProto:  # fmt: skip
    """A cumulative maximum, written slice by slice into the buffer q."""
    return parse(
        f"""g (float[T,B,3] x, float[B,3] s0, float[{sizes}] b, int64 m)
            => (float[B,3] s, float[U,V,W] y) <{CONSTANTS}> {{
        all = Shape(x) n1 = Slice(all, zero, one, zero) n = Reshape(n1, none)
        s, y = Loop ({trip}, , s0, b) <body = b (int64 i, bool ci, float[B,3] s1, float[P,Q,R] q)
            => (bool co, float[B,3] s2, float[X,Y,Z] qo) {{
            co = Identity(ci) xt = Gather(x, i) s2 = Max(s1, xt) r = Unsqueeze(s2, {row})
            {at} {left} {right} {whole} }}> }}""",
        18,
        8,
    )


WRITTEN = {
    "in order": _model(),
    "in reverse": _model(at="a = Sub(n1, one) at = Sub(a, i) next = Add(at, one)"),
    "with sizes of all axes": _model(AS_SIZES, ""),
    "positions of 32 bits": _model(
        "left = Slice(q, zero6, at, zero6)",
        "right = Slice(q, next, far6, zero6)",
        at="k = Cast<to = 6>(i) at = Unsqueeze(k, zero) next = Add(at, one6)",
    ),
    "to the size": _model(right="right = Slice(q, next, n1, zero)"),
    "along another axis": _model(
        "left = Slice(q, zero, at, one)",
        "right = Slice(q, next, far, one)",
        "qo = Concat<axis = -2>(left, r, right)",
        row="one",
        sizes="B,T,3",
    ),
}


@pytest.mark.parametrize("model", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_slice_that_is_replaced_is_written(model: onnx.ModelProto) -> None:
    after, trace, _ = run_rules(model, [ConcatToScatter])
    assert trace.defects() == []
    assert [commit.rule for commit in trace.commits()] == [ConcatToScatter.name()]
    assert assert_equivalent(model, after, FEEDS) >= 8
    found = ops(rewritten(model, FEEDS).model)
    assert found["Scan"] == 1
    assert not {"ScatterND", "ScatterElements"} & set(found)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_model(trip="m"), "may be outside the axis"),
        (_model(trip=""), "trip count is not known"),
        (_model(sizes="N,B,3"), "may be outside the axis"),
        (_model(at="at = Unsqueeze(i, zero) next = Add(at, two)"), "one position after"),
        (_model(at="at = Unsqueeze(i, zero) next = Identity(at)"), "one position after"),
        (_model("left = Slice(q, one, at, zero)"), "leaves out more"),
        (_model(right="to = Sub(n1, one) right = Slice(q, next, to, zero)"), "leaves out more"),
        (_model("left = Slice(q, zero, at, one)"), "not known to be a part of axis"),
        (_model(right="two2 = Concat<axis=0>(zero, one) s = Concat<axis=0>(next, one) "
                      "e = Concat<axis=0>(far, far) right = Slice(q, s, e, two2)"),
         "not known to be a part of axis"),
        (_model(whole="qo = Concat<axis = 0>(right, r, left)"), "one position after"),
        (_model(whole="rr = Concat<axis = 0>(r, r) qo = Concat<axis = 0>(left, rr, right)"),
         "is not one slice"),
        (_model("left = Slice(b, zero, at, zero)"), "no Concat that replaces"),
        (_model(whole="k = Concat<axis = 0>(left, r, right) qo = Neg(k)"), "no value that is updated"),
    ],
)  # fmt: skip
def test_near_misses(model: onnx.ModelProto, reason: str) -> None:
    expected = "by a Concat that replaces" if reason.startswith("no ") else reason
    assert expected in reason_of(ConcatToScatter, model)


def test_before_opset_11_nothing_scatters() -> None:
    assert "opset 11" in reason_of(ConcatToScatter, downgraded(_model(), 10))


@pytest.mark.parametrize("write", [(LEFT, RIGHT), (AS_SIZES, "")], ids=["one axis", "all axes"])
def test_a_recurrence_into_a_list_of_fixed_size(write: tuple[str, str]) -> None:
    text = f"""g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
        <{CONSTANTS}, float[2,3] w = {{0.1, 0.2, 0.3, -0.1, -0.2, -0.3}},
         float[3,3] u = {{1, 0, 0, 0, 1, 0, 0, 0, 1}}, int64[1] three = {{3}}> {{
        n1 = Shape<end = 1>(x) n = Reshape(n1, none) batch = Shape<start = 1, end = 2>(x)
        shape = Concat<axis = 0>(n1, batch, three) b = ConstantOfShape(shape)
        h, y = Loop (n, , h0, b) <body = b (int64 i, bool ci, float[B,3] h1, float[P,Q,R] q)
            => (bool co, float[B,3] h2, float[X,Y,Z] qo) {{
            co = Identity(ci) xt = Gather(x, i) p = MatMul(xt, w) k = MatMul(h1, u) a = Add(k, p)
            h2 = Tanh(a) r = Unsqueeze(h2, zero) {AT} {write[0]} {write[1]} {WHOLE} }}> }}"""
    result = rewritten(parse(text, 18, 8), FEEDS, 1e-5)
    assert ops(result.model)["RNN"] == 1
    assert "Loop" not in ops(result.model)
