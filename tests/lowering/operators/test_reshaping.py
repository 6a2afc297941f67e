"""Operators on shapes against onnxruntime: one module for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

from .inputs import Load, check_sizes, output_dims, random


@pytest.mark.parametrize("shape", [[2, -1, 3], [0, 2, -1], [0, -1, 1], [8, 3, 1]])
def test_reshape_to_an_input(imported: Load, shape: list[int]) -> None:
    model = imported("""
    g (float[n, m] x, int64[3] s) => (float[a, b, c] y) { r = Reshape(x, s) y = Exp(r) }""")
    model.check(random(4, 6), np.array(shape))


def test_expand_broadcasts_both_ways(imported: Load) -> None:
    model = imported("""
    g (float[n, 1] x, float[m, k] t) => (float[2, a, b] y, float[d, e] z) {
        s = Shape(t)
        two = Constant <value_ints = [2]> ()
        target = Concat <axis = 0> (two, s)
        y = Expand(x, target)
        fixed = Constant <value_ints = [1, 4]> ()
        z = Expand(t, fixed)
    }""")
    for left, right in (((3, 1), (1, 4)), ((1, 1), (5, 4)), ((5, 1), (5, 1))):
        model.check(random(*left), random(*right))


def test_squeeze_of_a_symbolic_size(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, float[m] b) => (float[m] y) {
        axis = Constant <value_ints = [0]> () v = Squeeze(x, axis) y = Add(v, b)
    }""")
    model.check(random(1, 4), random(4))
    with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
        model.run(random(2, 4), random(4))


@pytest.mark.parametrize("opset", [11, 13])
def test_an_empty_list_of_axes_is_an_omitted_one(imported: Load, opset: int) -> None:
    declared = "" if opset > 11 else "<axes: ints = []>"
    model = imported(f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    g (float[3, 1, 5, 1] x) => (float[?, ?] y) <int64[0] none = {{}}> {{
        y = Squeeze {declared} (x{", none" if opset > 11 else ""}) }}""")
    model.check(random(3, 1, 5, 1))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth(imported: Load, mode: str) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : {}]>
    g (float[n, 2, h, 4] x) => (float[?, ?, ?, ?] y) {{ y = SpaceToDepth <blocksize = 2{}> (x) }}"""
    is_default = mode == "DCR"
    model = imported(text.format(13 if is_default else 28, "" if is_default else ', mode = "CRD"'))
    x = random(3, 2, 6, 4)
    if is_default:
        model.check(x)
    blocks = x.reshape(3, 2, 3, 2, 2, 2)
    order = (0, 3, 5, 1, 2, 4) if is_default else (0, 1, 3, 5, 2, 4)
    np.testing.assert_array_equal(model.run(x)[0], blocks.transpose(order).reshape(3, 8, 3, 2))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(1, 2, 5, 4))


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 4)])
def test_tile_by_sizes(imported: Load, shape: tuple[int, int]) -> None:
    model = imported("""
    g (float[n, m] x) => (float[a, b] y, float[c, 6] z) {
        s = Shape(x)
        y = Tile(x, s)
        fixed = Constant <value = float[1, 3] {1, 2, 3}> ()
        zero = Constant <value_ints = [0]> ()
        rows = Gather(s, zero)
        two = Constant <value_ints = [2]> ()
        times = Concat <axis = 0> (rows, two)
        z = Tile(fixed, times)
    }""")
    assert output_dims(model) == ["n * n", "m * m"]
    model.check(random(*shape))


@pytest.mark.parametrize("times", [[1, 1], [2, 0], [0, 3]])
def test_tile_by_numbers(imported: Load, times: list[int]) -> None:
    model = imported(f"""
    g (float[n, m] x) => (float[a, b] y, float[c, d] z) {{
        r = Constant <value_ints = {times}> ()
        y = Tile(x, r)
        zero = Constant <value_ints = [0]> ()
        none = Slice(x, zero, zero)
        two = Constant <value_ints = [2, 2]> ()
        z = Tile(none, two)
    }}""")
    for shape in ((2, 3), (1, 1), (0, 2)):
        model.check(random(*shape))


@pytest.mark.parametrize("times", [[1, 1], [2, 1], [0, 3], [3, 2]])
def test_tile_by_an_input(imported: Load, times: list[int]) -> None:
    model = imported("g (float[n, m] x, int64[2] r) => (float[a, b] y) { y = Tile(x, r) }")
    model.check(random(2, 3), np.array(times))


def test_an_inferred_size_is_a_product_of_others(imported: Load) -> None:
    model = imported("""
    g (float[b, 6, h, w] x) => (float[b, 2, c, k] y) {
        s = Shape(x)
        zero = Constant <value_ints = [0]> ()
        batch = Gather(s, zero)
        rest = Constant <value_ints = [2, -1]> ()
        three = Constant <value_ints = [3]> ()
        target = Concat <axis = 0> (batch, rest, three)
        y = Reshape(x, target)
    }""")
    assert output_dims(model) == ["b", "2", "h * w", "3"]
    for shape in ((2, 6, 3, 5), (1, 6, 1, 1), (3, 6, 1, 4)):
        model.check(random(*shape))


def test_a_size_that_an_exporter_rounds_towards_zero(imported: Load) -> None:
    """A convolution rounds `(n - 1) / 2 + 1` down. The two differ where there are no columns."""
    model = imported("""
    g (float[b, 1, n] x, float[4, 1, 3] w) => (float[b, 2, 2, k] y) {
        c = Conv <strides = [2], pads = [1, 1]> (x, w)
        s = Shape(x)
        zero = Constant <value_ints = [0]> ()
        last = Constant <value_ints = [2]> ()
        one = Constant <value_ints = [1]> ()
        batch = Gather(s, zero)
        n = Gather(s, last)
        less = Sub(n, one)
        half = Div(less, last)
        columns = Add(half, one)
        target = Concat <axis = 0> (batch, last, last, columns)
        y = Reshape(c, target)
    }""")
    assert output_dims(model) == ["b", "2", "2", "(n - 1) // 2 + 1"]
    valid = [(shape, (4, 1, 3)) for shape in ((2, 1, 7), (1, 1, 1), (0, 1, 4))]
    check_sizes(model, valid, [((2, 1, 0), (4, 1, 3))])


def test_a_shape_that_is_an_attribute(imported: Load) -> None:
    """As before opset 5; there, too, 0 is copied and -1 inferred."""
    imported("""
    <ir_version: 3, opset_import: ["" : 4]>
    g (float[a, 3, b] x) => (float[?, ?, ?] y) { y = Reshape <shape = [-1, 0, 2]> (x) }
    """).check(random(2, 3, 4))


@pytest.mark.parametrize("shape", ["2, 4", "-1, 4"])
def test_a_reshape_to_another_number_of_elements(imported: Load, shape: str) -> None:
    """The shape is constant; a view would read what lies beyond the data, or leave some out."""
    model = imported(f"""
        g (float[n] x) => (float[?, 4] y) <int64[2] shape = {{{shape}}}> {{
            t = Reshape(x, shape) y = Neg(t) }}""")
    model.check(random(8))
    for count in (6, 11):
        with pytest.raises(ValueError, match="The sizes of the inputs do not fit: n must be equal"):
            model.run(random(count))


def test_depth_to_space_of_a_part_of_a_block(imported: Load) -> None:
    model = imported("""
        g (float[n, c, h, w] x) => (float[?, ?, ?, ?] y) { y = DepthToSpace<blocksize = 2>(x) }""")
    model.check(random(2, 8, 3, 2))
    with pytest.raises(RuntimeError, match="match_cast error"):
        model.run(random(2, 5, 3, 2))


def test_sizes_whose_product_overflows(imported: Load) -> None:
    """2**64 bytes wrap to 0 in an int64. A kernel must not write to an empty allocation."""
    model = imported("""
        g (int64[2] shape) => (float[?, ?] y, float[?, ?] z) <float[1] one = {1}> {
            y = ConstantOfShape(shape) z = Expand(one, shape) }""")
    model.check(np.array([2, 3]))
    for shape in ([2**31, 2**31], [2**62, 4], [2**62, 2**62]):
        with pytest.raises(RuntimeError, match="alloc"):
            model.run(np.array(shape))
