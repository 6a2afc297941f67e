"""Evaluates kernels of constants at compile time, with one library for all of them.

TVM's FoldConstant compiles and loads a library for each kernel, which takes 60 ms: 13 s for the
two hundred kernels of constants in a network such as VITS.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ..values import Constant

_CALL_TIR = ir.Op.get("relax.call_tir")
_MOST_CREATED = 1024
"""Elements of a constant that a kernel makes of nothing, as in FoldConstant."""


def fold_constants(module: tvm.IRModule) -> tvm.IRModule:
    """The module with constants for calls of kernels whose arguments are all constant.

    FoldConstant then puts the constants in place of the variables.
    """
    functions = [item for item in module.functions_items() if isinstance(item[1], relax.Function)]
    foldable = [binding for _, function in functions for binding in _foldable(function, module)]
    if not foldable:
        return module
    library = compiled_kernels(module, {binding.value.args[0] for binding in foldable})
    values: dict[Any, Any] = {}
    for binding in foldable:
        call = binding.value
        arguments = [values.get(argument, argument) for argument in call.args[1]]
        values[binding.var] = evaluated(library, call, arguments)

    def fold(binding: Any) -> Any:
        constant = values.get(binding.var)
        return binding if constant is None else relax.VarBinding(binding.var, constant)

    for variable, function in functions:
        module[variable] = with_body(
            function,
            tvm_ffi.structural_map(function.body, (relax.VarBinding, fold), order="post"),
        )
    return relax.transform.FoldConstant()(module)


def compiled_kernels(module: tvm.IRModule, kernels: Iterable[Any]) -> Any:
    """A library of kernels by the names of their variables, for the processor this runs on."""
    named = {
        variable.name_hint: module[variable].with_attr("global_symbol", variable.name_hint)
        for variable in kernels
    }
    return tvm.compile(tvm.IRModule(named), tvm.target.Target("llvm"))


def evaluated(library: Any, call: Any, arguments: Iterable[Any]) -> Any:
    """The result of a `call_tir` of a kernel of the library on constants, as a constant."""
    (result,) = call.ty_args
    shape = [int(size) for size in result.shape]
    value = tvm.runtime.empty(shape, str(result.dtype))
    library[call.args[0].name_hint](*(argument.value for argument in arguments), value)
    return relax.const(value)


def with_body(function: relax.Function, body: Any) -> relax.Function:
    """The function with another body; the same function if the body is its own."""
    if body.same_as(function.body):
        return function
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, attrs=function.attrs
    )


def _foldable(function: relax.Function, module: tvm.IRModule) -> list[Any]:
    """The bindings of calls on constants, or on results of such calls, in their order."""
    found: dict[Any, Any] = {}

    def visit(binding: Any) -> None:
        call = binding.value
        if not isinstance(call, ir.Call) or not call.op.same_as(_CALL_TIR):
            return
        if isinstance(module[call.args[0]], tirx.PrimFunc) and _is_constant(call, found):
            found[binding.var] = binding

    tvm_ffi.structural_walk(function.body, (relax.VarBinding, visit))
    return list(found.values())


def _is_constant(call: Any, found: Mapping[Any, Any]) -> bool:
    """Whether a call computes one tensor of known shape from constants."""
    arguments = list(call.args[1])
    (result,) = call.ty_args
    shape = getattr(getattr(result, "shape", None), "values", None)
    if len(call.args) > 2 or shape is None:
        return False
    if not all(isinstance(size, tirx.IntImm) for size in shape):
        return False
    if not arguments and math.prod(map(int, shape)) > _MOST_CREATED:
        return False
    return all(isinstance(value, Constant) or value in found for value in arguments)
