"""SplitProductOfConcat lets the known part of a product leave the loop."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.vectorization.concat_products import SplitProductOfConcat

from ...equivalence import assert_equal, ops, optimized_session, outcome, session
from ...small_models import parse
from ..bodies import body_ops
from ..reasons import reason_of


def _numbers(count: int) -> str:
    values = np.random.default_rng(count).standard_normal(count) * 0.4
    return ", ".join(f"{value:.4f}" for value in values)


def _decoder(
    product: str = "p = MatMul(z, w) g = Add(p, b)",
    parts: str = "xt, ctx, h",
    axis: int = 1,
    weights: str = "float[9,4] w",
    more: str = "",
) -> str:
    """A cell that attends to a memory: its input, what it attends to and its state side by side."""
    return f"""g (float[T,B,2] x, float[B,S,3] m, float[B,4] h0, int64 n) => (float[L,R,4] y, float[K,4] last)
        <{weights} = {{{_numbers(36)}}}, float[4] b = {{{_numbers(4)}}}, float[4,3] q = {{{_numbers(12)}}},
         int64[1] one = {{1}}, int64[1] two = {{2}}> {{
        last, y = Loop (n, , h0) <body = b (int64 i, bool c, float[B,4] h) => (bool co, float[B,4] hn, float[B,4] row) {{
            co = Identity(c) xt = Gather(x, i) hq = MatMul(h, q) hu = Unsqueeze(hq, two) e = MatMul(m, hu)
            a = Softmax<axis=1>(e) am = Mul(a, m) ctx = ReduceSum<keepdims=0>(am, one) {more}
            z = Concat<axis={axis}>({parts}) {product} hn = Tanh(g) row = Identity(hn) }}> }}"""


FIRING = {
    "MatMul and Add": _decoder(),
    "Add of a bias first": _decoder("p = MatMul(z, w) g = Add(b, p)"),
    "Gemm": _decoder("g = Gemm(z, w, b)"),
    "Gemm, transposed": _decoder("g = Gemm<transB=1>(z, w, b)", weights="float[4,9] w"),
    "Gemm without a bias": _decoder("g = Gemm(z, w)"),
    "the last axis from the end": _decoder(axis=-1),
    "the known part last": _decoder(parts="ctx, h, xt"),
    "the known part between": _decoder(parts="ctx, xt, h"),
    "a bias computed after the product": _decoder("p = MatMul(z, w) bt = Exp(b) g = Add(p, bt)"),
    "a product of a product": _decoder("""p = MatMul(z, w) pb = Add(p, b) t = Tanh(pb)
        v = Concat<axis=1>(t, xt) pv = MatMul(v, w6) g = Add(b, pv)""",
        weights=f"float[6,4] w6 = {{{_numbers(24)}}}, float[9,4] w"),
    "two known parts": _decoder(parts="xt, h, xs", more="xs = Tanh(xt)", weights="float[8,4] w")
    .replace(_numbers(36), _numbers(32)),
}  # fmt: skip


@functools.cache
def _rewritten(text: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = parse(text, opset=17)
    result = rewrite(model)
    assert result.report.commits["SplitProductOfConcat"] == 1
    assert result.report.defects == []
    onnx.checker.check_model(result.model, full_check=True)
    return model, result.model


def _feed(length: int, batch: int, trips: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    sizes = {"x": (length, batch, 2), "m": (batch, 5, 3), "h0": (batch, 4)}
    feed = {name: rng.standard_normal(s).astype(np.float32) for name, s in sizes.items()}
    return {**feed, "n": np.array(trips)}


@pytest.mark.parametrize("text", FIRING.values(), ids=FIRING)
def test_the_known_part_leaves_the_loop(text: str) -> None:
    model, result = _rewritten(text)
    for length, batch, trips in ((1, 1, 1), (6, 3, 6), (6, 2, 4), (3, 0, 3), (2, 2, 0)):
        feed = _feed(length, batch, trips)
        expected = session(model).run(None, feed)
        actual = optimized_session(result).run(None, feed)
        first = 0 if trips else 1  # the sizes of an empty scan output are not defined
        assert_equal(expected[first:], actual[first:], 1e-5)


def test_the_body_reads_slices_of_one_product() -> None:
    _, result = _rewritten(FIRING["MatMul and Add"])
    assert ops(result)["MatMul"] == 4
    assert body_ops(result)["MatMul"] == 3


def test_fails_where_the_original_fails() -> None:
    model, result = _rewritten(FIRING["MatMul and Add"])
    feed = {**_feed(3, 2, 3), "x": np.ones((3, 2, 3), np.float32)}
    assert outcome(session(model), feed) is None
    assert outcome(session(result), feed) is None


def test_a_bias_in_a_branch_stays_there() -> None:
    text = _decoder("""p = MatMul(z, w) g = If(on) <
        then_branch = t () => (float[B,4] tt) <float[4] inner = {1, 2, 3, 4}> { tt = Add(p, inner) },
        else_branch = e () => (float[B,4] ee) { ee = Neg(h) }>""").replace(
        "int64 n)", "int64 n, bool on)"
    )
    model, result = _rewritten(text)
    for on in (True, False):
        feed = {**_feed(5, 2, 5), "on": np.array(on)}
        assert_equal(session(model).run(None, feed), session(result).run(None, feed), 1e-5)


DECLINED = {
    "another axis": (_decoder("p = MatMul(z, w) g = Add(p, b)", axis=0), "not along the last axis"),
    "another batch": (
        _decoder().replace("float[T,B,2] x", "float[T,N,2] x"),
        "is not known to have the same batch as the other parts",
    ),
    "a scaled Gemm": (_decoder("g = Gemm<alpha=2.0>(z, w, b)"), "is scaled or transposed"),
    "a computed matrix": (_decoder("v = Neg(w) p = MatMul(z, v) g = Add(p, b)"), "is not a constant"),
    "a default": (
        _decoder().replace("float[B,4] h0, int64 n", "float[B,4] h0, int64 n, float[9,4] w"),
        "is not a constant",
    ),
    "read elsewhere": (
        _decoder("p = MatMul(z, w) zs = ReduceMean<axes=[1]>(z) g = Add(p, zs)"),
        "is read elsewhere",
    ),
    "nothing known": (
        _decoder(parts="ctx, h, hs, ht", more="hs = ReduceMean<axes=[1]>(h) ht = ReduceSum(h, one)"),
        "depend on carried values",
    ),
    "little to spare": (
        _decoder("p = MatMul(z, w) g = Tanh(p)"),
        "would not make the body smaller",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), DECLINED.values(), ids=DECLINED)
def test_other_products_stay(text: str, words: str) -> None:
    assert words in reason_of(SplitProductOfConcat, parse(text, opset=17))
