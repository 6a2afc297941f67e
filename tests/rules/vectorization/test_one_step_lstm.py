"""DecomposeOneStepLstm lets the product with a known input leave the loop."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.vectorization.one_step_lstm import DecomposeOneStepLstm

from ...equivalence import assert_equal, ops, optimized_session, session
from ...small_models import parse
from ..bodies import body_ops
from ..reasons import reason_of

FEATURES, HIDDEN = 128, 6


def _decoder(
    operator: str = "Y, hn, cn = LSTM<hidden_size=6>(xu, w, r, bias, , h, c)",
    parts: str = "xt, ctx",
    features: int = FEATURES,
) -> onnx.ModelProto:
    """A scripted nn.LSTMCell with attention in between."""
    text = f"""g (float[T,B,{features}] x, float[B,S,6] m, float[1,B,6] h0, float[1,B,6] c0, int64 n)
        => (float[L,1,R,6] y, float[1,K,6] h1, float[1,J,6] c1)
        <int64[1] nul = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
        h1, c1, y = Loop (n, , h0, c0) <body = b (int64 i, bool on, float[1,B,6] h, float[1,B,6] c)
            => (bool co, float[1,B,6] hn, float[1,B,6] cn, float[1,B,6] row) {{
            co = Identity(on) xt = Gather(x, i) hs = Squeeze(h, nul) hu = Unsqueeze(hs, two) e = MatMul(m, hu)
            a = Softmax<axis=1>(e) am = Mul(a, m) ctx = ReduceSum<keepdims=0>(am, one)
            z = Concat<axis=1>({parts}) xu = Unsqueeze(z, nul) {operator} row = Identity(hn) }}> }}"""
    model = parse(text, opset=17)
    rng = np.random.default_rng(0)
    width = features + HIDDEN
    shapes = {"w": (1, 24, width), "r": (1, 24, HIDDEN), "bias": (1, 48), "p": (1, 18)}
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) * 0.1).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


@functools.cache
def _rewritten(**given: Any) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = _decoder(**given)
    result = rewrite(model)
    assert result.report.defects == []
    assert result.report.commits["DecomposeOneStepLstm"] == 1
    onnx.checker.check_model(result.model, full_check=True)
    return model, result.model


def _feed(length: int, batch: int, trips: int) -> dict[str, Any]:
    rng = np.random.default_rng(length)
    sizes = {"x": (length, batch, FEATURES), "m": (batch, 5, 6)}
    sizes |= dict.fromkeys(("h0", "c0"), (1, batch, HIDDEN))
    feed = {name: rng.standard_normal(s).astype(np.float32) for name, s in sizes.items()}
    return {**feed, "n": np.array(trips)}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"parts": "ctx, xt"},
        {"operator": "Y, hn, cn = LSTM<hidden_size=6>(xu, w, r, , , h, c)"},
        {"operator": 'Y, hy, cn = LSTM<hidden_size=6, direction="reverse">(xu, w, r, bias, , h, c) hn = Squeeze(Y, one)'},
    ],
    ids=["plain", "known part last", "no bias", "reverse"],
)  # fmt: skip
def test_the_known_product_leaves_the_loop(given: dict[str, str]) -> None:
    model, result = _rewritten(**given)
    assert "LSTM" not in ops(result)
    assert (body_ops(result)["MatMul"], ops(result)["MatMul"]) == (1, 2)
    for length, batch, trips in ((1, 1, 1), (5, 3, 5), (5, 2, 3), (2, 2, 0)):
        feed = _feed(length, batch, trips)
        expected = session(model).run(None, feed)
        actual = optimized_session(result).run(None, feed)
        first = 0 if trips else 1  # the sizes of an empty scan output are not defined
        assert_equal(expected[first:], actual[first:], 1e-5)


def test_an_lstm_of_an_lstm() -> None:
    """One match decomposes both; the second one reads what the first one gives."""
    model, result = _rewritten(
        operator="""Y1, h1n, c1n = LSTM<hidden_size=6>(xu, w, r, bias, , h, c) hq = Squeeze(h1n, nul)
            z2 = Concat<axis=1>(xt, hq) xv = Unsqueeze(z2, nul)
            Y, hn, cn = LSTM<hidden_size=6>(xv, w, r, bias, , h, c)"""
    )
    assert "LSTM" not in ops(result)
    for length, batch, trips in ((1, 1, 1), (5, 3, 5)):
        feed = _feed(length, batch, trips)
        expected = session(model).run(None, feed)
        assert_equal(expected, optimized_session(result).run(None, feed), 1e-5)


def _lstm(attributes: str = "", inputs: str = "xu, w, r, bias, , h, c") -> onnx.ModelProto:
    return _decoder(f"Y, hn, cn = LSTM<hidden_size=6{attributes}>({inputs})")


DECLINED = {
    "few known features": (_decoder(features=100), "only 100 input features"),
    "other activations": (_lstm(', activations=["Relu", "Tanh", "Tanh"]'), "attribute activations"),
    "coupled gates": (_lstm(", input_forget=1"), "attribute input_forget"),
    "clipped": (_lstm(", clip=1.0"), "clips its gates"),
    "peepholes": (_lstm(inputs="xu, w, r, bias, , h, c, p"), "sequence lengths or peepholes"),
    "computed weights": (
        _decoder("wn = Neg(w) Y, hn, cn = LSTM<hidden_size=6>(xu, wn, r, bias, , h, c)"),
        "are not constant",
    ),
    "a computed input": (
        _decoder("xs = Sin(xu) Y, hn, cn = LSTM<hidden_size=6>(xs, w, r, bias, , h, c)"),
        "is not an Unsqueeze along the time axis",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "words"), DECLINED.values(), ids=DECLINED)
def test_other_lstms_stay(model: onnx.ModelProto, words: str) -> None:
    assert words in reason_of(DecomposeOneStepLstm, model)
