"""CarryUnprojectedState folds the projection of a cell into its recurrent weights."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.loops.projected_states import CarryUnprojectedState

from ...equivalence import assert_equal, ops, optimized_session, session
from ...small_models import parse
from ..reasons import reason_of


def _numbers(count: int, scale: float = 0.3) -> str:
    values = np.random.default_rng(count).standard_normal(count) * scale
    return ", ".join(f"{value:.4f}" for value in values)


def _lstm(
    project: str = "ho = MatMul(g, p)",
    matrix: str = "5,3",
    zero: str = "zero",
    row: str = "row = Identity(ho)",
) -> str:
    """An LSTM of 5 cells whose state is projected to 3 features."""
    return f"""g (float[T,B,2] x, float[1,3] h0, int64 n) => (float[L,R,3] y, float[S,3] h, float[U,5] c)
        <float[5,20] w = {{{_numbers(100)}}}, float[20] b = {{{_numbers(20)}}}, float[{matrix}] p = {{{_numbers(15)}}},
         int64[2] k3 = {{3, 5}}, int64[1] first = {{1}}, int64[1] second = {{2}}, int64[1] three = {{3}}, int64[1] five = {{5}},
         int64[1] nul = {{0}}, int64 uno = {{1}}> {{
        s = Shape(x) bs = Slice(s, first, second) hs = Concat<axis=0>(bs, three) cs = Concat<axis=0>(bs, five)
        zero = ConstantOfShape(hs) zc = ConstantOfShape(cs)
        h, c, y = Loop (n, , {zero}, zc) <body = b (int64 i, bool q, float[?,3] hi, float[?,5] ci) => (bool co, float[?,3] ho, float[?,5] cn, float[?,3] row) {{
            co = Identity(q) xt = Gather(x, i) xh = Concat<axis=1>(xt, hi) a = MatMul(xh, w) t = Add(a, b)
            gi, gg, gf, go = Split<axis=1, num_outputs=4>(t) si = Sigmoid(gi) tg = Tanh(gg) sf = Sigmoid(gf) so = Sigmoid(go)
            m1 = Mul(sf, ci) m2 = Mul(si, tg) cn = Add(m1, m2) tc = Tanh(cn) g = Mul(so, tc)
            {project} {row} }}> }}"""


@functools.cache
def _rewritten(text: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = parse(text, opset=18)
    result = rewrite(model)
    assert result.report.defects == []
    onnx.checker.check_model(result.model, full_check=True)
    return model, result.model


def _feed(length: int, batch: int, trips: int) -> dict[str, Any]:
    x = np.random.default_rng(length).standard_normal((length, batch, 2))
    return {"x": x.astype(np.float32), "n": np.array(trips), "h0": np.zeros((1, 3), np.float32)}


SPELLINGS = {
    "MatMul": _lstm(),
    "Gemm": _lstm("ho = Gemm(g, p)"),
    "Gemm, transposed": _lstm("ho = Gemm<transB=1>(g, p)", "3,5"),
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize(("length", "batch", "trips"), [(1, 1, 1), (4, 3, 4), (4, 2, 2), (2, 2, 0)])
def test_becomes_an_lstm(text: str, length: int, batch: int, trips: int) -> None:
    model, result = _rewritten(text)
    found = ops(result)
    assert (found["LSTM"], found.get("Loop", 0), found.get("Scan", 0)) == (1, 0, 0)
    feed = _feed(length, batch, trips)
    expected = session(model).run(None, feed)
    actual = optimized_session(result).run(None, feed)
    first = 0 if trips else 1  # the other sizes of an empty scan output are not defined
    assert_equal(expected[first:], actual[first:], 1e-5)


DECLINED = {
    "an initial state": (_lstm(zero="h0"), "`h0` is not known to be zero"),
    "a zero that broadcasts": (
        _lstm(zero="one_zero").replace("int64[2] k3", "float[1,1] one_zero = {0}, int64[2] k3"),
        "is not known to have the shape of the projection",
    ),
    "read in the same iteration": (_lstm(row="row = Exp(ho)"), "also read in the same iteration"),
    "a bias": (_lstm("k = Shape(hi) z = ConstantOfShape(k) ho = Gemm(g, p, z)"), "adds a bias"),
    "a computed matrix": (_lstm("pt = Neg(p) ho = MatMul(g, pt)"), "no carried value is a product"),
}


@pytest.mark.parametrize(("text", "words"), DECLINED.values(), ids=DECLINED)
def test_other_cells_stay(text: str, words: str) -> None:
    assert words in reason_of(CarryUnprojectedState, parse(text, opset=18))


def test_a_projection_that_saves_many_products_stays() -> None:
    text = """g (float[T,B,2] x) => (float[B,2] h) <float[1,2] zero = {0, 0}> {
        h = Scan <num_scan_inputs=1, body = b (float[B,2] hi, float[B,2] xt) => (float[B,2] ho)
            { a = Add(hi, xt) e = Expand(a, s) f = Concat<axis=1>(a, a) g = Tile(f, r) t = Tanh(g) ho = MatMul(t, p) }> (zero, x) }"""
    text = text.replace("e = Expand(a, s) ", "").replace(
        "float[1,2] zero", "int64[2] r = {1, 75}, float[1,2] zero"
    )
    model = parse(text.replace("int64[2] r", "float[1] unused = {0}, int64[2] r"), opset=18)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((300, 2), np.float32), "p"))
    assert "has 300 elements before its projection and 2 after it" in reason_of(
        CarryUnprojectedState, model
    )


def test_a_second_rewrite_changes_nothing() -> None:
    """The input's product has another reader until the loop that projects is gone."""
    model = parse(f"""g (float[T,1,2] x) => (float[T,1,2] y) <float[2,3] w = {{{_numbers(6)}}},
        float[2,3] r = {{{_numbers(6)}}}, float[3,2] p = {{{_numbers(6)}}}, float[1,2] zero = {{0, 0}}> {{
        h, y = Scan <num_scan_inputs=1, body = b (float[1,2] hi, float[1,2] xt) => (float[1,2] ho, float[1,2] row) {{
            a = MatMul(xt, w) b = MatMul(hi, r) c = Add(a, b) g = Tanh(c) ho = MatMul(g, p) row = Exp(ho) }}> (zero, x) }}""")
    result = rewrite(model)
    assert result.report.commits["AbsorbInputProjection"] == 1
    assert not rewrite(result.model).report.commits


def test_a_projection_by_infinity_stays() -> None:
    """Zero times infinity is not zero."""
    model = parse(_lstm(), opset=18)
    (matrix,) = (each for each in model.graph.initializer if each.name == "p")
    values = onnx.numpy_helper.to_array(matrix).copy()
    values[0, 0] = np.inf
    matrix.CopyFrom(onnx.numpy_helper.from_array(values, "p"))
    assert "not finite" in reason_of(CarryUnprojectedState, model)
