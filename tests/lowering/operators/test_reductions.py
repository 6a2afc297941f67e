"""Reductions of no elements, and along computed axes, against onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import random

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]

REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def positive(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape, np.float32) + 0.5


def test_of_no_elements(imported: Load) -> None:
    outputs = [f"float[3] rows_{op}, float[1, 1] all_{op}" for op in REDUCTIONS]
    nodes = [f"rows_{op} = {op} <keepdims = 0> (x, first) all_{op} = {op} (x)" for op in REDUCTIONS]
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, 3] x) => ({", ".join(outputs)}) {{
        first = Constant <value_ints = [0]> ()
        {" ".join(nodes)}
    }}""")
    for rows in (0, 1, 5):
        model.check(positive(rows, 3))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_of_no_integers(imported: Load, op_type: str, dtype: str) -> None:
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({dtype}[n, 3] x) => ({dtype}[n] rows, {dtype}[3] columns) {{
        first = Constant <value_ints = [0]> ()
        last = Constant <value_ints = [1]> ()
        rows = {op_type} <keepdims = 0> (x, last)
        columns = {op_type} <keepdims = 0> (x, first)
    }}""")
    for rows in (0, 4):
        model.check(np.arange(3 * rows, dtype=dtype).reshape(rows, 3))


def test_axes_that_are_known_to_be_empty(imported: Load) -> None:
    model = imported("""
    g (float[n, 0] x) => (float[n] y, float[n, 0] z) {
        last = Constant <value_ints = [1]> ()
        none = Constant <value = int64[0] {}> ()
        y = ReduceSum <keepdims = 0> (x, last)
        z = ReduceSum <noop_with_empty_axes = 1> (x, none)
    }""")
    model.check(positive(2, 0))


def test_elements_selected_at_run_time(imported: Load) -> None:
    """The number of rows is known at run time only, and may be 0."""
    model = imported("""
    g (float[n] x) => (float y) {
        zero = Constant <value_float = 0.0> ()
        is_positive = Greater (x, zero)
        kept = Compress <axis = 0> (x, is_positive)
        y = ReduceMax <keepdims = 0> (kept)
    }""")
    model.check(positive(4))
    model.check(-positive(4))


@pytest.mark.parametrize("keepdims", one_of(2, [0, 1]))
def test_along_axes_that_are_an_input(imported: Load, keepdims: int) -> None:
    outputs = [f"float[{'?, ?, ?' if keepdims else '?'}] {op}" for op in REDUCTIONS]
    nodes = [f"{op} = {op} <keepdims = {keepdims}> (x, axes)" for op in REDUCTIONS]
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, 3, m] x, int64[2] axes) => ({", ".join(outputs)}) {{ {" ".join(nodes)} }}""")
    for axes in ([0, 1], [0, -1], [2, 1], [-2, -3]):
        model.check(positive(4, 3, 5), np.array(axes))
        model.check(positive(1, 3, 2), np.array(axes))


SOME = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[n, 3] x, int64[k] axes) => (float[?, ?] y) {{ y = ReduceMax <{}> (x, axes) }}"""


def test_along_any_number_of_axes(imported: Load) -> None:
    model = imported(SOME.format("keepdims = 1"))
    for axes in ([], [1], [0, -1]):
        model.check(positive(4, 3), np.array(axes, np.int64))


def test_an_unknown_number_of_axes_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="axes"):
        imported(SOME.format("keepdims = 0"))
    with pytest.raises(UnsupportedError, match="`axes` may be empty"):
        imported(SOME.format("noop_with_empty_axes = 1").replace("ReduceMax", "ReduceSumSquare"))


def test_an_axis_that_is_no_vector_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="`axes` has rank 0, but must be a vector"):
        imported(
            "g (float[A, 3] x, int64 i) => (float[?] y) { y = ReduceSum <keepdims = 0> (x, i) }"
        )


def test_no_axes_that_mean_no_reduction(imported: Load) -> None:
    model = imported(SOME.format("noop_with_empty_axes = 1"))
    for axes in ([], [1], [0, -1]):
        model.check(positive(4, 3), np.array(axes, np.int64))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_of_bools(imported: Load, op_type: str) -> None:
    model = imported(f"""<ir_version: 9, opset_import: ["" : 20]>
    g (bool[n, m] x, int64[1] axes) => (bool[?, ?] y, bool[n] z) <int64[1] last = {{1}}> {{
        y = {op_type} (x, axes)
        z = {op_type} <keepdims = 0> (x, last)
    }}""")
    for columns in (1, 4):
        model.check(positive(3, columns) > 1, np.array([1]))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_the_logarithm_of_exponentials_of_infinities(imported: Load, keepdims: int) -> None:
    model = imported(f"""g (float[n, m] x) => (float[k{", one" * keepdims}] y) {{
        y = ReduceLogSumExp <axes = [1], keepdims = {keepdims}> (x) }}""")
    inf = np.inf
    rows = [
        [-inf, -inf, -inf], [inf, 1, 2], [-inf, inf, inf], [np.nan, 1, -inf], [-inf, 5, -inf],
        [1e30, 1, 3], [-1e30, -1e30, -1e30],
    ]  # fmt: skip
    model.check(np.array(rows, np.float32))
    model.check(random(5, 1) * 100)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_mean_of_integers(imported: Load, dtype: str) -> None:
    """Also of none, where a division by their number would end the process."""
    model = imported(f"""g ({dtype}[n, m] x) => ({dtype}[n] y) {{
        y = ReduceMean <axes = [1], keepdims = 0> (x) }}""")
    for rows in ([[7, -8], [3, -4], [-7, 0]], [[5], [-5]]):
        model.check(np.array(rows, dtype))
    np.testing.assert_array_equal(model.run(np.zeros((2, 0), dtype))[0], np.zeros(2, dtype))


@pytest.mark.parametrize("name", ["L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Sum", "Max"])
def test_no_axes_leave_the_other_steps(imported: Load, name: str) -> None:
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, m] x) => (float[n, m] y) <int64[0] a = {{}}> {{
            y = Reduce{name} <noop_with_empty_axes = 1> (x, a) }}""")
    model.check(random(3, 4))
