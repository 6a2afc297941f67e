"""Batch normalization as one multiplication and addition, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ...comparison import check, weight, with_weights

CONSTANTS = {
    "s": weight(5), "c": weight(5), "m": weight(5), "v": np.abs(weight(5)) + np.float32(0.1),
}  # fmt: skip
SIZES = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 3, 7), (0, 4, 4), (1, 33, 40))]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_any_rank(rank: int) -> None:
    sizes = ", ".join(("b", "5", "h", "w")[:rank])
    text = f"model (float[{sizes}] x) => (y) {{ y = BatchNormalization (x, s, c, m, v) }}"
    check(text, CONSTANTS, SIZES)


def test_statistics_that_the_run_computes() -> None:
    text = """model (float[b, 5, h] x, float[5] m, float[5] t) => (y) {
        v = Abs (t) y = BatchNormalization <epsilon = 0.01> (x, s, c, m, v) }"""
    check(text, {name: CONSTANTS[name] for name in ("s", "c")}, SIZES)


def test_what_is_around_it_is_one_kernel() -> None:
    text = """model (float[b, 5, h, w] x) => (y) {
        a = Sigmoid (x) n = BatchNormalization (a, s, c, m, v) y = Relu (n) }"""
    check(text, CONSTANTS, SIZES)
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, CONSTANTS)))
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 1
    assert "sqrt" not in module.script()  # It is computed when the module is compiled.
    assert " / " not in module.script()


def test_half_precision_keeps_the_difference_from_the_mean() -> None:
    text = """model (float[b, 5, h] x) => (y) {
        a = Cast <to = 10> (x) n = BatchNormalization (a, s, c, m, v) y = Cast <to = 1> (n) }"""
    halves = {name: value.astype(np.float16) for name, value in CONSTANTS.items()}
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, halves)))
    assert " / " in module.script()
