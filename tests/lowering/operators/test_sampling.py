"""AffineGrid, Col2Im and DeformConv, one module for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from .inputs import Load, check_reference, random


@pytest.mark.parametrize("aligns", [0, 1])
def test_affine_grid_of_computed_sizes(imported: Load, aligns: int) -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 20]>
    g (float[n, D, E] theta, int64[K] size) => (float[?, ?, ?, ?ANY] y) {
        y = AffineGrid <align_corners = ALIGNS> (theta, size)
    }"""
    text = text.replace("ALIGNS", str(aligns))
    flat = imported(text.replace("[n, D, E]", "[n, 2, 3]").replace("K", "4").replace("ANY", ""))
    for size in ((2, 3, 4, 5), (1, 1, 2, 2)):
        check_reference(flat, random(size[0], 2, 3), np.array(size))
    deep = imported(text.replace("[n, D, E]", "[n, 3, 4]").replace("K", "5").replace("ANY", ", ?"))
    check_reference(deep, random(2, 3, 4), np.array([2, 1, 2, 3, 4]))


def test_col2im(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[b, k, n] x, int64[2] image, int64[2] block) => (float[?, ?, ?, ?] y) {
            y = Col2Im <pads = [1, 0, 0, 1], strides = [2, 1], dilations = [1, 2]> (x, image, block)
        }"""
    )
    image, block = np.array([5, 6]), np.array([2, 3])
    columns = ((5 + 1 - 2) // 2 + 1) * (6 + 1 - 5 + 1)
    check_reference(model, random(2, 12, columns), image, block)
    check_reference(model, random(1, 1, 3 * 7), np.array([5, 6]), np.array([1, 1]))


def test_col2im_of_one_and_three_axes(imported: Load) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float16[b, k, n] x) => (float16[?, ?, ?] y) <int64[1] image = {6}, int64[1] block = {3}> {
        y = Col2Im (x, image, block)
    }"""
    x = np.ones((2, 6, 4), np.float16)
    (got,) = imported(text).run(x)
    np.testing.assert_array_equal(got[0, 0], [1, 2, 3, 3, 2, 1])
    deep = imported(
        text.replace("[?, ?, ?]", "[?, ?, ?, ?, ?]")
        .replace("[1] image = {6}", "[3] image = {2, 3, 2}")
        .replace("[1] block = {3}", "[3] block = {1, 2, 1}")
    )
    check_reference(deep, random(2, 4, 8).astype(np.float16), tolerance=2e-3)


def deform_conv(attributes: str, inputs: str, dtype: str = "float") -> str:
    return f"""
    <ir_version: 9, opset_import: ["" : 19]>
    g ({dtype}[b, 4, h, w] x, {dtype}[o, 2, 2, 2] k, {dtype}[b, 16, r, c] offset,
       {dtype}[o] bias, {dtype}[b, 8, r, c] mask) => ({dtype}[?, ?, ?, ?] y) {{
        y = DeformConv <group = 2, offset_group = 2, {attributes}> (x, k, offset, {inputs})
    }}"""


def test_deform_conv(imported: Load) -> None:
    """Offsets lead outside of the image, whose elements there are 0."""
    text = deform_conv("pads = [1, 0, 1, 1], strides = [2, 1], dilations = [1, 2]", "bias, mask")
    for batch, outputs, height, width in ((2, 6, 5, 4), (1, 2, 3, 3)):
        rows, columns = (height + 2 - 2) // 2 + 1, width + 1 - 3 + 1
        check_reference(
            imported(text),
            random(batch, 4, height, width),
            random(outputs, 2, 2, 2),
            3 * random(batch, 16, rows, columns),
            random(outputs),
            random(batch, 8, rows, columns),
            tolerance=1e-4,
        )


def test_deform_conv_without_offsets_is_conv(imported: Load) -> None:
    model = imported(deform_conv("pads = [0, 0, 0, 0]", '"", mask', "float16"))
    data, kernel = random(1, 4, 3, 3).astype(np.float16), np.zeros((2, 2, 2, 2), np.float16)
    kernel[:, :, 1, 0] = 1
    ones = np.ones((1, 8, 2, 2), np.float16)
    (got,) = model.run(data, kernel, np.zeros((1, 16, 2, 2), np.float16), ones[0, :2, 0, 0], ones)
    want = np.stack([data[0, :2].sum(0), data[0, 2:].sum(0)])[:, 1:, :2]
    np.testing.assert_allclose(got[0], want, atol=1e-3)


def test_deform_conv_of_other_ranks_is_refused(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="the data has 1 spatial axes"):
        imported("""
        <ir_version: 9, opset_import: ["" : 19]>
        g (float[1, 1, n] x, float[1, 1, 2] k, float[1, 2, m] o) => (float[1, 1, m] y) {
            y = DeformConv (x, k, o)
        }""")
