"""Pooling of fewer channels than a vector has lanes, and the counts of means."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.pooling import Pooling

from .comparison import check
from .compiled import virtual_machine
from .conftest import parse

WINDOWS = {
    "same": ([3, 3], "pads = [1, 1, 1, 1]"),
    "strided": ([3, 3], "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "halved": ([2, 2], "strides = [2, 2]"),
    "unequal": ([2, 4], "pads = [0, 2, 1, 1], strides = [3, 2], ceil_mode = 1"),
    "a column": ([3, 1], "pads = [1, 0, 1, 0]"),
    "dilated": ([3, 3], "pads = [1, 2, 0, 1], dilations = [2, 3]"),
    "stride beyond the window": ([1, 2], "strides = [2, 3]"),
}
SIZES = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 7, 7), (2, 5, 18), (1, 61, 48), (1, 5, 200), (3, 5, 9), (1, 5, 700))
]


def _is_taken(text: str) -> bool:
    with as_target("native") as target:
        functions = lower_to_kernels(looplift.from_onnx(parse(text))).functions.values()
        kernels = [f for f in functions if isinstance(f, tirx.PrimFunc)]
        return sum(Pooling().apply(kernel, target, False) is not None for kernel in kernels) == 1


@pytest.mark.parametrize("name", WINDOWS)
def test_maxima(name: str) -> None:
    window, attributes = WINDOWS[name]
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        p = MaxPool <kernel_shape = {window}, {attributes}> (x) y = Neg (p) }}"""
    assert _is_taken(text)
    check(text, {}, SIZES)


@pytest.mark.parametrize("name", ["same", "strided", "unequal", "a column"])
@pytest.mark.parametrize("counts_padding", [0, 1])
def test_means(name: str, counts_padding: int) -> None:
    window, attributes = WINDOWS[name]
    if counts_padding:
        attributes = f"{attributes}, count_include_pad = 1".replace(", ceil_mode = 1", "")
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        p = AveragePool <kernel_shape = {window}, {attributes}> (x) y = Relu (p) }}"""
    assert _is_taken(text)
    check(text, {}, SIZES)


@pytest.mark.parametrize(
    ("shape", "expected"), [("b, 24, h, w", 2), ("b, 24, 9, 20", 1), ("1, 3, 9, 20", 1)]
)
def test_a_kernel_of_its_own_counts_the_elements_of_windows(shape: str, expected: int) -> None:
    """Their number is a constant if the size is known."""
    text = f"""model (float[{shape}] x) => (float[?, ?, ?, ?] y) {{
        y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }}"""
    check(text, {}, [{"b": b, "h": 9, "w": 20} for b in (1, 2)] if "b" in shape else [{}])
    with as_target("native"):
        functions = lower_to_kernels(looplift.from_onnx(parse(text))).functions.values()
    assert sum(isinstance(function, tirx.PrimFunc) for function in functions) == expected


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_lines(op: str) -> None:
    text = f"""model (float[2, 5, n] x) => (float[?, ?, ?] y) {{
        y = {op} <kernel_shape = [5], pads = [2, 2], strides = [2]> (x) }}"""
    assert _is_taken(text)
    check(text, {}, [{"n": n} for n in (3, 7, 30, 4000)])


def test_maxima_of_infinities() -> None:
    text = """model (float[1, 3, h, w] x) => (float[?, ?, ?, ?] y) {
        y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }"""
    machine = virtual_machine(looplift.compile(looplift.from_onnx(parse(text)), "native"))
    x = np.random.default_rng(0).standard_normal((1, 3, 6, 40)).astype(np.float32)
    x[0, 0, 0, 0], x[0, 1, 3, 17], x[0, 2, 5, 39] = np.inf, -np.inf, np.inf
    x[0, 1, 1, 1:4] = -np.inf
    (expected,) = onnxruntime.InferenceSession(parse(text).SerializeToString()).run(None, {"x": x})
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, expected)
