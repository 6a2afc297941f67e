"""LLVM does not copy inner loops for each iteration of a short outer loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import tirx

from looplift.lowering.scheduling.relax.trip_counts import pass_trip_counts

from ...kernel_modules import calls_of, kernel_of, kernels_of, module_of, results_of

KERNELS = {
    "unknown": """
        for j, i in T.grid(T.int64({columns}), n):
            y[i, j] = x[i, j] + T.int64(1)""",
    "known": """
        for j, i in T.grid(T.int64({columns}), T.int64(2)):
            y[i, j] = x[i, j] + T.int64(1)""",
    "innermost": """
        for i, j in T.grid(n, T.int64({columns})):
            y[i, j] = x[i, j] + T.int64(1)""",
    "unrolled": """
        for j in T.unroll(T.int64({columns})):
            for i in range(n):
                y[i, j] = x[i, j] + T.int64(1)""",
    "steps": """
        for j in T.serial(T.int64(0), T.int64({columns}), step=T.int64(2)):
            for i in range(n):
                y[i, j] = x[i, j] + T.int64(1)
                y[i, j + T.int64(1)] = x[i, j + T.int64(1)] + T.int64(1)""",
    "several": """
        for j, k, i in T.grid(T.int64({columns}), T.int64(3), n):
            y[i, j] = x[i, j] + T.int64(1)
        for j, i in T.grid(T.int64({columns}), n):
            y[i, j] = x[i, j] + T.int64(1)""",
}
"""Bodies of kernels for `y[i, j] = x[i, j] + 1`."""


def _kernel(columns: int, kind: str, **attributes: Any) -> tirx.PrimFunc:
    return kernel_of(columns, KERNELS[kind].format(columns=columns), **attributes)


@pytest.mark.parametrize(
    ("kind", "columns", "trips"),
    [
        ("unknown", 11, [11]),
        ("unknown", 64, [64]),
        ("unknown", 65, []),
        ("unknown", 1, []),
        ("known", 11, []),
        ("innermost", 11, []),
        ("unrolled", 4, []),
        ("steps", 12, []),
        ("several", 11, [3, 11]),
    ],
)
def test_trip_counts_of_loops_around_unknown_loops_become_arguments(
    kind: str, columns: int, trips: list[int]
) -> None:
    passed = pass_trip_counts(module_of(_kernel(columns, kind)))
    (call,), (kernel,) = calls_of(passed), kernels_of(passed)
    assert [int(number) for number in call.args[1].fields[1:]] == trips
    loops: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, loops.append))
    counts = {loop.extent for loop in loops if isinstance(loop.extent, tirx.Var)}
    assert counts.issuperset(kernel.params[1:-1])
    assert len(kernel.params) == 2 + len(trips)
    expected = np.arange(2 * columns).reshape(2, columns) + 1
    np.testing.assert_array_equal(results_of(passed, [columns])[0], expected)


def test_kernels_without_such_loops_stay_as_they_are() -> None:
    module = module_of(_kernel(11, "innermost"), _kernel(12, "known"))
    assert pass_trip_counts(module).same_as(module)


def test_public_kernels_keep_their_parameters() -> None:
    module = module_of(_kernel(11, "unknown", global_symbol="kernel_0"))
    assert pass_trip_counts(module).same_as(module)
