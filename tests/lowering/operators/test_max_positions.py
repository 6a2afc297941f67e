"""MaxPool with positions, and MaxUnpool, against onnxruntime."""

from __future__ import annotations

import numpy as np

from .inputs import Load, check_reference, random


def test_the_positions_of_maxima(imported: Load) -> None:
    model = imported(
        """
        g (float[b, 2, h, w] x) => (float[?, ?, ?, ?] y, int64[?, ?, ?, ?] at) {
            y, at = MaxPool <kernel_shape = [2, 3], strides = [2, 1], pads = [1, 1, 0, 1]> (x)
        }"""
    )
    model.check(random(2, 2, 7, 8))
    model.check(-10 - np.abs(random(1, 2, 5, 6)))
    model.check(random(0, 2, 7, 8))


def test_the_positions_of_maxima_in_other_windows(imported: Load) -> None:
    model = imported(
        """
        g (float[b, 2, 5, 6] x) => (float[?, ?, ?, ?] y, int64[?, ?, ?, ?] at,
          float[?, ?, ?, ?] z, int64[?, ?, ?, ?] by) {
            y, at = MaxPool <kernel_shape = [2, 2], strides = [2, 3], ceil_mode = 1,
                dilations = [2, 1]> (x)
            z, by = MaxPool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_LOWER",
                storage_order = 1> (x)
        }"""
    )
    model.check(random(2, 2, 5, 6))


def test_equal_elements_and_integers(imported: Load) -> None:
    model = imported(
        """
        g (int8[b, c, n] x) => (int8[?, ?, ?] y, int64[?, ?, ?] at) {
            y, at = MaxPool <kernel_shape = [3]> (x)
        }"""
    )
    model.check(np.full((2, 2, 5), -128, np.int8))
    model.check(np.array([[[3, 3, 1, 7, 7, 7]]], np.int8))


def test_max_unpool(imported: Load) -> None:
    model = imported(
        """
        g (float[b, c, h, w] x, int64[b, c, h, w] at) => (float[?, ?, ?, ?] y) {
            y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, at)
        }"""
    )
    for batch, height in ((2, 2), (1, 1)):
        x = random(batch, 3, height, 2)
        at = (np.arange(x.size) * 4 + 1).reshape(x.shape)
        model.check(x, at)


def test_max_unpool_leaves_out_what_has_no_place(imported: Load) -> None:
    """Onnxruntime refuses it. An odd width has such positions: those of the wider data."""
    model = imported(
        """
        g (float[b, c, h, w] x, int64[b, c, h, w] at) => (float[?, ?, ?, ?] y) {
            y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, at)
        }"""
    )
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    (got,) = model.run(x, np.array([[[[15, 1 << 40], [-1, 3]]]]))
    expected = np.zeros(16, np.float32)
    expected[[15, 3]] = 1, 4
    np.testing.assert_array_equal(got, expected.reshape(1, 1, 4, 4))


def test_max_unpool_to_a_larger_shape_that_a_run_computes(imported: Load) -> None:
    model = imported(
        """
        g (float[1, 1, h, w] x, int64[1, 1, h, w] at, int64[4] shape) => (float[?, ?, ?, ?] y) {
            y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, at, shape)
        }"""
    )
    at = np.array([[[[5, 7], [13, 15]]]])
    for size in (4, 5, 6):
        check_reference(model, random(1, 1, 2, 2), at, np.array([1, 1, size, 5]))
