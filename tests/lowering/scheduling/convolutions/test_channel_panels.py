"""Convolutions with output channels in vectors: of one tap, and of planes, against onnxruntime."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.channel_panels import ChannelPanels
from looplift.lowering.scheduling.convolutions.convolution import Convolution
from looplift.lowering.scheduling.convolutions.pointwise import Pointwise
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, weight, with_weights

RULES: dict[str, Any] = {"one tap": Pointwise, "planes": ChannelPanels}
SIZES = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 7, 7), (0, 8, 8), (2, 5, 9), (1, 41, 33), (1, 90, 5), (1, 1, 20))
]
ONE_TAP = {
    "whole panels": (64, 72),
    "half a panel": (80, 90),
    "the last panel is not full": (95, 96),
    "one vector": (16, 48),
    "more inputs than are copied": (256, 129),
}
"""Channels of output and of input."""
PLANES: dict[str, tuple[str, tuple[int, ...]]] = {
    "strided": ("pads = [1, 1, 1, 1], strides = [2, 2]", (48, 30, 3, 3)),
    "dilated": ("pads = [2, 3, 1, 3], dilations = [2, 3]", (64, 44, 2, 3)),
    "one tap, strided": ("strides = [2, 3]", (31, 256, 1, 1)),
    "groups": ("group = 2, pads = [1, 1, 2, 2], strides = [1, 2]", (60, 22, 3, 4)),
    "far apart": ("pads = [9, 9, 9, 9], dilations = [9, 9]", (32, 24, 3, 3)),
    "few channels": ("pads = [4, 4, 4, 4], strides = [2, 2]", (32, 4, 9, 9)),
    "far apart, strided": (
        "pads = [12, 0, 20, 31], dilations = [8, 11], strides = [3, 2]",
        (48, 40, 4, 3),
    ),
    "patches": ("pads = [0, 3, 3, 0], strides = [4, 4]", (48, 3, 4, 4)),
    "fewer taps than the stride": ("pads = [1, 1, 1, 1], strides = [5, 3]", (32, 20, 2, 2)),
    "every second tap of the stride": (
        "pads = [4, 4, 4, 4], strides = [4, 4], dilations = [2, 2]",
        (32, 12, 3, 3),
    ),
    "a long stride": ("pads = [20, 20, 20, 20], strides = [33, 33]", (32, 2, 34, 34)),
    "only padding": ("pads = [7, 5, 8, 9]", (32, 30, 3, 3)),
}
"""Attributes and the shape of the weight."""


def taken(rule: str, text: str, weights: dict[str, Any]) -> int:
    """How many kernels a rule takes."""
    target = as_target("native")
    with target:
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
        functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
        found = [RULES[rule]().apply(function, target, False) for function in functions]
    return sum(schedule is not None for schedule in found)


@pytest.mark.parametrize("name", one_of(2, ONE_TAP))
def test_one_tap_at_any_plane(name: str) -> None:
    channels, depth = ONE_TAP[name]
    text = f"""model (float[b, {depth}, h, w] x) => (y) {{
        p = Conv <kernel_shape = [1, 1]> (x, f, c) q = Sigmoid (p) y = Mul (p, q) }}"""
    weights = {"f": weight(channels, depth, 1, 1), "c": weight(channels)}
    assert taken("one tap", text, weights) == 1
    check(text, weights, SIZES)


def test_one_tap_along_a_line() -> None:
    text = """model (float[b, 48, n] x, float[b, 32, n] z) => (y) {
        p = Conv <kernel_shape = [1]> (x, f) y = Add (p, z) }"""
    weights = {"f": weight(32, 48, 1)}
    assert taken("one tap", text, weights) == 1
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 1), (2, 241), (0, 3), (1, 1000))])


def test_one_tap_at_a_plane_of_known_size() -> None:
    text = "model (float[1, 160, 7, 7] x) => (y) { y = Conv <kernel_shape = [1, 1]> (x, f) }"
    weights = {"f": weight(96, 160, 1, 1)}
    assert taken("one tap", text, weights) == 1
    check(text, weights, [{}])


@pytest.mark.parametrize("name", one_of(5, PLANES))
def test_planes_of_any_size(name: str) -> None:
    attributes, shape = PLANES[name]
    groups = 2 if "group" in attributes else 1
    text = f"""model (float[b, {shape[1] * groups}, h, w] x) => (y) {{
        p = Conv <{attributes}> (x, f, c) y = Relu (p) }}"""
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    assert taken("planes", text, weights) == 1
    check(text, weights, SIZES)


@pytest.mark.parametrize(
    ("attributes", "shape", "row_stride"),
    [
        ("strides = [2, 2]", (32, 12, 3, 3), 2),
        ("strides = [4, 4]", (48, 3, 4, 4), 4),
        ("strides = [1, 33]", (32, 2, 2, 34), 1),
        ("strides = [4, 4], dilations = [2, 2]", (32, 12, 3, 3), 1),
    ],
    ids=["every phase", "patches", "a long stride", "every second phase"],
)
def test_lines_are_copied_whole_where_taps_read_most_phases(
    attributes: str, shape: tuple[int, ...], row_stride: int
) -> None:
    text = f"model (float[1, {shape[1]}, 9, 270] x) => (y) {{ y = Conv <{attributes}> (x, f) }}"
    weights = {"f": weight(*shape)}
    compiled = looplift.compile(looplift.from_onnx(with_weights(text, weights)), "native")
    code = compiled.mod.imports[0].inspect_source("ll")
    assert set(re.findall(r"@looplift_tile_planes_(\d+)_", code)) == {str(row_stride)}
    check(text, weights, [{}])


SMALL = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 1, 1), (2, 2, 7), (2, 3, 5), (1, 4, 7), (1, 29, 1), (0, 2, 7))
]
"""Images around the sizes up to which they are read where they are."""


@pytest.mark.parametrize(
    ("groups", "shape"), [(1, (40, 20, 1, 1)), (2, (80, 20, 1, 1)), (1, (9000, 120, 1, 1))]
)
def test_small_images_of_one_tap_are_read_where_they_are(
    groups: int, shape: tuple[int, ...]
) -> None:
    text = f"""model (float[b, {shape[1] * groups}, h, w] x) => (y) {{
        p = Conv <group = {groups}> (x, f, c) y = Relu (p) }}"""
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    assert taken_by(Convolution(), text, weights)
    check(text, weights, SMALL)


def test_results_that_are_written_line_by_line() -> None:
    """The operand that is added has an element for each position of a line."""
    text = """model (float[b, 40, h, w] x, float[v] z) => (y) {
        p = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, f) y = Add (p, z) }"""
    weights = {"f": weight(32, 40, 3, 3)}
    assert taken("planes", text, weights) == 1
    check(text, weights, [size | {"v": (size["w"] + 1) // 2} for size in SIZES])


def test_lines_without_gaps() -> None:
    """Taps that do not reach along a line: all lines are one, as of a sequence in two dimensions."""
    text = """model (float[b, 48, h, w] x) => (y) {
        y = Conv <pads = [2, 0, 2, 0], strides = [2, 1]> (x, f, c) }"""
    weights = {"f": weight(64, 48, 5, 1), "c": weight(64)}
    assert taken("planes", text, weights) == 1
    check(text, weights, [*SIZES, {"b": 2, "h": 70, "w": 1}])


@pytest.mark.parametrize("target", one_of(2, TARGETS[1:]))
def test_on_processors_with_shorter_vectors(target: Any) -> None:
    text = """model (float[1, 64, h, w] x) => (y) {
        p = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, f)
        q = Relu (p)
        y = Conv <kernel_shape = [1, 1]> (q, g) }"""
    weights = {"f": weight(52, 64, 3, 3), "g": weight(36, 52, 1, 1)}
    check(text, weights, [{"h": 7, "w": 9}, {"h": 30, "w": 31}], target)


@pytest.mark.parametrize(
    ("rule", "text", "shape"),
    [
        ("one tap", "model (float[1, 24, h, w] x) => (y) { y = Conv (x, f) }", (16, 24, 1, 1)),
        ("one tap", "model (float[1, 64, h, w] x) => (y) { y = Conv (x, f) }", (20, 64, 1, 1)),
        ("one tap", "model (float[1, 128, h, w] x) => (y) { y = Conv <group = 2> (x, f) }", (64, 64, 1, 1)),
        ("one tap", "model (float[1, 64, h, w] x) => (y) { y = Conv <pads = [1, 0, 0, 0]> (x, f) }", (64, 64, 1, 1)),
        ("one tap", "model (float[1, 64, h, w] x) => (y) { y = Conv <strides = [1, 2]> (x, f) }", (64, 64, 1, 1)),
        ("one tap", "model (float[1, 64, h, w] x, float[64, 64, 1, 1] f) => (y) { y = Conv (x, f) }", ()),
        ("one tap", "model (float[1, 48, h, w] x) => (y) { y = Conv (x, f) }", (64, 48, 1, 1)),
        ("planes", "model (float[1, 48, h, w] x) => (y) { y = Conv (x, f) }", (64, 48, 1, 1)),
        ("one tap", "model (float[1, 128, h, w] x) => (y) { y = Conv (x, f) }", (256, 128, 1, 1)),
        ("planes", "model (float[1, 10, h, w] x) => (y) { y = Conv <strides = [2, 2]> (x, f) }", (64, 10, 1, 3)),
        ("planes", "model (float[1, 64, h, w] x) => (y) { y = Conv <strides = [2, 2]> (x, f) }", (20, 64, 3, 3)),
        ("planes", "model (float[1, 64, n] x) => (y) { y = Conv <strides = [2]> (x, f) }", (64, 64, 5)),
    ],
    ids=[
        "few inputs", "vectors that are not full", "groups", "padding", "strides", "no constant",
        "more results than inputs", "planes: more results than inputs",
        "the most inputs that are copied", "few products",
        "planes: vectors that are not full", "a line",
    ],
)  # fmt: skip
def test_others_are_left_to_other_rules(rule: str, text: str, shape: tuple[int, ...]) -> None:
    assert taken(rule, text, {"f": weight(*shape)} if shape else {}) == 0
