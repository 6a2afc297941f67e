"""Models with weights, compiled once and compared with onnxruntime for several sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper
from tvm import s_tir, tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from .compiled import NATIVE, virtual_machine
from .conftest import parse

Array = np.ndarray[Any, Any]
TARGETS: tuple[Any, ...] = (
    NATIVE,
    *({"kind": "llvm", "mcpu": name, "opt-level": 0} for name in ("haswell", "x86-64")),
)
"""This processor, AVX2 and SSE, without the optimisations of LLVM."""


def weight(*shape: int) -> Array:
    generator = np.random.default_rng(sum(shape))
    return (generator.standard_normal(shape) / 8).astype(np.float32)


def with_weights(text: str, weights: dict[str, Array]) -> onnx.ModelProto:
    """The model with initializers, and with the type of its output."""
    model = parse(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    return onnx.shape_inference.infer_shapes(model)


def check(
    text: str, weights: dict[str, Array], sizes: Sequence[dict[str, int]], target: Any = NATIVE
) -> None:
    """Compiles a model once and compares it with onnxruntime for several sizes of its inputs."""
    model = with_weights(text, weights)
    compiled = looplift.compile(looplift.from_onnx(model), target)
    machine = virtual_machine(compiled)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in sizes:
        feed = {value.name: random(value, given) for value in model.graph.input}
        result = machine["main"](*(tvm.runtime.tensor(value) for value in feed.values()))
        gots = [result] if hasattr(result, "numpy") else result
        for got, want in zip(gots, session.run(None, feed), strict=True):
            assert got.shape == want.shape
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            np.testing.assert_allclose(
                got.numpy() / scale, want / scale, rtol=0, atol=2e-6, err_msg=str(given)
            )


def taken_by(rule: Any, text: str, weights: dict[str, Array]) -> list[s_tir.Schedule]:
    """The kernels of a model that a schedule rule takes, as it schedules them."""
    with as_target("native") as target:
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
        kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
        found = [rule.apply(kernel, target, False) for kernel in kernels]
    return [schedule for schedule in found if schedule is not None]


def vector_statements(schedule: s_tir.Schedule) -> list[str]:
    """What a scheduled kernel computes in vectors."""
    return re.findall(r"for \w+ in T\.vectorized\(.*\):\n\s*(.*)", schedule.mod.script())


def random(value: onnx.ValueInfoProto, given: dict[str, int]) -> Array:
    """Numbers, or truth values, of the shape of an input."""
    dims = value.type.tensor_type.shape.dim
    shape = [dim.dim_value or given[dim.dim_param] for dim in dims]
    numbers = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
    return numbers > 0 if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL else numbers


def soaking(cases: Iterable[str], *long: str) -> list[Any]:
    """Names of cases; the `long` ones run with the long tests only."""
    return [pytest.param(name, marks=pytest.mark.soak if name in long else ()) for name in cases]
