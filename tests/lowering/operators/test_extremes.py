"""ReduceMax, ReduceMin, ArgMax and ArgMin of data that may be infinite, against onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...samples import one_of

Load = Callable[..., Any]


def rows() -> Any:
    """Rows that are infinite in different places."""
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    x[0], x[1], x[2, 1:], x[3, :2] = -np.inf, np.inf, -np.inf, np.inf
    return x


@pytest.mark.parametrize(
    ("op_type", "keepdims", "dtype"),
    one_of(
        5, itertools.product(("ReduceMax", "ReduceMin"), (0, 1), ("float", "double", "float16"))
    ),
)
def test_extremes(imported: Load, op_type: str, keepdims: int, dtype: str) -> None:
    result = f"{dtype}[?, ?]" if keepdims else f"{dtype}[?]"
    everything = f"{dtype}[1, 1]" if keepdims else dtype
    model = imported(f"""
    g ({dtype}[n, m] x) => ({result} a, {result} b, {everything} c) {{
        a = {op_type} <axes = [-1], keepdims = {keepdims}> (x)
        b = {op_type} <axes = [0], keepdims = {keepdims}> (x)
        c = {op_type} <keepdims = {keepdims}> (x)
    }}""")
    kind = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    model.check(rows().astype(kind))
    model.check(rows()[:1].astype(kind))


@pytest.mark.parametrize(
    ("op_type", "last", "keepdims"),
    one_of(3, itertools.product(("ArgMax", "ArgMin"), (0, 1), (0, 1))),
)
def test_positions(imported: Load, op_type: str, last: int, keepdims: int) -> None:
    result = "int64[?, ?]" if keepdims else "int64[?]"
    attributes = f"select_last_index = {last}, keepdims = {keepdims}"
    model = imported(f"""
    g (float[n, m] x) => ({result} a, {result} b) {{
        a = {op_type} <axis = 1, {attributes}> (x)
        b = {op_type} <axis = -2, {attributes}> (x)
    }}""")
    model.check(rows())
    model.check(np.zeros((3, 6), np.float32))
    if not last:
        model.check(np.array([[1, np.nan], [np.nan, np.nan]], np.float32))


@pytest.mark.parametrize(
    ("op_type", "last", "keepdims"),
    one_of(3, itertools.product(("ArgMax", "ArgMin"), (0, 1), (0, 1))),
)
def test_positions_along_an_axis_of_known_size(
    imported: Load, op_type: str, last: int, keepdims: int
) -> None:
    result = "int64[?, ?, ?]" if keepdims else "int64[?, ?]"
    attributes = f"select_last_index = {last}, keepdims = {keepdims}"
    model = imported(f"""
    g (float[n, 3, 41] x) => ({result} a, {result} b) {{
        a = {op_type} <axis = -1, {attributes}> (x)
        b = {op_type} <axis = 1, {attributes}> (x)
    }}""")
    x = np.random.default_rng(0).integers(-3, 4, (5, 3, 41)).astype(np.float32)
    x[1, :, 5:], x[2], x[3] = np.nan, -np.inf, np.inf
    x[4, 0, 0], x[4, 1, 0], x[4, 2, :20] = np.nan, np.inf, -np.inf
    model.check(x)
    model.check(x[:1])
    model.check(np.full((1, 3, 41), np.nan, np.float32))


def test_positions_of_integers(imported: Load) -> None:
    model = imported("g (int32[n, m] x) => (int64[n, 1] a) { a = ArgMax <axis = 1> (x) }")
    model.check(np.full((2, 3), np.iinfo(np.int32).min, np.int32))


@pytest.mark.parametrize("dtype", ["float", "int32"])
@pytest.mark.parametrize("columns", ["m", "0"])
def test_positions_along_an_empty_axis(imported: Load, dtype: str, columns: str) -> None:
    model = imported(f"""
    g ({dtype}[n, {columns}] x) => (int64[n] a) {{ a = ArgMax <axis = 1, keepdims = 0> (x) }}""")
    kind = np.float32 if dtype == "float" else np.int32
    model.check(np.zeros((0, 0), kind))
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(np.zeros((3, 0), kind))


def test_positions_that_float32_cannot_tell_apart(imported: Load) -> None:
    model = imported("g (float[n] x) => (int64[1] a, int64[1] b) { a = ArgMax (x) b = ArgMin (x) }")
    x = np.zeros((1 << 24) + 4, np.float32)
    x[-1], x[-3] = 1, -1
    model.check(x)
