"""CumSum and CumProd along constant and computed axes."""

from __future__ import annotations

import numpy as np

from .inputs import Load, check_reference, random


def test_a_computed_axis(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 13, opset_import: ["" : 26]>
        g (float[a, b, c] x, int64 axis) => (float[?, ?, ?] y, float[?, ?, ?] z) {
            y = CumSum <exclusive = 1, reverse = 1> (x, axis) z = CumProd (x, axis)
        }"""
    )
    for axis in (-3, -1, 0, 1, 2):
        check_reference(model, random(2, 3, 4), np.array(axis))
    check_reference(model, random(1, 1, 5), np.array(1))
    for shape in ((0, 2, 3), (2, 0, 3)):
        assert [y.shape for y in model.run(random(*shape), np.array(1))] == [shape, shape]


def test_a_constant_axis(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 13, opset_import: ["" : 26]>
        g (float16[n, 2] x, int32[n, 2] i) => (float16[?, ?] y, int32[?, ?] z) <int32 axis = {-2}> {
            y = CumSum (x, axis) z = CumProd <reverse = 1> (i, axis)
        }"""
    )
    ones = np.ones((3000, 2), np.float16)
    (y, _) = model.run(ones, np.ones((3000, 2), np.int32))
    np.testing.assert_array_equal(y[[2047, 2999], 0], np.array([2048, 3000], np.float16))
    check_reference(model, ones[:5], np.arange(1, 11, dtype=np.int32).reshape(5, 2))
