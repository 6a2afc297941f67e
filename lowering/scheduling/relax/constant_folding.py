"""Folds calls of kernels on constants, with one library for all of them.

TVM's FoldConstant compiles and loads a library for each call: 30 s for a detector of 98
convolutions. It also evaluates calls whose results fit no memory.

    lv = R.call_tir(cls.exp, (R.const([0, 1], "float32"),), out_ty=R.Tensor((2,), "float32"))
    gv = R.call_tir(cls.add, (x, lv), out_ty=R.Tensor((2,), "float32"))
->
    gv = R.call_tir(cls.add, (x, R.const([1, e], "float32")), out_ty=R.Tensor((2,), "float32"))
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ...values import Constant, as_int, is_tensor
from .dataflow import with_body
from .packing import compiled_kernels, result_of

_CALL_TIR = ir.Op.get("relax.call_tir")
_MOST_CREATED = 1024
"""Elements of a constant that is made of nothing, as in FoldConstant."""
_MOST_COMPUTED = 1 << 24
"""Elements of all results together, in addition to `_TIMES_STORED` times what the module stores."""
_TIMES_STORED = 16
_STEPS = 32
"""How many steps the kernels may take for each of these elements: a few seconds in all."""


def fold_constant_calls(module: tvm.IRModule) -> tvm.IRModule:
    """The module with the results of calls of kernels whose arguments are constants.

    A constant stands in place of each variable that is bound to one. Results beyond the limit stay
    calls.
    """
    functions = {
        variable: function
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr)
    }
    most = _MOST_COMPUTED + _TIMES_STORED * _stored_elements(functions.values())
    budget = _Budget(module, most, most * _STEPS)
    found = {
        variable: _constant_calls(module, function, budget)
        for variable, function in functions.items()
    }
    kernels = {binding.value.args[0] for calls in found.values() for binding in calls}
    compiled = compiled_kernels(module, kernels) if kernels else {}
    for variable, calls in found.items():
        module[variable] = _evaluated(functions[variable], calls, compiled)
    return module


@dataclass
class _Budget:
    """What calls may compute."""

    module: tvm.IRModule
    elements: int
    """How many elements the results may have together."""
    steps: int
    """How many iterations the loops of the kernels may have together."""

    def takes(self, call: Any) -> bool:
        """Whether the result of a call fits, which then takes its part of the budget."""
        elements = math.prod(map(int, call.ty.shape.values))
        if not len(call.args[1].fields):
            return elements <= _MOST_CREATED
        steps = _iterations(self.module[call.args[0]])
        if elements > self.elements or steps > self.steps:
            return False
        self.elements -= elements
        self.steps -= steps
        return True


def _iterations(kernel: tirx.PrimFunc) -> int:
    """How many iterations the loops of a kernel have; a loop of unknown extent counts as one."""
    found: list[int] = []

    def visit(block: Any) -> None:
        extents = [as_int(variable.dom.extent) for variable in block.iter_vars]
        found.append(math.prod(1 if extent is None else extent for extent in extents))

    tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    return sum(found)


def _stored_elements(functions: Iterable[relax.Function]) -> int:
    """The number of elements of all constants; a constant counts once, however often it is read."""
    sizes: dict[int, int] = {}

    def visit(constant: Any) -> None:
        if is_tensor(constant):
            # The hash of a constant is its address.
            sizes[hash(constant)] = math.prod(constant.value.shape)

    for function in functions:
        tvm_ffi.structural_walk(function.body, (Constant, visit))
    return sum(sizes.values())


def _constant_calls(module: tvm.IRModule, function: relax.Function, budget: _Budget) -> list[Any]:
    """The bindings of calls on constants, or on results of such calls, in order."""
    known: set[Any] = set()
    found = []

    def visit(binding: Any) -> None:
        value = binding.value
        if isinstance(value, Constant):
            known.add(binding.var)
        elif (
            isinstance(value, ir.Call)
            and _is_constant_call(module, value, known)
            and budget.takes(value)
        ):
            known.add(binding.var)
            found.append(binding)

    tvm_ffi.structural_walk(function.body, (relax.VarBinding, visit))
    return found


def _is_constant_call(module: tvm.IRModule, call: Any, known: set[Any]) -> bool:
    """Whether a call of a kernel reads constants and has a result of known sizes."""
    if not call.op.same_as(_CALL_TIR) or len(call.args) != 2:
        return False
    kernel, arguments = call.args
    shape = getattr(call.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not isinstance(arguments, relax.Tuple):
        return False
    if not all(isinstance(size, tirx.IntImm) for size in shape.values):
        return False
    return isinstance(module[kernel], tirx.PrimFunc) and all(
        isinstance(argument, Constant) or argument in known for argument in arguments.fields
    )


def _evaluated(
    function: relax.Function, calls: list[Any], compiled: dict[Any, Any]
) -> relax.Function:
    known: dict[Any, Any] = {}
    wanted = {binding.var for binding in calls}

    def evaluate(binding: Any) -> None:
        value = binding.value
        if binding.var in wanted:
            value = _result(compiled, value, known)
        if isinstance(value, Constant):
            known[binding.var] = value

    tvm_ffi.structural_walk(function.body, (relax.VarBinding, evaluate))
    if not known:
        return function

    def without_known(block: Any) -> Any:
        bindings = [binding for binding in block.bindings if binding.var not in known]
        return type(block)(bindings)

    body = tvm_ffi.structural_map(function.body, (relax.BindingBlock, without_known), order="pre")
    body = tvm_ffi.structural_map(
        body, (relax.Var, lambda variable: known.get(variable, variable)), order="post"
    )
    return with_body(function, body)


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
