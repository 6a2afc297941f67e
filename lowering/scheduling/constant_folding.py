"""Calls of kernels on constants, evaluated with one library for all of them.

TVM's FoldConstant compiles and loads a library for each call: 30 s for a detector of 98
convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import ir, relax, tirx

from ..values import Constant
from .dataflow import with_body
from .packing import compiled_kernels, result_of

_CALL_TIR = ir.Op.get("relax.call_tir")
_MOST_CREATED = 1024
"""Elements of a constant that is made of nothing, as in FoldConstant."""


def evaluate_constant_calls(module: tvm.IRModule) -> tvm.IRModule:
    """The module with the results of calls of kernels whose arguments are constants.

    FoldConstant must follow: it puts constants in the place of the variables that are bound to
    them.
    """
    found = {
        variable: list(_constant_calls(module, function))
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr)
    }
    kernels = {binding.value.args[0] for calls in found.values() for binding in calls}
    if not kernels:
        return module
    compiled = compiled_kernels(module, kernels)
    for variable, calls in found.items():
        if calls:
            module[variable] = _evaluated(module[variable], calls, compiled)
    return module


def _constant_calls(module: tvm.IRModule, function: relax.Function) -> Iterator[Any]:
    """The bindings of calls on constants, or on results of such calls, in order."""
    known: set[Any] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if not isinstance(binding, relax.VarBinding):
                continue
            if isinstance(value, Constant):
                known.add(binding.var)
            elif isinstance(value, ir.Call) and _is_constant_call(module, value, known):
                known.add(binding.var)
                yield binding


def _is_constant_call(module: tvm.IRModule, call: Any, known: set[Any]) -> bool:
    if not call.op.same_as(_CALL_TIR) or len(call.args) != 2:
        return False
    kernel, arguments = call.args
    shape = getattr(call.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(arguments, relax.Tuple):
        return False
    sizes = [int(s) if isinstance(s, tirx.IntImm) else None for s in shape.values]
    if None in sizes or not isinstance(module[kernel], tirx.PrimFunc):
        return False
    if not len(arguments.fields):
        return math.prod(size or 0 for size in sizes) <= _MOST_CREATED
    return all(isinstance(a, Constant) or a in known for a in arguments.fields)


def _evaluated(
    function: relax.Function, calls: list[Any], compiled: dict[Any, Any]
) -> relax.Function:
    wanted = {binding.var for binding in calls}
    known: dict[Any, Any] = {}
    blocks = []
    for block in function.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if binding.var in wanted:
                value = _result(compiled, value, known)
                binding = relax.VarBinding(binding.var, value)
            if isinstance(value, Constant):
                known[binding.var] = value
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    return with_body(function, relax.SeqExpr(blocks, function.body.body))


def _result(compiled: dict[Any, Any], call: Any, known: dict[Any, Any]) -> Any:
    """The result of a call as a constant; the call if it fails, which is left to the run."""
    kernel, arguments = call.args
    operands = [known.get(operand, operand) for operand in arguments.fields]
    if not all(isinstance(operand, Constant) for operand in operands):
        return call
    try:
        return result_of(compiled[kernel], operands, call.ty)
    except RuntimeError:
        return call
