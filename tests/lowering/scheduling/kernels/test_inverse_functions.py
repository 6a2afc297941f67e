"""Asin, Acos and Atan in arithmetic, against NumPy and onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.tirx.script import builder as ib

from looplift.lowering.scheduling.kernels.math_functions import with_fast_math

from ....samples import one_of
from ...comparison import TARGETS, check
from ...conftest import Imported
from ..test_pipeline import elementwise

Array = np.ndarray[Any, Any]


def _computed(function: Callable[[Any], Any], x: Array) -> Array:
    kernel = with_fast_math(elementwise(function, len(x)))
    assert not any(name in kernel.script() for name in ("T.acos", "T.asin", "T.atan"))
    output = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(tvm.IRModule({"main": kernel}), "llvm")["main"](tvm.runtime.tensor(x), output)
    result: Array = output.numpy()
    return result


def _numbers(largest: float) -> Array:
    """Numbers of all magnitudes up to the largest, their negatives, and what lies beyond."""
    last = int(np.float32(largest).view(np.uint32))
    bits = np.linspace(0, last, 1 << 19).astype(np.uint32)
    bits[-4096:] = last - np.arange(4096)[::-1]
    positive = bits.view(np.float32)
    edges = [np.nan, np.inf, -np.inf, 1.0000001, -1.0000001, 0.5, -0.5, 0.50000006, 2, -3e38]
    some = np.array([*edges, 1e-45, -1e-45, 1e-39, 0.0, -0.0, 1.0], np.float32)
    return np.concatenate([positive, -positive, some])


@pytest.mark.parametrize(
    ("function", "reference", "largest"),
    [
        (ib.asin, np.arcsin, 1.0),
        (ib.acos, np.arccos, 1.0),
        (ib.atan, np.arctan, np.finfo(np.float32).max),
    ],
    ids=["asin", "acos", "atan"],
)
def test_inverse_functions_are_as_precise_as_float32(
    function: Callable[[Any], Any], reference: Callable[[Array], Array], largest: float
) -> None:
    x = _numbers(largest)
    got = _computed(function, x)
    with np.errstate(invalid="ignore"):
        wanted = reference(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, wanted, rtol=3e-7, atol=1e-45)
    is_number = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got[is_number]), np.signbit(wanted[is_number]))


@pytest.mark.parametrize("target", one_of(2, TARGETS))
def test_models_with_inverse_functions(target: Any) -> None:
    text = """g (float[n, 5] x) => (float[n, 5] y, float[n, 5] z, float[n, 5] w) {
        t = Tanh (x) y = Asin (t) a = Acos (x) z = Sin (a) b = Atan (x) w = Mul (b, x) }"""
    check(text, {}, [{"n": n} for n in (0, 1, 7, 40)], target)


def test_other_types(imported: Callable[..., Imported]) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (double[n] x, float16[n] h) => (double[n] y, double[n] z, float16[n] w) {
        y = Atan (x) z = Acos (x) w = Asin (h) }""")
    x = np.linspace(-1, 1, 33)
    y, z, w = model.run(x, x.astype(np.float16))
    np.testing.assert_allclose(y, np.arctan(x), rtol=1e-14)
    np.testing.assert_allclose(z, np.arccos(x), rtol=1e-14)
    np.testing.assert_allclose(w, np.arcsin(x.astype(np.float16)), rtol=1e-3)


def test_functions_of_functions_in_a_loop(imported: Callable[..., Imported]) -> None:
    model = imported("""g (int64 n, float[a, 20] x) => (float[?, ?] last, float[?, ?, ?] ys)
    <bool yes = {1}> {
        last, ys = Loop (n, yes, x) <body = b (int64 i, bool c, float[a, 20] s)
            => (bool d, float[a, 20] t, float[a, 20] u) {
            d = Identity (c) p = Sin (s) q = Atan (p) t = Acos (q) u = Asin (q) }>
    }""")
    model.check(np.array(3), np.random.default_rng(0).standard_normal((7, 20)).astype(np.float32))
