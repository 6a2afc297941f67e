"""Det against numpy: pivots, singular matrices, stacks and empty tensors."""

from __future__ import annotations

import numpy as np

from .inputs import Load, check_reference, random


def test_stacks_of_any_size(imported: Load) -> None:
    model = imported("g (float[a, b, n, n] x) => (float[?, ?] y) { y = Det (x) }")
    for a, b, n in ((2, 3, 4), (1, 1, 1), (0, 2, 3), (2, 1, 7)):
        model.check(random(a, b, n, n))


def test_pivots_and_singular_matrices(imported: Load) -> None:
    model = imported("g (double[n, n] x) => (double y) { y = Det (x) }")
    for matrix in (
        np.array([[0.0, 2, 1], [1, 0, 0], [4, 0, 3]]),
        np.array([[1.0, 2], [2, 4]]),
        np.zeros((3, 3)),
        np.array([[1e-20, 1.0], [1, 1]]),
    ):
        check_reference(model, matrix)


def test_float16(imported: Load) -> None:
    model = imported(
        '<ir_version: 10, opset_import: ["" : 22]>\n'
        "g (float16[2, 2] x) => (float16 y) { y = Det (x) }"
    )
    (got,) = model.run(np.array([[3, 1], [4, 2]], np.float16))
    assert (got, got.dtype) == (2, np.float16)
