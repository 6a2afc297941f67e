"""Modules for a GPU: as far as they can be built without one."""

from __future__ import annotations

import shutil
from typing import Any

import onnx
import pytest
import tvm
from tvm import relax, tirx

import looplift
from looplift.lowering import emit
from looplift.transform import LowerRecurrent

from .conftest import parse
from .test_kernels import CONDITIONAL, COUNTED, REDUCTIONS, SYMBOLIC

LAYER = """
layer (float[n, b, 3] x, float[1, 20, 3] w, float[1, 20, 5] r, int32[b] lengths)
    => (float[n, 1, b, 5] y, float[1, b, 5] last)
{
    y, last = LSTM <hidden_size = 5> (x, w, r, "", lengths)
}"""
OPERATORS = """
<ir_version: 8, opset_import: ["" : 18]>
operators (float[1, 1, n] scores, int64[1] most)
    => (float[1, 1, m] best, float[1, 1, 1] peak, int64[1, 1, 1] place,
        float16[1, 1, n] narrow, float[1, 1, p] pooled)
{
    best, places = TopK (scores, most)
    last = Constant <value_ints = [2]> ()
    peak = ReduceMax (scores, last)
    place = ArgMin <axis = 2> (scores)
    half = Cast <to = 10> (scores)
    narrow = Softmax (half)
    pooled = LpPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (scores)
}"""
MODELS = {
    "counted": COUNTED,
    "conditional": CONDITIONAL,
    "scan": SYMBOLIC,
    "reductions": REDUCTIONS,
    "operators": OPERATORS,
    "layer": LAYER.replace(', "", lengths', "").replace(", int32[b] lengths", ""),
    "lengths": LAYER,
}


ON_THE_HOST = ("shape_func", "compute_symbolic_expr")
"""The names of functions that compute sizes."""


def gpu() -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host={"kind": "llvm"})


def imported(model: onnx.ModelProto) -> Any:
    with gpu():
        return emit(model)


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_runs_on_the_gpu(name: str) -> None:
    """What has no threads would be compiled for the host, which cannot read a GPU's memory."""
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(MODELS[name])))
    kernels = {
        variable.name_hint: function.script()
        for variable, function in lowered.functions_items()
        if isinstance(function, tirx.PrimFunc) and not variable.name_hint.startswith(ON_THE_HOST)
    }
    assert kernels
    assert [name for name, text in kernels.items() if "threadIdx.x" not in text] == []


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("name", MODELS)
def test_modules_compile_for_a_gpu(name: str) -> None:
    module = imported(parse(MODELS[name]))
    assert "cuda" in kinds(looplift.compile(module, gpu()).mod)


def kinds(module: Any) -> set[str]:
    """The kinds of a compiled module and of those inside it."""
    return {module.kind}.union(*(kinds(inner) for inner in module.imports))


def test_kernels_of_a_cpu_are_refused() -> None:
    with tvm.target.Target("llvm"):
        module = LowerRecurrent()(emit(parse(MODELS["layer"])))
    with pytest.raises(looplift.UnsupportedError, match="for a CPU"):
        looplift.compile(module, gpu())
