"""Resize and Upsample in all modes against onnxruntime: one module for all sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from ...samples import one_of
from .inputs import check_reference

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def by_scales(attributes: str, *scales: float) -> str:
    dims = ", ".join(f"d{axis}" for axis in range(len(scales)))
    return f"""
    g (float[{dims}] x) => (float[{", ".join("?" * len(scales))}] y) <
        float[{len(scales)}] scales = {{{", ".join(map(str, scales))}}}
    > {{ y = Resize <{attributes}> (x, "", scales) }}"""


ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
COORDINATES = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")


@pytest.mark.parametrize(
    ("coordinates", "nearest"), one_of(3, itertools.product(COORDINATES, ROUNDINGS))
)
def test_nearest(imported: Load, coordinates: str, nearest: str) -> None:
    attributes = f'coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}"'
    for scales in ((1, 1, 2, 3), (1, 1, 0.6, 1.5)):
        model = imported(by_scales(attributes, *scales))
        model.check(random(1, 2, 5, 7))
        model.check(random(2, 1, 4, 2))


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "floor"])
def test_the_centres_of_an_old_version(imported: Load, nearest: str) -> None:
    """Opset 13 lacks tf_half_pixel_for_nn."""
    mode = "tf_half_pixel_for_nn"
    attributes = f'coordinate_transformation_mode = "{mode}", nearest_mode = "{nearest}"'
    for scales in ((1, 1, 2, 3), (1, 1, 0.6, 1.5)):
        text = '<ir_version: 7, opset_import: ["" : 12]>' + by_scales(attributes, *scales)
        imported(
            text.replace('(x, "", scales)', "(x, roi, scales)").replace(
                "(float[d0, d1, d2, d3] x)", "(float[d0, d1, d2, d3] x, float[0] roi)"
            )
        ).check(random(1, 2, 5, 7), np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("coordinates", "mode"), one_of(3, itertools.product(COORDINATES, ("linear", "cubic")))
)
def test_interpolation(imported: Load, coordinates: str, mode: str) -> None:
    attributes = f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"'
    for scales in ((1, 1, 2, 3), (1, 1, 0.6, 1.5)):
        model = imported(by_scales(attributes, *scales))
        model.check(random(1, 2, 5, 7))
        model.check(random(2, 1, 4, 3))


def test_weights_outside_can_be_left_out(imported: Load) -> None:
    attributes = 'mode = "cubic", exclude_outside = 1, cubic_coeff_a = -0.5'
    imported(by_scales(attributes, 1, 1, 2, 2)).check(random(1, 1, 4, 6))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crops(imported: Load, mode: str) -> None:
    model = imported(f"""
    g (float[1, 1, h, w] x) => (float[1, 1, 5, 6] y) <
        float[8] roi = {{0, 0, 0.4, -0.2, 1, 1, 0.9, 1.3}}, int64[4] sizes = {{1, 1, 5, 6}}
    > {{
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "{mode}",
            extrapolation_value = 7.0> (x, roi, "", sizes)
    }}""")
    model.check(random(1, 1, 4, 8))
    model.check(random(1, 1, 9, 3))


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_types(imported: Load, dtype: str) -> None:
    model = imported(f"""
    g ({dtype}[1, 1, h, w] x) => ({dtype}[1, 1, H, W] y) <float[4] scales = {{1, 1, 2, 2}}>
    {{ y = Resize <mode = "nearest"> (x, "", scales) }}""")
    values = np.arange(12).reshape(1, 1, 3, 4)
    model.check(values.astype(dtype))


def test_sizes_of_another_tensor(imported: Load) -> None:
    """A decoder resizes features to the size of a skip connection like this."""
    model = imported("""
    g (float[1, 2, h, w] x, float[1, 2, h2, w2] skip) => (float[1, 2, ?, ?] y) {
        sizes = Shape (skip)
        up = Resize <mode = "linear"> (x, "", "", sizes)
        y = Add (up, skip)
    }""")
    model.check(random(1, 2, 4, 5), random(1, 2, 9, 10))
    model.check(random(1, 2, 6, 2), random(1, 2, 3, 7))


def test_sizes_and_scales_known_at_run_time(imported: Load) -> None:
    by_size = imported("""
    g (float[1, 2, h, w] x, int64[4] sizes) => (float[?, ?, ?, ?] y) {
        y = Resize <mode = "linear"> (x, "", "", sizes)
    }""")
    by_size.check(random(1, 2, 4, 5), np.array([1, 2, 3, 9]))
    by_scale = imported("""
    g (float[1, 2, h, w] x, float[4] scales) => (float[?, ?, ?, ?] y) {
        y = Resize <mode = "nearest"> (x, "", scales)
    }""")
    by_scale.check(random(1, 2, 4, 5), np.array([1, 1, 1.5, 3], np.float32))


@pytest.mark.parametrize(
    "coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"]
)
def test_interpolation_to_sizes_known_at_run_time(imported: Load, coordinates: str) -> None:
    model = imported(f"""
    g (float[1, 2, h, w] x, int64[4] sizes) => (float[?, ?, ?, ?] y) {{
        y = Resize <mode = "linear", coordinate_transformation_mode = "{coordinates}">
            (x, "", "", sizes)
    }}""")
    for height, width in ((3, 9), (4, 5), (8, 1)):
        model.check(random(1, 2, 4, 5), np.array([1, 2, height, width]))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_antialiased_integers_are_rounded(imported: Load, dtype: str, mode: str) -> None:
    """Onnxruntime computes bytes with 22 binary places, so that halves may go either way."""
    model = imported(f"""
    <ir_version: 9, opset_import: ["" : 18]>
    g ({dtype}[1, 3, h, w] x, int64[4] sizes) => ({dtype}[?, ?, ?, ?] y) {{
        y = Resize <mode = "{mode}", antialias = 1> (x, "", "", sizes)
    }}""")
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 16, 16)).astype(dtype)
    feed = {"x": x, "sizes": np.array([1, 3, 16, 7])}
    (expected,) = model.session.run(None, feed)
    distance = np.abs(np.asarray(model.run(*feed.values())[0], int) - expected)
    assert distance.max() <= 1
    assert np.mean(distance) < 0.01


def test_an_empty_vector_of_scales_that_a_run_gives(imported: Load) -> None:
    """Opset 11 has no omitted scales: they are empty where there are sizes."""
    model = imported("""
    <ir_version: 8, opset_import: ["" : 11]>
    g (float[1, 2, h, w] x, float[r] roi, float[s] scales, int64[4] sizes) => (float[?, ?, ?, ?] y) {
        y = Resize <mode = "nearest"> (x, roi, scales, sizes)
    }""")
    empty = np.zeros(0, np.float32)
    model.check(random(1, 2, 4, 5), empty, empty, np.array([1, 2, 8, 10]))


@pytest.mark.parametrize(
    ("scale", "formula"),
    [(2048, "n * 2048"), (0.5, "n // 2"), (1.5, "n * 3 // 2"), (0.2, "n // 5")],
)
def test_sizes_are_integer_expressions(imported: Load, scale: float, formula: str) -> None:
    model = imported(f"""
    g (float[1, 1, n] x) => (float[1, 1, m] y) <float[3] scales = {{1, 1, {scale}}}>
    {{ y = Resize (x, "", scales) }}""")
    kind = model.module["main"].ret_ty
    assert isinstance(kind.shape, relax.ShapeExpr)
    assert re.sub(r"T\.int64\((\d+)\)", r"\1", str(kind.shape.values[2])) == formula


def test_a_scale_that_rounds_down_is_multiplied_as_onnxruntime_does(imported: Load) -> None:
    """float32(0.7) is less than 7 / 10, so `n * 7 // 10` could be one too many."""
    model = imported(by_scales('mode = "nearest"', 1, 1, 0.7))
    for size in (1, 5, 10, 20, 1000):
        model.check(random(1, 1, size))


def test_old_versions_round_by_direction(imported: Load) -> None:
    for opset, node in (
        (10, 'y = Resize <mode = "{mode}"> (x, scales)'),
        (9, 'y = Upsample <mode = "{mode}"> (x, scales)'),
    ):
        for mode in ("nearest", "linear"):
            scales = (1, 1, 2.5, 2) if opset == 9 else (1, 1, 0.6, 2)
            model = imported(f"""<ir_version: 4, opset_import: ["" : {opset}]>
            g (float[1, 1, h, w] x) => (float[1, 1, H, W] y) <
                float[4] scales = {{{", ".join(map(str, scales))}}}
            > {{ {node.format(mode=mode)} }}""")
            model.check(random(1, 1, 5, 4))


@pytest.mark.parametrize(
    ("mode", "policy"),
    one_of(3, itertools.product(("nearest", "linear"), ("not_larger", "not_smaller"))),
)
def test_the_aspect_ratio_can_be_kept(imported: Load, mode: str, policy: str) -> None:
    model = imported(f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[1, 2, h, w] x, int64[2] sizes) => (float[?, ?, ?, ?] y) {{
        y = Resize <mode = "{mode}", keep_aspect_ratio_policy = "{policy}", axes = [2, 3]>
            (x, "", "", sizes)
    }}""")
    for sizes in ((7, 8), (3, 2), (9, 20), (6, 4)):
        model.check(random(1, 2, 3, 4), np.array(sizes))
        model.check(random(1, 2, 6, 4), np.array(sizes))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiasing(imported: Load, mode: str) -> None:
    """onnxruntime leaves out elements beyond the edges; ONNX says so for `exclude_outside` only."""
    model = imported(f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[1, 2, n] x, int64[3] sizes) => (float[?, ?, ?] y, float[?, ?, ?] z)
      <float[3] scales = {{1, 1, 0.4}}> {{
        y = Resize <mode = "{mode}", antialias = 1> (x, "", "", sizes)
        z = Resize <mode = "{mode}", antialias = 1, exclude_outside = 1> (x, "", scales)
    }}""")
    for before, after in ((9, 4), (5, 8), (12, 1), (3, 3)):
        check_reference(model, random(1, 2, before), np.array([1, 2, after]))


def test_a_crop_that_a_run_computes(imported: Load) -> None:
    model = imported("""
    g (float[1, 1, h, w] x, float[8] roi) => (float[1, 1, 5, 6] y) <int64[4] sizes = {1, 1, 5, 6}> {
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear",
            extrapolation_value = 7.0> (x, roi, "", sizes)
    }""")
    for part in ([0, 0, 0.4, -0.2, 1, 1, 0.9, 1.3], [0, 0, 0, 0.5, 1, 1, 1, 0.1]):
        model.check(random(1, 1, 4, 8), np.array(part, np.float32))


def test_corners_with_scales_that_a_run_computes(imported: Load) -> None:
    model = imported("""
    g (float[1, 1, 2, 2] x, float[4] scales) => (float[?, ?, ?, ?] y) {
        y = Resize <coordinate_transformation_mode = "align_corners", mode = "linear">
            (x, "", scales)
    }""")
    model.check(random(1, 1, 2, 2), np.array([1, 1, 2, 3], np.float32))
