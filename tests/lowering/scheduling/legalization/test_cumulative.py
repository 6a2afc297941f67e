"""Cumulative sums and products along any axis, against onnxruntime and NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check
from ...compiled import NATIVE, virtual_machine
from ...conftest import Imported, parse

SHAPES = [(2, 5, 3), (1, 1, 1), (3, 4, 600), (2, 0, 3), (0, 2, 3), (2, 3, 0), (1, 70, 33)]


def _model(dtype: str, axis: int, attributes: str = "", dims: str = "a, b, c") -> str:
    return f"""g ({dtype}[{dims}] x) => ({dtype}[{dims}] y) <int64 axis = {{{axis}}}> {{
        y = CumSum {attributes} (x, axis) }}"""


@pytest.mark.parametrize(
    ("axis", "attributes"),
    one_of(3, itertools.product((0, 1, -1), ("", "<exclusive = 1>", "<reverse = 1>"))),
)
def test_sums(axis: int, attributes: str) -> None:
    sizes = [dict(zip("abc", shape, strict=True)) for shape in SHAPES]
    check(_model("float", axis, attributes), {}, sizes)


@pytest.mark.parametrize("target", one_of(2, TARGETS))
def test_vectors_of_any_width(target: Any) -> None:
    check(_model("float", 1, dims="2, n, 37"), {}, [{"n": n} for n in (0, 1, 9)], target)


@pytest.mark.parametrize("dims", ["3, 5, 7", "2, 1, 300", "2, 3, 1"])
def test_known_sizes(dims: str) -> None:
    check(_model("float", 1, dims=dims), {}, [{}])


@pytest.mark.parametrize(
    ("dtype", "kind"), [("double", np.float64), ("int32", np.int32), ("int64", np.int64)]
)
def test_other_types(dtype: str, kind: Any, imported: Callable[..., Imported]) -> None:
    model = imported(_model(dtype, 1, "<exclusive = 1, reverse = 1>"))
    for shape in ((2, 5, 19), (2, 0, 3)):
        model.check((np.random.default_rng(0).standard_normal(shape) * 9).astype(kind))


def test_zeros_keep_their_sign_and_what_is_not_finite_spreads() -> None:
    text = _model("float", 0, dims="n, 20")
    x = np.full((5, 20), -0.0, np.float32)
    x[2, :4] = np.nan, np.inf, -np.inf, 1
    x[3, 1:3] = -np.inf, -1
    machine = virtual_machine(looplift.compile(looplift.from_onnx(parse(text)), NATIVE))
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    (want,) = onnxruntime.InferenceSession(parse(text).SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[:, 4:]), np.signbit(want[:, 4:]))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_exclusive", [False, True])
def test_products(axis: int, is_exclusive: bool) -> None:
    text = f"""<ir_version: 13, opset_import: ["" : 26]>
        g (float[a, b] x) => (float[a, b] y) <int64 axis = {{{axis}}}> {{
            y = CumProd <exclusive = {int(is_exclusive)}> (x, axis) }}"""
    machine = virtual_machine(looplift.compile(looplift.from_onnx(parse(text)), NATIVE))
    for shape in ((5, 40), (1, 1), (0, 3), (3, 0)):
        x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)
        want = np.cumprod(x, axis)
        if is_exclusive:
            want = np.insert(want, 0, 1, axis).take(range(shape[axis]), axis)
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_sums_in_a_loop(imported: Callable[..., Imported]) -> None:
    model = imported("""g (int64 n, float[a, 20] x) => (float[?, ?, ?] ys) <bool yes = {1}> {
        last, ys = Loop (n, yes, x) <body = b (int64 i, bool c, float[a, 20] s)
            => (bool d, float[a, 20] t, float[a, 20] u) <int64 axis = {0}> {
            d = Identity (c) u = CumSum (s, axis) t = Sin (u) }>
    }""")
    model.check(np.array(3), np.random.default_rng(0).standard_normal((7, 20)).astype(np.float32))


def test_an_axis_without_elements_needs_no_copies() -> None:
    """They would guard TVM's kernel, which always reads the first element."""
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(parse(_model("float", 1))))
    assert module["main"].script().count("R.call_tir(") == 1
