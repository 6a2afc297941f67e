"""Kernels that get numbers as arguments, where they had them as constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .affine import int64
from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")


def called_kernels(module: tvm.IRModule) -> dict[Any, int]:
    """The kernels that are used by `call_tir` alone, with the number of arguments, in call order.

    The parameters after those for the arguments are for results.
    """
    called: dict[Any, int] = {}
    others: set[Any] = set()

    def visit(call: Any) -> None:
        if call.op.same_as(_CALL_TIR) and isinstance(call.args[1], relax.Tuple):
            called[call.args[0]] = len(call.args[1].fields)
        else:
            others.update(a for a in (call.op, *call.args) if isinstance(a, ir.GlobalVar))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            tvm_ffi.structural_walk(function.body, (ir.Call, visit))
    return {
        variable: arity
        for variable, arity in called.items()
        if variable not in others and isinstance(module[variable], tirx.PrimFunc)
    }


def with_parameters(
    kernel: tirx.PrimFunc, arity: int, params: Sequence[Any], attrs: Any
) -> tirx.PrimFunc:
    """The kernel with more parameters after the first `arity`, and with these attributes."""
    first, last = kernel.params[:arity], kernel.params[arity:]
    return tirx.PrimFunc([*first, *params, *last], kernel.body, kernel.ret_type, attrs=attrs)


def calling(
    module: tvm.IRModule, calls: Mapping[Any, tuple[tirx.PrimFunc, Sequence[int]]]
) -> tvm.IRModule:
    """The module with other kernels in place of some, called with numbers as further arguments.

    Requires `call_tir` as it is before CallTIRRewrite.
    """
    if not calls:
        return module
    builder = relax.BlockBuilder(module)
    replacements = {
        # Equal kernels get one name.
        variable: (builder.add_func(kernel, variable.name_hint), numbers)
        for variable, (kernel, numbers) in calls.items()
    }
    module = builder.get()

    def replaced(call: Any) -> Any:
        if not call.op.same_as(_CALL_TIR) or call.args[0] not in replacements:
            return call
        kernel, numbers = replacements[call.args[0]]
        arguments = relax.Tuple([*call.args[1].fields, *map(int64, numbers)])
        return ir.Call(call.op, [kernel, arguments], call.attrs, call.ty_args, ret_ty=call.ty)

    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            body = tvm_ffi.structural_map(function.body, (ir.Call, replaced), order="post")
            module[variable] = with_body(function, body)
    for variable in replacements:
        del module[variable]
    return relax.transform.Normalize()(module)
