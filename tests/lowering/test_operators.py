"""Operators that TVM's converters lack or get wrong, against onnxruntime: one module for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (3,)), (1, (4, 3)), (1, (3,))])
def test_layer_normalization_gives_mean_and_deviation(
    imported: Load, axis: int, shape: tuple[int, ...]
) -> None:
    scale = f"float[{', '.join(map(str, shape))}]"
    model = imported(
        f"""
        g (float[n, 4, 3] x, {scale} scale)
            => (float[n, 4, 3] y, float[?, ?, ?] mean, float[?, ?, ?] d)
        {{
            y, mean, d = LayerNormalization <axis = {axis}, epsilon = 0.01> (x, scale)
        }}"""
    )
    for rows in (2, 1, 5):
        model.check(random(rows, 4, 3), random(*shape))


@pytest.mark.parametrize("axis", [-1, 0])
def test_rms_normalization(imported: Load, axis: int) -> None:
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[n, 5] x, float[5] scale) => (float[n, 5] y)
        {{ y = RMSNormalization <axis = {axis}> (x, scale) }}"""
    )
    model.check(random(3, 5), random(5))
    model.check(random(7, 5), random(5))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0])
def test_lp_normalization(imported: Load, p: int, axis: int) -> None:
    text = "g (float[n, m] x) => (float[n, m] y) {{ y = LpNormalization <p = {}, axis = {}> (x) }}"
    model = imported(text.format(p, axis))
    model.check(random(3, 5))
    model.check(np.vstack([random(2, 4), np.zeros((1, 4), np.float32)]))


def test_dropout_keeps_everything(imported: Load) -> None:
    imported(
        """
        g (float[n, 3] x) => (float[n, 3] y, bool[n, 3] mask) <float ratio = {0.5}> {
            y, mask = Dropout (x, ratio)
        }"""
    ).check(random(4, 3))


TRAINED = "g (float[n] x, bool training) => (float[n] y) {} {{ y = Dropout (x, {}, training) }}"


def test_a_dropout_that_drops_nothing(imported: Load) -> None:
    model = imported(TRAINED.format("<float ratio = {0.0}>", "ratio"))
    model.check(random(3), np.array(True))
    model = imported(TRAINED.format("<float ratio = {0.5}>", "ratio"))
    model.check(random(3), np.array(False))


def test_a_dropout_at_random_fails(imported: Load) -> None:
    model = imported(TRAINED.format("<float ratio = {0.5}>", "ratio"))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(3), np.array(True))
    with pytest.raises(UnsupportedError, match="training mode"):
        imported("g (float[3] x) => (float[3] y) <bool t = {1}> { y = Dropout (x, , t) }")


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [-1, 0])
def test_top_k_of_a_count_that_is_an_input(imported: Load, axis: int, largest: int) -> None:
    model = imported(
        f"""
        g (float[n, m] x, int64[1] k) => (float[?, ?] values, int64[?, ?] places) {{
            values, places = TopK <axis = {axis}, largest = {largest}> (x, k)
        }}"""
    )
    model.check(random(4, 6), np.array([3]))
    model.check(np.ones((3, 5), np.float32), np.array([2]))
    model.check(random(4, 6), np.array([0]))
    model.check(random(4, 4), np.array([4]))


def test_top_k_of_at_most_as_many_as_there_are(imported: Load) -> None:
    model = imported(
        """
        g (float[n] x) => (float[k] values, int64[k] places)
        <int64[1] most = {5}, int64[1] first = {0}> {
            sizes = Shape (x)
            n = Gather (sizes, first)
            k = Min (n, most)
            values, places = TopK <sorted = 0> (x, k)
        }"""
    )
    for count in (3, 5, 9):
        values, places = model.run(x := random(count))
        np.testing.assert_array_equal(values, np.sort(x)[::-1][:5])
        np.testing.assert_array_equal(x[places], values)


@pytest.mark.parametrize("given", ["int64[1] k", "weight"])
def test_top_k_of_more_than_there_are_fails(imported: Load, given: str) -> None:
    inputs, weights = (", " + given, "") if given != "weight" else ("", "<int64[1] k = {5}>")
    model = imported(
        f"""
        g (float[n] x{inputs}) => (float[?] values, int64[?] places) {weights} {{
            values, places = TopK (x, k)
        }}"""
    )
    count = [] if weights else [np.array([5])]
    model.check(random(5), *count)
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(4), *count)
    if count:
        with pytest.raises(Exception, match="match_cast error"):
            model.run(random(4), np.array([-1]))


def test_top_k_and_split_that_never_fit_are_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="axis 0 has 4 elements, and should have 5"):
        imported("g (float[4] x) => (float[5] v, int64[5] p) <int64[1] k={5}> {v, p = TopK (x, k)}")
    with pytest.raises(UnsupportedError, match="axis 0 has 4 elements, and should have 3"):
        imported("g (float[4] x) => (float[?] a, float[?] b) <int64[2] s={1,2}> {a,b = Split(x,s)}")


def test_split_by_sizes_that_are_an_input(imported: Load) -> None:
    model = imported(
        """
        g (float[n, m] x, int64[2] sizes) => (float[n, ?] a, float[n, ?] b) {
            a, b = Split <axis = -1> (x, sizes)
        }"""
    )
    model.check(random(2, 7), np.array([3, 4]))
    model.check(random(5, 4), np.array([0, 4]))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(2, 7), np.array([3, 3]))
    with pytest.raises(Exception, match=r"match_cast error|bad_alloc"):
        model.run(random(2, 7), np.array([-1, 8]))


def test_split_by_fixed_sizes_that_do_not_add_up_fails(imported: Load) -> None:
    text = (
        "g (float[n] x) => (float[2] a, float[3] b) <int64[2] s = {2, 3}> { a, b = Split (x, s) }"
    )
    model = imported(text)
    model.check(random(5))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(6))


@pytest.mark.parametrize(("opset", "attribute"), [(17, ""), (18, "<num_outputs = 3>")])
def test_split_into_equal_parts(imported: Load, opset: int, attribute: str) -> None:
    model = imported(
        f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (float[n] x) => (float[?] a, float[?] b, float[?] c) {{ a, b, c = Split {attribute} (x) }}"""
    )
    model.check(random(6))
    if attribute:
        model.check(random(5))
    with pytest.raises(Exception, match="match_cast error"):
        model.run(random(1))


def test_split_by_sizes_computed_from_shapes(imported: Load) -> None:
    model = imported(
        """
        g (float[n] x, float[m] like) => (float[?] a, float[?] b) {
            all = Shape (x)
            first = Shape (like)
            rest = Sub (all, first)
            sizes = Concat <axis = 0> (first, rest)
            a, b = Split (x, sizes)
        }"""
    )
    model.check(random(9), random(2))
    model.check(random(3), random(3))


@pytest.mark.parametrize(
    ("base", "exponent"),
    [
        ("float", "int64"),
        ("float", "int32"),
        ("int32", "int32"),
        ("int64", "float"),
        ("double", "float"),
    ],
)
def test_powers_of_other_types(imported: Load, base: str, exponent: str) -> None:
    text = "g ({b}[n] x, {e}[n] p) => ({b}[n] y) {{ y = Pow (x, p) }}"
    model = imported(text.format(b=base, e=exponent))
    types = {"float": np.float32, "double": np.float64, "int32": np.int32, "int64": np.int64}
    values, powers = np.array([1, 2, 3, -2, 7]), np.array([4, 3, 0, 2, 5])
    model.check(values.astype(types[base]), powers.astype(types[exponent]))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_that_depends_on_sizes(imported: Load, auto_pad: str, stride: int) -> None:
    model = imported(
        f"""
        g (float[1, 2, h, w] x, float[4, 2, 3, 4] weight)
            => (float[1, 4, ?, ?] y, float[1, 2, ?, ?] most)
        {{
            y = Conv <auto_pad = "{auto_pad}", strides = [{stride}, {stride}]> (x, weight)
            most = MaxPool <auto_pad = "{auto_pad}", strides = [{stride}, {stride}],
                kernel_shape = [2, 5]> (x)
        }}"""
    )
    for sizes in ((8, 8), (7, 10), (5, 1)):
        model.check(random(1, 2, *sizes) - 3, random(4, 2, 3, 4))


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [(10, 8), (8, 5), (7, 6)])
def test_transposed_convolution_of_a_given_shape(
    imported: Load, auto_pad: str, shape: tuple[int, int]
) -> None:
    imported(
        f"""
        g (float[1, 1, 3, 3] x, float[1, 2, 3, 3] w) => (float[1, 2, ?, ?] y) {{
            y = ConvTranspose <strides = [3, 2], auto_pad = "{auto_pad}",
                output_shape = [{shape[0]}, {shape[1]}]> (x, w)
        }}"""
    ).check(random(1, 1, 3, 3), random(1, 2, 3, 3))


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("scale", [1.0, 0.25, 2.0])
def test_regions_are_scaled_before_they_are_moved(imported: Load, mode: str, scale: float) -> None:
    model = imported(
        f"""
        g (float[b, 2, h, w] x, float[n, 4] regions, int64[n] entries) => (float[n, 2, 3, 4] y) {{
            y = RoiAlign <coordinate_transformation_mode = "{mode}", spatial_scale = {scale},
                output_height = 3, output_width = 4, sampling_ratio = 2> (x, regions, entries)
        }}"""
    )
    regions = np.array([[0, 0, 9, 9], [2, 3, 17, 12], [1, 1, 5, 5.5]], np.float32)
    for count in (1, 3):
        model.check(random(2, 2, 10, 12), regions[:count], np.array([0, 1, 1])[:count])


def test_the_largest_of_several_samples_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="largest"):
        imported(
            """
            g (float[1, 2, 9, 9] x, float[n, 4] regions, int64[n] entries) => (float[n, 2, 1, 1] y)
            { y = RoiAlign <mode = "max"> (x, regions, entries) }"""
        )


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(imported: Load, axis: int) -> None:
    indices = np.array([[0, 2, -1], [7, -9, 1]])
    by_input = imported(
        f"""
        g (int64[n, m] x, int64 depth, int64[2] v) => (int64[?, ?, ?] y)
        {{ y = OneHot <axis = {axis}> (x, depth, v) }}"""
    )
    for depth in (1, 4):
        by_input.check(indices, np.array(depth), np.array([5, 9]))
    by_constant = imported(
        f"""
        g (int64[n, m] x) => (float[?, ?, ?] y) <int64[1] depth = {{3}}, float[2] v = {{0.5, 2}}>
        {{ y = OneHot <axis = {axis}> (x, depth, v) }}"""
    )
    by_constant.check(indices)


@pytest.mark.parametrize(("negative", "positive"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_which_infinity(imported: Load, negative: int, positive: int) -> None:
    model = imported(
        f"""
        g (float[n] x) => (bool[n] y)
        {{ y = IsInf <detect_negative = {negative}, detect_positive = {positive}> (x) }}"""
    )
    model.check(np.array([np.inf, -np.inf, 1, np.nan], np.float32))


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


def test_batch_normalization_of_a_batch(imported: Load) -> None:
    vectors = [f"float[3] {name}" for name in ("scale", "bias", "mean", "variance")]
    model = imported(
        f"""
        g (float[n, 3, m] x, {", ".join(vectors)}) => (float[n, 3, m] y, float[3] a, float[3] b) {{
            y, a, b = BatchNormalization <training_mode = 1, momentum = 0.8, epsilon = 0.01>
                (x, scale, bias, mean, variance)
        }}"""
    )
    given = [random(3), random(3) + 1, random(3) - 1, np.abs(random(3))]
    for shape in ((2, 3, 5), (4, 3, 1)):
        model.check(random(*shape), *given)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", ["uint8", "uint64"])
def test_bit_shift_by_any_amount(imported: Load, direction: str, dtype: str) -> None:
    bits = np.iinfo(dtype).bits
    text = 'g ({0}[n] x, {0}[n] by) => ({0}[n] y) {{ y = BitShift <direction = "{1}"> (x, by) }}'
    amounts = np.array([0, 1, bits - 1, bits, bits + 3, 250], dtype)
    given = np.full(6, 200, dtype)
    (got,) = imported(text.format(dtype, direction)).run(given, amounts)
    shift = np.left_shift if direction == "LEFT" else np.right_shift
    np.testing.assert_array_equal(got, np.where(amounts < bits, shift(given, amounts % bits), 0))


def test_modulo_of_floats_takes_the_sign_of_the_divisor(imported: Load) -> None:
    model = imported("g (float[n] x, float[m] by) => (float[?] z) { z = Mod (x, by) }")
    x = np.array([5.5, -5.5, 0, -0.5, 6, -6, 1, np.nan], np.float32)
    for by in (2, -2, np.inf, -np.inf, np.nan):
        divisor = np.full(1, by, np.float32)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(model.run(x, divisor)[0], np.mod(x, divisor))


@pytest.mark.parametrize("more", ["ceil_mode = 1", "ceil_mode = 1, pads = [1, 2]", "pads = [1, 1]"])
def test_lp_pool(imported: Load, more: str) -> None:
    model = imported(
        f"""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 2, m] x) => (float[n, 2, ?] y) {{
            y = LpPool <kernel_shape = [3], strides = [2], p = 3, {more}> (x)
        }}"""
    )
    for size in range(3, 9):
        model.check(random(2, 2, size))
