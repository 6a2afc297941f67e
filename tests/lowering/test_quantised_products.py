"""Products of dequantised tensors are products of bytes in the imported module."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.quantised_products import MultiplyIntegers
from looplift.lowering.scheduling.pipeline import RULES, lower_to_kernels
from looplift.testing import assert_fires, assert_spares, near_misses

from ..equivalence import ops
from ..samples import one_of
from .comparison import Array
from .compiled import NATIVE, virtual_machine
from .conftest import parse
from .scheduling.products.test_byte_products import bytes_of, random


@pytest.mark.parametrize("reason", near_misses(MultiplyIntegers))
def test_the_rule_says_why_it_declines(reason: str) -> None:
    assert_spares(MultiplyIntegers, reason)


def test_the_rule_fires() -> None:
    model = assert_fires(MultiplyIntegers)
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
    "groups of int8 with zero points": (
        """g (int8[B, 8, N] x) => (float[B, 12, M] y) <int8 v = {-7}> {
           a = DequantizeLinear(x, s, v) b = DequantizeLinear<axis = 0>(w, t, u)
           y = Conv<pads = [1, 1], group = 2>(a, b) }""",
        {"w": bytes_of(np.int8, 12, 4, 3), "t": scales(12), "u": bytes_of(np.int8, 12)},
    ),
    "a fully connected layer": (
        """g (uint8[N, 40] x) => (float[N, 24] y) {
           a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t)
           y = Gemm<transB = 1>(a, b, v) }""",
        {"w": bytes_of(np.int8, 24, 40), "t": scales(24), "v": scales(24)},
    ),
    "a transposed weight": (
        """g (uint8[B, N, 40] x) => (float[B, N, 24] y) {
           a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t)
           c = Transpose<perm = [1, 0]>(b) y = MatMul(a, c) }""",
        {"w": bytes_of(np.int8, 24, 40), "t": scales(24)},
    ),
    "depthwise": (
        """g (int8[B, 8, N] x) => (float[B, 8, M] y) <float r = {0.5}> {
           a = DequantizeLinear(x, r) b = DequantizeLinear(w, s)
           y = Conv<pads = [1, 1], group = 8>(a, b) }""",
        {"w": bytes_of(np.int8, 8, 1, 3)},
    ),
}


@pytest.mark.parametrize("name", one_of(2, PRODUCTS))
def test_products_are_those_of_the_dequantised_tensors(name: str) -> None:
    text, weights = PRODUCTS[name]
    model = parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(value, key) for key, value in (SCALES | weights).items()
    )
    module = looplift.from_onnx(model)
    assert "int32" in module.script()
    machine = virtual_machine(looplift.compile(module, NATIVE))
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


def test_what_follows_a_convolution_is_computed_where_it_is_stored() -> None:
    """Its sums are scaled, rounded and clipped to bytes, also where its sizes are computed."""
    model = parse("""<ir_version: 8, opset_import: ["" : 17]>
        g (uint8[B, 8, H, W] x) => (uint8[B, 16, P, Q] y)
        <float r = {0.05}, uint8 q = {3}, float low = {0}, float high = {6}> {
        a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t) c = Neg(v)
        e = Conv<strides = [2, 2]>(a, b, c) f = Clip(e, low, high) y = QuantizeLinear(f, r, q) }""")
    weights = {"w": bytes_of(np.int8, 16, 8, 3, 3), "t": scales(16), "v": scales(16)}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, key) for key, value in (SCALES | weights).items()
    )
    module = looplift.from_onnx(model)
    with as_target("native"):
        kernels = lower_to_kernels(module)
    assert kernels["main"].script().count("R.call_tir") == 1
    machine = virtual_machine(looplift.compile(module, NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for height, width in ((3, 3), (8, 21), (16, 5)):
        x = np.random.default_rng(0).integers(0, 256, (2, 8, height, width)).astype(np.uint8)
        (want,) = session.run(None, {"x": x})
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        assert got.shape == want.shape
        # onnxruntime rounds once, with the quotient of the scales.
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_a_mask_after_a_convolution_is_a_kernel_of_its_own() -> None:
    """There is no schedule rule for a convolution that ends in truth values."""
    text = """g (float[B, 8, H, W] x) => (float[B, 16, P, Q] y) <float low = {0}, float none = {0}> {
        e = Conv<strides = [2, 2]>(x, w) m = Greater(e, low) y = Where(m, e, none) }"""
    model = parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    weights = np.random.default_rng(0).standard_normal((16, 8, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    with as_target("native") as target:
        kernels = lower_to_kernels(looplift.from_onnx(model))
        convolutions = [f for v, f in kernels.functions_items() if "conv2d" in v.name_hint]
        assert len(convolutions) == 1
        rules = [rule.apply(convolutions[0], target, False) for rule in RULES]
    assert any(schedule is not None for schedule in rules)
