"""Convolutions of volumes, against onnxruntime."""

from __future__ import annotations

import re

import pytest

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.channel_lanes import ChannelLanes
from looplift.lowering.scheduling.convolutions.convolution import Convolution
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import check, taken_by, weight, with_weights

VOLUMES = {
    "plain": ("strides = [1, 1, 1]", (6, 4, 3, 3, 3)),
    "padded": ("pads = [1, 1, 1, 1, 1, 1]", (32, 4, 3, 3, 3)),
    "uneven": ("pads = [2, 0, 1, 0, 1, 2], strides = [2, 1, 3]", (6, 4, 3, 2, 5)),
    "dilated": ("pads = [2, 2, 2, 2, 2, 2], dilations = [2, 1, 2]", (6, 4, 3, 3, 3)),
    "groups": ("group = 2, pads = [1, 1, 1, 1, 1, 1]", (6, 2, 3, 3, 3)),
    "depthwise": ("group = 4, pads = [1, 1, 1, 1, 1, 1]", (4, 1, 3, 3, 3)),
    "along the depth": ("pads = [2, 0, 0, 2, 0, 0], strides = [2, 1, 1]", (6, 4, 5, 1, 1)),
    "along the depth, depthwise": (
        "group = 4, pads = [3, 0, 0, 1, 0, 0], dilations = [2, 1, 1]", (4, 1, 3, 1, 1),
    ),
    "along the depth, groups": ("group = 2, pads = [1, 0, 0, 0, 0, 0]", (6, 2, 2, 1, 1)),
    "along the depth, planes at a stride": (
        "pads = [1, 0, 0, 1, 0, 0], strides = [1, 2, 1]", (6, 4, 3, 1, 1),
    ),
    "of planes": ("pads = [0, 1, 1, 0, 1, 1]", (6, 4, 1, 3, 3)),
    "one tap and strides": ("strides = [2, 2, 2]", (6, 4, 1, 1, 1)),
    "one tap, strides and padding": (
        "strides = [1, 3, 2], pads = [1, 0, 2, 0, 1, 3]", (6, 4, 1, 1, 1),
    ),
    "one tap, strides and groups": ("strides = [2, 1, 2], group = 2", (6, 2, 1, 1, 1)),
    "one tap": ("strides = [1, 1, 1]", (6, 4, 1, 1, 1)),
    "padding of all sizes": ('auto_pad = "SAME_UPPER", strides = [2, 2, 2]', (6, 4, 3, 3, 3)),
}  # fmt: skip
"""Attributes and the shape of the weight."""


@pytest.mark.parametrize("name", one_of(5, VOLUMES))
def test_volumes(name: str) -> None:
    attributes, shape = VOLUMES[name]
    text = f"""model (float[b, 4, d, h, 9] x) => (y) {{
        c = Conv <{attributes}> (x, f, e) y = Relu (c) }}"""
    sizes = [{"b": b, "d": d, "h": h} for b, d, h in ((1, 5, 8), (2, 6, 5), (3, 7, 33))]
    check(text, {"f": weight(*shape), "e": weight(shape[0])}, sizes)


def test_volumes_of_one_element() -> None:
    text = """model (float[b, 4, d, h, h] x) => (y) {
        y = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, f) }"""
    check(text, {"f": weight(16, 4, 3, 3, 3)}, [{"b": 1, "d": 1, "h": 1}, {"b": 2, "d": 1, "h": 3}])


def test_volumes_of_known_sizes() -> None:
    text = """model (float[2, 4, 5, 6, 7] x) => (y) {
        y = Conv <pads = [1, 1, 1, 1, 1, 1], strides = [2, 2, 2]> (x, f) }"""
    check(text, {"f": weight(16, 4, 3, 3, 3)}, [{}])


def test_weights_that_are_an_input() -> None:
    text = """model (float[b, 4, d, 6, 7] x, float[8, 4, 3, 3, 3] f) => (y) { y = Conv (x, f) }"""
    check(text, {}, [{"b": 2, "d": 5}])


def test_the_copy_and_the_planes_are_views_of_it() -> None:
    text = """model (float[b, 4, d, h, w] x) => (y) {
        c = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, f) y = Relu (c) }"""
    with as_target("native"):
        model = with_weights(text, {"f": weight(16, 4, 3, 3, 3)})
        main = lower_to_kernels(looplift.from_onnx(model))["main"].script()
    assert len(re.findall(r"R\.call_tir\(", main)) == 3  # windows, planes, and their transposition
    assert "conv3d" not in main
    assert "R.reshape(x, " in main


@pytest.mark.parametrize(
    ("plane", "are_positions_in_vectors"), [("h, w", True), ("20, 20", True), ("7, 7", False)]
)
def test_depthwise_convolutions_along_the_depth(plane: str, are_positions_in_vectors: bool) -> None:
    text = f"""model (float[b, 24, d, {plane}] x) => (y) {{
        y = Conv <group = 24, pads = [2, 0, 0, 2, 0, 0]> (x, f) }}"""
    weights = {"f": weight(24, 1, 5, 1, 1)}
    assert bool(taken_by(ChannelLanes(), text, weights)) is not are_positions_in_vectors
    check(text, weights, [{"b": 2, "d": d, "h": h, "w": w} for d, h, w in ((1, 1, 1), (9, 8, 40))])


def test_convolutions_along_the_depth_copy_nothing() -> None:
    text = """model (float[b, 4, d, h, w] x) => (float[?, ?, ?, ?, ?] y) {
        c = Conv (x, f) y = Relu (c) }"""
    with as_target("native"):
        model = with_weights(text, {"f": weight(6, 4, 3, 1, 1)})
        main = lower_to_kernels(looplift.from_onnx(model))["main"].script()
    assert len(re.findall(r"R\.call_tir\(", main)) == 2  # the convolution and Relu
    assert "R.reshape(x, " in main


def test_one_tap_with_strides_is_a_convolution_of_what_it_reads() -> None:
    text = """model (float[b, 16, d, h, w] x) => (y) { y = Conv <strides = [2, 2, 2]> (x, f) }"""
    weights = {"f": weight(32, 16, 1, 1, 1)}
    assert taken_by(Convolution(), text, weights)
    check(text, weights, [{"b": 2, "d": 1, "h": 1, "w": 1}, {"b": 1, "d": 4, "h": 7, "w": 20}])


def test_one_tap_with_strides_on_no_images() -> None:
    text = """model (float[b, 4, d, 6, 7] x) => (y) { y = Conv <strides = [2, 2, 2]> (x, f) }"""
    check(text, {"f": weight(8, 4, 1, 1, 1)}, [{"b": 0, "d": 3}])
