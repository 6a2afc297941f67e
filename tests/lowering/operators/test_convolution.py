"""Convolution and pooling whose padding depends on sizes, against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import Load, random


@pytest.mark.parametrize(
    ("auto_pad", "stride"),
    one_of(4, itertools.product(("SAME_UPPER", "SAME_LOWER"), (1, 2, 3))),
)
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


def test_without_strides_the_convolution_itself_pads(imported: Load) -> None:
    model = imported("""
        g (float[b, 2, h, w] x, float[4, 2, 3, 4] k) => (float[b, 4, h, w] y)
        { y = Conv <auto_pad = "SAME_UPPER"> (x, k) }""")
    assert "padding=[1, 1, 1, 2]" in model.module.script()
    for sizes in ((8, 8), (1, 10), (5, 1)):
        model.check(random(2, 2, *sizes), random(4, 2, 3, 4))


def test_a_kernel_shape_that_is_not_that_of_the_weight(imported: Load) -> None:
    with pytest.raises(
        UnsupportedError, match=r"kernel_shape is \[5, 5\], the weight is of \[3, 3\]"
    ):
        imported("""
            g (float[1, 1, h, w] x, float[1, 1, 3, 3] k) => (float[1, 1, ?, ?] y) {
                y = Conv <kernel_shape = [5, 5]> (x, k)
            }""")


def test_a_transposed_convolution_with_a_kernel_of_unknown_size(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="the size of the kernel is not known"):
        imported(
            "g (float[1,2,n] x, float[2,3,k] w) => (float[1,3,?] y) { y = ConvTranspose(x, w) }"
        )


@pytest.mark.parametrize(
    ("shape", "op", "auto_pad"),
    one_of(
        3,
        itertools.product(
            ("b, 2, 7, 1", "b, 2, h, w", "2, 2, 5, 9", "b, 2, h, 9"),
            ("MaxPool", "AveragePool"),
            ("SAME_UPPER", "SAME_LOWER"),
        ),
    ),
)
def test_pooling_as_large_as_the_data(imported: Load, op: str, auto_pad: str, shape: str) -> None:
    attributes = f'auto_pad = "{auto_pad}", kernel_shape = [3, 4]'
    counts = ", count_include_pad = 1" if op == "AveragePool" else ""
    model = imported(
        f"""
        g (float[{shape}] x) => (float[b, 2, ?, ?] y, float[b, 2, ?, ?] z, float[b, 2, ?, ?] u,
            float[b, 2, ?, ?] v) {{
            y = {op} <{attributes}> (x)
            v = {op} <{attributes}{counts}> (x)
            z = {op} <{attributes}, strides = [3, 2]> (x)
            u = {op} <{attributes}, strides = [2, 3]{counts}> (x)
        }}"""
    )
    for b, h, w in ((2, 5, 9), (2, 7, 1), (1, 8, 8)):
        known = [int(size) if size.isdecimal() else 0 for size in shape.split(", ")]
        sizes = [size or given for size, given in zip(known, (b, 2, h, w), strict=True)]
        model.check(random(*sizes) - 3)


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


def test_a_bias_whose_size_the_run_finds_to_be_that_of_the_channels(imported: Load) -> None:
    model = imported(
        """
        g (float[n, c, w] x, float[6, 4, 3] k, float[m] b) => (float[n, 6, v] y)
        { y = Conv (x, k, b) }"""
    )
    model.check(random(2, 4, 7), random(6, 4, 3), random(6))
    with pytest.raises(Exception, match="6"):
        model.run(random(2, 4, 7), random(6, 4, 3), random(5))


def test_groups_of_an_unknown_number_of_channels(imported: Load) -> None:
    with pytest.raises(UnsupportedError, match="the number of channels, which form groups"):
        imported("""
        g (float[n, c, h] x, float[d, 1, 3] w) => (float[?, ?, ?] y) {
            y = ConvTranspose <group = 2> (x, w) }""")
    model = imported("""
    g (float[n, 4, h] x, float[d, 1, 3] w) => (float[?, ?, ?] y) {
        y = ConvTranspose <group = 2> (x, w) }""")
    model.check(random(2, 4, 5), random(4, 1, 3))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape = [2, 3]",
        "kernel_shape = [2, 3], strides = [2, 1], pads = [1, 0, 0, 2], dilations = [2, 1]",
        "kernel_shape = [2, 2], dilations = [2, 1], ceil_mode = 1, strides = [2, 2]",
        'kernel_shape = [3, 3], auto_pad = "SAME_UPPER"',
    ],
)
def test_maxima_with_channels_last(imported: Load, attributes: str, dtype: str) -> None:
    """NhwcMaxPool of onnxruntime."""
    model = imported(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
        f"g ({dtype}[b, h, w, 3] x) => ({dtype}[b, p, q, 3] y) {{"
        f" y = com.microsoft.NhwcMaxPool <{attributes}> (x) }}"
    )
    info = np.iinfo(dtype)
    for shape in ((2, 6, 7, 3), (1, 5, 4, 3)):
        rng = np.random.default_rng(0)
        model.check(rng.integers(info.min, info.max + 1, shape).astype(dtype))


def test_windows_larger_than_the_data_with_channels_last(imported: Load) -> None:
    model = imported(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
        "g (uint8[b, h, w, 3] x) => (uint8[b, p, q, 3] y) {"
        " y = com.microsoft.NhwcMaxPool <kernel_shape = [2, 3]> (x) }"
    )
    with pytest.raises(ValueError, match="too small"):
        model.run(np.zeros((1, 1, 1, 3), np.uint8))
