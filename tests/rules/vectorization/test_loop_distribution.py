"""DistributeLoop computes carried values that others only read in a loop before."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.vectorization.loop_distribution import DistributeLoop

from ...equivalence import assert_equal, ops, rewritten, run_rules, session
from ...small_models import parse
from ..reasons import reason_of

WKV = """g (float[T,C] k, float[T,C] v, float[C] w, float[C] u, float[C] a0, float[C] b0, float[C] p0)
    => (float[T,C] y, float[C] a, float[C] b, float[C] p) <int64 zero = {0}> {
    sh = Shape(k) n = Gather(sh, zero)
    a, b, p, y = Loop (n, , a0, b0, p0) <body = g (int64 i, bool c, float[C] ai, float[C] bi, float[C] pi)
        => (bool co, float[C] an, float[C] bn, float[C] pn, float[C] row) {
        co = Identity(c) kt = Gather(k, i) vt = Gather(v, i)
        ww = Add(u, kt) q = Max(pi, ww) d1 = Sub(pi, q) e1 = Exp(d1) d2 = Sub(ww, q) e2 = Exp(d2)
        n1 = Mul(e1, ai) n2 = Mul(e2, vt) top = Add(n1, n2) m1 = Mul(e1, bi) low = Add(m1, e2)
        row = Div(top, low)
        w2 = Add(pi, w) pn = Max(w2, kt) d3 = Sub(w2, pn) e3 = Exp(d3) d4 = Sub(kt, pn) e4 = Exp(d4)
        n3 = Mul(e3, ai) n4 = Mul(e4, vt) an = Add(n3, n4) m3 = Mul(e3, bi) bn = Add(m3, e4) }> }"""
"""The time mixing of RWKV 4."""

SCAN = """g (float[T,3] x, float[3] s0, float[3] u0) => (float[3] s, float[3] u, float[T,3] r) {
    s, u, r = Scan <num_scan_inputs=1, scan_input_directions=[1], scan_output_directions=[1], body = b
        (float[3] si, float[3] ui, float[3] xt) => (float[3] sn, float[3] un, float[3] row) {
        sn = Max(si, xt) d = Sub(xt, sn) e = Exp(d) f = Sub(si, sn) g = Exp(f) h = Mul(e, xt)
        a = Mul(g, ui) b = Add(a, h) un = Tanh(b) row = Sub(un, sn) }> (s0, u0, x) }"""


def test_the_maximum_of_rwkv_leaves_the_loop() -> None:
    result = rewrite(parse(WKV, opset=17))
    assert result.report.defects == []
    found = ops(result.model)
    assert (found.get("Loop", 0), found["Scan"]) == (0, 2)
    assert result.report.commits["DistributeLoop"] == 1


@pytest.mark.parametrize("length", [1, 2, 40])
def test_numbers(length: int) -> None:
    model, result = _rewritten()
    rng = np.random.default_rng(length)
    feed = {t: rng.standard_normal((length, 5)).astype(np.float32) for t in "kv"}
    feed |= {t: rng.standard_normal(5).astype(np.float32) for t in ("w", "u", "a0", "b0", "p0")}
    assert_equal(session(model).run(None, feed), session(result).run(None, feed), 1e-5)


@functools.cache
def _rewritten() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = parse(WKV, opset=17)
    return model, rewrite(model).model


def test_a_reversed_scan() -> None:
    model = parse(SCAN, opset=17)
    result, trace, _ = run_rules(model, [DistributeLoop])
    assert trace.defects() == []
    assert ops(result)["Scan"] == 2
    feed = {"x": np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)}
    feed |= {name: np.ones(3, np.float32) for name in ("s0", "u0")}
    assert_equal(session(model).run(None, feed), session(result).run(None, feed))


def test_three_carried_values_in_a_row() -> None:
    """Each depends on the one before: three loops of one carried value."""
    text = SCAN.replace("float[T,3] r)", "float[3] v)").replace(
        "float[3] u0)", "float[3] u0, float[3] v0)"
    )
    text = text.replace("s, u, r =", "s, u, v =").replace(", scan_output_directions=[1]", "")
    text = text.replace("float[3] ui, ", "float[3] ui, float[3] vi, ").replace(
        "float[3] row)", "float[3] vn)"
    )
    text = text.replace("row = Sub(un, sn)", """k = Exp(un) l = Tanh(k) o = Sin(l) t = Cos(o) z = Mul(t, un)
        va = Mul(vi, z) vn = Sin(va)""").replace("(s0, u0, x)", "(s0, u0, v0, x)")  # fmt: skip
    result = rewritten(parse(text, opset=17), tolerance=1e-6)
    assert ops(result.model)["Scan"] == 3


DECLINED = {
    "both depend on each other": (SCAN.replace("Max(si, xt)", "Max(ui, xt)"), "on all the others"),
    "a shape that changes": (
        SCAN.replace("float[3] s0", "float[N] s0"),
        "the shape of `si` may change in the loop",
    ),
    "little to spare": (
        SCAN.replace("f = Sub(si, sn) g = Exp(f)", "g = Tanh(ui)").replace("h = Mul(e, xt)", "h = Mul(ui, e)"),
        "too little for a second loop",
    ),
    "a random operator": (
        SCAN.replace("row = Sub(un, sn)", "row = RandomNormalLike(un)"),
        "has a body or is random",
    ),
    "one carried value": (
        """g (float[T,3] x, float[3] s0) => (float[3] s) {
        s = Scan <num_scan_inputs=1, body = b (float[3] si, float[3] xt) => (float[3] sn) {
            sn = Max(si, xt) }> (s0, x) }""",
        "fewer than two values",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), DECLINED.values(), ids=DECLINED)
def test_other_loops_stay(text: str, words: str) -> None:
    assert words in reason_of(DistributeLoop, parse(text, opset=17))
