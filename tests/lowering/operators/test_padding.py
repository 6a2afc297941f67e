"""Pad by amounts computed at run time, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from .inputs import Load, random


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_padding_by_amounts_that_are_inputs(imported: Load, mode: str) -> None:
    model = imported(f"""
    g (float[n, m] x, int64[4] p) => (float[a, b] y) {{ y = Pad <mode = "{mode}"> (x, p) }}""")
    for amounts in ([1, 2, 0, 1], [0, 0, 2, 3], [0, 0, 0, 0]):
        model.check(random(3, 4), np.array(amounts))


def test_padding_with_a_value_that_is_an_input(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, int64[4] p, float v) => (float[a, b] y) { y = Pad(x, p, v) }""")
    model.check(random(3, 4), np.array([1, -2, 0, 1]), np.float32(7))


def test_padding_to_a_multiple(imported: Load) -> None:
    model = imported("""
    g (float[n] x) => (float[a] y) {
        zero = Constant <value_ints = [0]> ()
        four = Constant <value_ints = [4]> ()
        size = Shape(x)
        less = Neg(size)
        missing = Mod(less, four)
        amounts = Concat <axis = 0> (zero, missing)
        y = Pad(x, amounts)
    }""")
    for size in (1, 3, 4, 5):
        model.check(random(size))


def test_padding_along_axes_that_are_inputs(imported: Load) -> None:
    model = imported("""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[n, m, k] x, int64[4] p, int64[2] axes) => (float[a, b, c] y) {
        y = Pad <mode = "edge"> (x, p, "", axes)
    }""")
    for axes in ([0, 2], [-1, 0], [1, -1]):
        model.check(random(2, 3, 1), np.array([1, 2, 0, 3]), np.array(axes))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[0, -1, 0, 2], [0, 2, 0, -2], [-2, 1, 1, -1], [-1, -2, -1, 0]])
def test_padding_of_what_negative_amounts_leave(imported: Load, mode: str, pads: list[int]) -> None:
    model = imported(f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[n, m] x, int64[4] pads) => (float[p, q] y) {{
        y = Pad <mode = "{mode}"> (x, pads) }}""")
    model.check(np.arange(30, dtype=np.float32).reshape(5, 6), np.array(pads))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_padding_by_copies_of_nothing(imported: Load, mode: str) -> None:
    """onnxruntime refuses it; what lies beyond the data must not be read."""
    by_input = imported(f"""
        <ir_version: 9, opset_import: ["" : 19]>
        g (float[n] x, int64[2] pads) => (float[?] y) {{ y = Pad<mode = "{mode}">(x, pads) }}""")
    by_input.check(random(5), np.array([2, 3]))
    for size, pads in ((0, [1, 1]), (5, [-6, 8]), (5, [-5, 3])):
        with pytest.raises(RuntimeError, match="match_cast error"):
            by_input.run(random(size), np.array(pads))
    fixed = imported(f"""
        <ir_version: 9, opset_import: ["" : 19]>
        g (float[n] x) => (float[?] y) <int64[2] pads = {{2, 1}}> {{
            y = Pad<mode = "{mode}">(x, pads) }}""")
    fixed.check(random(3))
    with pytest.raises(RuntimeError, match="match_cast error"):
        fixed.run(random(0))
