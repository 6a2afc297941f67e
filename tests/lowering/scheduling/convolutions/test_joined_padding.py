"""Padding of computed amounts is part of the convolution or pooling that reads it."""

from __future__ import annotations

from typing import Any

import pytest

from looplift.lowering import emit
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ...comparison import check, weight, with_weights
from ...kernel_modules import calls_of

WEIGHTS = {"f": weight(24, 16, 3, 3), "d": weight(16, 1, 3, 3)}
SIZES = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 7, 40), (2, 16, 9), (1, 4, 4))]
CONSTANTS = "int64[2] two = {2, 2}, int64[6] none = {0, 0, 0, 0, 0, 0}, float one = {1}"


def _kernels(text: str, used: dict[str, Any]) -> list[str]:
    """The names of the kernels that the main function calls."""
    with as_target("llvm"):
        module = lower_to_kernels(emit(with_weights(text, used)))
    return [call.args[0].name_hint for call in calls_of(module)]


def _model(nodes: str) -> str:
    return f"model (float[b, 16, h, w] x) => (y) <{CONSTANTS}> {{ {nodes} }}"


JOINED = {
    "same": "y = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]> (x, f)",
    "same, more before": "y = Conv <auto_pad = \"SAME_LOWER\", strides = [2, 2]> (x, f)",
    "each channel": "y = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2], group = 16> (x, d)",
    "after an activation": "a = Relu (x) y = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]> (a, f)",
    "before an activation": "c = Conv <auto_pad = \"SAME_UPPER\", strides = [2, 2]> (x, f) y = Relu (c)",
    "maxima": "y = MaxPool <auto_pad = \"SAME_UPPER\", kernel_shape = [2, 2], strides = [2, 2]> (x)",
    "sums of three": "y = MaxPool <auto_pad = \"SAME_LOWER\", kernel_shape = [3, 3], strides = [2, 3]> (x)",
}  # fmt: skip


@pytest.mark.parametrize("nodes", JOINED.values(), ids=JOINED)
def test_computed_padding(nodes: str) -> None:
    used = {name: WEIGHTS[name] for name in WEIGHTS if f", {name})" in nodes}
    assert not [name for name in _kernels(_model(nodes), used) if "pad" in name]
    check(_model(nodes), used, SIZES)


def test_padding_that_two_convolutions_read() -> None:
    text = f"""model (float[b, 16, h, w] x) => (y) <{CONSTANTS}> {{
        s = Shape <start = 2> (x) r = Mod (s, two) p = Concat <axis = 0> (none, r) q = Pad (x, p, one)
        u = Conv (q, f) v = Conv <strides = [2, 2]> (q, f)
        a = ReduceMax (u) c = ReduceMax (v) y = Add (a, c) }}"""
    used = {"f": WEIGHTS["f"]}
    assert [name for name in _kernels(text, used) if "pad" in name]
    check(text, used, SIZES)


def test_padding_with_another_number() -> None:
    """Computed amounts of an explicit Pad, whose number is not 0."""
    text = f"""model (float[b, 16, h, w] x) => (y) <{CONSTANTS}> {{
        s = Shape <start = 2> (x) r = Mod (s, two) p = Concat <axis = 0> (none, r)
        q = Pad (x, p, one) y = Conv (q, f) }}"""
    used = {"f": WEIGHTS["f"]}
    check(text, used, SIZES)
    pooled = text.replace("Conv (q, f)", "MaxPool <kernel_shape = [2, 2]> (q)")
    check(pooled, {}, SIZES)
    averaged = text.replace("Conv (q, f)", "AveragePool <kernel_shape = [3, 3]> (q)")
    check(averaged, {}, SIZES)


def test_padding_of_data_and_weights() -> None:
    """Two paddings that the same convolution reads."""
    text = f"""model (float[b, 16, h, w] x) => (y) <{CONSTANTS}> {{
        s = Shape <start = 2> (x) r = Mod (s, two) p = Concat <axis = 0> (none, r)
        q = Pad (x, p) g = Pad (f, p) y = Conv (q, g) }}"""
    check(text, {"f": WEIGHTS["f"]}, SIZES)
