"""GridSample, one module for all sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import Load, check_sizes, random


@pytest.mark.parametrize(
    ("mode", "padding", "aligns"),
    one_of(
        5,
        itertools.product(
            ["linear", "nearest", "cubic"], ["zeros", "border", "reflection"], [0, 1]
        ),
    ),
)
def test_grid_sample(imported: Load, mode: str, padding: str, aligns: int) -> None:
    text = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[n, c, h, w] x, float[n, a, b, 2] grid) => (float[n, c, a, b] y) {{
        y = GridSample <mode = "{mode}", padding_mode = "{padding}", align_corners = {aligns}> (x, grid)
    }}"""
    model = imported(text)
    # No coordinate halfway between two elements, which the nearest mode may round either way.
    model.check(random(2, 3, 5, 4), random(2, 3, 2, 2) * np.float32(1.3))
    model.check(random(1, 1, 1, 1), random(1, 2, 2, 2))
    model.check(random(1, 1, 4, 4), random(1, 0, 3, 2))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_at_coordinates_that_are_not_finite_or_huge(
    imported: Load, mode: str, padding: str
) -> None:
    """A linspace of one element is NaN, as in detectors whose smallest map is a single position."""
    text = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[1, 1, h, w] x, float[1, 1, b, 2] grid) => (float[1, 1, 1, b] y) {{
        y = GridSample <mode = "{mode}", padding_mode = "{padding}"> (x, grid)
    }}"""
    places = [np.nan, 0, 0, np.nan, np.inf, 0.3, 0.3, -np.inf, 1e30, -1e30, 7, -9]
    grid = np.array(places, np.float32).reshape(1, 1, -1, 2)
    imported(text).check(random(1, 1, 3, 3), grid)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_grid_sample_of_volumes(imported: Load, mode: str, padding: str) -> None:
    text = f"""
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[n, c, d, h, w] x, float[n, e, a, b, 3] grid) => (float[n, c, e, a, b] y) {{
        y = GridSample <mode = "{mode}", padding_mode = "{padding}"> (x, grid)
    }}"""
    model = imported(text)
    model.check(random(2, 2, 3, 4, 5), random(2, 1, 3, 2, 3) * np.float32(1.3))
    model.check(random(1, 1, 1, 1, 1), random(1, 1, 1, 2, 3))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_before_opset_20(imported: Load, mode: str) -> None:
    model = imported(
        f"""
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[n, c, h, w] x, float[n, a, b, 2] grid) => (float[n, c, a, b] y) {{
        y = GridSample <mode = "{mode}"> (x, grid)
    }}"""
    )
    model.check(random(2, 3, 5, 4), random(2, 3, 2, 2))


def test_a_grid_that_does_not_fit_the_image(imported: Load) -> None:
    """onnxruntime reports it; reading on would be beyond the grid."""
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[n, c, h, w] x, float[m, a, b, k] grid) => (float[n, c, a, b] y) {
        y = GridSample (x, grid)
    }"""
    image = (2, 3, 5, 4)
    valid = [(image, (2, 3, 2, 2))]
    check_sizes(imported(text), valid, [(image, (1, 3, 2, 2)), (image, (2, 3, 2, 1))])
    with pytest.raises(UnsupportedError, match="must have rank 4 and 2"):
        imported(text.replace("b, k]", "b, 3]"))
