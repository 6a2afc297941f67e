"""looplift as a backend for test suites of ONNX importers.

`prepare(model)` rewrites, imports and compiles a model. It returns a function that takes a list of
inputs and returns a list of outputs, both in the order of the graph. A sequence is a list, an empty
optional is None. `prepare_plain` does the same without rewriting. The attribute `conformance_stage`
of an exception names the stage that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

import looplift
from looplift.lowering import emit
from looplift.lowering.small_types import STORED, dtype_name, stored_array

Run = Callable[[Sequence[Any]], list[Any]]


def prepare(model: onnx.ModelProto) -> Run:
    """Rewrites, imports and compiles a model; returns a function that runs it on the CPU."""
    return _prepare(model, looplift.from_onnx)


def prepare_plain(model: onnx.ModelProto) -> Run:
    """Imports and compiles a model; returns a function that runs it on the CPU."""
    return _prepare(model, emit)


def _prepare(model: onnx.ModelProto, importer: Callable[[onnx.ModelProto], Any]) -> Run:
    times: dict[str, float] = {}
    with _stage("import", times):
        module = importer(model)
    with _stage("compile", times):
        module = relax.transform.DecomposeOpsForInference()(module)
        machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())

    initializers = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input]
    required = [name for name in names if name not in initializers]

    def run(inputs: Sequence[Any]) -> list[Any]:
        given = names if len(inputs) > len(required) else required
        pairs = zip(given, inputs, strict=False)
        arguments = [_to_tvm(value) for name, value in pairs if name not in initializers]
        outputs = machine["main"](*arguments)
        outputs = [outputs] if len(model.graph.output) == 1 else outputs
        return [
            _declared(_from_tvm(output), info)
            for output, info in zip(outputs, model.graph.output, strict=True)
        ]

    run.times = times  # type: ignore[attr-defined]
    return run


@contextmanager
def _stage(name: str, times: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    except Exception as error:
        error.conformance_stage = name  # type: ignore[attr-defined]
        raise
    finally:
        times[name] = time.perf_counter() - start


class _NoTvmValue(TypeError):
    conformance_stage = "skip"


def _to_tvm(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return tuple(_to_tvm(item) for item in value)
    array = np.asarray(value)
    if array.dtype.kind in "OUSc":
        raise _NoTvmValue(f"TVM has no tensors of {array.dtype}")
    array = stored_array(array)
    return tvm.runtime.tensor(np.ascontiguousarray(array).reshape(array.shape))


def _declared(value: Any, info: onnx.ValueInfoProto) -> Any:
    """An output in its type in the model, where the module stores that in a wider one."""
    kind = info.type.tensor_type.elem_type
    if kind and dtype_name(kind) in STORED:
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    return value


def _from_tvm(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    return [_from_tvm(item) for item in value]
