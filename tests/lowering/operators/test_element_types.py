"""Operators on element types, and with sizes, that TVM's converters refuse, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ...samples import one_of
from .inputs import Load, random

TYPES: dict[str, Any] = {
    "float16": np.float16, "float": np.float32, "double": np.float64, "int8": np.int8,
    "uint8": np.uint8, "int16": np.int16, "int32": np.int32, "uint32": np.uint32, "int64": np.int64,
}  # fmt: skip
SIZES = [(2, 5), (0, 3), (1, 1)]


def check(imported: Load, text: str, dtype: str, sizes: Any = SIZES, opset: int = 17) -> None:
    model = imported(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g ({dtype}[n, m] x) => ({dtype}[k, l] y) {{ {text} }}""")
    for shape in sizes:
        numbers = random(*shape)
        if "int" in dtype:
            numbers = np.abs(numbers * 20) + 1
        model.check(numbers.astype(TYPES[dtype]))


@pytest.mark.parametrize("function", one_of(2, ["Asinh", "Atan", "Cosh", "Sinh"]))
def test_functions_of_float16(imported: Load, function: str) -> None:
    check(imported, f"y = {function} (x)", "float16")


@pytest.mark.parametrize("function", one_of(3, ["Acos", "Asin", "Atanh", "Acosh"]))
def test_functions_of_float16_with_a_domain(imported: Load, function: str) -> None:
    model = imported(f"g (float16[n] x) => (float16[n] y) {{ y = {function} (x) }}")
    numbers = np.linspace(-0.9, 0.9, 7) if function != "Acosh" else np.linspace(1, 9, 7)
    model.check(numbers.astype(np.float16))


@pytest.mark.parametrize("attributes", ["", "<alpha = 2.0, gamma = 0.5>"])
@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_selu(imported: Load, dtype: str, attributes: str) -> None:
    check(imported, f"y = Selu {attributes} (x)", dtype)


def test_selu_of_infinities(imported: Load) -> None:
    model = imported("g (float[n] x) => (float[n] y) { y = Selu (x) }")
    model.check(np.array([np.inf, -np.inf, np.nan, 0], np.float32))


@pytest.mark.parametrize(
    "dtype", one_of(2, ["double", "uint8", "int64", "uint32", "float", "int8"])
)
def test_shrink(imported: Load, dtype: str) -> None:
    check(imported, "y = Shrink <lambd = 3.0, bias = 1.5> (x)", dtype)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_first_maximum(imported: Load, axis: int) -> None:
    text = f"f = Floor (x) y = Hardmax <axis = {axis}> (f)"
    check(imported, text, "float", [(2, 5), (3, 3), (1, 1), (2, 0)])


def test_the_first_maximum_of_infinities(imported: Load) -> None:
    model = imported("g (float[n, m] x) => (float[n, m] y) { y = Hardmax (x) }")
    model.check(np.array([[-np.inf, -np.inf], [-np.inf, 1], [np.inf, np.inf]], np.float32))


def test_the_first_maximum_of_several_axes(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 11]>
        g (float[n, m, k] x) => (float[n, m, k] y) { y = Hardmax <axis = 1> (x) }""")
    for shape in ((2, 3, 4), (1, 1, 5)):
        model.check(random(*shape))


def test_local_responses_of_float16(imported: Load) -> None:
    model = imported("""
        g (float16[n, c, h, w] x) => (float16[n, c, h, w] y) { y = LRN <size = 3> (x) }""")
    model.check(random(2, 4, 3, 1).astype(np.float16))


def test_layer_normalization_of_float64(imported: Load) -> None:
    model = imported("""
        g (double[n, m] x, double[m] s) => (double[n, m] y, float[n, k] mean) {
            y, mean = LayerNormalization (x, s, s)
        }""")
    for shape in ((3, 5), (0, 2), (2, 1)):
        model.check(random(*shape).astype(np.float64), random(shape[1]).astype(np.float64))


def test_the_largest_of_int16(imported: Load) -> None:
    text = "count = Constant <value_ints = [1]> () y, places = TopK (x, count)"
    check(imported, text, "int16", [(2, 5), (0, 3), (1, 1)])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("function", ["L2", "LogSum"])
def test_reductions_of_integers(imported: Load, function: str, dtype: str) -> None:
    """The result is rounded towards 0."""
    check(imported, f"y = Reduce{function} <axes = [1]> (x)", dtype, [(2, 5), (3, 1)])


def test_sums_of_exponentials_of_integers(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 13]>
        g (int32[n, m] x) => (int32[n, 1] y) { y = ReduceLogSumExp <axes = [1]> (x) }""")
    model.check(np.array([[1, 2, 3], [0, 0, 0]], np.int32))
