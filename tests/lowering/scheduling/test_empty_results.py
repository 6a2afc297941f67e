"""Kernels whose results have no elements touch no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import RULES, lower_to_kernels

from ...samples import one_of
from ..comparison import weight, with_weights
from ..compiled import NATIVE, virtual_machine

MODELS = {
    "convolution": ("b, 3, t", "Conv (x, f)", (16, 3, 3), 2),
    "strided convolution": ("b, 3, t", "Conv <strides = [2]> (x, f)", (16, 3, 5), 4),
    "convolution of planes": ("b, 64, t, t", "Conv (x, f)", (64, 64, 3, 3), 2),
    "convolution of volumes": ("b, 3, t, t, t", "Conv (x, f)", (16, 3, 3, 3, 3), 2),
    "single tap": ("b, 64, t, t", "Conv (x, f)", (64, 64, 1, 1), 0),
    "depthwise": ("b, 8, t, t", "Conv <group = 8> (x, f)", (8, 1, 5, 5), 4),
    "groups": ("b, 16, t", "Conv <group = 4> (x, f)", (16, 4, 3), 2),
    "pooling": ("b, 64, t, t", "AveragePool <kernel_shape = [3, 3]> (x)", None, 2),
    "product": ("b, t, 8", "MatMul (x, f)", (8, 32), 0),
    "product of one column": ("b, t, 8", "MatMul (x, f)", (8, 1), 0),
    "elementwise": ("b, t, 8", "Exp (x)", None, 0),
}
"""The shape of the input, the node, the shape of the weight, and the size that makes no result."""


def _model(name: str) -> Any:
    shape, node, of_weight, _ = MODELS[name]
    weights = {} if of_weight is None else {"f": weight(*of_weight)}
    return with_weights(f"m (float[{shape}] x) => (y) {{ y = {node} }}", weights)


@pytest.mark.parametrize("name", one_of(3, MODELS))
def test_empty_results(name: str) -> None:
    shape, *_, size = MODELS[name]
    machine = virtual_machine(looplift.compile(looplift.from_onnx(_model(name)), NATIVE))
    for batch, given in ((1, size), (2, size), (0, size + 4)):
        sizes = {"b": batch, "t": given}
        x = np.ones([sizes[n] if n in sizes else int(n) for n in shape.split(", ")], np.float32)
        assert 0 in machine["main"](tvm.runtime.tensor(x)).shape


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][1].startswith("Conv")])
def test_kernels_ask_whether_there_is_a_result(name: str) -> None:
    """Tiles of a convolution read and write past the end of tensors smaller than a tile."""
    with as_target("native") as target:
        kernels = [
            kernel
            for kernel in lower_to_kernels(looplift.from_onnx(_model(name))).functions.values()
            if isinstance(kernel, tirx.PrimFunc) and kernel.attrs.get("op_pattern") != 8
        ]
        schedules = [
            next(filter(None, (rule.apply(k, target, False) for rule in RULES)), None)
            for k in kernels
        ]
    scheduled = [schedule.mod["main"] for schedule in schedules if schedule is not None]
    choices: list[Any] = []
    for kernel in scheduled:
        tvm_ffi.structural_walk(kernel.body, (tirx.IfThenElse, choices.append))
    assert any("> T.int64(0)" in str(choice.condition) for choice in choices)
