"""Modules that call kernels, for tests of passes over kernels."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .compiled import compile_quickly, virtual_machine


def kernel_of(columns: int, body: str, **attributes: Any) -> tirx.PrimFunc:
    """A kernel with this body, statements on x and y: int64 tensors of n rows."""
    return tvm.script.from_source(
        f"""@T.prim_func(private=True, s_tir=True)
def kernel(a: T.handle, b: T.handle) -> None:
    n = T.int64()
    x = T.match_buffer(a, (n, T.int64({columns})), "int64")
    y = T.match_buffer(b, (n, T.int64({columns})), "int64")
{textwrap.indent(textwrap.dedent(body), "    ")}"""
    ).with_attrs(attributes)


def module_of(*kernels: tirx.PrimFunc) -> tvm.IRModule:
    """A function that passes each of its parameters to a kernel."""
    bb = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    types = [relax.TensorType([n, kernel.params[0].shape[1]], "int64") for kernel in kernels]
    params = [relax.Var(f"x_{k}", kind) for k, kind in enumerate(types)]
    variables = [bb.add_func(kernel, f"kernel_{k}") for k, kernel in enumerate(kernels)]
    with bb.function("main", params, private=False):
        with bb.dataflow():
            calls = [relax.op.call_tir(v, [p], t) for v, p, t in zip(variables, params, types)]
            results = [bb.emit_output(call) for call in calls]
        bb.emit_func_output(relax.Tuple(results))
    return bb.get()


def kernels_of(module: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]


def calls_of(module: tvm.IRModule) -> list[Any]:
    found: list[Any] = []

    def visit(call: Any) -> None:
        if call.op.same_as(ir.Op.get("relax.call_tir")):
            found.append(call)

    tvm_ffi.structural_walk(module["main"].body, (ir.Call, visit))
    return found


def results_of(module: tvm.IRModule, columns: list[int]) -> list[np.ndarray[Any, Any]]:
    machine = virtual_machine(compile_quickly(module))
    inputs = [np.arange(2 * c).reshape(2, c) for c in columns]
    return [r.numpy() for r in machine["main"](*map(tvm.runtime.tensor, inputs))]
