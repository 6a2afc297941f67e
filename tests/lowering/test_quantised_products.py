"""Products of dequantised tensors are products of bytes in the imported module."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper

import looplift
from looplift import Miss
from looplift.lowering.quantised_products import MultiplyIntegers
from looplift.rewrite.engine.rule import fixture

from ..equivalence import ops, run_rules
from .comparison import Array
from .compiled import virtual_machine
from .conftest import parse
from .test_byte_products import bytes_of, random


@pytest.mark.parametrize("reason", MultiplyIntegers.spares)
def test_the_rule_says_why_it_declines(reason: str) -> None:
    proto = fixture(MultiplyIntegers.spares[reason])
    _, trace, engine = run_rules(proto, [MultiplyIntegers])
    assert not trace.commits()
    root = next(node for node in engine.index.walk() if node.op == "MatMul")
    with pytest.raises(Miss, match=reason):
        engine.match(MultiplyIntegers(), root)


def test_the_rule_fires() -> None:
    model, _, _ = run_rules(fixture(MultiplyIntegers.fires), [MultiplyIntegers])
    assert ops(model)["MatMulInteger"] == 1
    assert "MatMul" not in ops(model)


def scales(count: int) -> Array:
    return np.linspace(0.001, 0.01, count).astype(np.float32)


SCALES: dict[str, Array] = {"s": np.array(0.02, np.float32), "z": np.array(120, np.uint8)}
PRODUCTS: dict[str, tuple[str, dict[str, Array]]] = {
    "one scale": (
        """g (uint8[N, 40] x) => (float[N, 24] y) {
           a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, t, u) y = MatMul(a, b) }""",
        {
            "w": bytes_of(np.int8, 40, 24),
            "t": np.array([0.01], np.float32),
            "u": np.array([3], np.int8),
        },
    ),
    "a scale for each column": (
        """g (uint8[B, N, 40] x) => (float[B, N, 24] y) {
           a = DequantizeLinear(x, s) b = DequantizeLinear(w, t, u) y = MatMul(a, b) }""",
        {"w": bytes_of(np.uint8, 40, 24), "t": scales(24), "u": bytes_of(np.uint8, 24)},
    ),
    "a convolution": (
        """g (uint8[B, 6, N, M] x) => (float[B, 10, P, Q] y) {
           a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t) c = Neg(v)
           y = Conv<pads = [1, 1, 1, 1], strides = [2, 1]>(a, b, c) }""",
        {"w": bytes_of(np.int8, 10, 6, 3, 3), "t": scales(10), "v": scales(10)},
    ),
    "depthwise": (
        """g (int8[B, 8, N] x) => (float[B, 8, M] y) <float r = {0.5}> {
           a = DequantizeLinear(x, r) b = DequantizeLinear(w, s)
           y = Conv<pads = [1, 1], group = 8>(a, b) }""",
        {"w": bytes_of(np.int8, 8, 1, 3)},
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_the_dequantised_tensors(name: str) -> None:
    text, weights = PRODUCTS[name]
    model = parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(value, key) for key, value in (SCALES | weights).items()
    )
    module = looplift.from_onnx(model)
    assert "int32" in module.script()
    machine = virtual_machine(looplift.compile(module, "native"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    # onnxruntime does not convolve images of no lines.
    for size in (1, 2, 13) if "Conv" in text else (0, 1, 2, 13):
        given = {"B": 2, "N": size, "M": size + 1}
        feed = {value.name: random(value, given) for value in model.graph.input}
        (want,) = session.run(None, feed)
        got = machine["main"](*(tvm.runtime.tensor(value) for value in feed.values())).numpy()
        assert got.shape == want.shape
        scale = float(np.abs(want).max(initial=1))
        np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=1e-6)


DECLINED: dict[str, tuple[str, str]] = {
    "int32 may not hold": (
        "uint8[N, 40000] x, int8[40000, 2] w",
        "a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b)",
    ),
    "is not a matrix": (
        "uint8[N, 4] x, int8[4] w",
        "a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b)",
    ),
    "are no bytes": (
        "int32[N, 4] x, int8[4, 2] w",
        "a = DequantizeLinear(x, s) b = DequantizeLinear(w, s) y = MatMul(a, b)",
    ),
    "neither one scale nor": (
        "uint8[N, 4] x, int8[4, 2] w, float[4] t",
        "a = DequantizeLinear<axis = 1>(x, t) b = DequantizeLinear(w, s) y = MatMul(a, b)",
    ),
}


@pytest.mark.parametrize("reason", DECLINED)
def test_what_is_left_alone(reason: str) -> None:
    inputs, nodes = DECLINED[reason]
    proto = fixture(f"g ({inputs}) => (float y) <float s = {{0.5}}> {{ {nodes} }}")
    engine = run_rules(proto, [MultiplyIntegers])[2]
    root = next(node for node in engine.index.walk() if node.op == "MatMul")
    with pytest.raises(Miss, match=reason):
        engine.match(MultiplyIntegers(), root)


def test_other_models_are_not_touched() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    script: Any = looplift.from_onnx(model).script()
    assert "int32" not in script
