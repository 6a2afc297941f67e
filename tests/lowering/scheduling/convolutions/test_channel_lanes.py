"""Depthwise convolutions and maxima of windows with channels in vectors, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import looplift
from looplift.lowering.scheduling.convolutions.channel_lanes import ChannelLanes

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, weight, with_weights
from ...compiled import NATIVE, virtual_machine

PLANES: dict[str, tuple[tuple[int, int], str]] = {
    "small": ((5, 5), "pads = [2, 2, 2, 2]"),
    "strided": ((3, 3), "pads = [1, 1, 1, 1], strides = [2, 2]"),
    "unequal": ((2, 4), "pads = [0, 2, 1, 1], strides = [3, 2]"),
    "no padding": ((2, 2), "strides = [2, 2]"),
    "a column": ((3, 1), "pads = [1, 0, 1, 0]"),
    "dilated": ((3, 3), "pads = [2, 4, 2, 4], dilations = [2, 4]"),
    "stride beyond the window": ((1, 2), "strides = [2, 3]"),
}
SIZES = [
    {"b": 1, "h": 7, "w": 7}, {"b": 0, "h": 7, "w": 7}, {"b": 2, "h": 5, "w": 18},
    {"b": 1, "h": 61, "w": 48}, {"b": 1, "h": 5, "w": 200}, {"b": 3, "h": 5, "w": 9},
]  # fmt: skip
LINES: dict[str, tuple[int, str]] = {
    "same": (3, "pads = [1, 1]"),
    "strided": (4, "pads = [0, 2], strides = [3]"),
    "dilated": (5, "pads = [10, 10], dilations = [5]"),
}


def check_taken(text: str, weights: dict[str, Any], sizes: Any) -> None:
    """The rule takes the kernel, and it computes what onnxruntime computes."""
    assert len(taken_by(ChannelLanes(), text, weights)) == 1
    check(text, weights, sizes)


@pytest.mark.parametrize(
    ("channels", "name"), one_of(5, [(c, n) for n in PLANES for c in (40, 16)])
)
def test_depthwise_convolutions_of_any_plane(channels: int, name: str) -> None:
    taps, attributes = PLANES[name]
    text = f"""model (float[b, {channels}, h, w] x) => (y) {{
        p = Conv <group = {channels}, {attributes}> (x, f, c) y = HardSwish (p) }}"""
    check_taken(text, {"f": weight(channels, 1, *taps), "c": weight(channels)}, SIZES)


@pytest.mark.parametrize("name", one_of(2, LINES))
def test_depthwise_convolutions_of_a_line(name: str) -> None:
    taps, attributes = LINES[name]
    text = f"""model (float[b, 37, n] x) => (y) {{
        p = Conv <group = 37, {attributes}> (x, f) y = Relu (p) }}"""
    sizes = [{"b": b, "n": n} for b, n in ((1, 5), (2, 33), (0, 9), (1, 5000))]
    check_taken(text, {"f": weight(37, 1, taps)}, sizes)


SMALL = [(1, 1), (7, 1), (1, 7), (2, 3), (3, 2), (1, 30), (30, 1), (4, 17)]
SMALL_PLANES = {
    "5x5": ((5, 5), "pads = [2, 2, 2, 2]"),
    "strided": ((5, 3), "pads = [3, 1, 1, 1], strides = [2, 3]"),
    "dilated": ((3, 3), "pads = [2, 4, 2, 4], dilations = [2, 4]"),
    "a tap between the elements": ((2, 4), "pads = [3, 11, 0, 1], dilations = [3, 4]"),
    "only padding for some": ((2, 2), "pads = [5, 4, 1, 3], strides = [4, 3]"),
}


@pytest.mark.parametrize("name", one_of(2, SMALL_PLANES))
def test_taps_that_read_padding_only_are_left_out(name: str) -> None:
    taps, attributes = SMALL_PLANES[name]
    text = f"""model (float[b, 24, h, w] x) => (y) {{
        p = Conv <group = 24, {attributes}> (x, f, c) y = Sigmoid (p) }}"""
    sizes = [{"b": b, "h": h, "w": w} for b in (1, 3) for h, w in SMALL]
    check_taken(text, {"f": weight(24, 1, *taps), "c": weight(24)}, sizes)


def test_an_image_without_positions() -> None:
    """Onnxruntime refuses it."""
    text = (
        "model (float[1, 16, h, w] x) => (y) { y = Conv <group = 16, pads = [1, 0, 1, 0]> (x, f) }"
    )
    model = looplift.from_onnx(with_weights(text, {"f": weight(16, 1, 3, 2)}))
    machine = virtual_machine(looplift.compile(model, NATIVE))
    for height, width in ((0, 400), (5, 1), (0, 1)):
        x = tvm.runtime.tensor(np.zeros((1, 16, height, width), np.float32))
        sizes = machine["main"](x).numpy().shape
        assert sizes[:2] == (1, 16)
        assert 0 in sizes


@pytest.mark.parametrize("name", one_of(2, PLANES))
def test_maxima_of_any_plane(name: str) -> None:
    taps, attributes = PLANES[name]
    # Padding is smaller than a window.
    attributes = {
        "unequal": "pads = [0, 2, 1, 1], strides = [3, 2], ceil_mode = 1",
        "dilated": "pads = [1, 2, 0, 1], dilations = [2, 3]",
    }.get(name, attributes)
    text = f"""model (float[b, 24, h, w] x) => (y) {{
        y = MaxPool <kernel_shape = [{taps[0]}, {taps[1]}], {attributes}> (x) }}"""
    check_taken(text, {}, [size for size in SIZES if size["b"]])


MEANS = {
    "all counted": ("[3, 3]", "pads = [1, 1, 1, 1], count_include_pad = 1"),
    "padding not counted": ("[3, 3]", "pads = [1, 1, 1, 1]"),
    "strided": ("[3, 5]", "pads = [0, 2, 2, 1], strides = [2, 3], count_include_pad = 1"),
    "no padding": ("[2, 3]", "strides = [1, 2]"),
    "a window larger than the image": ("[4, 4]", "pads = [3, 3, 3, 3]"),
}


@pytest.mark.parametrize("name", one_of(2, MEANS))
def test_means_of_any_plane(name: str) -> None:
    taps, attributes = MEANS[name]
    text = f"""model (float[b, 24, h, w] x) => (y) {{
        p = AveragePool <kernel_shape = {taps}, {attributes}> (x) y = Relu (p) }}"""
    sizes = [{"b": 1, "h": 3, "w": 3}, *SIZES] if "larger" in name else SIZES
    check_taken(text, {}, [size for size in sizes if size["b"]])


def test_means_of_a_line() -> None:
    text = """model (float[2, 21, n] x) => (y) {
        y = AveragePool <kernel_shape = [5], pads = [2, 2], count_include_pad = 1> (x) }"""
    check_taken(text, {}, [{"n": n} for n in (1, 2, 7, 30, 4000)])


@pytest.mark.parametrize("name", one_of(2, LINES))
def test_maxima_of_a_line(name: str) -> None:
    taps, attributes = LINES[name]
    if name == "dilated":
        attributes = "pads = [2, 2], dilations = [5]"
    text = f"model (float[2, 24, n] x) => (y) {{ y = MaxPool <kernel_shape = [{taps}], {attributes}> (x) }}"
    check_taken(text, {}, [{"n": n} for n in (17, 30, 4000)])


@pytest.mark.parametrize("target", TARGETS[1:])
def test_on_processors_with_shorter_vectors(target: Any) -> None:
    text = """model (float[1, 21, h, w] x) => (y) {
        p = Conv <group = 21, pads = [2, 2, 2, 2]> (x, f, c)
        y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (p) }"""
    check(
        text,
        {"f": weight(21, 1, 5, 5), "c": weight(21)},
        [{"h": 7, "w": 7}, {"h": 5, "w": 31}],
        target,
    )


def test_of_sizes_that_are_known() -> None:
    text = """model (float[1, 20, 14, 15] x) => (y) {
        p = Conv <group = 20, pads = [1, 1, 1, 1], strides = [2, 1]> (x, f) y = Sigmoid (p) }"""
    check_taken(text, {"f": weight(20, 1, 3, 3)}, [{}])


def test_weights_that_are_no_constants() -> None:
    text = """model (float[1, 20, 9, w] x, float[20, 1, 3, 3] f) => (y) {
        y = Conv <group = 20, pads = [1, 1, 1, 1]> (x, f) }"""
    check_taken(text, {}, [{"w": 8}, {"w": 31}])


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("model (float[1, 9, h, w] x) => (y) { y = Conv <group = 9> (x, f) }", (9, 1, 3, 3)),
        ("model (float[1, 32, h, w] x) => (y) { y = Conv <group = 16> (x, f) }", (16, 2, 3, 3)),
        ("model (float[1, 16, h, w] x) => (y) { y = Conv <group = 16> (x, f) }", (32, 1, 3, 3)),
        ("model (float[1, 16, h, w] x) => (y) { y = Conv (x, f) }", (32, 16, 3, 3)),
        ("model (float[1, c, h, w] x) => (y) { y = MaxPool <kernel_shape = [2, 2]> (x) }", ()),
        ("model (double[1, 16, h, w] x) => (y) { y = MaxPool <kernel_shape = [2, 2]> (x) }", ()),
        (
            "model (float[1, 16, h, w] x) => (y) "
            "{ y = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
            (),
        ),
        (
            "model (float[1, 16, 9, 8, 7] x) => (y) "
            "{ y = AveragePool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (x) }",
            (),
        ),
        ("model (float[1, 16, 9, 256] x) => (y) { y = MaxPool <kernel_shape = [2, 1]> (x) }", ()),
    ],
    ids=[
        "few channels", "groups of two", "two outputs of a channel", "all channels",
        "unknown channels", "doubles", "windows that do not overlap", "three axes",
        "columns of long lines",
    ],
)  # fmt: skip
def test_others_are_left_to_other_rules(text: str, shape: tuple[int, ...]) -> None:
    assert taken_by(ChannelLanes(), text, {"f": weight(*shape)} if shape else {}) == []
