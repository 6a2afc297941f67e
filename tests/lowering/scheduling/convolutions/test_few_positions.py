"""Convolutions of few output positions, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.convolutions.few_positions import FewPositions
from looplift.lowering.scheduling.functions.micro_kernels import channel_tile
from looplift.lowering.values import Constant

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, weight, with_weights

CASES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "frames of a signal": ("float[b, 1, 640] x", "strides = [128]", (258, 1, 256)),
    "padding": ("float[b, 9, 4] x", "pads = [1, 1]", (128, 9, 3)),
    "one position": ("float[b, 40, 2] x", "pads = [1, 1], strides = [2]", (64, 40, 3)),
    "dilation": ("float[b, 6, 9] x", "dilations = [3]", (70, 6, 2)),
    "plane": ("float[b, 5, 7, 5] x", "pads = [1, 0, 0, 1], strides = [2, 3]", (50, 5, 3, 2)),
    "as many as rows": ("float[b, 8, 12] x", "", (100, 8, 1)),
}
"""Input, attributes and the shape of the weight."""
BATCHES = [{"b": b} for b in (1, 0, 3)]


def model_of(name: str, batch: str) -> tuple[str, dict[str, Any]]:
    inputs, attributes, shape = CASES[name]
    inputs = inputs.replace("[b", f"[{batch}")
    conv = f"Conv <{attributes}> (x, f, c)" if attributes else "Conv (x, f, c)"
    text = f"model ({inputs}) => (y) {{ p = {conv} q = Sigmoid (p) y = Mul (p, q) }}"
    return text, {"f": weight(*shape), "c": weight(shape[0])}


@pytest.mark.parametrize("name", one_of(2, CASES))
def test_a_batch_of_any_size(name: str) -> None:
    text, weights = model_of(name, "b")
    assert len(taken_by(FewPositions(), text, weights)) == 1
    check(text, weights, BATCHES)


@pytest.mark.parametrize("name", one_of(3, CASES))
def test_one_image(name: str) -> None:
    text, weights = model_of(name, "1")
    assert len(taken_by(FewPositions(), text, weights)) == 1
    check(text, weights, [{}])


def test_images_share_a_tile() -> None:
    text, weights = model_of("padding", "2")
    assert len(taken_by(FewPositions(), text, weights)) == 1
    check(text, weights, [{}])


def test_on_two_cores() -> None:
    text = "model (float[1, 256, 8] x) => (y) { y = Conv <pads = [1, 1]> (x, f) }"
    weights = {"f": weight(300, 256, 3)}
    assert len(taken_by(FewPositions(), text, weights)) == 1
    check(text, weights, [{}])


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("model (float[1, 8, 40] x) => (y) { y = Conv (x, f) }", (100, 8, 3)),
        ("model (float[1, 8, n] x) => (y) { y = Conv (x, f) }", (100, 8, 3)),
        ("model (float[1, 8, 6] x) => (y) { y = Conv <group = 2> (x, f) }", (100, 4, 3)),
        ("model (float[1, 64, 12] x) => (y) { y = Conv (x, f) }", (3, 64, 3)),
        ("model (float[4, 8] x) => (y) { y = MatMul (x, f) }", (8, 100)),
        ("model (float[1, 1, 1] x) => (y) { y = Conv (x, f) }", (100, 1, 1)),
    ],
    ids=["more positions", "unknown positions", "groups", "few channels", "a product", "no sum"],
)
def test_others_are_left_to_other_rules(text: str, shape: tuple[int, ...]) -> None:
    assert taken_by(FewPositions(), text, {"f": weight(*shape)}) == []


LINES: dict[str, tuple[str, str, tuple[int, ...], int]] = {
    "taps": ("float[b, 24, n] x", "Conv <pads = [1, 1]> (x, f)", (30, 24, 3), 1),
    "groups": ("float[b, 24, n] x", "Conv <group = 2, strides = [2]> (x, f)", (26, 12, 2), 3),
    "frames of a signal": ("float[b, 1, n] x", "Conv <strides = [16]> (x, f)", (34, 1, 32), 32),
    "one tap": ("float[b, 33, n] x", "Conv (x, f)", (37, 33, 1), 1),
    "many channels": ("float[b, 200, n] x", "Conv <pads = [2, 0]> (x, f)", (13, 200, 3), 1),
    "product": ("float[b, 33, n] x", "MatMul (f, x)", (37, 33), 1),
}
"""Input, node, the shape of the weight, and the least size of the input."""


@pytest.mark.parametrize(("name", "target"), one_of(7, itertools.product(LINES, TARGETS)))
def test_lines_of_any_number_of_positions(name: str, target: Any) -> None:
    """Vectors of the last positions hold channels where that takes fewer of them."""
    inputs, node, shape, least = LINES[name]
    text = f"model ({inputs}) => (y) {{ p = {node} y = LeakyRelu (p) }}"
    sizes = [{"b": 1, "n": least + more} for more in (0, 1, 2, 3, 6, 9, 11, 12, 15, 16, 20, 40)]
    sizes += [
        {"b": b, "n": n} for b, n in ((2, least + 5), (0, least), (2, least + 516), (1, 1600))
    ]
    if name == "product":  # Onnxruntime refuses one without images.
        sizes = [size for size in sizes if size["b"]]
    check(text, {"f": weight(*shape)}, sizes, target)


def test_planes_of_few_positions() -> None:
    text = "model (float[b, 20, h, w] x) => (y) { y = Conv <strides = [2, 2]> (x, f) }"
    sizes = [{"b": 1, "h": h, "w": w} for h, w in ((3, 3), (3, 9), (7, 5), (9, 9), (3, 41))]
    check(text, {"f": weight(20, 20, 3, 3)}, sizes)


def test_the_last_vector_of_channels_stays_inside_the_packed_weights() -> None:
    """A vector is longer than the tile of channels that it multiplies."""
    text = "model (float[1, 5, n] x) => (y) { y = Conv (x, f) }"
    module = looplift.from_onnx(with_weights(text, {"f": weight(18, 5, 3)}))
    with as_target("native"):
        module = relax.get_pipeline("looplift")(module)
        width = channel_tile().width
    constants: list[Any] = []
    tvm_ffi.structural_walk(module["main"].body, (Constant, constants.append))
    tensors = [c.value for c in constants if isinstance(c.value, tvm.runtime.Tensor)]
    assert {tuple(tensor.shape) for tensor in tensors} == {(18 * 5 * 3 + width,)}
