"""Sums of float16 accumulate in float32, as in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ...samples import one_of

Load = Callable[..., Any]

LONG = 5000
"""A float16 sum of so many ones is wrong if it accumulates in float16."""

SUMS = {
    "sum": "float16[?, ?] y) { y = ReduceSum (x)",
    "mean": "float16[?, ?] y) { y = ReduceMean <axes = [1]> (x)",
    "norm": "float16[?, ?] y) { y = ReduceL2 <axes = [1]> (x)",
    "softmax": "float16[n, m] y) { y = Softmax (x)",
    "log_softmax": "float16[n, m] y) { y = LogSoftmax (x)",
    "normalization": "float16[n, m] y) { y = MeanVarianceNormalization <axes = [1]> (x)",
    "prefix_sum": "float16[n, m] y) <int64 axis = {1}> { y = CumSum (x, axis)",
    "product": "float16[n, n] y) { t = Transpose (x) y = MatMul (x, t)",
    "gemm": "float16[n, n] y) { y = Gemm <transB = 1, alpha = 0.5> (x, x)",
    "einsum": 'float16[n, n] y) { y = Einsum <equation = "ij,kj->ik"> (x, x)',
}


@pytest.mark.parametrize("name", one_of(3, SUMS))
def test_sums_of_many(imported: Load, name: str) -> None:
    model = imported(f"g (float16[n, m] x) => ({SUMS[name]} }}")
    model.check(np.ones((2, LONG), np.float16))
    model.check(np.ones((3, 7), np.float16))


def test_convolution_of_many_channels(imported: Load) -> None:
    model = imported(f"""
    g (float16[n, {LONG}, m] x) => (float16[n, 1, ?] y) {{
        one = Constant <value = float16[1] {{1}}> ()
        shape = Constant <value_ints = [1, {LONG}, 1]> ()
        w = Expand (one, shape)
        y = Conv (x, w)
    }}""")
    model.check(np.ones((1, LONG, 3), np.float16))


def test_sums_along_an_axis(imported: Load) -> None:
    model = imported(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float16[n, 2, {LONG}] x) => (float16[n, 2, 1] y, float16[n, 2, {LONG}] z,
        float16[n, 2, {LONG}] v, float16[n, 2, ?] w) {{
        one = Constant <value = float16[2] {{1, 1}}> ()
        y = GlobalAveragePool (x)
        z = GroupNormalization <num_groups = 1> (x, one, one)
        v = InstanceNormalization (x, one, one)
        w = AveragePool <kernel_shape = [4999]> (x)
    }}""")
    model.check(np.ones((1, 2, LONG), np.float16))


def test_sums_of_several_tensors(imported: Load) -> None:
    """In float16, 2048 + 1 + 1 is 2048."""
    model = imported("""
    g (float16[n] x, float16[1] a) => (float16[n] y, float16[n] z, float16[1] w) {
        y = Sum (x, a, a) z = Mean (x, a, a) w = Sum (a)
    }""")
    for count in (0, 1, 5):
        model.check(np.full(count, 2048, np.float16), np.ones(1, np.float16))
