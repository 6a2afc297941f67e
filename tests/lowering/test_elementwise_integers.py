"""Elementwise operators of quantised tensors and integers: vectors do not trap past the end."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift

from .compiled import virtual_machine
from .conftest import parse

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
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), "native"))
    x, y = np.arange(size, dtype=np.int32), np.full(size, 7, np.int32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "y": y})
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y)).numpy()
    np.testing.assert_array_equal(got, want)


def test_a_product_that_is_divided() -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 18]>
        model (uint8[m, 8] x, int8[8, 3] w, int32[m, 3] y) => (int32[m, 3] z) {
            p = MatMulInteger (x, w) z = Div (p, y) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), "native"))
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
