"""Weights of a recurrence: when two are the same."""

from __future__ import annotations

import numpy as np

from looplift.rules.recurrence import weights


def test_shapes_whose_digits_run_together_differ() -> None:
    vector = np.arange(64, dtype=np.float32)
    row, square = weights.reshape(vector, (1, 64)), weights.reshape(vector, (16, 4))
    assert not weights.equal(row, square)
    assert weights.equal(row, weights.reshape(vector.copy(), (1, 64)))


def test_a_factor_of_ones_does_not_narrow_a_product() -> None:
    square, column = np.ones((3, 3), np.float32), np.full((3, 1), 2, np.float32)
    np.testing.assert_array_equal(weights.multiply(square, column), np.full((3, 3), 2))
    assert weights.multiply(square, np.ones(3, np.float32)) is square
