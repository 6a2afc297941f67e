"""Schedule rules for CPUs: products, convolutions and elementwise kernels of sizes known at run time."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm import relax, s_tir, tirx
from tvm.s_tir import dlight, meta_schedule
from tvm.s_tir.meta_schedule.tune_context import _normalize_mod as normalize_mod

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.convolution import Convolution
from looplift.lowering.scheduling.convolutions.winograd import Winograd
from looplift.lowering.scheduling.injective.elementwise import Elementwise
from looplift.lowering.scheduling.injective.transposition import Transposition
from looplift.lowering.scheduling.kernels.affine import int64
from looplift.lowering.scheduling.kernels.emission import even_part, even_start
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.products.matmul import MatrixProduct
from looplift.lowering.scheduling.reductions.reduction import RowReduction

from ...samples import one_of
from ..comparison import (
    TARGETS,
    check,
    soaking,
    taken_by,
    weight,
    with_weights,
)
from ..compiled import NATIVE, virtual_machine
from ..conftest import parse

ROWS = [{"n": n} for n in (0, 1, 7, 12, 64, 101)]
PRODUCTS = {
    "weight": ("float[n, 40] x", "y = MatMul (x, w)", (40, 72)),
    "odd width": ("float[n, 17] x", "y = MatMul (x, w)", (17, 33)),
    "narrow": ("float[n, 5] x", "y = MatMul (x, w)", (5, 1)),
    "few columns": ("float[n, 17] x", "p = MatMul (x, w) y = Relu (p)", (17, 3)),
    "batch": ("float[2, n, 40] x", "y = MatMul (x, w)", (40, 72)),
    "turned": ("float[n, 40] x", "y = Gemm <transB = 1> (x, w)", (24, 40)),
    "bias": ("float[n, 24] x", "p = MatMul (x, w) y = Add (p, c)", (24, 50)),
    "residual": (
        "float[n, 24] x, float[n, 50] z", "p = MatMul (x, w) q = Mul (p, z) y = Tanh (q)", (24, 50),
    ),
    "gelu": (
        "float[n, 24] x",
        """p = MatMul (x, w) q = Add (p, c) root = Constant <value = float {1.4142135}> ()
        one = Constant <value = float {1.0}> () r = Div (q, root) e = Erf (r) f = Add (e, one)
        y = Mul (q, f)""",
        (24, 50),
    ),
}  # fmt: skip
"""Inputs, nodes and the shape of the weight."""


@pytest.mark.parametrize("name", soaking(PRODUCTS, "bias", "odd width", "residual", "batch"))
def test_products_with_any_number_of_rows(name: str) -> None:
    inputs, nodes, shape = PRODUCTS[name]
    weights = {"w": weight(*shape), "c": weight(shape[1])}
    check(f"model ({inputs}) => (y) {{ {nodes} }}", weights, ROWS)


def test_deep_products_are_read_in_parts() -> None:
    text = "model (float[n, 4101] x) => (y) { p = MatMul (x, w) q = Add (p, c) y = Relu (q) }"
    weights = {"w": weight(4101, 70), "c": weight(70)}
    assert taken_by(MatrixProduct(), text, weights)
    check(text, weights, [{"n": n} for n in (0, 1, 12, 25, 205)])


def test_products_without_constants() -> None:
    """As in attention: all sizes but that of a head are symbols."""
    sizes = [{"b": b, "n": n, "m": m} for b, n, m in ((1, 1, 1), (2, 7, 64), (1, 0, 5), (3, 64, 9))]
    text = "float[b, 3, n, 16] q, float[b, 3, 16, m] k"
    check(f"model ({text}) => (y) {{ y = MatMul (q, k) }}", {}, sizes)
    text = "float[b, 3, n, m] q, float[b, 3, m, 16] k"
    check(f"model ({text}) => (y) {{ y = MatMul (q, k) }}", {}, sizes)


@pytest.mark.parametrize(
    ("positions", "batch"), one_of(4, itertools.product([1, 5, 7, 8, 16], [1, 2, 3]))
)
def test_shared_functions_are_not_inlined(positions: int, batch: int) -> None:
    """LLVM knows every argument of a shared function that is called for fixed sizes only.

    If it inlined the function that transposes results, it would read them before they are written.
    """
    text = f"""model (float[{batch}, 16, {positions}] x) => (y) {{
        y = Conv <group = 16, kernel_shape = [1]> (x, w) }}"""
    check(text, {"w": weight(16, 1, 1)}, [{}])


def test_one_function_copies_rows() -> None:
    """LLVM has nothing to unroll where rows are copied."""
    model = with_weights(
        "model (float[n, 8, l] x) => (y) { y = Conv <pads = [1, 1]> (x, w) }",
        {"w": weight(40, 8, 3)},
    )
    compiled = looplift.compile(looplift.from_onnx(model), "native")
    assembly = compiled.mod.imports[0].inspect_source("asm")
    assert len(re.findall(r"^looplift_copy_row_compute_:", assembly, re.MULTILINE)) == 1


@pytest.mark.parametrize("target", one_of(2, TARGETS))
def test_rows_of_every_length_are_copied_at_a_stride(target: Any) -> None:
    """A vector of two strides ends with the last element that is read, not after it."""
    text = "model (float[1, 3, n] x) => (y) { y = Conv <strides = [2], pads = [1, 1]> (x, f) }"
    check(text, {"f": weight(20, 3, 3)}, [{"n": n} for n in range(1, 72)], target)


@pytest.mark.parametrize("group", one_of(2, [1, 2, 8]))
def test_a_window_longer_than_the_input_gives_no_positions(group: int) -> None:
    model = with_weights(
        f"model (float[n, 8, l] x) => (y) {{ y = Conv <group = {group}> (x, w) }}",
        {"w": weight(8, 8 // group, 5)},
    )
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for length in (4, 5):
        found = machine["main"](tvm.runtime.tensor(np.ones((2, 8, length), np.float32)))
        assert found.numpy().shape == (2, 8, length - 4)


PLANES = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 7, 9), (0, 8, 8), (1, 64, 33))]
CONVOLUTIONS = {
    "3x3": ("pads = [1, 1, 1, 1]", (20, 16, 3, 3)),
    "stride": ("pads = [1, 1, 1, 1], strides = [2, 2]", (20, 16, 3, 3)),
    "stride 3": ("pads = [1, 0, 1, 2], strides = [3, 1]", (20, 16, 3, 3)),
    "dilation": ("pads = [2, 2, 2, 2], dilations = [2, 2]", (20, 16, 3, 3)),
    "far apart": ("pads = [9, 3, 11, 3], dilations = [10, 3]", (20, 16, 3, 3)),
    "all": ("pads = [4, 4, 4, 4], dilations = [2, 4], strides = [2, 3]", (6, 16, 5, 3)),
    "groups": ("pads = [1, 1, 1, 1], group = 4", (20, 4, 3, 3)),
    "depthwise": ("pads = [2, 2, 2, 2], group = 16", (16, 1, 5, 5)),
    "depthwise stride": ("pads = [1, 1, 1, 1], group = 16, strides = [2, 2]", (16, 1, 3, 3)),
    "depthwise, far apart": ("pads = [8, 8, 8, 8], group = 16, dilations = [8, 8]", (16, 1, 3, 3)),
    "1x1": ("pads = [0, 0, 0, 0]", (33, 16, 1, 1)),
    "1x1 stride": ("pads = [0, 0, 0, 0], strides = [2, 2]", (33, 16, 1, 1)),
}
"""Attributes and the shape of the weight."""


@pytest.mark.parametrize(
    "name", soaking(CONVOLUTIONS, "1x1", "dilation", "groups", "stride 3", "stride", "depthwise")
)
def test_convolutions_of_any_plane(name: str) -> None:
    attributes, shape = CONVOLUTIONS[name]
    nodes = f"p = Conv <{attributes}> (x, f, c) y = Relu (p)"
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    check(f"model (float[b, 16, h, w] x) => (y) {{ {nodes} }}", weights, PLANES)


def test_the_bounds_of_padding_may_be_written_in_any_way() -> None:
    """The sizes of the last convolution are those that five operators compute, as in Inception."""
    pool = "MaxPool <kernel_shape = [3, 3], strides = [2, 2]>"
    text = f"""model (float[b, 8, h, w] x) => (y) {{
        p = Conv <strides = [2, 2]> (x, f) q = Conv (p, f) r = {pool} (q) s = Conv (r, f)
        t = {pool} (s) y = Conv <pads = [1, 1, 1, 1]> (t, f) }}"""
    weights = {"f": weight(8, 8, 3, 3)}
    assert len(taken_by(Convolution(), text, weights)) == 3  # Two of the four are equal.
    check(text, weights, [{"b": 1, "h": h, "w": w} for h, w in ((31, 35), (47, 40))])


CUT = {
    "after the first": "s = Slice (x, one, far, last)",
    "after the first and second": "a = Slice (x, one, far, last) s = Slice (a, one, far, last)",
    "but for the first and last": "s = Slice (x, one, minus, last)",
    "the first half": """n = Shape <start = 3, end = 4> (x) h = Div (n, two)
        s = Slice (x, zero, h, last)""",
    "padded to 16": """n = Shape <start = 3, end = 4> (x) m = Sub (sixteen, n) k = Max (m, zero)
        e = Concat <axis = 0> (zero, zero, zero, zero, zero, zero, zero, k) s = Pad (x, e)""",
}
INDICES = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] last = {3},
    int64[1] minus = {-1}, int64[1] sixteen = {16}, int64[1] far = {9223372036854775807}"""


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("strides", one_of(2, ["[1, 1]", "[1, 2]"]))
def test_convolutions_of_a_part(name: str, strides: str) -> None:
    """Its size is a minimum or maximum, which TVM would simplify with the bounds of the padding."""
    text = f"""model (float[b, 16, h, w] x) => (y) <{INDICES}> {{
        {CUT[name]} c = Conv <pads = [1, 1, 1, 1], strides = {strides}> (s, f) y = Relu (c) }}"""
    weights = {"f": weight(20, 16, 3, 3)}
    rules = (Winograd(), Convolution()) if strides == "[1, 1]" else (Convolution(),)
    assert any(taken_by(rule, text, weights) for rule in rules)
    check(text, weights, [{"b": b, "h": h, "w": w} for b, h, w in ((1, 5, 7), (2, 20, 33))])


@pytest.mark.parametrize("nodes", [
    "y = ConvTranspose <strides = [2, 2]> (s, f)",
    "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (s)",
    "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s)",
])  # fmt: skip
def test_other_windows_over_a_part(nodes: str) -> None:
    text = f"model (float[b, 16, h, w] x) => (y) <{INDICES}> {{ {CUT['after the first']} {nodes} }}"
    weights = {"f": weight(16, 20, 3, 3)}
    check(text, weights, [{"b": b, "h": h, "w": w} for b, h, w in ((1, 5, 7), (2, 20, 33))])


@pytest.mark.parametrize(
    "attributes", ["pads = [0, 0, 0, 0]", "pads = [1, 1, 1, 1]", "strides = [2, 1]"]
)
@pytest.mark.parametrize("channels", [1, 16])
def test_convolutions_with_one_output_channel(channels: int, attributes: str) -> None:
    """No variable of the output is between those of the batch and of the lines."""
    text = f"model (float[b, {channels}, h, w] x) => (y) {{ y = Conv <{attributes}> (x, f) }}"
    weights = {"f": weight(1, channels, 3, 3)}
    assert len(taken_by(Convolution(), text, weights)) == 1
    check(text, weights, [{"b": b, "h": h, "w": w} for b, h, w in ((1, 3, 40), (3, 7, 9))])


def test_a_line_of_one_output_channel() -> None:
    text = "model (float[b, 16, n] x) => (y) { c = Conv (x, f) y = Tanh (c) }"
    weights = {"f": weight(1, 16, 7)}
    assert len(taken_by(Convolution(), text, weights)) == 1
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 7), (2, 64), (3, 100))])


def test_a_convolution_of_planes_of_one_column() -> None:
    sizes = [{"h": h} for h in (1, 7, 64)]
    text = "model (float[1, 16, h, 1] x) => (y) { y = Conv <pads = [1, 0, 1, 0]> (x, f) }"
    weights = {"f": weight(20, 16, 3, 1)}
    assert len(taken_by(Convolution(), text, weights)) == 1
    check(text, weights, sizes)


def test_a_line_of_channels_with_an_axis_of_size_1_after_it() -> None:
    """As exporters write a convolution of a sequence with channels last."""
    text = """model (float[b, h, 16, 1] x) => (y) {
        t = Transpose <perm = [0, 2, 1, 3]> (x) c = Conv <pads = [2, 0, 2, 0]> (t, f)
        r = Relu (c) y = Transpose <perm = [0, 2, 1, 3]> (r) }"""
    weights = {"f": weight(24, 16, 5, 1)}
    assert len(taken_by(Convolution(), text, weights)) == 1
    assert taken_by(Transposition(), text, weights)
    check(text, weights, [{"b": b, "h": h} for b, h in ((1, 1), (2, 64), (3, 7))])


def test_a_line_of_few_channels_in_an_image_of_height_1() -> None:
    """As a transposed convolution of a sequence in phases; no kernel takes it with channels last."""
    text = """model (float[b, 1, n, 32] x) => (y) {
        t = Transpose <perm = [0, 3, 1, 2]> (x) c = Conv <pads = [0, 1, 0, 1]> (t, f)
        r = Relu (c) y = Transpose <perm = [0, 2, 3, 1]> (r) }"""
    weights = {"f": weight(8, 32, 1, 2)}
    assert len(taken_by(Convolution(), text, weights)) == 1
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 1), (2, 64), (3, 7))])


@pytest.mark.parametrize("layout", ["channels first", "channels last"])
@pytest.mark.parametrize(
    "node",
    [
        "Conv <strides = [1, 2]> (t, f)",
        "Conv <strides = [1, 2], group = 4> (t, e)",
        "MaxPool <kernel_shape = [3, 1], strides = [1, 2]> (t)",
        "AveragePool <kernel_shape = [3, 1], strides = [1, 2]> (t)",
    ],
)
def test_one_position_of_several_along_the_last_axis(node: str, layout: str) -> None:
    """Its index is constant, but the axis that is read is longer."""
    text = f"model (float[b, 4, h, 2] t) => (y) {{ y = {node} }}"
    if layout == "channels last":
        text = f"""model (float[b, h, 2, 4] x) => (y) {{ t = Transpose <perm = [0, 3, 1, 2]> (x)
            c = {node} r = Relu (c) y = Transpose <perm = [0, 2, 3, 1]> (r) }}"""
    weights = {"f": weight(8, 4, 3, 1), "e": weight(4, 1, 3, 1)}
    used = {name: array for name, array in weights.items() if f", {name})" in node}
    check(text, used, [{"b": b, "h": h} for b, h in ((1, 3), (2, 40), (3, 7))])


@pytest.mark.parametrize("attributes", one_of(2, ["pads = [5, 5], strides = [5]", "pads = [5, 5]"]))
def test_convolutions_of_a_line(attributes: str) -> None:
    sizes = [{"n": n} for n in (1, 7, 64, 1001)]
    weights = {"f": weight(20, 16, 11)}
    text = f"model (float[1, 16, n] x) => (y) {{ y = Conv <{attributes}> (x, f) }}"
    check(text, weights, sizes)


def test_static_depthwise_convolutions() -> None:
    """With constant arguments LLVM would inline the micro-kernel, and lose what it writes."""
    nodes = "p = Conv <pads = [2, 2, 2, 2], group = 32> (x, f, c) y = HardSwish (p)"
    weights = {"f": weight(32, 1, 5, 5), "c": weight(32)}
    check(f"model (float[b, 32, 7, 7] x) => (y) {{ {nodes} }}", weights, [{"b": 1}, {"b": 3}])


@pytest.mark.parametrize("taps", one_of(2, [3, 1]))
def test_convolutions_whose_channels_are_read_in_parts(taps: int) -> None:
    """Sums of several parts of the channels, tiles on several cores, and chunks of many lines."""
    pad = taps // 2
    nodes = f"p = Conv <pads = [{pad}, {pad}, {pad}, {pad}]> (x, f, c) y = Relu (p)"
    weights = {"f": weight(68, 150, taps, taps), "c": weight(68)}
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 7, 7), (1, 23, 31), (0, 3, 3))]
    check(f"model (float[b, 150, h, w] x) => (y) {{ {nodes} }}", weights, sizes)


def test_convolutions_with_more_weights_than_the_cache_holds() -> None:
    sizes = [{"w": w} for w in (1, 7, 30)]
    text = "model (float[1, 130, 5, w] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
    check(text, {"f": weight(130, 130, 3, 3)}, sizes)


WINOGRAD = {
    "groups": "pads = [1, 1, 1, 1], group = 2",
    "uneven padding": "pads = [0, 2, 1, 0]",
}
SQUARES = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 3, 3), (1, 7, 9), (0, 4, 4), (2, 14, 5), (1, 4, 300))
]


@pytest.mark.parametrize("name", soaking(WINOGRAD, "uneven padding"))
def test_convolutions_by_winograd(name: str) -> None:
    """Squares of outputs that reach past the last line and column, several chunks and tiles."""
    nodes = f"p = Conv <{WINOGRAD[name]}> (x, f, c) r = Relu (p) y = Add (p, r)"
    outputs, channels = (66, 64) if name == "groups" else (33, 32)
    weights = {"f": weight(outputs, 32, 3, 3), "c": weight(outputs)}
    text = f"model (float[b, {channels}, h, w] x) => (y) {{ {nodes} }}"
    assert taken_by(Winograd(), text, weights)
    check(text, weights, SQUARES)


@pytest.mark.parametrize(
    ("channels", "size", "expected"),
    [
        (256, 5, False), (256, 6, True), (128, 7, True), (64, 7, False), (64, 10, True),
        (512, 7, False), (512, 10, True), (512, "n", False), (256, "n", True),
    ],
)  # fmt: skip
def test_images_are_large_enough_for_winograd(
    channels: int, size: int | str, expected: bool
) -> None:
    text = f"""model (float[1, {channels}, {size}, {size}] x) => (y) {{
        y = Conv <pads = [1, 1, 1, 1]> (x, f) }}"""
    weights = {"f": weight(channels, channels, 3, 3)}
    assert bool(taken_by(Winograd(), text, weights)) == expected


def test_winograd_at_a_known_size() -> None:
    text = "model (float[1, 64, 11, 10] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
    weights = {"f": weight(64, 64, 3, 3)}
    assert taken_by(Winograd(), text, weights)
    check(text, weights, [{}])


def test_infinities_do_not_spread_beyond_what_reads_them() -> None:
    """The transforms alone would make NaN of a whole square, and of its neighbours."""
    text = "model (float[1, 32, h, w] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
    weights = {"f": weight(40, 32, 3, 3)}
    assert taken_by(Winograd(), text, weights)
    model = with_weights(text, weights)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for height, width in ((7, 8), (40, 40), (2, 200)):
        for special in (np.inf, -np.inf, np.nan, 3e38):
            x = np.random.default_rng(width).standard_normal((1, 32, height, width)).astype("f4")
            x[0, 3, 1, 4], x[0, 31, height - 1, width - 1] = special, -special
            got = machine["main"](tvm.runtime.tensor(x)).numpy()
            (want,) = session.run(None, {"x": x})
            scale = np.abs(want[np.isfinite(want)]).max()
            np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=2e-6)
    # The transforms would add up four of these, the convolution multiplies them by small weights.
    signs = np.random.default_rng(0).choice([-1, 1], (1, 32, 7, 8))
    x = (signs * 3e38).astype("f4")
    x[0, 1:] = 0
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    (want,) = session.run(None, {"x": x})
    np.testing.assert_allclose(got / 3e38, want / 3e38, rtol=0, atol=2e-6)


def test_products_of_one_row_and_what_spreads_them_over_planes() -> None:
    """As in a block that squeezes and excites."""
    nodes = """
        m = GlobalAveragePool (x) p = Conv (m, f, c) q = Relu (p) r = Conv (q, g)
        s = HardSigmoid (r) y = Mul (s, x)"""
    weights = {"f": weight(9, 40, 1, 1), "c": weight(9), "g": weight(40, 9, 1, 1)}
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (3, 7, 9), (0, 8, 8), (1, 33, 20))]
    check(f"model (float[b, 40, h, w] x) => (y) {{ {nodes} }}", weights, sizes)
    check(f"model (float[1, 40, h, w] x) => (y) {{ {nodes} }}", weights, sizes[:1] + sizes[3:])


def test_a_convolution_reads_its_result_and_another_tensor() -> None:
    text = """model (float[b, 16, h, w] x, float[b, 20, h, w] z) => (y) {
        p = Conv <pads = [1, 1, 1, 1]> (x, f, c)
        s = Sigmoid (p)
        q = Mul (p, s)
        y = Add (q, z) }"""
    check(text, {"f": weight(20, 16, 3, 3), "c": weight(20)}, PLANES)


@pytest.mark.parametrize(
    ("given", "node", "shape"),
    [
        ([2, 0, 3, 4], "Transpose <perm = [0, 3, 2, 1]> (x)", (2, 4, 3, 0)),
        ([0, 16, 8, 8], "Conv <group = 16> (x, f)", (0, 16, 6, 6)),
        ([1, 1, 1, 1], "MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)", (1, 1, 0, 0)),
        ([0, 32, 8, 8], "AveragePool <kernel_shape = [2, 2]> (x)", (0, 32, 7, 7)),
        ([3, 0, 5], "ReduceMean <axes = [2]> (x)", (3, 0, 1)),
        ([2, 0, 16], "MatMul (x, w)", (2, 0, 33)),
        ([0, 4, 5], "Softmax (x)", (0, 4, 5)),
    ],
)
def test_results_without_elements(given: list[int], node: str, shape: tuple[int, ...]) -> None:
    """Onnxruntime refuses some of them."""
    text = f"model (float{given} x) => (y) {{ y = {node} }}"
    model = with_weights(text, {"f": weight(16, 1, 3, 3), "w": weight(16, 33)})
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    assert machine["main"](tvm.runtime.tensor(np.zeros(given, np.float32))).numpy().shape == shape


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("model (float[n, 64, h, 1] x) => (y) { y = GlobalAveragePool (x) }", 1),
        ("model (float[n, 64, h, 1] x) => (y) { y = ReduceMax <axes = [2, 3]> (x) }", 1),
        ("model (float[n, 32, h, w] x) => (y) { y = Conv (x, f) }", 0),
    ],
    ids=["mean", "maximum", "convolution to one channel"],
)
def test_rows_may_end_with_axes_of_size_1(text: str, count: int) -> None:
    """The channels of a convolution of one tap are no row."""
    weights = {"f": weight(1, 32, 1, 1)}
    with as_target("native") as target:
        functions = lower_to_kernels(looplift.from_onnx(with_weights(text, weights))).functions
        kernels = [f for f in functions.values() if isinstance(f, tirx.PrimFunc)]
        assert sum(RowReduction().apply(k, target, False) is not None for k in kernels) == count
    check(text, weights, [{"n": n, "h": h, "w": 5} for n, h in ((1, 1), (2, 7), (1, 200))])


def test_a_bias_and_an_activation_are_fused_after_a_convolution() -> None:
    text = """model (float[b, 20, h, w] x) => (y) {
        p = Conv <pads = [1, 1, 1, 1]> (x, f, c) y = HardSwish (p) }"""
    weights = {"f": weight(20, 20, 3, 3), "c": weight(20)}
    with as_target("native"):
        functions = lower_to_kernels(looplift.from_onnx(with_weights(text, weights))).functions
    assert sum(isinstance(f, tirx.PrimFunc) for f in functions.values()) == 1


def test_the_first_part_of_a_convolution_is_cut_from_all_of_it() -> None:
    """In a kernel of its own: the rule for convolutions takes only results of one size."""
    text = """model (float[b, 20, n] x) => (y) {
        p = Conv <pads = [2, 2]> (x, f, c)
        start = Constant <value_ints = [0]> () end = Constant <value_ints = [-1]> ()
        axis = Constant <value_ints = [2]> ()
        s = Slice (p, start, end, axis) y = Sigmoid (s) }"""
    weights = {"f": weight(20, 20, 4), "c": weight(20)}
    with as_target("native") as target:
        functions = lower_to_kernels(looplift.from_onnx(with_weights(text, weights))).functions
        kernels = [f for f in functions.values() if isinstance(f, tirx.PrimFunc)]
        assert sum(Convolution().apply(k, target, False) is not None for k in kernels) == 1
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 1), (2, 7), (1, 200))])


SHAPES = [{"b": b, "n": n, "m": m} for b, n, m in ((1, 1, 1), (2, 0, 5), (3, 7, 64), (1, 65, 257))]
ELEMENTWISE = {
    "same": ("float[b, n, m] x, float[b, n, m] z", "q = Add (x, z) y = Sigmoid (q)"),
    "rows": ("float[b, n, m] x, float[m] z", "q = Mul (x, z) y = Exp (q)"),
    "columns": ("float[b, n, m] x, float[b, n, 1] z", "q = Sub (x, z) y = Tanh (q)"),
    "planes": ("float[b, n, m] x, float[b, 1, m] z", "q = Sub (x, z) y = Erf (q)"),
    "turned": ("float[b, n, m] x", "t = Transpose <perm = [0, 2, 1]> (x) y = Neg (t)"),
    "triangle": ("float[b, n, m] x", "t = Trilu <upper = 1> (x) y = Sub (t, x)"),
    "heads": ("float[b, n, 4, m] x", "y = Transpose <perm = [0, 2, 1, 3]> (x)"),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kernels_of_any_shape(name: str) -> None:
    inputs, nodes = ELEMENTWISE[name]
    check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, SHAPES)


@pytest.mark.parametrize("target", one_of(2, TARGETS[1:]), ids=lambda target: target["mcpu"])
def test_other_processors(target: Any) -> None:
    text = """model (float[b, 16, h, 9] x) => (y) {
        p = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, f)
        q = MatMul (p, c)
        y = Sigmoid (q) }"""
    weights = {"f": weight(20, 16, 3, 3), "c": weight(5, 24)}
    sizes = [{"b": 1, "h": h} for h in (1, 8, 31)]
    check(text, weights, sizes, target)


def test_a_function_of_a_function_compiles_in_a_second() -> None:
    """Named values inside one another took LLVM 20 s."""
    nodes = "a = Sigmoid (x) b = Tanh (a) c = Exp (b) d = Sigmoid (c) y = Erf (d)"
    start = time.process_time()
    check(f"model (float[3] x) => (y) {{ {nodes} }}", {}, [{}])
    assert time.process_time() - start < 5


def test_weights_are_packed_once_and_not_kept() -> None:
    """An executable holds a weight in one layout."""
    text = "model (float[n, 256] x) => (y) { y = MatMul (x, w) }"
    model = with_weights(text, {"w": weight(256, 512)})
    module = looplift.from_onnx(model)
    with as_target("native"):
        module = relax.get_pipeline("looplift")(module)
    functions = {variable.name_hint for variable in module.get_global_vars()}
    assert not any("weight_prepack" in name for name in functions)
    assert any("prepacked" in name for name in functions)


def test_a_kernel_packs_only_what_is_constant_in_every_call() -> None:
    """Two products of the same shapes are one kernel."""
    text = "model (float[n, 32] x, float[32, 32] v) => (y) { p = MatMul (x, w) y = MatMul (p, v) }"
    check(text, {"w": weight(32, 32)}, ROWS)


def test_cumulative_sums_of_any_length() -> None:
    """TVM's pass that marks constants broke the kernel, which declares a layout for its result."""
    nodes = "axis = Constant <value = int64 {1}> () y = CumSum (x, axis)"
    check(f"model (float[b, n] x) => (y) {{ {nodes} }}", {}, [{"b": 2, "n": n} for n in (1, 7)])


def test_rules_apply_as_those_of_dlight_do() -> None:
    """Without the pipeline: TVM's pass, TVM's functions."""
    model = with_weights("model (float[n, 24] x, float[24, 40] w) => (y) { y = MatMul (x, w) }", {})
    module = relax.transform.LegalizeOps()(looplift.from_onnx(model))
    with as_target("native"):
        rules: Sequence[Callable[..., Any]] = (MatrixProduct(), Convolution(), Elementwise())
        scheduled = dlight.ApplyDefaultSchedule(*rules)(module)
    kernels = [f for f in scheduled.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert any("looplift_product" in kernel.script() for kernel in kernels)


def test_a_kernel_can_be_scheduled_again() -> None:
    """Rules keep what they found out about the last kernel, and emit it anew for each schedule."""
    text = "model (float[n, 8, w] x, float[16, 8, 3] f, float[1, 16, 1] b) => (float[n, 16, v] y) {"
    model = parse(f"{text} c = Conv (x, f) y = Add (c, b) }}")
    module = relax.transform.LegalizeOps()(looplift.from_onnx(model))
    module = relax.transform.AnnotateTIROpPattern()(module)
    module = relax.transform.FuseTIR()(relax.transform.FuseOps()(module))
    scheduled = []
    for _ in range(2):
        with as_target("native"):
            same_kernels = tvm.IRModule(dict(module.functions_items()))
            scheduled.append(dlight.ApplyDefaultSchedule(Convolution())(same_kernels))
    for each in scheduled:
        assert "looplift_panels" in each.script()
    tvm.ir.assert_structural_equal(*scheduled)


# --- what the passes around the rules promise ---


def test_two_threads_compute_the_same() -> None:
    """Items of a kernel run in any order, on any core."""
    text = """model (float[b, 16, h, w] x) => (y) {
        p = Conv <pads = [1, 1, 1, 1]> (x, f)
        t = Transpose <perm = [0, 2, 3, 1]> (p)
        q = MatMul (t, c)
        y = Sigmoid (q) }"""
    weights = {"f": weight(64, 16, 3, 3), "c": weight(64, 96)}
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, 2)
    try:
        check(text, weights, [{"b": 1, "h": 1, "w": 1}, {"b": 2, "h": 65, "w": 64}])
    finally:
        configure(1, 0)


def test_c_sources_have_plain_kernels() -> None:
    """Micro-kernels and vectors are for LLVM; TVM's own pipeline serves other targets."""
    model = with_weights(
        "model (float[n, 24] x) => (y) { y = MatMul (x, w) }", {"w": weight(24, 8)}
    )
    with tvm.target.Target("c"):
        lowered = relax.get_pipeline("looplift")(looplift.from_onnx(model))
    kernels = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert kernels
    assert not any("looplift_" in kernel.script() for kernel in kernels)


def test_a_tuning_database_takes_precedence_over_rules() -> None:
    model = with_weights(
        "model (float[64, 24] x) => (y) { y = MatMul (x, w) }", {"w": weight(24, 8)}
    )
    module = looplift.from_onnx(model)
    target = as_target("native")
    with target:
        kernels = lower_to_kernels(module)
    (kernel,) = [f for f in kernels.functions.values() if isinstance(f, tirx.PrimFunc)]
    workload_module = normalize_mod(kernel)
    tuned = s_tir.Schedule(workload_module)
    (block,) = tuned.get_child_blocks(tuned.get_sblock("root"))
    outer, _ = tuned.split(tuned.get_loops(block)[0], [None, 4])
    tuned.annotate(outer, "found_by_tuning", 1)
    with meta_schedule.database.MemoryDatabase() as database:
        workload = database.commit_workload(workload_module)
        record = meta_schedule.database.TuningRecord(tuned.trace, workload, [1.0], target, [])
        database.commit_tuning_record(record)
        with target:
            lowered = relax.get_pipeline("looplift")(module)
        scripts = [f.script() for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
        assert any("found_by_tuning" in script for script in scripts)
        assert not any("looplift_tile" in script for script in scripts)


def test_sizes_that_need_no_name_are_simplified() -> None:
    """The size of the slice is max(0, max(n, -3)), which is n: FuseTIR cannot compare the two."""
    model = with_weights(
        """model (float[b, 4, n] x, float[4] scale) => (y) {
            longer = Pad (x, pads)  part = Slice (longer, first, end, axis)
            rows = Transpose <perm = [0, 2, 1]> (part)  gate = Sigmoid (rows)  g = Mul (rows, gate)
            turned = Transpose <perm = [0, 2, 1]> (x)  sum = Add (turned, g)  y = Mul (sum, scale)
        }""",
        {
            "pads": np.array([0, 0, 3, 0, 0, 0]),
            **{name: np.array([k]) for name, k in (("first", 0), ("end", -3), ("axis", 2))},
        },
    )
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model)), tvm.cpu())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    scale = weight(4)
    for n in (0, 1, 5):
        x = np.random.default_rng(0).standard_normal((2, 4, n)).astype(np.float32)
        got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(scale)).numpy()
        (want,) = session.run(None, {"x": x, "scale": scale})
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


SIZED = {
    "quotient": "p = Conv <pads = [1, 1], strides = [2]> (x, f) q = Sigmoid (p) y = Mul (p, q)",
    "twice": """p = ConvTranspose <strides = [2]> (x, f) q = Sigmoid (p) s = Mul (p, q)
        y = Conv <pads = [1, 1]> (s, f)""",
    "quotient of twice": """t = ConvTranspose <strides = [2]> (x, f)
        p = Conv <pads = [1, 1], strides = [3]> (t, f) q = Sigmoid (p) y = Mul (p, q)""",
}


@pytest.mark.parametrize("name", soaking(SIZED, "twice", "quotient of twice"))
def test_kernels_of_computed_sizes_fuse_and_take_no_numbers(name: str) -> None:
    text = f"model (float[b, 8, n] x) => (y) {{ {SIZED[name]} }}"
    weights = {"f": weight(8, 8, 3)}
    with as_target("native"):
        lowered = relax.get_pipeline("looplift")(looplift.from_onnx(with_weights(text, weights)))
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert not any(name.startswith(("sigmoid", "tir_sigmoid", "multiply")) for name in names)
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 7), (2, 64), (3, 1))])


def test_a_size_of_values_has_a_name_where_it_is_known() -> None:
    """A vector of sizes defines its variable long before a tensor of that size does."""
    text = """model (float[n, 8] x, float[m] z) => (y) {
        one = Constant <value = int64[1] {1}> ()
        mask = Greater (z, z)
        places = NonZero (mask)
        shape = Shape <start = 1, end = 2> (places)
        more = Add (shape, one)
        rows = Concat <axis = 0> (more, one)
        e = Expand (x, rows)
        s = Sigmoid (e)
        y = Mul (s, e) }"""
    check(text, {}, [{"n": n, "m": m} for n, m in ((1, 1), (5, 3))])


@pytest.mark.parametrize("total", [0, 1, 7, 8, 13])
def test_items_differ_by_one_panel_at_most(total: int) -> None:
    starts = [int(even_start(int64(k), int64(8), int64(total))) for k in range(9)]
    sizes = {after - before for before, after in itertools.pairwise(starts)}
    assert (starts[0], starts[-1]) == (0, total)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("total", [2, 3, 7, 100, 3136])
def test_two_cores_have_equally_many_parts(total: int) -> None:
    size = int(even_part(int64(total), int64(512), 2))
    assert size <= 512
    assert -(-total // size) % 2 == 0


def test_constants_of_constants_are_folded() -> None:
    text = """model (float[n, 24] x) => (y) {
        a = Add (w, w) b = Mul (a, w) c = Transpose <perm = [1, 0]> (b) y = MatMul (x, c) }"""
    weights = {"w": weight(24, 24)}
    with as_target("native"):
        lowered = relax.get_pipeline("looplift")(looplift.from_onnx(with_weights(text, weights)))
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert not any(name.startswith(("add", "multiply", "transpose")) for name in names)
    check(text, weights, ROWS)


@pytest.mark.parametrize("attributes", ["", ", strides = [2, 1, 1]", ", pads = [1, 0, 1, 0, 1, 1]"])
def test_one_tap_over_three_axes(attributes: str) -> None:
    conv = f"Conv <kernel_shape = [1, 1, 1]{attributes}> (x, f)"
    text = f"model (float[b, 31, d, 5, 3] x) => (y) {{ y = {conv} }}"
    sizes = [{"b": b, "d": d} for b, d in ((1, 16), (2, 1))]
    check(text, {"f": weight(20, 31, 1, 1, 1)}, sizes)


def test_another_run_has_no_influence() -> None:
    """The last chunk has fewer lines than the first. An earlier run leaves NaN in scratch memory."""
    text = "model (float[1, 64, h, 34] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
    model = with_weights(text, {"f": weight(64, 64, 3, 3)})
    run = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))["main"]
    x = np.random.default_rng(0).standard_normal((1, 64, 34, 34)).astype(np.float32)
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, 2)
    try:
        first = run(tvm.runtime.tensor(x)).numpy()
        for height in (33, 36, 42, 68):
            run(tvm.runtime.tensor(np.full((1, 64, height, 34), np.nan, np.float32)))
            np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), first)
    finally:
        configure(1, 0)
