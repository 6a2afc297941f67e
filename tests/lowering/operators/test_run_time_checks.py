"""Inputs that no run may compute with: an error, and never other memory or the end of the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from .inputs import Load, check_sizes, random

CONV = "float[n, c, t] x, float[m, g, k] w) => (float[a, b, d] y) { y = Conv (x, w) }"
CHECKED: dict[str, tuple[str, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "channels of a convolution": (
        CONV,
        [((2, 4, 9), (6, 4, 3))],
        [((2, 3, 9), (6, 4, 3)), ((2, 5, 9), (6, 4, 3))],
    ),
    "channels of groups": (
        CONV.replace("Conv", "Conv <group = 2>"),
        [((2, 8, 9), (6, 4, 3))],
        [((2, 4, 9), (6, 4, 3)), ((2, 9, 9), (6, 4, 3))],
    ),
    "known channels": (
        CONV.replace("[n, c, t]", "[n, 8, t]"),
        [((2, 8, 9), (6, 8, 3))],
        [((2, 8, 9), (6, 4, 3)), ((2, 8, 9), (6, 9, 3))],
    ),
    "channels of a transposed convolution": (
        CONV.replace("Conv", "ConvTranspose").replace("[m, g, k]", "[4, 6, 3]"),
        [((2, 4, 9), (4, 6, 3))],
        [((2, 3, 9), (4, 6, 3)), ((2, 5, 9), (4, 6, 3))],
    ),
    "elements of a reshape": (
        """float[n, m, k] x) => (float[a, 16] y) {
            s = Constant <value_ints = [-1, 16]> () y = Reshape (x, s) }""",
        [((2, 4, 4),), ((0, 4, 4),)],
        [((2, 4, 5),), ((1, 3, 5),)],
    ),
    "elements of a known shape": (
        """float[n, m] x) => (float[6, 6] y) {
            s = Constant <value_ints = [6, 6]> () y = Reshape (x, s) }""",
        [((4, 9),)],
        [((3, 4),), ((6, 7),)],
    ),
    "matrices that are not square": (
        "float[b, n, m] x) => (float[k] y) { y = Det (x) }",
        [((2, 3, 3),)],
        [((2, 3, 2),), ((2, 2, 3),)],
    ),
    "slopes": (
        "float[n, c, t] x, float[s, 1] w) => (float[n, c, t] y) { y = PRelu (x, w) }",
        [((2, 4, 9), (4, 1)), ((2, 4, 9), (1, 1))],
        [((2, 4, 9), (3, 1)), ((2, 1, 9), (4, 1))],
    ),
}
"""A model, and shapes of its inputs that fit and that do not."""


@pytest.mark.parametrize("name", CHECKED)
def test_sizes_that_do_not_fit_fail(imported: Load, name: str) -> None:
    text, valid, invalid = CHECKED[name]
    check_sizes(imported(f"g ({text}"), valid, invalid)


def test_a_computed_shape_of_other_elements_fails(imported: Load) -> None:
    model = imported("g (float[n, m] x, int64[3] s) => (float[a, b, c] y) { y = Reshape (x, s) }")
    for shape in ([2, 2, 3], [2, -1, 1], [0, 0, 1]):
        model.check(random(3, 4), np.array(shape))
    model.check(random(0, 4), np.array([0, 2, 2]))
    for shape in ([5, 5, 5], [30000, 30000, 1], [-1, 5, 1], [-1, -1, 1]):
        with pytest.raises(RuntimeError, match="mismatch"):
            model.machine["main"](
                tvm.runtime.tensor(random(3, 4)), tvm.runtime.tensor(np.array(shape))
            )


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_lengths_of_sequences(imported: Load, batch_axis: int) -> None:
    model = imported(f"""g (float[t, b] x, int64[c] l) => (float[t, b] y) {{
        y = ReverseSequence <batch_axis = {batch_axis}, time_axis = {1 - batch_axis}> (x, l) }}""")
    x = random(7, 2) if batch_axis else random(2, 7)
    model.check(x, np.array([7, 3]))
    reversed_all = model.run(x, np.array([7, 3]))[0]
    np.testing.assert_array_equal(model.run(x, np.array([2**40, 3]))[0], reversed_all)
    for lengths in ([7], [7, 7, 7]):
        with pytest.raises(RuntimeError, match="mismatch"):
            model.machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(lengths)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize(("op_type", "of_zero"), [("Div", 9), ("Mod", 0)])
def test_an_integer_divided_by_zero(imported: Load, dtype: str, op_type: str, of_zero: int) -> None:
    """Onnxruntime refuses it; the processor would end the process."""
    model = imported(f"g ({dtype}[n] x, {dtype}[m] y) => ({dtype}[k] z) {{ z = {op_type} (x, y) }}")
    x, y = np.array([7, 8, 9], dtype), np.array([2, 3, 4], dtype)
    model.check(x, y)
    got = model.run(x, np.array([2, 3, 0], dtype))[0]
    assert got[2] == of_zero


def test_channels_of_a_convolution_of_bytes(imported: Load) -> None:
    model = imported("""g (uint8[n, c, h, w] x, int8[2, 3, 3, 3] f) => (int32[a, b, d, e] y) {
        y = ConvInteger (x, f) }""")
    weight = np.arange(-27, 27, dtype=np.int8).reshape(2, 3, 3, 3)
    model.check(np.arange(75, dtype=np.uint8).reshape(1, 3, 5, 5), weight)
    for channels in (2, 4):
        data = np.ones((1, channels, 5, 5), np.uint8)
        with pytest.raises(RuntimeError, match="mismatch"):
            model.machine["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight))


@pytest.mark.parametrize("axis", ["<axis = 0>", "<axis = -1>", ""])
def test_a_condition_of_another_length_than_the_axis(imported: Load, axis: str) -> None:
    rank = "[a, b]" if axis else "[a]"
    model = imported(f"""g (float[n, m] x, bool[c] k) => (float{rank} y) {{
        y = Compress {axis} (x, k) }}""")
    for condition in ([1, 0, 1], [1], [0, 1, 1, 1, 0, 1, 1], [1] * 20):
        model.check(random(3, 4), np.array(condition, bool))
    model.check(random(0, 4), np.array([1, 1], bool))
