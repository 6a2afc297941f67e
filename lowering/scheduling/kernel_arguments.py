"""Kernels that get numbers as arguments, where they had them as constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .affine import int64
from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")


def called_kernels(module: tvm.IRModule) -> dict[Any, int]:
    """The kernels that only `call_tir` of the module uses, with the number of arguments.

    They are in the order of the calls. Parameters after those for the arguments are for results.
    """
    called: dict[Any, int] = {}
    calls: Counter[Any] = Counter()
    references: Counter[Any] = Counter()

    def visit(call: Any) -> None:
        if call.op.same_as(_CALL_TIR) and isinstance(call.args[1], relax.Tuple):
            called[call.args[0]] = len(call.args[1].fields)
            calls[call.args[0]] += 1

    callbacks = [(ir.Call, visit), (ir.GlobalVar, lambda v: references.update([v]))]
    for function in module.functions.values():
        tvm_ffi.structural_walk(function.body, callbacks)
    return {
        variable: arity
        for variable, arity in called.items()
        if calls[variable] == references[variable]
        and isinstance(module[variable], tirx.PrimFunc)
        and "global_symbol" not in (module[variable].attrs or {})
    }


def with_parameters(kernel: tirx.PrimFunc, arity: int, params: Sequence[Any]) -> tirx.PrimFunc:
    """The kernel with more parameters after the first `arity`."""
    first, last = kernel.params[:arity], kernel.params[arity:]
    params = [*first, *params, *last]
    return tirx.PrimFunc(params, kernel.body, kernel.ret_type, attrs=kernel.attrs)


def with_other_kernels(
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
    # A new kernel that equals one of the module has the name of that one.
    kept = {kernel for kernel, _ in replacements.values()}
    for variable in replacements:
        if variable not in kept:
            del module[variable]
    return relax.transform.Normalize()(module)
