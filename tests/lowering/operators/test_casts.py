"""Casts to and from float8: all codes, and numbers next to every rounding limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

Load = Callable[..., Any]
TYPES = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")


def rounding(target: str, saturate: int) -> bytes:
    """float32 -> float8 -> float32."""
    helper, tensor = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=getattr(tensor, target), saturate=saturate),
        helper.make_node("Cast", ["y"], ["z"], to=tensor.FLOAT),
    ]
    values = [helper.make_tensor_value_info(name, tensor.FLOAT, ["n"]) for name in "xz"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opset = [helper.make_opsetid("", 21)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return bytes(model.SerializeToString())


def numbers(target: str) -> Any:
    """All numbers of a type, the midpoints between two of them, and the neighbours of these."""
    dtype = {
        "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
        "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "FLOAT8E5M2": ml_dtypes.float8_e5m2,
        "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    }[target]
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    between = (finite[1:] + finite[:-1]) / 2
    around = [np.nextafter(between, np.float32(limit)) for limit in (-1e30, 1e30)]
    return np.concatenate([finite, between, *around])


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("saturate", [0, 1])
def test_rounding(imported: Load, target: str, saturate: int) -> None:
    imported(rounding(target, saturate)).check(numbers(target))


@pytest.mark.parametrize("target", TYPES)
def test_overflow_saturates(imported: Load, target: str) -> None:
    large = np.array([1e30, 7e4, 470, 250, np.inf, np.nan], np.float32)
    imported(rounding(target, 1)).check(np.concatenate([large, -large]))


@pytest.mark.parametrize("target", TYPES)
def test_overflow_without_saturation(imported: Load, target: str) -> None:
    (got,) = imported(rounding(target, 0)).run(np.array([1e30, -np.inf, np.nan], np.float32))
    infinite = np.array([np.inf, -np.inf, np.nan]) if target == "FLOAT8E5M2" else [np.nan] * 3
    np.testing.assert_array_equal(got, infinite)


SMALL = """
<ir_version: 13, opset_import: ["" : 26]>
g (float[n] x) => (float[n] y, {result}[n] z) {{ z = Cast <to = {to}> (x) y = Cast <to = 1> (z) }}"""


@pytest.mark.parametrize("result", ["int4", "uint4", "int2", "uint2"])
def test_small_integers_round_and_wrap(imported: Load, result: str) -> None:
    to = getattr(onnx.TensorProto, result.upper())
    x = np.array([-9, -8, -2.5, -1, -0.4, 0, 0.5, 1.5, 1.9, 7, 8, 17], np.float32)
    y, z = imported(SMALL.format(result=result, to=to)).run(x)
    bits, signed = int(result[-1]), not result.startswith("u")
    want = (np.sign(x) * np.floor(np.abs(x) + 0.5)).astype(int) % 2**bits
    want -= 2**bits * (signed & (want >= 2 ** (bits - 1)))
    np.testing.assert_array_equal(z, want)
    np.testing.assert_array_equal(y, want)
    assert z.dtype == (np.int8 if signed else np.uint8)


@pytest.mark.parametrize("source", ["float", "float16", "int32"])
@pytest.mark.parametrize("result", ["INT4", "UINT4"])
def test_small_integers_are_those_of_onnxruntime(imported: Load, source: str, result: str) -> None:
    model = imported(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g ({source}[n] x) => (int32[n] y) {{
        a = Cast <to = {getattr(onnx.TensorProto, result)}> (x) y = Cast <to = 6> (a) }}""")
    numbers = np.arange(-40, 41) / 2
    model.check(numbers.astype({"float": "f4", "float16": "f2", "int32": "i4"}[source]))


@pytest.mark.parametrize("source", ["float", "float16", "double"])
def test_a_cast_to_bfloat16_and_back_rounds(imported: Load, source: str) -> None:
    model = imported(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g ({source}[n] x) => (float[n] y) {{
        a = Cast <to = 16> (x) b = Cast <to = 1> (a) y = Mul (b, b) }}""")
    numbers = [1 + k / 512 for k in range(9)] + [0, 1e-7, 6e4, np.inf, np.nan]
    x = np.array([*numbers, *np.negative(numbers)], np.float32)
    x = x.astype({"float": "f4", "float16": "f2", "double": "f8"}[source])
    (got,) = model.run(x)
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, rounded * rounded)


def test_small_floats_round_to_even_and_saturate(imported: Load) -> None:
    model = imported(SMALL.format(result="float4e2m1", to=onnx.TensorProto.FLOAT4E2M1))
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    between = (numbers[1:] + numbers[:-1]) / 2
    around = [np.nextafter(between, np.float32(limit)) for limit in (0, 99)]
    x = np.concatenate([numbers, between, *around, [7, 1e30, np.inf]]).astype(np.float32)
    y, z = model.run(np.concatenate([x, -x]))
    want = np.concatenate([x, -x]).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(y, want)
    assert z.dtype.name == "float8_e4m3fn"


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_exponents(imported: Load, mode: str) -> None:
    model = imported(f"""
    <ir_version: 13, opset_import: ["" : 26]>
    g (float[n] x) => (float[n] y, float[n] z) {{
        a = Cast <to = 24, round_mode = "{mode}"> (x) y = Cast <to = 1> (a)
        b = Cast <to = 24, round_mode = "{mode}", saturate = 0> (x) z = Cast <to = 1> (b)
    }}""")
    x = np.array([1, 1.25, 1.5, 1.75, 3, 1e-40, 3.4e38, np.nan], np.float32)
    for got, saturates in zip(model.run(x), (True, False), strict=True):
        want = onnx.numpy_helper.to_float8e8m0(x, saturates, mode).astype(np.float32)
        np.testing.assert_array_equal(got, want)


def test_cast_like(imported: Load) -> None:
    model = imported("""
    <ir_version: 9, opset_import: ["" : 19]>
    g (float[n] x, int32[k] i) => (int32[n] y, float[n] z) {
        like = Constant <value = float8e5m2[1] {1}> ()
        y = CastLike (x, i) f = CastLike (x, like) z = CastLike (f, x)
    }""")
    model.check(np.array([1.5, -2.25, 1e9], np.float32)[:2], np.array([1], np.int32))


@pytest.mark.parametrize(("code", "dtype"), [(7, np.int64), (6, np.int32), (10, np.float16)])
def test_bfloat16(imported: Load, code: int, dtype: type) -> None:
    name = np.dtype(dtype).name
    model = imported(f"g (bfloat16[n] x) => ({name}[n] y) {{ y = Cast <to = {code}> (x) }}")
    x = np.array([-3.5, 0.0, 1.25, 7.75], np.float32).astype(ml_dtypes.bfloat16)
    for values in (x, x[:1], x[:0]):
        (y,) = model.run(values)
        np.testing.assert_array_equal(y, values.astype(np.float32).astype(dtype))
