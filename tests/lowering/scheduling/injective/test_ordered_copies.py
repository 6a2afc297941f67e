"""Reshapes whose results leave the function, which are copied in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.injective.ordered_copies import OrderedCopy
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ...comparison import with_weights
from ...compiled import virtual_machine

SIZES = [(1, 1, 1), (2, 3, 5), (0, 3, 5), (1, 64, 300), (3, 0, 7)]


def copies_of(module: Any) -> list[Any]:
    """The kernels that the rule takes."""
    with as_target("llvm") as target:
        functions = lower_to_kernels(module).functions.values()
        kernels = [f for f in functions if isinstance(f, tirx.PrimFunc)]
        return [k for k in kernels if OrderedCopy().apply(k, target, False) is not None]


@pytest.mark.parametrize("dtype", ["float", "double", "int64", "float16", "bool", "uint8"])
def test_a_reshape_that_is_an_output(dtype: str) -> None:
    text = f"""model ({dtype}[b, n, m] x) => ({dtype}[b, ?] y) {{
        shape = Constant <value_ints = [0, -1]> ()
        y = Reshape <allowzero = 0> (x, shape) }}"""
    module = looplift.from_onnx(with_weights(text, {}))
    assert len(copies_of(module)) == 1
    machine = virtual_machine(looplift.compile(module, "llvm"))
    numpy_type = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    for shape in SIZES:
        x = (np.random.default_rng(0).random(shape) * 100).astype(numpy_type)
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_array_equal(got, x.reshape(shape[0], shape[1] * shape[2]))


def test_a_transposition_is_no_copy() -> None:
    text = "model (float[n, m] x) => (y) { y = Transpose <perm = [1, 0]> (x) }"
    assert copies_of(looplift.from_onnx(with_weights(text, {}))) == []
