"""Transposed convolutions as ordinary ones, against onnxruntime."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import check, weight, with_weights
from ...compiled import NATIVE, virtual_machine

TRANSPOSED = {
    "line": ("h", "pads = [4, 4], strides = [8]", (8, 6, 16)),
    "uneven": ("h", "pads = [1, 1], strides = [3], output_padding = [1]", (8, 6, 5)),
    "plane": ("h, w", "pads = [1, 1, 1, 1], strides = [2, 2]", (8, 6, 3, 3)),
    "groups": ("h", "group = 2, pads = [1, 1], strides = [3]", (8, 5, 5)),
    "depthwise": ("h, w", "group = 8, pads = [1, 0, 1, 1], strides = [2, 1]", (8, 1, 4, 3)),
    "one phase": ("h, w", "pads = [1, 2, 0, 2]", (8, 6, 3, 3)),
    "one phase of groups": ("h, w", "group = 4, pads = [0, 1, 1, 1]", (8, 2, 2, 3)),
    "dilated": ("h", "pads = [1, 3], dilations = [2]", (8, 6, 4)),
    "dilated and strided": ("h", "dilations = [2], strides = [3]", (8, 6, 4)),
    "a convolution for each phase": (
        "h, w",
        "pads = [1, 1, 1, 1], strides = [2, 2]",
        (8, 16, 4, 4),
    ),
    "phases of fewer taps": (
        "h, w",
        "pads = [1, 1, 1, 1], strides = [2, 2], output_padding = [1, 1]",
        (8, 20, 3, 3),
    ),
    "phases without taps": ("h, w", "strides = [3, 2], output_padding = [2, 0]", (8, 16, 2, 1)),
    "groups of phases": ("h", "group = 2, pads = [3, 4], strides = [8]", (8, 16, 16)),
    "a single element": ("1", "pads = [2, 1], strides = [2]", (8, 16, 4)),
    "volume": ("3, h, w", "pads = [0, 1, 1, 0, 1, 1], strides = [2, 2, 1]", (8, 6, 2, 3, 3)),
    "one phase of a volume": ("h, 4, w", "group = 2, pads = [1, 1, 1, 1, 1, 1]", (8, 3, 3, 3, 3)),
    "phases of a volume": (
        "h, 2, w",
        "strides = [2, 3, 2], output_padding = [1, 0, 1]",
        (8, 16, 2, 2, 3),
    ),
}
"""Axes, attributes and the shape of the weight."""


@pytest.mark.parametrize("name", one_of(5, TRANSPOSED))
def test_transposed_convolutions_by_phases(name: str) -> None:
    axes, attributes, shape = TRANSPOSED[name]
    nodes = f"y = ConvTranspose <{attributes}> (x, f, c)"
    groups = re.search(r"group = (\d+)", attributes)
    channels = shape[1] * int(groups[1] if groups else 1)
    weights = {"f": weight(*shape), "c": weight(channels)}
    sizes = [{"b": b, "h": h, "w": 7} for b, h in ((1, 50), (2, 1), (1, 7))]
    check(f"model (float[b, 8, {axes}] x) => (y) {{ {nodes} }}", weights, sizes)


@pytest.mark.parametrize("name", one_of(5, TRANSPOSED))
def test_weights_that_are_computed_at_run_time(name: str) -> None:
    axes, attributes, shape = TRANSPOSED[name]
    kernel = f"float[{', '.join(map(str, shape))}] f"
    text = f"""model (float[b, 8, {axes}] x, {kernel}) => (y) {{
        y = ConvTranspose <{attributes}> (x, f) }}"""
    check(text, {}, [{"b": b, "h": h, "w": 7} for b, h in ((1, 50), (2, 1), (1, 7))])


def test_a_transposed_convolution_that_cuts_more_than_its_taps_reach() -> None:
    text = "model (float[1, 8, h] x) => (y) { y = ConvTranspose <pads = [0, 3]> (x, f) }"
    check(text, {"f": weight(8, 6, 3)}, [{"h": 2}, {"h": 40}])
    text = text.replace("[0, 3]", "[5, 4], strides = [2]")
    check(text, {"f": weight(8, 16, 2)}, [{"h": 6}, {"h": 40}])


@pytest.mark.parametrize("sizes", one_of(2, ["h, w", "h"]))
def test_one_kernel_interleaves_phases(sizes: str) -> None:
    rank = len(sizes.split(","))
    text = f"""model (float[b, 4, {sizes}] x) => (y) {{
        y = ConvTranspose <strides = {[3] * rank}, pads = {[1] * 2 * rank}> (x, f, c) }}"""
    weights = {"f": weight(4, 6, *[5] * rank), "c": weight(6)}
    check(text, weights, [{"b": b, "h": n, "w": n + 1} for b, n in ((1, 1), (2, 8))])
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
    main = module["main"].script()
    assert main.count("R.call_tir") == 2  # the phases, and what interleaves them and adds the bias
    assert "R.reshape" not in main


def test_phases_are_computed_only_where_they_are_kept() -> None:
    """Each phase of 4x4 taps with a stride of 2 has 2x2 taps and as many positions as the data."""
    text = """model (float[b, 4, h, w] x) => (y) {
        y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1]> (x, f) }"""
    with as_target("native"):
        module = lower_to_kernels(
            looplift.from_onnx(with_weights(text, {"f": weight(4, 16, 4, 4)}))
        )
    main = module["main"].script()
    assert main.count("R.call_tir") == 5
    convolved = re.findall(r"R\.call_tir\(\w*conv2d\w*, .*, out_ty=R\.Tensor\((.*?), dtype", main)
    assert convolved == ["(b, 16, h, w)"] * 4


def test_an_infinite_element_reaches_only_its_taps() -> None:
    """A tap that is missing is not one whose weight is 0: 0 times infinity is NaN."""
    text = "model (float[1, 2, h] x) => (y) { y = ConvTranspose <strides = [2]> (x, f) }"
    weights = {"f": weight(2, 16, 3)}
    model = with_weights(text, weights)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = np.ones((1, 2, 9), np.float32)
    x[0, 0, 4] = np.inf
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    assert not np.isnan(result).any()
    assert set(np.nonzero(np.isinf(result).any(axis=(0, 1)))[0]) == {8, 9, 10}
