"""Each shape is computed once in a function."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm import relax

import looplift
from looplift.lowering.scheduling.relax.shared_shapes import share_shapes

from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

# Reductions along the last axis stay kernels of their own, so each `Softmax` allocates a tensor.
CHAIN = """model (float[n, 8] x, float[n, 8] z) => (float[n, 8] y) {
    a = Softmax (x) b = Softmax (a) c = Softmax (b) y = Add (c, z)
}"""
BRANCHES = """model (float[n, 8] x, bool flag) => (float[n, 16] y) {
    a = Softmax (x)
    b = If (flag) <
        then_branch = t () => (float[n, 16] p) { wide = Concat <axis = 1> (a, a) p = Softmax (wide) },
        else_branch = e () => (float[n, 16] q) {
            wide = Concat <axis = 1> (x, a) q = Softmax <axis = 0> (wide)
        }
    >
    y = Softmax (b)
}"""


def made_shapes(executable: Any) -> int:
    """How many objects of shapes the virtual machine makes, by its instructions."""
    return len(re.findall(r"call +vm\.builtin\.make_shape", executable.as_text()))


def test_tensors_of_one_shape_share_it() -> None:
    model = parse(CHAIN)
    compiled = looplift.compile(looplift.from_onnx(model), "native")
    # That of the tensors, and their size in bytes, which two passes write in two ways.
    assert made_shapes(compiled) == 3
    x, z = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "z": z})
    got = virtual_machine(compiled)["main"](*map(tvm.runtime.tensor, (x, z)))
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_does_not_need_the_shapes_of_the_other(flag: bool) -> None:
    model = parse(BRANCHES)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (0, 1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        feed = {"x": x, "flag": np.array(flag)}
        (want,) = session.run(None, feed)
        got = machine["main"](*map(tvm.runtime.tensor, feed.values()))
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=1e-6)


def test_shapes_that_are_known_stay_where_they_are() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 8], "float32"))
    with builder.function("main", [x]):
        reshaped = builder.emit(relax.op.reshape(x, relax.ShapeExpr([16])))
        builder.emit_func_output(reshaped)
    module = builder.get()
    assert share_shapes(module).script() == module.script()
