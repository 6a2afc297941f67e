"""Convolutions without the taps that read only padding, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

import looplift
from looplift.lowering.scheduling.legalization.unused_taps import drop_unused_taps
from looplift.lowering.values import Constant

from ....samples import one_of
from ...comparison import check, weight, with_weights

CASES: dict[str, tuple[str, str, tuple[int, ...], tuple[int, ...]]] = {
    "single position": ("1, 6, 1, 1", "pads = [1, 1, 1, 1]", (8, 6, 3, 3), (1, 1)),
    "column": ("2, 6, 7, 1", "pads = [1, 1, 1, 1]", (8, 6, 3, 3), (3, 1)),
    "stride": ("1, 4, 2, 2", "pads = [1, 1, 1, 1], strides = [2, 2]", (5, 4, 3, 3), (2, 2)),
    "depthwise": ("1, 16, 2, 1", "pads = [2, 2, 2, 2], group = 16", (16, 1, 5, 5), (3, 1)),
    "groups": ("3, 6, 1", "pads = [3, 3], group = 2", (4, 3, 7), (1,)),
    "one side": ("1, 3, 2", "pads = [0, 4]", (4, 3, 5), (2,)),
    "gap of a dilation": ("1, 3, 3", "pads = [1, 3], dilations = [2]", (4, 3, 3), (2,)),
    "longer dilation": ("1, 3, 1", "pads = [3, 2], dilations = [2]", (4, 3, 3), (1,)),
    "volume": ("1, 2, 1, 2, 1", "pads = [1, 1, 1, 1, 1, 1]", (3, 2, 3, 3, 3), (1, 3, 1)),
    "only padding": ("1, 2, 1", "pads = [5, 0], strides = [9]", (3, 2, 2), (2,)),
    "all": ("1, 2, 5", "pads = [1, 1]", (3, 2, 3), (3,)),
}
"""The sizes of the input, attributes, the shape of the weight, and the taps that are left."""


def _taps(text: str, weights: dict[str, Any]) -> list[tuple[int, ...]]:
    """The taps of the convolutions after the pass."""
    module = drop_unused_taps(looplift.from_onnx(with_weights(text, weights)))
    found: list[tuple[int, ...]] = []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "").startswith("relax.nn.conv"):
            assert isinstance(call.args[1], Constant)
            found.append(tuple(call.args[1].value.shape[2:]))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, (tvm.ir.Call, visit))
    return found


@pytest.mark.parametrize("name", one_of(2, CASES))
def test_taps_on_padding_are_left_out(name: str) -> None:
    sizes, attributes, shape, taps = CASES[name]
    text = f"model (float[{sizes}] x) => (y) {{ y = Conv <{attributes}> (x, f, c) }}"
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    assert _taps(text, weights) == [taps]
    check(text, weights, [{}])


def test_taps_of_unknown_sizes_stay() -> None:
    text = "model (float[1, 2, n] x) => (y) { y = Conv <pads = [1, 1]> (x, f) }"
    assert _taps(text, {"f": weight(3, 2, 3)}) == [(3,)]


def test_taps_along_an_axis_of_known_size_are_left_out() -> None:
    text = "model (float[1, 2, h, 1] x) => (y) { y = Conv <pads = [1, 1, 1, 1]> (x, f) }"
    weights = {"f": weight(3, 2, 3, 3)}
    assert _taps(text, weights) == [(3, 1)]
    check(text, weights, [{"h": h} for h in (1, 2, 9)])


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_infinite_and_nan_weights_keep_their_taps(number: float) -> None:
    filters = np.array([number, 2.0, 3.0], np.float32).reshape(1, 1, 3)
    text = "model (float[1, 1, 1] x) => (y) { y = Conv <pads = [1, 1]> (x, f) }"
    assert _taps(text, {"f": filters}) == [(3,)]
