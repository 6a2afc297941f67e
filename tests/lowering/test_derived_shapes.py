"""Sizes derived by upsampling and strided convolutions, around loops and Ifs.

Each model is imported and compiled once, and right for several lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ..samples import one_of

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float32)


UP = """
    up = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (x, "", scales)
"""

STATE = f"""
g (float[1, 2, m] x, float[2, 2, 5] w, int64 n) => (float[1, 2, ?] y, int64 size)
<float[3] scales = {{1, 1, 2048}}> {{
    {UP}
    start = Conv <strides = [5]> (up, w)
    y = Loop (n, "", start) <body = step (int64 i, bool go, float[1, 2, s] a)
        => (bool goes, float[1, 2, s] b)
    {{
        goes = Identity (go)
        wide = Conv <pads = [2, 2]> (a, w)
        bent = Tanh (wide)
        b = Add (a, bent)
    }}>
    shape = Shape (y)
    two = Constant <value_int = 2> ()
    size = Gather (shape, two)
}}"""
"""A state of `(2048 * m - 5) // 5 + 1` columns."""

JOIN = f"""
g (float[1, 2, m] x, float[2, 2, 5] w, bool c) => (float[1, 2, ?] y)
<float[3] scales = {{1, 1, 8}}> {{
    j = If (c) <
        then_branch = far () => (float[1, 2, p] far_y) {{ {UP} far_y = Tanh (up) }},
        else_branch = near () => (float[1, 2, q] near_y) {{
            near_y = ConvTranspose <strides = [3]> (x, w)
        }}
    >
    thin = Conv <strides = [5], pads = [2, 2]> (j, w)
    again = ConvTranspose <strides = [2]> (thin, w)
    y = MaxPool <kernel_shape = [3], strides = [3]> (again)
}}"""
"""Branches of `8 * m` and of `3 * m + 2` columns."""

SHRINK = """
g (float[1, 2, m] x, float[2, 2, 4] w, int64 n) => (float[1, 2, ?] y, float[n1] sums)
{
    y, sums = Loop (n, "", x) <body = halve (int64 i, bool go, float[1, 2, s] a)
        => (bool goes, float[1, 2, s1] b, float row)
    {
        goes = Identity (go)
        b = Conv <strides = [2], pads = [1, 1]> (a, w)
        row = ReduceSum <keepdims = 0> (b)
    }>
}"""
"""A state that each iteration halves."""

GROW = """
g (float[1, 2, m] x, float[2, 2, 4] w, float most) => (float[1, 2, ?] y)
{
    y = Loop ("", "", x) <body = twice (int64 i, bool go, float[1, 2, s] a)
        => (bool goes, float[1, 2, s1] b)
    {
        wide = ConvTranspose <strides = [2], pads = [1, 1]> (a, w)
        b = Tanh (wide)
        size = Size (b)
        size_f = Cast <to = 1> (size)
        goes = Less (size_f, most)
    }>
}"""
"""A state that doubles until it is long enough."""

TWO_WAYS = f"""
g (float[1, 2, m] x, float[2, 2, 5] w, float[2, 2, 3] v) => (float[1, 2, ?] y, float[?, 16] frames)
<float[3] scales = {{1, 1, 16}}> {{
    {UP}
    thin = Conv <strides = [2], pads = [1, 1]> (up, v)
    half = AveragePool <kernel_shape = [2], strides = [2]> (up)
    sum = Add (thin, half)
    y = ConvTranspose <strides = [2], pads = [1, 2]> (sum, w)
    by_frame = Constant <value_ints = [-1, 16]> ()
    frames = Reshape (up, by_frame)
}}"""
"""Two ways to `8 * m` columns that meet in an Add."""

ALIGNED = f"""
g (float[1, 2, m] x, float[1, 2, k] other, float[2, 2, 5] w) => (float[1, 2, ?] y)
<float[3] scales = {{1, 1, 10}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] three = {{3}}> {{
    {UP}
    thin = Conv <strides = [3]> (up, w)
    thin_shape = Shape (thin)
    other_shape = Shape (other)
    a = Slice (thin_shape, two, three)
    b = Slice (other_shape, two, three)
    least = Min (a, b)
    left = Slice (thin, zero, least, two)
    right = Slice (other, zero, least, two)
    y = Mul (left, right)
}}"""
"""Tensors of unrelated lengths, both cut to the shorter."""

CROPPED = """
g (float[1, 2, m, k] x) => (float[1, 2, ?, ?] y)
<int64[2] zeros = {0, 0}, int64[2] axes = {2, 3}> {
    wide = MaxPool <kernel_shape = [4, 4]> (x)
    half = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)
    wide_shape = Shape <start = 2> (wide)
    half_shape = Shape <start = 2> (half)
    least = Min (wide_shape, half_shape)
    left = Slice (wide, zeros, least, axes)
    right = Slice (half, zeros, least, axes)
    sum = Add (left, right)
    y = Relu (sum)
}"""
"""Images of `m - 3` and of `(m - 3) // 2 + 1` lines, both cut to the smaller."""

WINDOWS = """
g (float[1, m] x, float[4, 8] w) => (float[1, ?, 8] y, float[1, 8] h)
<float[1, 8] h0 = {0, 0, 0, 0, 0, 0, 0, 0}, int64 zero = {0}, int64 one = {1}, int64 four = {4},
 int64[1] axis = {0}> {
    shape = Shape (x)
    length = Gather (shape, one)
    rest = Sub (length, four)
    windows0 = Div (rest, four)
    windows = Add (windows0, one)
    h, rows = Loop (windows, "", h0) <body = window (int64 i, bool go, float[1, 8] a)
        => (bool goes, float[1, 8] b, float[1, 8] row)
    {
        goes = Identity (go)
        begin = Mul (i, four)
        end = Add (begin, four)
        begin1 = Unsqueeze (begin, axis)
        end1 = Unsqueeze (end, axis)
        one1 = Unsqueeze (one, axis)
        part = Slice (x, begin1, end1, one1)
        product = MatMul (part, w)
        sum = Add (product, a)
        b = Tanh (sum)
        row = Identity (b)
    }>
    y = Transpose <perm = [1, 0, 2]> (rows)
}"""
"""Windows of four samples, one for each iteration."""

COUNT = np.array(3)
CASES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "state": (STATE, [(random(1, 2, m), random(2, 2, 5), np.array(n)) for m, n in ((1, 2), (3, 0), (4, 5))]),
    "join": (
        JOIN,
        [(random(1, 2, m), random(2, 2, 5), np.array(c)) for m in (2, 3, 9) for c in (True, False)],
    ),
    "shrink": (SHRINK, [(random(1, 2, m), random(2, 2, 4), COUNT) for m in (16, 31, 50)]),
    "grow": (
        GROW,
        [(random(1, 2, m), random(2, 2, 4), np.array(60, np.float32)) for m in (1, 3, 40)],
    ),
    "two ways": (TWO_WAYS, [(random(1, 2, m), random(2, 2, 5), random(2, 2, 3)) for m in (1, 2, 7)]),
    "aligned": (
        ALIGNED,
        [(random(1, 2, m), random(1, 2, k), random(2, 2, 5)) for m, k in ((1, 9), (3, 2), (5, 40))],
    ),
    "cropped": (CROPPED, [(random(1, 2, m, k),) for m, k in ((4, 4), (5, 12), (30, 31))]),
    "windows": (WINDOWS, [(random(1, m), random(4, 8)) for m in (4, 11, 40)]),
}  # fmt: skip


@pytest.mark.parametrize("name", one_of(2, CASES))
def test_one_module_serves_all_lengths(name: str, imported: Load) -> None:
    text, feeds = CASES[name]
    model = imported(text)
    for feed in feeds:
        model.check(*feed)


@pytest.mark.parametrize("name", ["state", "shrink", "grow", "windows"])
def test_functions_serve_all_lengths(name: str, stock: Load) -> None:
    text, feeds = CASES[name]
    model = stock(text)
    for feed in feeds:
        model.check(*feed)
