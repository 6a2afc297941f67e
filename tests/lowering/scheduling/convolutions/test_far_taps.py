"""Convolutions whose taps are far apart, against onnxruntime."""

from __future__ import annotations

import pytest

from looplift.lowering.scheduling.convolutions.channel_panels import ChannelPanels
from looplift.lowering.scheduling.convolutions.far_taps import FarTaps

from ....samples import one_of
from ...comparison import check, taken_by, weight

SIZES = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 14, 20), (2, 28, 9), (1, 1, 40), (0, 8, 8), (1, 45, 37), (2, 3, 4))
]
"""Images of a few positions, of fewer lines than taps are apart, and of several chunks."""
TAPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "nearer than the size": ("pads = [9, 9, 9, 9], dilations = [9, 9]", (64, 40, 3, 3)),
    "beyond the size": ("pads = [36, 36, 36, 36], dilations = [36, 36]", (96, 70, 3, 3)),
    "uneven padding": ("pads = [20, 0, 8, 22], dilations = [14, 11]", (30, 33, 3, 3)),
    "more lines of padding": ("pads = [30, 20, 30, 20], dilations = [8, 10]", (32, 40, 4, 5)),
    "columns side by side": ("pads = [12, 1, 12, 1], dilations = [12, 1]", (48, 170, 3, 3)),
    "one column": ("pads = [10, 0, 10, 0], dilations = [10, 1]", (32, 36, 3, 1)),
    "groups": ("group = 3, pads = [8, 8, 8, 8], dilations = [8, 8]", (96, 35, 3, 3)),
    "many channels": ("pads = [16, 16, 16, 16], dilations = [16, 16]", (64, 200, 3, 3)),
}
"""Attributes and the shape of the weight."""


@pytest.mark.parametrize("name", one_of(3, TAPS))
def test_taps(name: str) -> None:
    attributes, shape = TAPS[name]
    groups = 3 if "group" in attributes else 1
    text = f"""model (float[b, {shape[1] * groups}, h, w] x) => (y) {{
        p = Conv <{attributes}> (x, f, c) y = Relu (p) }}"""
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    assert taken_by(FarTaps(), text, weights)
    check(text, weights, SIZES)


@pytest.mark.parametrize(
    ("height", "width", "pads"),
    [(14, 20, (12, 18)), (64, 64, (12, 18)), (30, 20, (15, 21)), (9, 5, (30, 40))],
    ids=["small", "large", "longer lines of output", "mostly padding"],
)
def test_images_of_known_size(height: int, width: int, pads: tuple[int, int]) -> None:
    text = f"""model (float[2, 48, {height}, {width}] x) => (y) {{
        y = Conv <pads = {[*pads, *pads]}, dilations = [12, 18]> (x, f) }}"""
    weights = {"f": weight(64, 48, 3, 3)}
    assert taken_by(FarTaps(), text, weights)
    check(text, weights, [{}])


def test_a_residual() -> None:
    text = """model (float[b, 32, h, w] x, float[b, 32, h, w] z) => (y) {
        p = Conv <pads = [10, 10, 10, 10], dilations = [10, 10]> (x, f) y = Add (p, z) }"""
    weights = {"f": weight(32, 32, 3, 3)}
    assert taken_by(FarTaps(), text, weights)
    check(text, weights, SIZES)


def test_results_with_channels_last() -> None:
    text = """model (float[b, 48, h, w] x) => (y) {
        p = Conv <pads = [12, 12, 12, 12], dilations = [12, 12]> (x, f)
        y = Transpose <perm = [0, 2, 3, 1]> (p) }"""
    weights = {"f": weight(64, 48, 3, 3)}
    assert taken_by(FarTaps(), text, weights)
    check(text, weights, SIZES)


@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [12, 0, 12, 0], dilations = [12, 12]",
        "pads = [12, 13, 12, 13], dilations = [12, 12]",
        "pads = [12, 12, 12, 12], dilations = [12, 12], strides = [2, 1]",
        "pads = [12, 7, 12, 7], dilations = [12, 7], strides = [1, 2]",
        "pads = [7, 7, 7, 7], dilations = [7, 7]",
    ],
    ids=["shorter lines", "longer lines", "strided lines", "strided columns", "near"],
)
def test_taps_of_other_rules(attributes: str) -> None:
    text = f"model (float[b, 48, h, w] x) => (y) {{ y = Conv <{attributes}> (x, f) }}"
    weights = {"f": weight(64, 48, 3, 3)}
    assert not taken_by(FarTaps(), text, weights)
    assert taken_by(ChannelPanels(), text, weights)
