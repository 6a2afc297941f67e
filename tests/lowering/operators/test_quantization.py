"""Quantised operators against onnxruntime and ONNX's reference: zero points, axes, blocks and types."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from ..conftest import parse
from .inputs import Load, check_reference, random


def test_quantize_and_dequantize_linear_with_one_scale(imported: Load) -> None:
    """Quotients halfway between two integers go to the even one; large ones saturate."""
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n] x, float s, int8 z) => (int8[n] q, uint8[n] u, float[n] y, int16[n] w) {
            q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)
            u = QuantizeLinear (x, s) w = QuantizeLinear <output_dtype = 5> (x, s)
        }"""
    )
    x = np.array([-1e9, -1.5, -0.5, 0.5, 1.5, 2.5, 127.6, 255.5, 40000], np.float32)
    for scale in (1.0, 0.5):
        check_reference(model, x, np.float32(scale), np.int8(-3))
    model.check(np.zeros(0, np.float32), np.float32(1), np.int8(0))


def test_one_scale_for_each_entry_of_an_axis(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float16[a, b, c] x, float16[b] s, uint8[b] z) => (uint8[a, b, c] q, float16[a, b, c] y) {
            q = QuantizeLinear <axis = -2> (x, s, z) y = DequantizeLinear <axis = 1> (q, s, z)
        }"""
    )
    for size in (3, 1):
        x = (random(2, size, 4) * 3).astype(np.float16)
        scales = np.linspace(0.1, 1, size).astype(np.float16)
        check_reference(model, x, scales, np.arange(size, dtype=np.uint8))


def test_one_scale_for_each_block(imported: Load) -> None:
    """The last block may be shorter."""
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n, m] x, float[n, k] s, int8[n, k] z) => (int8[n, m] q, float[n, m] y) {
            q = QuantizeLinear <axis = -1, block_size = 3> (x, s, z)
            y = DequantizeLinear <axis = 1, block_size = 3> (q, s, z)
        }"""
    )
    for size in (6, 7, 2):
        blocks = -(-size // 3)
        scales = np.linspace(0.05, 1, 2 * blocks).reshape(2, blocks).astype(np.float32)
        zeros = np.arange(2 * blocks).reshape(2, blocks).astype(np.int8)
        check_reference(model, random(2, size), scales, zeros)


def test_a_matrix_of_scales_needs_blocks(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="the scale has 2 axes"):
        imported("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (int8[n, m] x, float[n, k] s) => (float[n, m] y) { y = DequantizeLinear (x, s) }""")


def test_float8(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n] x, float[1] s) => (float[n] y) {
            z = Constant <value = float8e4m3fn[1] {0}> ()
            q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)
        }"""
    )
    x = np.array([0, 1, -1.0625, 447, 1e9, -1e9], np.float32)
    (got,) = model.run(x, np.ones(1, np.float32))
    np.testing.assert_array_equal(got, [0, 1, -1, 448, 448, -448])
    (got,) = model.run(x * 2, np.full(1, 2, np.float32))
    np.testing.assert_array_equal(got, [0, 2, -2, 896, 896, -896])


def test_conv_integer(imported: Load) -> None:
    """Padding is the zero point, not 0."""
    model = imported(
        """
        g (uint8[b, 2, h, w] x, uint8[4, 1, 3, 3] k, uint8 z, uint8[4] kz) => (int32[?, ?, ?, ?] y,
          int32[?, ?, ?, ?] p) {
            y = ConvInteger <group = 2, pads = [1, 1, 1, 1], strides = [2, 1]> (x, k, z, kz)
            p = ConvInteger <group = 2, auto_pad = "SAME_UPPER"> (x, k)
        }"""
    )
    rng = np.random.default_rng(0)
    kernel = rng.integers(0, 255, (4, 1, 3, 3)).astype(np.uint8)
    for shape in ((2, 2, 5, 6), (1, 2, 3, 3)):
        x = rng.integers(0, 255, shape).astype(np.uint8)
        zeros = np.array([0, 3, 128, 255], np.uint8)
        y, _ = model.run(x, kernel, np.uint8(7), zeros)
        wide = np.pad(x.astype(int) - 7, [(0, 0), (0, 0), (1, 1), (1, 1)])
        centred = kernel.astype(int) - zeros.astype(int).reshape(4, 1, 1, 1)
        rows, columns = (shape[2] - 1) // 2 + 1, shape[3]
        for output in range(4):
            for row in range(rows):
                for column in range(columns):
                    window = wide[:, output // 2, 2 * row : 2 * row + 3, column : column + 3]
                    want = (window * centred[output, 0]).sum((1, 2))
                    np.testing.assert_array_equal(y[:, output, row, column], want)


def test_qlinear_conv(imported: Load) -> None:
    model = imported(
        """
        g (uint8[b, 2, h, w] x, uint8[3, 2, 2, 2] k, float[3] s, int32[3] bias) =>
          (uint8[?, ?, ?, ?] y)
          <float xs = {0.05}, uint8 xz = {100}, uint8[3] kz = {120, 0, 255}, float ys = {0.4},
           uint8 yz = {90}> {
            y = QLinearConv <pads = [1, 0, 0, 1]> (x, xs, xz, k, s, kz, ys, yz, bias)
        }"""
    )
    rng = np.random.default_rng(0)
    kernel = rng.integers(0, 255, (3, 2, 2, 2)).astype(np.uint8)
    scales, bias = np.array([0.02, 0.01, 0.03], np.float32), np.array([0, 999, -9999], np.int32)
    for shape in ((2, 2, 4, 5), (1, 2, 1, 2)):
        check_reference(model, rng.integers(0, 255, shape).astype(np.uint8), kernel, scales, bias)


def test_qlinear_matmul_of_stacks_with_a_scale_for_each_row_and_column(imported: Load) -> None:
    model = imported(
        """
        g (int8[b, n, k] x, float[n] xs, int8[n] xz, int8[k, m] w, float[m] ws, int8[m] wz) =>
          (int8[?, ?, ?] y) <float ys = {0.5}, int8 yz = {-4}> {
            y = QLinearMatMul (x, xs, xz, w, ws, wz, ys, yz)
        }"""
    )
    rng = np.random.default_rng(0)

    def small(*shape: int) -> np.ndarray:
        return rng.integers(-100, 100, shape).astype(np.int8)

    for batch, n, k, m in ((2, 3, 4, 5), (1, 1, 9, 2)):
        x, w, xz, wz = small(batch, n, k), small(k, m), small(n), small(m)
        xs, ws = (np.linspace(0.01, 0.05, size).astype(np.float32) for size in (n, m))
        (got,) = model.run(x, xs, xz, w, ws, wz)
        left = (x.astype(int) - xz.reshape(n, 1)) * xs.reshape(n, 1).astype(float)
        want = left @ ((w.astype(int) - wz) * ws.astype(float)) / 0.5
        want = np.clip(np.rint(want) - 4, -128, 127)
        assert np.abs(got - want).max() <= 1  # the product may be next to a half
        assert (got == want).mean() > 0.9


def test_matmul_integer(imported: Load) -> None:
    """A zero point for each row of the left and each column of the right matrices; and a vector."""
    model = imported(
        """
        g (int8[b, n, k] x, int8[b, n, 1] xz, uint8[b, k, m] w, uint8[b, 1, m] wz, int8[n] z,
           uint8[k] u) => (int32[?, ?, ?] y, int32[?, ?, ?] r, int32[?, ?] v) {
            y = MatMulInteger (x, w, xz, wz) r = MatMulInteger (x, w, z) v = MatMulInteger (x, u)
        }"""
    )
    rng = np.random.default_rng(0)
    for batch, n, k, m in ((2, 3, 4, 5), (1, 1, 9, 2), (2, 0, 3, 1)):
        x, xz, z = (
            rng.integers(-128, 128, shape).astype(np.int8)
            for shape in ((batch, n, k), (batch, n, 1), n)
        )
        w, wz, u = (
            rng.integers(0, 256, shape).astype(np.uint8)
            for shape in ((batch, k, m), (batch, 1, m), k)
        )
        y, r, v = model.run(x, xz, w, wz, z, u)
        wide, of_rows = x.astype(int), z.reshape(n, 1).astype(int)
        np.testing.assert_array_equal(y, (wide - xz) @ (w.astype(int) - wz))
        np.testing.assert_array_equal(r, (wide - of_rows) @ w.astype(int))
        np.testing.assert_array_equal(v, wide @ u.astype(int))


def test_qlinear_matmul_of_float16_scales(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (uint8[n, k] x, uint8[k, m] w, float16 s) => (uint8[?, ?] y) <uint8 z = {9}> {
            y = QLinearMatMul (x, s, z, w, s, z, s, z)
        }"""
    )
    x, w = np.arange(8, 20, dtype=np.uint8).reshape(3, 4), np.full((4, 2), 10, np.uint8)
    (got,) = model.run(x, w, np.float16(0.25))
    want = np.rint((x.astype(int) - 9).sum(1) * 0.25) + 9
    np.testing.assert_array_equal(got, np.stack([want, want], 1))


def test_four_bits(imported: Load) -> None:
    """int4 is stored in int8; quantisation saturates at the limits of four bits."""
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n] x, float s, int4 z) => (int4[n] q, float[n] y) {
            q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)
        }"""
    )
    x = np.array([-99, -9, -8.5, 0.5, 1.5, 6, 7, 99], np.float32)
    q, y = model.run(x, np.float32(1), np.int8(1))
    assert q.dtype == np.int8
    np.testing.assert_array_equal(q, [-8, -8, -7, 1, 3, 7, 7, 7])
    np.testing.assert_array_equal(y, q - 1.0)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantised_elementwise_operators(imported: Load, op: str, dtype: str) -> None:
    model = imported(f"""
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({dtype}[n, m] a, float s, {dtype} z, {dtype}[m] b, float t, float u, {dtype} w) => ({dtype}[n, m] c) {{
            c = com.microsoft.{op} (a, s, z, b, t, z, u, w)
        }}""")
    numbers = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    for rows, columns in ((3, 4), (1, 1), (0, 2)):
        a = numbers.integers(limits.min, limits.max, (rows, columns)).astype(dtype)
        b = numbers.integers(limits.min, limits.max, columns).astype(dtype)
        scales = [np.array(value, np.float32) for value in (0.11, 0.03, 0.07)]
        zeros = [np.array(value, dtype) for value in (5, 3)]
        model.check(a, scales[0], zeros[0], b, scales[1], scales[2], zeros[1])


CONTRIB = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
UNARY = {
    "QLinearAveragePool": "<kernel_shape = [2, 2], strides = [2, 2]>",
    "QLinearGlobalAveragePool": "",
    "QLinearLeakyRelu": "<alpha = 0.1>",
    "QLinearSigmoid": "",
    "QLinearSoftmax": "<axis = -1, opset = 13>",
}


@pytest.mark.parametrize(("op", "dtype"), one_of(3, itertools.product(UNARY, ["uint8", "int8"])))
def test_quantised_operators_on_one_tensor(imported: Load, op: str, dtype: str) -> None:
    """A mean next to a half may be rounded the other way, and onnxruntime's softmax is a table."""
    model = imported(f"""{CONTRIB}
        g ({dtype}[b, 4, h, w] x) => ({dtype}[b, 4, p, q] y)
        <float s = {{0.02}}, float t = {{0.051}}, {dtype} z = {{3}}, {dtype} u = {{5}}> {{
            y = com.microsoft.{op} {UNARY[op]} (x, s, z, t, u) }}""")
    limits = np.iinfo(dtype)
    for shape in ((1, 4, 6, 6), (2, 4, 7, 9), (1, 4, 2, 3)):
        x = np.random.default_rng(0).integers(limits.min, limits.max + 1, shape).astype(dtype)
        (got,) = model.run(x)
        (want,) = model.session.run(None, {"x": x})
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        difference = np.abs(got.astype(int) - want)
        assert difference.max() <= (op in ("QLinearAveragePool", "QLinearSoftmax"))
        assert (difference > 0).mean() < 0.15


def test_a_quantised_softmax_over_several_axes_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="softmax over several axes"):
        imported(f"""{CONTRIB}
        g (uint8[b, 4, 5] x) => (uint8[b, 4, 5] y) <float s = {{0.02}}, uint8 z = {{0}}> {{
            y = com.microsoft.QLinearSoftmax <axis = 1, opset = 11> (x, s, z, s, z) }}""")


def test_quantised_concatenation(imported: Load) -> None:
    model = imported(f"""{CONTRIB}
        g (uint8[n, 3] x, uint8[m, 3] y) => (uint8[k, 3] z)
        <float s = {{0.02}}, float t = {{0.05}}, uint8 u = {{3}}, uint8 v = {{7}}> {{
            z = com.microsoft.QLinearConcat <axis = 0> (t, v, x, s, u, y, t, v) }}""")
    x, y = np.arange(12, dtype=np.uint8).reshape(4, 3), np.arange(200, 206, dtype=np.uint8)
    model.check(x, y.reshape(2, 3))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_where(imported: Load, dtype: str) -> None:
    model = imported(f"""{CONTRIB}
        g (bool[n, 1] c, {dtype}[n, m] x, {dtype}[m] y) => ({dtype}[n, m] z)
        <float s = {{0.02}}, float t = {{0.05}}, float r = {{0.03}},
         {dtype} u = {{3}}, {dtype} v = {{7}}, {dtype} w = {{50}}> {{
            z = com.microsoft.QLinearWhere (c, x, s, u, y, t, v, r, w) }}""")
    info, rng = np.iinfo(dtype), np.random.default_rng(0)
    for rows, columns in ((4, 7), (1, 1), (2, 1)):
        x, y = (
            rng.integers(info.min, info.max + 1, shape).astype(dtype)
            for shape in ((rows, columns), (columns,))
        )
        model.check(rng.random((rows, 1)) < 0.5, x, y)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("result", ["uint8", "float"])
def test_qgemm(imported: Load, result: str, transposed: int) -> None:
    shape = "5, 9" if transposed else "9, 5"
    scales = ", t, v" if result == "uint8" else ""
    model = imported(f"""{CONTRIB}
        g (uint8[n, 9] x, int8[{shape}] w, int32[5] c) => ({result}[n, 5] y)
        <float s = {{0.02}}, float t = {{20.0}}, uint8 u = {{3}}, uint8 v = {{128}}, int8 z = {{2}}> {{
            y = com.microsoft.QGemm <transB = {transposed}, alpha = 1.5> (x, s, u, w, s, z, c{scales})
        }}""")
    rng = np.random.default_rng(0)
    w = rng.integers(-128, 128, (5, 9) if transposed else (9, 5)).astype(np.int8)
    for rows in (1, 13):
        x = rng.integers(0, 256, (rows, 9)).astype(np.uint8)
        model.check(x, w, rng.integers(-500, 500, 5).astype(np.int32))


@pytest.mark.parametrize(
    ("bits", "depth", "zeros"),
    one_of(2, [
        (4, 40, "packed"), (4, 48, "none"), (4, 48, "floats"), (8, 32, "none"), (8, 40, "packed"),
        (2, 80, "packed"), (2, 72, "floats"),
    ]),
)  # fmt: skip
def test_products_with_weights_of_few_bits(
    imported: Load, bits: int, depth: int, zeros: str
) -> None:
    rng = np.random.default_rng(bits)
    width, block, blocks = 7, 16, -(-depth // 16)
    packed = rng.integers(0, 256, (width, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (width, blocks)).astype(np.float32)
    points: dict[str, np.ndarray[Any, Any]] = {
        "packed": rng.integers(0, 256, (width, -(-blocks * bits // 8))).astype(np.uint8),
        "floats": rng.uniform(0, 2**bits, (width, blocks)).astype(np.float32),
    }
    model = parse(f"""{CONTRIB}
        g (float[b, n, {depth}] x) => (float[b, n, {width}] y) {{
            y = com.microsoft.MatMulNBits <bits = {bits}, block_size = {block}, K = {depth}, N = {width}>
                (x, w, s{", z" if zeros in points else ""}) }}""")
    weights: dict[str, np.ndarray[Any, Any]] = {"w": packed, "s": scales}
    if zeros in points:
        weights["z"] = points[zeros]
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    module = imported(model.SerializeToString())
    for shape in ((2, 3, depth), (1, 1, depth)):
        module.check(rng.standard_normal(shape).astype(np.float32))


def test_dynamic_ranges(imported: Load) -> None:
    """Where all data is 0, onnxruntime takes the scale 1."""
    model = imported("""
    g (float[n, m] x) => (uint8[n, m] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }""")
    for data in (random(3, 4), np.zeros((2, 3)), np.full((1, 2), -5), np.full((2, 1), 7)):
        model.check(data.astype(np.float32))
