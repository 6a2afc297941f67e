"""Pooling of fewer channels than a vector has lanes, and the counts of means."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.channel_lanes import ChannelLanes
from looplift.lowering.scheduling.convolutions.pooling import Pooling
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, with_weights
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

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
    for b, h, w in (
        (1, 7, 7),
        (1, 5, 5),
        (2, 5, 18),
        (1, 61, 48),
        (1, 5, 200),
        (3, 5, 9),
        (1, 5, 700),
    )
]


def _check_taken(text: str, sizes: Sequence[dict[str, int]], target: Any = "native") -> None:
    """The rule takes the kernels, and they compute what onnxruntime computes.

    A mean has a second one where the share of padding is known at run time only.
    """
    assert taken_by(Pooling(), text, {})
    check(text, {}, sizes, target)


@pytest.mark.parametrize("name", one_of(2, WINDOWS))
def test_maxima(name: str) -> None:
    window, attributes = WINDOWS[name]
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        p = MaxPool <kernel_shape = {window}, {attributes}> (x) y = Neg (p) }}"""
    _check_taken(text, SIZES)


@pytest.mark.parametrize(
    ("name", "counts_padding"),
    one_of(3, itertools.product(("same", "strided", "unequal", "a column"), (0, 1))),
)
def test_means(name: str, counts_padding: int) -> None:
    window, attributes = WINDOWS[name]
    if counts_padding:
        attributes = f"{attributes}, count_include_pad = 1".replace(", ceil_mode = 1", "")
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        p = AveragePool <kernel_shape = {window}, {attributes}> (x) y = Relu (p) }}"""
    _check_taken(text, SIZES)


@pytest.mark.parametrize(
    ("op", "target"), one_of(2, itertools.product(["MaxPool", "AveragePool"], TARGETS))
)
def test_vectors_of_any_width(op: str, target: Any) -> None:
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        y = {op} <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x) }}"""
    _check_taken(text, [*SIZES, {"b": 1, "h": 1, "w": 1}], target)


FULL = {
    "as high as the image": ("1, 3, 2, 20", "[2, 3]", ""),
    "as wide as the image": ("1, 3, 20, 3", "[2, 3]", ""),
    "as large as the image": ("2, 3, 4, 5", "[4, 5]", ""),
    "with padding": ("1, 3, 2, 20", "[2, 3]", ", pads = [0, 1, 0, 1]"),
    "as deep as the volume": ("1, 3, 2, 6, 20", "[2, 3, 3]", ""),
}


@pytest.mark.parametrize(
    ("op", "name"), one_of(2, itertools.product(("MaxPool", "AveragePool"), FULL))
)
def test_windows_that_span_an_axis(name: str, op: str) -> None:
    shape, window, attributes = FULL[name]
    text = f"""model (float[{shape}] x) => (y) {{
        y = {op} <kernel_shape = {window}{attributes}> (x) }}"""
    check(text, {}, [{}])


@pytest.mark.parametrize("channels", one_of(2, [24, 3]))
@pytest.mark.parametrize("attributes", ["", ", pads = [1, 0, 1, 1]", ", ceil_mode = 1"])
def test_means_of_windows_that_do_not_overlap(channels: int, attributes: str) -> None:
    """They are added up as fast where they are: no rule takes them."""
    text = f"""model (float[b, {channels}, h, w] x) => (float[?, ?, ?, ?] y) {{
        y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]{attributes}> (x) }}"""
    for rule in (Pooling(), ChannelLanes()):
        assert not taken_by(rule, text, {})
    check(text, {}, SIZES)


@pytest.mark.parametrize("channels", [3, 24])
@pytest.mark.parametrize(
    "attributes",
    ["strides = [1, 1]", "ceil_mode = 1, strides = [2, 2]", "pads = [1, 1, 1, 1]"],
)
def test_means_with_and_without_padding(channels: int, attributes: str) -> None:
    text = f"""model (float[b, {channels}, h, w] x) => (float[?, ?, ?, ?] y) {{
        y = AveragePool <kernel_shape = [3, 3], {attributes}> (x) }}"""
    check(text, {}, SIZES)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", "kernel_shape = [3, 3], strides = [2, 2]"),
        ("MaxPool", "kernel_shape = [1, 2], strides = [2, 2], pads = [0, 1, 0, 1]"),
        ("AveragePool", "kernel_shape = [2, 3], strides = [2, 2], pads = [1, 0, 0, 1]"),
        ("AveragePool", "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1],"
                        " count_include_pad = 1"),
        ("AveragePool", "kernel_shape = [1, 2], strides = [2, 2], pads = [0, 1, 0, 0]"),
        (
            "AveragePool",
            "kernel_shape = [1, 2], strides = [2, 2], pads = [0, 1, 0, 1], count_include_pad = 1",
        ),
    ],
)  # fmt: skip
def test_sizes_rounded_up_again_and_again(op: str, attributes: str) -> None:
    """Symbolic sizes stay expressions that TVM's passes can nest."""
    pool = f"{op} <ceil_mode = 1, {attributes}>"
    text = f"""model (float[b, 3, h, w] x) => (float[?, ?, ?, ?] y) {{
        p = {pool} (x) r = Relu (p) q = {pool} (r) s = Sigmoid (q) t = {pool} (s)
        u = Neg (t) y = {pool} (u) }}"""
    check(
        text, {}, [{"b": b, "h": h, "w": w} for b, h, w in ((1, 23, 24), (2, 31, 26), (1, 64, 47))]
    )


@pytest.mark.parametrize(
    ("shape", "attributes", "expected"),
    [
        ("b, 24, h, w", "pads = [1, 1, 1, 1]", 2),
        ("b, 24, 9, 20", "pads = [1, 1, 1, 1]", 1),
        ("1, 3, 9, 20", "pads = [1, 1, 1, 1]", 1),
        ("b, 3, h, w", "strides = [1, 1]", 1),
    ],
)
def test_window_sizes_are_counted_in_a_separate_kernel(
    shape: str, attributes: str, expected: int
) -> None:
    """They are a constant if the size is known, or without padding."""
    text = f"""model (float[{shape}] x) => (float[?, ?, ?, ?] y) {{
        y = AveragePool <kernel_shape = [3, 3], {attributes}> (x) }}"""
    with as_target("native"):
        functions = lower_to_kernels(looplift.from_onnx(parse(text))).functions.values()
    kernels = [function for function in functions if isinstance(function, tirx.PrimFunc)]
    assert len(kernels) == expected
    assert sum("T.min" in kernel.script() for kernel in kernels) == expected - 1


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_lines(op: str) -> None:
    text = f"""model (float[2, 5, n] x) => (float[?, ?, ?] y) {{
        y = {op} <kernel_shape = [5], pads = [2, 2], strides = [2]> (x) }}"""
    _check_taken(text, [{"n": n} for n in (3, 7, 30, 4000)])


@pytest.mark.parametrize("channels", [3, 20])
def test_windows_of_negative_infinities(channels: int) -> None:
    text = (
        f"model (float[1, {channels}, h, w] x) => (y) {{ y = MaxPool <kernel_shape = [2, 2]> (x) }}"
    )
    machine = virtual_machine(looplift.compile(looplift.from_onnx(with_weights(text, {})), NATIVE))
    x = np.full((1, channels, 4, 4), -np.inf, np.float32)
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, np.full((1, channels, 3, 3), -np.inf))


def test_maxima_of_infinities() -> None:
    text = """model (float[1, 3, h, w] x) => (float[?, ?, ?, ?] y) {
        y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x) }"""
    assert taken_by(Pooling(), text, {})
    machine = virtual_machine(looplift.compile(looplift.from_onnx(parse(text)), NATIVE))
    x = np.random.default_rng(0).standard_normal((1, 3, 6, 40)).astype(np.float32)
    x[0, 0, 0, 0], x[0, 1, 3, 17], x[0, 2, 5, 39] = np.inf, -np.inf, np.inf
    x[0, 1, 1, 1:4] = -np.inf
    (expected,) = onnxruntime.InferenceSession(parse(text).SerializeToString()).run(None, {"x": x})
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(got, expected)
