"""Pooling of volumes, against onnxruntime."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import check
from ...conftest import Imported, parse

WINDOWS = {
    "same": "kernel_shape = [3, 3, 3], pads = [1, 1, 1, 1, 1, 1]",
    "halved": "kernel_shape = [2, 2, 2], strides = [2, 2, 2]",
    "of planes": "kernel_shape = [1, 3, 3], pads = [0, 1, 1, 0, 1, 1], strides = [1, 2, 2]",
    "along the depth": "kernel_shape = [3, 1, 1], pads = [1, 0, 0, 1, 0, 0]",
    "halved along the depth": "kernel_shape = [2, 1, 1], strides = [2, 1, 1]",
    "uneven": "kernel_shape = [2, 4, 3], pads = [1, 0, 2, 0, 3, 1], strides = [3, 2, 1]",
    "stride beyond the window": "kernel_shape = [1, 2, 1], strides = [2, 3, 2]",
    "rounded up": "kernel_shape = [2, 3, 2], strides = [3, 2, 2], ceil_mode = 1",
    "rounded up and padded": (
        "kernel_shape = [3, 3, 2], pads = [1, 0, 1, 1, 1, 0], strides = [2, 2, 2], ceil_mode = 1"
    ),
    "padding of all sizes": 'kernel_shape = [3, 2, 3], auto_pad = "SAME_UPPER", strides = [2, 1, 2]',
}
SIZES = [
    {"b": b, "d": d, "h": h, "w": w}
    for b, d, h, w in ((1, 4, 4, 5), (2, 5, 7, 18), (1, 9, 6, 40), (0, 4, 5, 6))
]


@pytest.mark.parametrize("name", one_of(3, WINDOWS))
def test_maxima(name: str) -> None:
    text = f"""model (float[b, 3, d, h, w] x) => (float[?, ?, ?, ?, ?] y) {{
        p = MaxPool <{WINDOWS[name]}> (x) y = Neg (p) }}"""
    check(text, {}, SIZES)


def test_maxima_of_dilated_windows() -> None:
    text = """model (float[b, 3, d, h, w] x) => (float[?, ?, ?, ?, ?] y) {
        y = MaxPool <kernel_shape = [2, 2, 2], dilations = [2, 1, 3], strides = [2, 1, 1]> (x) }"""
    check(text, {}, SIZES)


@pytest.mark.parametrize(("name", "counts_padding"), one_of(3, itertools.product(WINDOWS, (0, 1))))
def test_means(name: str, counts_padding: int) -> None:
    text = f"""model (float[b, 3, d, h, w] x) => (float[?, ?, ?, ?, ?] y) {{
        p = AveragePool <{WINDOWS[name]}, count_include_pad = {counts_padding}> (x)
        y = Relu (p) }}"""
    check(text, {}, SIZES)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_known_sizes_and_one_element(op: str) -> None:
    attributes = "kernel_shape = [3, 3, 3], pads = [1, 1, 1, 1, 1, 1]"
    for shape in ("2, 16, 5, 6, 7", "1, 3, 1, 1, 1"):
        text = f"model (float[{shape}] x) => (y) {{ y = {op} <{attributes}> (x) }}"
        check(text, {}, [{}])


def test_maxima_of_other_types(imported: Callable[..., Imported]) -> None:
    model = imported(
        """g (double[1, 2, d, 4, 5] x, int8[1, 2, d, 4, 5] i) => (
            double[1, 2, ?, ?, ?] y, int8[1, 2, ?, ?, ?] z) {
            y = MaxPool <kernel_shape = [2, 3, 2], pads = [1, 1, 0, 0, 1, 1]> (x)
            z = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 1, 2]> (i) }"""
    )
    numbers = np.random.default_rng(0).standard_normal((1, 2, 3, 4, 5)) * 40
    model.check(numbers, numbers.astype(np.int8))


@pytest.mark.parametrize(
    ("op", "name", "expected"),
    [
        ("MaxPool", "same", ["max_pool2d", "max_pool2d"]),
        ("MaxPool", "halved", ["max_pool3d", "max_pool2d"]),
        ("MaxPool", "of planes", ["max_pool2d"]),
        ("MaxPool", "along the depth", ["max_pool2d"]),
        ("MaxPool", "halved along the depth", ["max_pool3d"]),
        ("AveragePool", "halved", ["avg_pool3d"]),
    ],
)
def test_windows_are_combined_in_planes_and_along_the_depth(
    op: str, name: str, expected: list[str]
) -> None:
    text = f"""model (float[b, 3, d, h, w] x) => (float[?, ?, ?, ?, ?] y) {{
        y = {op} <{WINDOWS[name]}> (x) }}"""
    with as_target("native"):
        main = lower_to_kernels(looplift.from_onnx(parse(text)))["main"].script()
    assert re.findall(r"R\.call_tir\((\w+?_pool.d)", main) == expected
