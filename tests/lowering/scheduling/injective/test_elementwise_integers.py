"""Elementwise operators of quantised tensors and integers: vectors do not trap past the end."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift

from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

OPERATORS = {
    "quotient": "z = Div (x, y)",
    "remainder": "z = Mod (x, y)",
    "quotient of a sum": "s = Add (x, y) z = Div (s, y)",
    "sum and product": "s = Add (x, y) z = Mul (s, x)",
    "number of a byte": "c = Cast <to = 2> (x) d = Cast <to = 1> (c) e = Sqrt (d) z = Cast <to = 6> (e)",
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("size", [0, 1, 3, 16, 19])
def test_operators_of_integers(name: str, size: int) -> None:
    """Of fewer elements than a vector has, as many, and more."""
    model = parse(f"""<ir_version: 8, opset_import: ["" : 18]>
        model (int32[n] x, int32[n] y) => (int32[n] z) {{ {OPERATORS[name]} }}""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x, y = np.arange(size, dtype=np.int32), np.full(size, 7, np.int32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "y": y})
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    np.testing.assert_array_equal(got, want)


def test_a_product_that_is_divided() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 18]>
        model (uint8[m, 8] x, int8[8, 3] w, int32[m, 3] y) => (int32[m, 3] z) {
            p = MatMulInteger (x, w) z = Div (p, y) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 5, 13):
        feed = {
            "x": np.full((rows, 8), 200, np.uint8),
            "w": np.full((8, 3), -3, np.int8),
            "y": np.full((rows, 3), 7, np.int32),
        }
        (want,) = session.run(None, feed)
        got = machine["main"](*map(tvm.runtime.tensor, feed.values())).numpy()
        np.testing.assert_array_equal(got, want)


def test_a_product_that_divides() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 18]>
        model (uint8[m, 8] x, int8[8, n] w, int32[m, n] y) => (int32[m, n] z) {
            p = MatMulInteger (x, w) z = Div (y, p) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for columns in (3, 17):
        x, w = np.full((5, 8), 2, np.uint8), np.full((8, columns), 1, np.int8)
        y = np.full((5, columns), 100, np.int32)
        got = machine["main"](*map(tvm.runtime.tensor, (x, w, y))).numpy()
        np.testing.assert_array_equal(got, y // 16)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_quotients_that_overflow(dtype: str) -> None:
    """A processor traps at -128 / -1; onnxruntime computes in int32."""
    model = parse(f"""<ir_version: 8, opset_import: ["" : 18]>
        model ({dtype}[n] x, {dtype}[n] y) => ({dtype}[n] q, {dtype}[n] r) {{
            q = Div (x, y) r = Mod (x, y) }}""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    least = np.iinfo(dtype).min
    x, y = np.array([least, 5, -7], dtype), np.array([-1, 2, 3], dtype)
    quotients, rests = (each.numpy() for each in machine["main"](*map(tvm.runtime.tensor, (x, y))))
    np.testing.assert_array_equal(quotients, np.array([least, 2, -2], dtype))
    np.testing.assert_array_equal(rests, np.array([0, 1, 2], dtype))
