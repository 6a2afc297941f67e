"""Replaces kernels, and changes the arguments of their calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .dataflow import with_body

_CALL_TIR = ir.Op.get("relax.call_tir")

CONSTANT_TRIPS = (tirx.ForKind.VECTORIZED, tirx.ForKind.UNROLLED)
"""The loops whose trip count TVM must know."""

Arguments = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps the arguments of a call to those of its replacement."""


def called_kernels(module: tvm.IRModule) -> dict[Any, int]:
    """The private kernels that the module uses in `call_tir` only, in the order of the calls.

    With each, the number of its arguments. The parameters after those are for results.
    """
    arities: dict[Any, int] = {}
    calls: Counter[Any] = Counter()
    references: list[Any] = []

    def visit(call: Any) -> None:
        if call.op.same_as(_CALL_TIR) and isinstance(call.args[1], relax.Tuple):
            arities[call.args[0]] = len(call.args[1].fields)
            calls[call.args[0]] += 1

    for function in module.functions.values():
        callbacks = [(ir.Call, visit), (ir.GlobalVar, references.append)]
        tvm_ffi.structural_walk(function.body, callbacks)
    uses = Counter(references)
    return {
        variable: arity
        for variable, arity in arities.items()
        if calls[variable] == uses[variable]
        and isinstance(module[variable], tirx.PrimFunc)
        and "global_symbol" not in (module[variable].attrs or {})
    }


def with_parameters(kernel: tirx.PrimFunc, arity: int, params: Sequence[Any]) -> tirx.PrimFunc:
    """The kernel with more parameters after the first `arity`."""
    params = [*kernel.params[:arity], *params, *kernel.params[arity:]]
    return tirx.PrimFunc(params, kernel.body, kernel.ret_type, attrs=kernel.attrs)


def with_other_kernels(
    module: tvm.IRModule, kernels: Mapping[Any, tuple[tirx.PrimFunc, Arguments]]
) -> tvm.IRModule:
    """The module with other kernels in place of some of its `called_kernels`, equal ones once."""
    if not kernels:
        return module
    builder = relax.BlockBuilder(module)
    replacements = {
        variable: (builder.add_func(kernel, variable.name_hint), arguments)
        for variable, (kernel, arguments) in kernels.items()
    }
    module = builder.get()

    def replaced(call: Any) -> Any:
        if not call.op.same_as(_CALL_TIR) or call.args[0] not in replacements:
            return call
        kernel, arguments = replacements[call.args[0]]
        fields = relax.Tuple(arguments(call.args[1].fields))
        return ir.Call(call.op, [kernel, fields], call.attrs, call.ty_args, ret_ty=call.ty)

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


def with_numbers(numbers: Sequence[int]) -> Arguments:
    """More arguments: 64-bit integers."""
    added = [tirx.IntImm("int64", number) for number in numbers]
    return lambda fields: [*fields, *added]
