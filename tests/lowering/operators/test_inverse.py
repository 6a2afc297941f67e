"""Inverse of com.microsoft against onnxruntime: pivots, stacks and singular matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .inputs import Load, random

CONTRIB = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


def _regular(*shape: int) -> np.ndarray[Any, Any]:
    """Matrices that are far from singular ones."""
    return (random(*shape) + 3 * np.eye(shape[-1])).astype(np.float32)


def test_stacks_of_any_size(imported: Load) -> None:
    model = imported(f"""{CONTRIB}
        g (float[a, b, n, n] x) => (float[a, b, n, n] y) {{ y = com.microsoft.Inverse (x) }}""")
    for a, b, n in ((2, 3, 4), (1, 1, 1), (0, 2, 3), (2, 1, 7)):
        model.check(_regular(a, b, n, n))


def test_pivots(imported: Load) -> None:
    model = imported(f"""{CONTRIB}
        g (double[n, n] x) => (double[n, n] y) {{ y = com.microsoft.Inverse (x) }}""")
    for matrix in (
        np.array([[0.0, 2, 1], [1, 0, 0], [4, 0, 3]]),
        np.array([[1e-20, 1.0], [1, 1]]),
    ):
        model.check(matrix)
    (result,) = model.run(np.zeros((2, 2)))
    assert not np.isfinite(result).any()


def test_half_precision(imported: Load) -> None:
    model = imported(f"""{CONTRIB}
        g (float16[2, 2] x) => (float16[2, 2] y) {{ y = com.microsoft.Inverse (x) }}""")
    (result,) = model.run(np.array([[2, 0], [0, 4]], np.float16))
    np.testing.assert_array_equal(result, np.array([[0.5, 0], [0, 0.25]], np.float16))


def test_matrices_that_are_not_square(imported: Load) -> None:
    model = imported(f"""{CONTRIB}
        g (float[n, m] x) => (float[n, m] y) {{ y = com.microsoft.Inverse (x) }}""")
    with pytest.raises(Exception, match="mismatch"):
        model.run(random(2, 3))
