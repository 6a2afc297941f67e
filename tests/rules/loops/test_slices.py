"""Slices of one element are Gathers, where they surely find that element."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.loops.slice_to_gather import SliceToGather

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7]})
FAR = 2**63 - 1


def _slicing(cut: str, trip: str = "n") -> onnx.ModelProto:
    """A loop that cuts one slice out of x [B, T, 3] along axis 1 in each iteration."""
    return parse(f"""g (float[B,T,3] x, float[B,1,3] s0, int64 m) => (float[B,1,3] y)
        <int64[1] one = {{1}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] far = {{{FAR}}},
         int64[1] minus = {{-1}}, int64[1] behind = {{-2}}> {{
        all = Shape<start=1, end=2>(x) n = Squeeze(all, zero)
        y = Loop ({trip}, , s0) <body = b (int64 i, bool ci, float[B,1,3] s)
            => (bool co, float[B,1,3] so) {{
            k = Unsqueeze(i, zero) e = Add(k, one) co = Identity(ci)
            {cut} h = Mul(s, s) so = Sub(h, xt) }}> }}""")


@pytest.mark.parametrize(
    "cut",
    [
        "xt = Slice(x, k, e, one)",
        "xt = Slice(x, k, e, behind)",
        "xt = Slice(x, k, e, one, one)",
        """p = Concat<axis=0>(zero, k, zero) q = Concat<axis=0>(far, e, far)
           xt = Slice(x, p, q)""",
        """p = Concat<axis=0>(k, zero) q = Concat<axis=0>(e, far) a = Concat<axis=0>(one, zero)
           xt = Slice(x, p, q, a)""",
        "j = Sub(all, e) f = Add(j, one) xt = Slice(x, j, f, one)",
    ],
)
def test_one_slice_in_other_words(cut: str) -> None:
    model = _slicing(cut)
    result, trace, _ = run_rules(model, [SliceToGather])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, FEEDS)
    assert rewritten(model, FEEDS).report.commits["SliceToGather"] == 1


@pytest.mark.parametrize(
    ("cut", "trip", "words"),
    [
        ("xt = Slice(x, k, e, one)", "m", "may be outside the axis"),
        ("f = Add(k, two) w = Slice(x, k, f, one) xt = ReduceSum(w, one)", "n", "more than one"),
        ("xt = Slice(x, k, e, one, two)", "n", "steps are not 1"),
        (
            "p = Concat<axis=0>(k, k) q = Concat<axis=0>(e, e) a = Concat<axis=0>(one, zero) "
            "w = Slice(x, p, q, a) xt = ReduceSum(w, zero)",
            "n",
            "it cuts 2 axes",
        ),
        ("j = Sub(minus, k) f = Add(j, one) xt = Slice(x, j, f, one)", "n", "may be outside"),
        ("z = Tanh(x) xt = Slice(z, k, e, one)", "n", "is computed in the body"),
        ("v = Mul(k, k) f = Add(v, one) xt = Slice(x, v, f, one)", "n", "fixed step"),
    ],
)
def test_other_slices_stay(cut: str, trip: str, words: str) -> None:
    assert words in reason_of(SliceToGather, _slicing(cut, trip))


def test_a_slice_behind_the_end_is_empty_and_stays_so() -> None:
    model = parse("""g (float[T,3] x, float[P,3] s0, int64 m) => (float[Q,3] y)
        <int64[1] one = {1}, int64[1] zero = {0}> {
        y = Loop (m, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[R,3] so) {
            k = Unsqueeze(i, zero) e = Add(k, one) co = Identity(ci)
            w = Slice(x, k, e, zero) so = Concat<axis=0>(s, w) }> }""")
    rewritten(model, FEEDS)
