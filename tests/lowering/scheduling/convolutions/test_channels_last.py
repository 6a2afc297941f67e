"""Kernels of images with channels last, against onnxruntime, and the choice of layouts."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.channel_panels import ChannelPanels
from looplift.lowering.scheduling.convolutions.channels_last import ChannelsLast
from looplift.lowering.scheduling.convolutions.convolution import Convolution
from looplift.lowering.scheduling.convolutions.winograd import Winograd
from looplift.lowering.scheduling.injective.concatenation import Concatenation
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.products.matmul import MatrixProduct
from looplift.lowering.scheduling.reductions.column_sums import ColumnSums

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, weight, with_weights
from ...compiled import NATIVE, virtual_machine
from .test_channel_lanes import LINES, PLANES, SIZES, SMALL, SMALL_PLANES

SMALL_SIZES = [{"b": b, "h": h, "w": w} for b in (1, 2) for h, w in SMALL]
DENSE: dict[str, tuple[Any, int, tuple[int, ...], str]] = {
    "squares of 3": (Winograd(), 64, (48, 64, 3, 3), "pads = [1, 1, 1, 1]"),
    "squares of 3 for odd channels": (Winograd(), 40, (37, 40, 3, 3), "pads = [0, 1, 2, 1]"),
    "strided": (ChannelPanels(), 24, (32, 24, 5, 3), "pads = [2, 1, 2, 1], strides = [2, 3]"),
    "dilated": (ChannelPanels(), 24, (64, 24, 3, 3), "pads = [2, 9, 2, 9], dilations = [2, 9]"),
    "few channels": (ChannelPanels(), 3, (32, 3, 3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "channels that fill no vector": (Convolution(), 32, (20, 32, 2, 2), "pads = [1, 0, 0, 1]"),
    "one tap": (MatrixProduct(), 40, (72, 40, 1, 1), "kernel_shape = [1, 1]"),
    "one tap with a stride": (MatrixProduct(), 40, (33, 40, 1, 1), "strides = [2, 3]"),
    "one tap with many weights": (ChannelPanels(), 640, (640, 640, 1, 1), "strides = [2, 1]"),
}


def between_transpositions(rank: int, operators: str) -> str:
    """A model whose input and output have channels last, so that images between them have, too.

    The operators compute q from p.
    """
    first = [0, rank - 1, *range(1, rank - 1)]
    last = [0, *range(2, rank), 1]
    return f"p = Transpose <perm = {first}> (x) {operators} y = Transpose <perm = {last}> (q)"


def check_taken(rule: Any, text: str, weights: dict[str, Any], sizes: Any) -> None:
    """The rule takes one kernel, and the model computes what onnxruntime computes."""
    assert len(taken_by(rule, text, weights)) == 1
    assert not transpositions(text, weights)
    check(text, weights, sizes)


def transpositions(text: str, weights: dict[str, Any]) -> list[str]:
    """The kernels of a model that only transpose; copies, which are named `..._last`, do not."""
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
    found: list[str] = []

    def visit(call: Any) -> None:
        kernel = call.args[0] if call.args else None
        if isinstance(kernel, ir.GlobalVar) and re.match(r"transpose\d*$", kernel.name_hint):
            found.append(kernel.name_hint)

    tvm_ffi.structural_walk(module["main"].body, (ir.Call, visit))
    return found


@pytest.mark.parametrize(
    ("channels", "name"), one_of(5, [(c, n) for n in PLANES for c in (40, 16)])
)
def test_depthwise_convolutions_of_any_plane(channels: int, name: str) -> None:
    taps, attributes = PLANES[name]
    operators = f"c = Conv <group = {channels}, {attributes}> (p, f, d) q = HardSwish (c)"
    text = f"""model (float[b, h, w, {channels}] x) => (y) {{
        {between_transpositions(4, operators)} }}"""
    weights = {"f": weight(channels, 1, *taps), "d": weight(channels)}
    check_taken(ChannelsLast(), text, weights, SIZES)


@pytest.mark.parametrize("name", one_of(3, SMALL_PLANES))
def test_small_images(name: str) -> None:
    taps, attributes = SMALL_PLANES[name]
    operators = f"c = Conv <group = 24, {attributes}> (p, f) q = Sigmoid (c)"
    text = f"model (float[b, h, w, 24] x) => (y) {{ {between_transpositions(4, operators)} }}"
    check_taken(ChannelsLast(), text, {"f": weight(24, 1, *taps)}, SMALL_SIZES)


VECTORS, POSITIONS = "looplift_windows_product", "looplift_channels_product"
"""What kernels call that compute vector by vector of channels, and position by position."""


@pytest.mark.parametrize(
    ("dims", "attributes", "taps", "called"),
    [
        ("b, h, w", "pads = [2, 2, 2, 2]", 5, {VECTORS, POSITIONS}),
        ("1, 14, 20", "pads = [2, 1, 2, 3]", 5, {VECTORS}),
        ("1, 300, 40", "pads = [2, 2, 2, 2]", 5, {POSITIONS}),
        ("2, 6, 7", "pads = [4, 4, 4, 4], dilations = [2, 2]", 5, {VECTORS}),
        ("2, 9, 12", "pads = [2, 2, 2, 2], dilations = [3, 1]", 3, {POSITIONS}),
        ("1, 70, 64", "pads = [1, 1, 1, 1]", 3, {POSITIONS}),
    ],
    ids=["unknown", "short", "short of a large image", "dilated", "far apart", "long"],
)
def test_short_lines_take_one_vector_of_channels_after_another(
    dims: str, attributes: str, taps: int, called: set[str]
) -> None:
    operators = f"c = Conv <group = 40, {attributes}> (p, f) q = Relu (c)"
    text = f"model (float[{dims}, 40] x) => (y) {{ {between_transpositions(4, operators)} }}"
    weights = {"f": weight(40, 1, taps, taps)}
    (schedule,) = taken_by(ChannelsLast(), text, weights)
    script = schedule.mod.script()
    assert {name for name in (VECTORS, POSITIONS) if f'"{name}"' in script} == called
    # Of one chunk, of several, and larger than what a cache holds.
    open_sizes = ((2, 9, 5), (1, 220, 25), (1, 400, 30)) if "b" in dims else [(0, 0, 0)]
    check(text, weights, [{"b": b, "h": h, "w": w} for b, h, w in open_sizes])


@pytest.mark.parametrize("name", one_of(2, LINES))
def test_depthwise_convolutions_of_a_line(name: str) -> None:
    taps, attributes = LINES[name]
    operators = f"c = Conv <group = 37, {attributes}> (p, f) q = Relu (c)"
    text = f"model (float[b, n, 37] x) => (y) {{ {between_transpositions(3, operators)} }}"
    sizes = [{"b": b, "n": n} for b, n in ((1, 5), (2, 33), (0, 9), (1, 5000))]
    check_taken(ChannelsLast(), text, {"f": weight(37, 1, taps)}, sizes)


ONE_LINE = list(itertools.product([(3, 4), (1, 4), (3, 1), (2, 9)], ["1", "2", "b"]))


@pytest.mark.parametrize(("size", "batch"), one_of(5, ONE_LINE))
def test_images_of_one_line(size: tuple[int, int], batch: str) -> None:
    operators = """m = MaxPool <kernel_shape = [1, 2], pads = [0, 1, 0, 0]> (p)
        q = Conv <group = 48, pads = [0, 2, 0, 1], kernel_shape = [KERNEL, 3]> (m, g)"""
    operators = operators.replace("KERNEL", str(size[0]))
    text = f"""model (float[{batch}, {size[0]}, {size[1]}, 48] x) => (y) {{
        {between_transpositions(4, operators)} }}"""
    check(text, {"g": weight(48, 1, size[0], 3)}, [{"b": 1}, {"b": 3}])


POOLING = list(
    itertools.product([16, 21], ["pads = [1, 0, 1, 1], ", ""], ["MaxPool", "AveragePool"])
)


@pytest.mark.parametrize(("channels", "pads", "operator"), one_of(5, POOLING))
def test_pooling(channels: int, pads: str, operator: str) -> None:
    attributes = f"kernel_shape = [3, 2], {pads}strides = [2, 1]"
    if operator == "AveragePool":
        attributes += ", count_include_pad = 1"
    operators = f"q = {operator} <{attributes}> (p)"
    text = f"""model (float[b, h, w, {channels}] x) => (y) {{
        {between_transpositions(4, operators)} }}"""
    check_taken(ChannelsLast(), text, {}, SIZES)


def test_maxima_of_infinities() -> None:
    operators = "q = MaxPool <kernel_shape = [3, 3]> (p)"
    text = f"model (float[b, h, w, 32] x) => (y) {{ {between_transpositions(4, operators)} }}"
    model = with_weights(text, {})
    run = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))["main"]
    x = np.full((1, 5, 9, 32), -np.inf, np.float32)
    x[0, 4, 8, 3] = 1
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_array_equal(run(tvm.runtime.tensor(x)).numpy(), want)


def test_one_tap_with_a_stride_over_a_line() -> None:
    operators = "c = Conv <strides = [2]> (p, f) q = Relu (c)"
    text = f"model (float[b, n, 640] x) => (y) {{ {between_transpositions(3, operators)} }}"
    sizes = [{"b": b, "n": n} for b, n in ((1, 1), (2, 33), (0, 9))]
    check(text, {"f": weight(640, 640, 1)}, sizes)


@pytest.mark.parametrize("name", one_of(3, DENSE))
def test_convolutions(name: str) -> None:
    rule, channels, shape, attributes = DENSE[name]
    activated = f"c = Conv <{attributes}> (p, f, d) q = LeakyRelu (c)"
    if channels < 16:  # Such an input keeps its layout.
        body = f"{activated} y = Transpose <perm = [0, 2, 3, 1]> (q)"
        text = f"model (float[b, {channels}, h, w] p) => (y) {{ {body} }}"
    else:
        body = between_transpositions(4, activated)
        text = f"model (float[b, h, w, {channels}] x) => (y) {{ {body} }}"
    weights = {"f": weight(*shape), "d": weight(shape[0])}
    check_taken(rule, text, weights, [*SIZES, {"b": 1, "h": 3, "w": 2}, {"b": 2, "h": 14, "w": 14}])


@pytest.mark.parametrize("target", one_of(2, TARGETS))
def test_a_stem_for_other_processors(target: Any) -> None:
    text = """model (float[b, 20, h, w] x) => (y) {
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, f) d = Relu (c)
        e = Conv <group = 32, pads = [1, 1, 1, 1]> (d, g) k = Relu (e)
        y = Conv (k, m) }"""
    weights = {"f": weight(32, 20, 3, 3), "g": weight(32, 1, 3, 3), "m": weight(40, 32, 1, 1)}
    check(text, weights, SIZES, target)


BLOCK = """model (float[b, 24, h, w] x) => (y) {
    a = Conv (x, f) c = Relu (a)
    d = Conv <group = 96, pads = [1, 1, 1, 1]> (c, g) e = HardSwish (d)
    s = GlobalAveragePool (e) t = Conv (s, u) v = Sigmoid (t) k = Mul (e, v)
    m = Conv (k, o) z = Add (m, x)
    i = Conv (z, r) j, n = Split <axis = 1> (i) l = Concat <axis = 1> (n, j, z)
    y = Conv (l, q) }"""
WEIGHTS = {
    "f": weight(96, 24, 1, 1), "g": weight(96, 1, 3, 3), "u": weight(96, 96, 1, 1),
    "o": weight(24, 96, 1, 1), "r": weight(64, 24, 1, 1), "q": weight(32, 88, 1, 1),
}  # fmt: skip


def test_a_block_is_transposed_at_its_ends_only() -> None:
    assert len(transpositions(BLOCK, WEIGHTS)) == 2
    assert len(taken_by(ColumnSums(), BLOCK, WEIGHTS)) == 1
    assert len(taken_by(Concatenation(), BLOCK, WEIGHTS)) == 1
    check(BLOCK, WEIGHTS, [*SIZES, *SMALL_SIZES])


def test_of_known_sizes() -> None:
    text = BLOCK.replace("float[b, 24, h, w]", "float[1, 24, 14, 15]")
    check(text, WEIGHTS, [{}])


@pytest.mark.parametrize(
    "operators",
    [
        "y = Conv <group = 64, pads = [1, 1, 1, 1]> (x, g)",
        "c = MaxPool <kernel_shape = [3, 3]> (x) y = Relu (c)",
        "c = Relu (x) y = Softmax <axis = 1> (c)",
    ],
)
def test_what_gains_too_little_keeps_its_layout(operators: str) -> None:
    text = f"model (float[b, 64, h, w] x) => (y) {{ {operators} }}"
    weights = {"g": weight(64, 1, 3, 3)} if "(x, g)" in operators else {}
    assert not transpositions(text, weights)
    assert not taken_by(ChannelsLast(), text, weights)


def test_weights_that_a_run_gives_keep_the_layout() -> None:
    text = """model (float[b, 24, h, w] x, float[64, 24, 1, 1] f) => (y) {
        c = Conv (x, f) d = Relu (c) y = Conv (d, g) }"""
    weights = {"g": weight(24, 64, 1, 1)}
    assert not transpositions(text, weights)
    check(text, weights, SIZES[2:4])


def test_a_padding_that_counts_is_read() -> None:
    """Taps of padding are left out, which is right for zeros only."""
    taps = {"g": weight(24, 1, 3, 3)}
    operators = "q = Conv <group = 24, pads = [1, 1, 1, 1]> (p, g)"
    text = f"model (float[b, h, w, 24] x) => (y) {{ {between_transpositions(4, operators)} }}"
    with as_target("native") as target:
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, taps)))
        kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
        (kernel,) = (k for k in kernels if ChannelsLast().apply(k, target, False) is not None)
        padded = kernel.script().replace("], T.float32(0.0))", "], T.float32(2.0))")
        assert padded.count("T.float32(2.0)") == 1
        assert ChannelsLast().apply(tvm.script.from_source(padded), target, False) is None


def test_images_that_leave_the_function_have_channels_first() -> None:
    text = """model (float[b, 48, h, w] x) => (y, z) {
        c = Conv (x, f) z = Relu (c) d = Conv <group = 192, pads = [1, 1, 1, 1]> (z, g)
        e = Conv <group = 192, pads = [1, 1, 1, 1]> (d, g) y = Conv (e, o) }"""
    weights = {"f": weight(192, 48, 1, 1), "g": weight(192, 1, 3, 3), "o": weight(48, 192, 1, 1)}
    module = looplift.from_onnx(with_weights(text, weights))
    with as_target("native"):
        lowered = lower_to_kernels(module)
    first, second = (field.shape.values for field in lowered["main"].ret_ty.fields)
    assert [int(shape[1]) for shape in (first, second)] == [48, 192]
    kernels = [variable.name_hint for variable in lowered.get_global_vars()]
    assert any("_last" in name for name in kernels)
    check(text, weights, SIZES)


@pytest.mark.parametrize(("start", "is_taken"), [("-3.4028234663852886e38", True), ("0", False)])
def test_a_maximum_starts_from_the_lowest_number(start: str, is_taken: bool) -> None:
    kernel = tvm.script.from_source(f"""@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((1, 6, 7, 32), "float32"), y: T.Buffer((1, 4, 5, 32), "float32")) -> None:
    for n, h, w, c, i, j in T.grid(1, 4, 5, 32, 3, 3):
        with T.sblock("maximum"):
            vn, vh, vw, vc, vi, vj = T.axis.remap("SSSSRR", [n, h, w, c, i, j])
            with T.init():
                y[vn, vh, vw, vc] = T.float32({start})
            y[vn, vh, vw, vc] = T.max(y[vn, vh, vw, vc], x[vn, vh + vi, vw + vj, vc])""")
    with as_target("native") as target:
        assert (ChannelsLast().apply(kernel, target, False) is not None) == is_taken
