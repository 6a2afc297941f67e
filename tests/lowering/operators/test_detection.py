"""NonMaxSuppression and RoiAlign against onnxruntime: one module for all sizes and thresholds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ...samples import one_of
from .inputs import Load, check_reference, random

Array = np.ndarray[Any, Any]

INPUTS = """
    g (float[b, n, 4] boxes, float[b, c, n] scores{more}) => (int64[k, 3] selected)"""
AT_RUN_TIME = INPUTS.format(more=", int64 most, float[1] overlap, float[1] least")


def node(operands: str, attributes: str = "center_point_box = 0") -> str:
    return f"{{ selected = NonMaxSuppression <{attributes}> (boxes, scores, {operands}) }}"


def boxes(batch: int, classes: int, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Corners in any order; some scores are equal."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 2, (batch, count, 2))
    sizes = rng.uniform(-1, 1, (batch, count, 2))
    scores = np.round(rng.uniform(0, 1, (batch, classes, count)), 1)
    both = np.concatenate([corners, corners + sizes], axis=2)
    return both.astype(np.float32), scores.astype(np.float32)


def one(value: float) -> Array:
    return np.array([value], np.float32)


@pytest.mark.parametrize("centred", [0, 1])
def test_everything_given_at_run_time(stock: Load, centred: int) -> None:
    model = stock(AT_RUN_TIME + node("most, overlap, least", f"center_point_box = {centred}"))
    for sizes in ((1, 1, 1), (1, 3, 20), (2, 2, 33)):
        for most, overlap, least in ((100, 0.3, 0.4), (3, 0.0, 0.0), (2, 0.9, 0.7), (-1, 0.5, 0.5)):
            model.check(*boxes(*sizes), np.array(most), one(overlap), one(least))


def test_nothing_is_selected_without_a_limit(imported: Load) -> None:
    model = imported(INPUTS.format(more="") + node('""'))
    assert model.run(*boxes(1, 2, 5))[0].shape == (0, 3)
    model.check(*boxes(1, 2, 5))


def test_all_thresholds_constant(imported: Load) -> None:
    constants = "<int64[1] most = {5}, float[1] overlap = {0.4}, float[1] least = {0.2}>"
    model = imported(INPUTS.format(more="") + constants + node("most, overlap, least"))
    model.check(*boxes(1, 4, 50))
    model.check(*boxes(3, 1, 7))


def test_without_a_least_score_negative_ones_count(imported: Load) -> None:
    constants = "<int64[1] most = {5}, float[1] overlap = {0.4}>"
    model = imported(INPUTS.format(more="") + constants + node("most, overlap"))
    corners, scores = boxes(2, 2, 9)
    model.check(corners, scores - 2)


def test_boxes_without_area_and_equal_boxes(imported: Load) -> None:
    model = imported(AT_RUN_TIME + node("most, overlap, least"))
    same = np.tile(np.array([0, 0, 1, 1], np.float32), (1, 6, 1))
    same[:, 4:] = 0.5
    model.check(same, np.full((1, 1, 6), 0.5, np.float32), np.array(6), one(0.0), one(0.0))


def test_other_operators_read_the_selection(imported: Load) -> None:
    model = imported(
        """
        g (float[1, n, 4] boxes, float[1, c, n] scores, int64[1] most) => (float[k, 4] kept)
        <float[1] overlap = {0.3}, int64 last = {2}, int64[1] first = {0}> {
            selected = NonMaxSuppression (boxes, scores, most, overlap)
            places = Gather <axis = 1> (selected, last)
            flat = Squeeze (boxes, first)
            kept = Gather <axis = 0> (flat, places)
        }"""
    )
    for count in (1, 12, 30):
        model.check(*boxes(1, 2, count), np.array([4]))


@pytest.mark.parametrize(
    ("mode", "scale"),
    one_of(4, itertools.product(("half_pixel", "output_half_pixel"), (1.0, 0.25, 2.0))),
)
def test_roi_align_scales_regions_before_it_moves_them(
    imported: Load, mode: str, scale: float
) -> None:
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


@pytest.mark.parametrize(
    ("kind", "mode"), [("double", "avg"), ("float16", "avg"), ("float16", "max")]
)
def test_the_bins_of_a_region_without_samples_are_zero(
    imported: Load, kind: str, mode: str
) -> None:
    model = imported(
        f"""
        g ({kind}[b, 2, h, w] x, {kind}[n, 4] regions, int64[n] entries)
            => ({kind}[n, 2, 2, 3] y) {{
            y = RoiAlign <mode = "{mode}", coordinate_transformation_mode = "half_pixel",
                output_height = 2, output_width = 3> (x, regions, entries)
        }}"""
    )
    dtype = {"double": np.float64, "float16": np.float16, "float": np.float32}[kind]
    regions = np.array([[0, 0, 9, 9], [4, 4, 4, 4], [7, 6, 3, 2], [0, 5, 6, 5]], dtype)
    (got,) = model.run(random(2, 2, 10, 12).astype(dtype), regions, np.array([0, 1, 1, 0]))
    assert got.dtype == dtype
    assert got[0].all()
    assert not got[1:].any()


@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_roi_align_takes_as_many_samples_as_a_region_needs(imported: Load, mode: str) -> None:
    """With regions outside of the planes, without an area, and of every number of channels."""
    model = imported(
        f"""
        g (float[b, c, h, w] x, float[n, 4] regions, int64[n] entries) => (float[n, c, 2, 3] y) {{
            y = RoiAlign <coordinate_transformation_mode = "{mode}", output_height = 2,
                output_width = 3> (x, regions, entries)
        }}"""
    )
    regions = np.array(
        [[0, 0, 9, 9], [-20, -3, 1, 50], [4, 4, 4, 4], [7, 6, 3, 2], [-1.5, 9, 0.5, 11]], np.float32
    )
    for channels, count in ((1, 5), (16, 2), (37, 5), (3, 0)):
        data = random(2, channels, 10, 12)
        model.check(data, regions[:count], np.array([0, 1, 1, 0, 1])[:count])


@pytest.mark.parametrize("attributes", ["sampling_ratio = 2", "spatial_scale = 0.5"])
def test_roi_align_by_maxima(imported: Load, attributes: str) -> None:
    """With one sample for each element, and with as many as a region needs."""
    mode = "output_half_pixel" if "scale" in attributes else "half_pixel"
    model = imported(
        f"""
        g (float[b, 2, h, w] x, float[n, 4] regions, int64[n] entries) => (float[n, 2, 3, 2] y) {{
            y = RoiAlign <mode = "max", coordinate_transformation_mode = "{mode}", {attributes},
                output_height = 3, output_width = 2> (x, regions, entries)
        }}"""
    )
    regions = np.array([[0, 0, 9, 9], [2, 3, 17, 12], [1, 1, 1.5, 1.5], [3, 3, 3, 3]], np.float32)
    for count in (1, 4):
        entries = np.array([0, 1, 1, 0])[:count]
        check_reference(model, random(2, 2, 7, 8), regions[:count], entries, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_entries_outside_of_the_batch(imported: Load, mode: str) -> None:
    """onnxruntime refuses them; they must not read what lies beyond the data."""
    model = imported(
        f"""
        g (float[b, 2, h, w] x, float[n, m] regions, int64[k] entries) => (float[?, 2, 2, 2] y) {{
            y = RoiAlign <mode = "{mode}", output_height = 2, output_width = 2>
                (x, regions, entries)
        }}"""
    )
    data, regions = random(2, 2, 8, 8), np.array([[0, 0, 4, 4]] * 3, np.float32)
    (expected,) = model.run(data, regions, np.array([1, 0, 1]))
    (found,) = model.run(data, regions, np.array([10**12, -(10**12), 1]))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(RuntimeError, match="mismatch"):
        model.run(data[:0], regions, np.array([0, 0, 0]))
