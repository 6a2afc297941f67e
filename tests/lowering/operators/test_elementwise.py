"""Elementwise operators against onnxruntime: one module for all sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

import looplift

from ..compiled import NATIVE, virtual_machine
from ..conftest import parse
from .inputs import Load, check_reference, random


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        ("float", "int64"),
        ("float", "int32"),
        ("int32", "int32"),
        ("int64", "float"),
        ("double", "float"),
    ],
)
def test_powers_of_other_types(imported: Load, base: str, exponent: str) -> None:
    text = "g ({b}[n] x, {e}[n] p) => ({b}[n] y) {{ y = Pow (x, p) }}"
    model = imported(text.format(b=base, e=exponent))
    types = {"float": np.float32, "double": np.float64, "int32": np.int32, "int64": np.int64}
    values, powers = np.array([1, 2, 3, -2, 7]), np.array([4, 3, 0, 2, 5])
    model.check(values.astype(types[base]), powers.astype(types[exponent]))


@pytest.mark.parametrize(("negative", "positive"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_is_inf_of_either_sign(imported: Load, negative: int, positive: int) -> None:
    model = imported(
        f"""
        g (float[n] x) => (bool[n] y)
        {{ y = IsInf <detect_negative = {negative}, detect_positive = {positive}> (x) }}"""
    )
    model.check(np.array([np.inf, -np.inf, 1, np.nan], np.float32))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_bit_shift_by_any_amount(imported: Load, direction: str, dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    text = 'g ({0}[n] x, {0}[n] by) => ({0}[n] y) {{ y = BitShift <direction = "{1}"> (x, by) }}'
    amounts = np.array([0, 1, bits - 1, bits, bits + 3, 250], dtype)
    given = np.full(6, 200, dtype)
    (got,) = imported(text.format(dtype, direction)).run(given, amounts)
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    np.testing.assert_array_equal(got, np.where(amounts < bits, shift(given, amounts % bits), 0))


def test_modulo_of_floats_takes_the_sign_of_the_divisor(imported: Load) -> None:
    model = imported("g (float[n] x, float[m] by) => (float[?] z) { z = Mod (x, by) }")
    x = np.array([5.5, -5.5, 0, -0.5, 6, -6, 1, np.nan], np.float32)
    for by in (2, -2, np.inf, -np.inf, np.nan):
        divisor = np.full(1, by, np.float32)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(model.run(x, divisor)[0], np.mod(x, divisor))


def test_prelu_before_broadcasting_has_a_slope_for_each_channel(imported: Load) -> None:
    text = "g (float[2, 3, 3] x, float[3] slope) => (float[2, 3, 3] y) { y = PRelu (x, slope) }"
    x, slope = (
        np.linspace(-1, 1, 18, dtype="float32").reshape(2, 3, 3),
        np.array([1, 2, 3], "float32"),
    )
    for opset, own in ((6, slope.reshape(3, 1)), (7, slope)):
        (got,) = imported(f'<ir_version: 4, opset_import: ["" : {opset}]> {text}').run(x, slope)
        np.testing.assert_allclose(got, np.where(x < 0, own * x, x))


def test_elu_in_half_precision(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (float16[n] x, double[n] d) => (float16[n] y, double[n] z) {
        y = Elu <alpha = 0.5> (x) z = Elu (d)
    }""")
    x = np.array([-np.inf, -60000, -1, -1e-4, 0, 2, np.inf], np.float16)
    check_reference(model, x, x.astype(np.float64), tolerance=1e-3)


def test_softplus_and_mish_keep_the_digits_of_small_results(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (float[n] x, float16[n] h) => (float[n] y, float[n] z, float16[n] w) {
        y = Softplus (x) z = Mish (x) w = Mish (h)
    }""")
    x = np.array([-np.inf, -200, -90, -20, -9, -1, 0, 1, 30, 500, np.inf], np.float32)
    y, z, w = model.run(x, x.astype(np.float16))
    wide = x[1:-1].astype(np.float64)
    wanted = np.log1p(np.exp(wide))
    np.testing.assert_allclose(y[1:-1], wanted, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(z[1:-1], wide * np.tanh(wanted), rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(w[1:-1], wide * np.tanh(wanted), rtol=2e-3, atol=1e-7)
    assert (y[0], y[-1], z[-1]) == (0, np.inf, np.inf)


def test_signs(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (uint8[n] x, int8[n] d, float[n] f) => (uint8[n] y, int8[n] e, float[n] g) {
        y = Sign (x) e = Sign (d) g = Sign (f)
    }""")
    x, d = np.array([0, 1, 200], np.uint8), np.array([-128, 0, 5], np.int8)
    check_reference(model, x, d, d.astype(np.float32))


def test_bit_cast(imported: Load) -> None:
    model = imported("""
    <ir_version: 13, opset_import: ["" : 26]>
    g (float[n, 2] x, bool[n] b, uint8[n] u) => (uint32[n, 2] y, uint8[n] z, bool[n] c, float[n, 2] w,
      int8[n] s) {
        y = BitCast <to = 12> (x) z = BitCast <to = 2> (b) c = BitCast <to = 9> (z)
        w = BitCast <to = 1> (y) s = BitCast <to = 3> (u)
    }""")
    x = np.array([[-0.0, np.inf], [1e-40, 3]], np.float32)
    bits = np.array([True, False]), np.array([255, 7], np.uint8)
    check_reference(model, x, *bits)
    assert model.run(x[:0], bits[0][:0], bits[1][:0])[0].shape == (0, 2)


@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_hard_swish(imported: Load, dtype: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 14]> g ({dtype}[n] x) => ({dtype}[n] y) {{ y = HardSwish (x) }}'
    edges = np.array([-1e4, -3.5, -3, -1.5, -0.0, 0, 1e-3, 1.5, 3, 3.5, 1e4, np.nan])
    check_reference(
        imported(text),
        edges.astype(np.float16 if dtype == "float16" else np.float32),
        tolerance=2e-3,
    )


def test_powers_that_are_constants(imported: Load) -> None:
    """A square is a product, also of negative numbers; other powers are not."""
    model = imported("""g (float[n] x) => (float[n] square, float[n] cube, float[n] root)
        <float two = {2}, float three = {3}, float half = {0.5}> {
        square = Pow (x, two)  cube = Pow (x, three)  root = Pow (x, half) }""")
    model.check(np.array([-2.5, -0.0, 0, 0.5, 3, np.inf, np.nan], np.float32))
    model.check(np.zeros(0, np.float32))


@pytest.mark.parametrize("operator", ["LeakyRelu", "HardSigmoid"])
def test_attributes_left_out_have_their_float32_defaults(imported: Load, operator: str) -> None:
    model = imported(f"g (double[n] x) => (double[n] y) {{ y = {operator} (x) }}")
    x = np.linspace(-2, 2, 7)
    (got,) = model.run(x)
    want: list[Any] = list(ReferenceEvaluator(model.model).run(None, {"x": x}))
    np.testing.assert_allclose(got, want[0], rtol=1e-14)


@pytest.mark.parametrize(
    "operator", ["Celu", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Selu", "ThresholdedRelu"]
)
def test_activations_of_special_values(imported: Load, operator: str) -> None:
    model = imported(f"g (float[n] x) => (float[n] y) {{ y = {operator} (x) }}")
    model.check(np.array([np.nan, np.inf, -np.inf, 0, -0.5, 1, 2.5], np.float32))


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
def test_extremes_keep_nan_of_either_operand(imported: Load, kind: str) -> None:
    model = imported(f"""g ({kind}[n] x, {kind}[m, n] y)
        => ({kind}[m, n] a, {kind}[m, n] b, {kind}[m, n] c, {kind}[n] d, {kind}[n] e) {{
        one = Constant <value: tensor = {kind} one {{1}}> ()
        a = Max (x, y) b = Min (y, x) c = Max (y, x, y) d = Max (x, one) e = Min (one, x) }}""")
    dtype = {"float": np.float32, "double": np.float64, "float16": np.float16}[kind]
    values = np.array([np.nan, np.inf, -np.inf, -2, 0.5, 3], dtype)
    for rows in (values, values[::-1].copy(), values[:0]):
        model.check(values[: len(rows)], np.stack([rows, rows[::-1]]))


def test_a_constant_and_a_tensor_keep_nan_in_one_model() -> None:
    """Calls of equal types share a kernel, which must not depend on the constant."""
    model = parse("""g (float[3] x, float[3] y) => (float[3] a, float[3] b)
        <float[3] k = {1, 2, 3}> { a = Max (k, y) b = Max (x, y) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x, y = np.array([np.nan, 1, 2], np.float32), np.array([1, np.nan, 5], np.float32)
    a, b = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(y))
    np.testing.assert_array_equal(a.numpy(), [1, np.nan, 5])
    np.testing.assert_array_equal(b.numpy(), [np.nan, np.nan, 5])


def test_clip_keeps_nan(imported: Load) -> None:
    model = imported("""g (float[n] x, float low, float high) => (float[n] a, float[n] b, float[n] c)
        <float zero = {0}, float two = {2}> {
        a = Clip (x, zero, two) b = Clip (x, low, high) c = Clip (x, two, zero) }""")
    x = np.array([np.nan, np.inf, -np.inf, -2, 0.5, 3], np.float32)
    for low, high in ((0, 1), (np.nan, 1), (0, np.nan)):
        model.check(x, np.array(low, np.float32), np.array(high, np.float32))


def test_clip_by_attributes(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 6]>
        g (float[n] x) => (float[n] a, float[n] b, float[n] c) {
        a = Clip <min = -1.0, max = 2.0> (x) b = Clip <max = 2.0> (x) c = Clip (x) }""")
    model.check(np.array([np.nan, -3, -0.5, 2.5], np.float32))


def test_the_sign_of_nan_is_nan(imported: Load) -> None:
    model = imported(
        "g (float[n] x, int32[n] i) => (float[n] y, int32[n] j) { y = Sign (x) j = Sign (i) }"
    )
    model.check(np.array([np.nan, -0.0, 3, -np.inf], np.float32), np.array([1, 0, -5, 2], np.int32))


def test_division_by_the_constant_zero(imported: Load) -> None:
    model = imported("""g (float[n] x, double[n] z) => (float[n] y, double[n] w, float[n] v)
        <float zero = {0}, double minus = {-0.0}, float one = {1}> {
        y = Div (x, zero) w = Div (z, minus) v = Div (one, x) }""")
    values = np.array([1, -2, 0, -0.0, np.inf, -np.inf, np.nan])
    model.check(values.astype(np.float32), values)


def test_a_prelu_whose_channels_the_run_finds_to_be_those_of_the_slope(imported: Load) -> None:
    model = imported(
        "g (float[n, c, w] x, float[4, 1] s) => (float[n, c, w] y) { y = PRelu (x, s) }"
    )
    model.check(random(2, 4, 3), random(4, 1))


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_a_prelu_of_one_slope(imported: Load, shape: tuple[int, ...]) -> None:
    dims = "[" + ", ".join(map(str, shape)) + "]"
    model = imported(
        f"g (float[n, c, w] x, float{dims} s) => (float[n, c, w] y) {{ y = PRelu (x, s) }}"
    )
    model.check(random(2, 4, 3), random(*shape))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["float16", "float"])
def test_gelu_of_negative_numbers(imported: Load, dtype: str, approximate: str) -> None:
    """In half precision, 1 + erf(x / √2) would have few digits."""
    model = imported(f"""
    <ir_version: 9, opset_import: ["" : 20]>
    g ({dtype}[n] x) => ({dtype}[n] y) {{ y = Gelu <approximate = "{approximate}"> (x) }}""")
    x = np.linspace(-5, 5, 101).astype("float32" if dtype == "float" else dtype)
    (expected,) = model.session.run(None, {"x": x})
    rtol, atol = (1e-5, 1e-6) if dtype == "float" else (2e-3, 1e-6)
    np.testing.assert_allclose(model.run(x)[0], expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("node", "compute"),
    [
        ("Sign (x)", np.sign),
        ("IsInf (x)", np.isinf),
        ("Clip (x, , k)", lambda x: np.minimum(x, 2)),
        ("IsNaN (x)", np.isnan),
        ("Max (x, b)", lambda x, b: np.maximum(x, b)),
        ("Min (x, b)", lambda x, b: np.minimum(x, b)),
        ("Pow (x, b)", lambda x, b: np.power(x, b)),
        ("Mod <fmod = 1> (x, b)", lambda x, b: np.fmod(x, b)),
        ("ArgMax <axis = 0, keepdims = 0> (b)", np.argmax),
        ("TopK <axis = 0> (b, one)", lambda b: b.max(keepdims=True)),
        ("Hardmax <axis = 0> (b)", lambda b: (b == b.max()) * np.float32(1)),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_bfloat16(imported: Load, node: str, compute: Callable[..., Any]) -> None:
    """onnxruntime has no kernels for it."""
    given = {
        "x": np.array([1, -2.5, 0, np.nan, 300, -0.125], np.float32),
        "b": np.array([2, 3, 1, 1, 0.5, 2], np.float32),
    }
    names = [name for name in given if re.search(rf"\b{name}\b", node.partition("(")[2])]
    wanted = np.asarray(compute(*(given[name] for name in names)))
    kind = {"b": "bool", "i": "int64", "f": "bfloat16"}[wanted.dtype.kind]
    inputs = ", ".join(f"bfloat16[n] {name}" for name in names)
    shape = "[n]" if wanted.ndim else ""
    results = "y, places" if node.startswith("TopK") else "y"
    model = imported(f"""
    <ir_version: 10, opset_import: ["" : 24]>
    g ({inputs}) => ({kind}{shape} y) <int64[1] one = {{1}}> {{
        two = Constant <value_float = 2.0> () k = Cast <to = 16> (two) {results} = {node} }}""")
    (got,) = model.run(*(given[name].astype(ml_dtypes.bfloat16) for name in names))
    if kind == "bfloat16":
        wanted, got = wanted.astype(ml_dtypes.bfloat16), got.astype(np.float32)
    np.testing.assert_array_equal(got, wanted.astype(got.dtype))


@pytest.mark.parametrize(
    "body",
    [
        "a = Add (x, m) y = Sub (a, m)",
        "k = Mul (x, four) a = Add (m, k) b = Sub (a, m) y = Div (b, four)",
        "a = Add (x, m) b = Sub (a, m) e = Exp (x) y = Mul (b, e)",
        "a = Sub (x, m) y = Add (a, m)",
        "s = Sigmoid (x) a = Add (s, m) y = Sub (m, a)",
        "y = Sub (x, x)",
        "d = Sub (x, x) y = Reciprocal (d)",
        "a = Add (x, x) y = Sub (x, a)",
        "l = Log (x) e = Equal (l, l) y = Where (e, l, m)",
        "l = Log (x) e = LessOrEqual (l, l) y = Where (e, l, m)",
        "y = Mul (x, zero)",
        "l = Log (x) y = Mul (zero, l)",
    ],
)
def test_floats_are_rounded_in_between(imported: Load, body: str) -> None:
    """A large number that is added and subtracted rounds; infinity minus infinity is NaN."""
    model = imported(f"""
    g (float[n] x) => (float[n] y) <float m = {{12582912.0}}, float four = {{4.0}}, float zero = {{0.0}}> {{
        {body} }}""")
    model.check(np.array([0.691, 1.643, -3.3, np.inf, np.nan], np.float32))


def test_differences_of_equal_values_in_bfloat16(imported: Load) -> None:
    """One kernel computes them in float32 and may keep its digits in between."""
    model = imported("""
    <ir_version: 10, opset_import: ["" : 21]>
    g (bfloat16[n] x) => (bfloat16[n] y, bfloat16[n] z, bool[n] e) {
        hundred = Constant <value_float = 100.0> () m = CastLike (hundred, x)
        a = Add (x, m) y = Sub (a, m) z = Sub (x, x) l = Log (x) e = Equal (l, l) }""")
    x = np.array([0.3, 1.7, -3.2, np.inf], np.float32).astype(ml_dtypes.bfloat16)
    y, z, e = (result.astype(np.float32) for result in model.run(x))
    np.testing.assert_allclose(y, x.astype(np.float32), atol=0.25)  # half a step near 100
    np.testing.assert_array_equal(z, np.array([0, 0, 0, np.nan], np.float32))
    np.testing.assert_array_equal(e, [1, 1, 0, 1])
