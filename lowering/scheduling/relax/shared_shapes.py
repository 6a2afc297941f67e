"""Computes each shape once in a function.

    a = alloc_tensor([n, 64])           s = [n, 64]
    b = alloc_tensor([n, 64])    ->     a = alloc_tensor(s)
                                        b = alloc_tensor(s)

For each shape that is written in a call, VMShapeLower has the virtual machine make an object. GPT-2
has 136 such shapes, and 26 different ones.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from .dataflow import with_body


def share_shapes(module: tvm.IRModule) -> tvm.IRModule:
    """The module with variables for the shapes that calls take.

    Requires a module without dataflow blocks, before VMShapeLower.
    """
    for variable, function in list(module.functions_items()):
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            module[variable] = with_body(function, _with_variables(function.body, {}))
    return relax.transform.Normalize()(module)


def _with_variables(body: relax.SeqExpr, outer: dict[Any, Any]) -> relax.SeqExpr:
    """A body with variables for shapes. `outer` has those that are defined around it."""
    known = dict(outer)

    def named(shape: Any, bindings: list[Any]) -> Any:
        key = tvm_ffi.StructuralKey(shape)  # type: ignore[call-arg]
        if key not in known:
            known[key] = relax.Var("shape", shape.ty)
            bindings.append(relax.VarBinding(known[key], shape))
        return known[key]

    blocks = []
    for block in body.blocks:
        bindings: list[Any] = []
        for binding in block.bindings:
            value = binding.value
            if not isinstance(binding, relax.VarBinding):
                bindings.append(binding)
                continue
            if isinstance(value, relax.If):
                branches = (value.true_branch, value.false_branch)
                value = relax.If(value.cond, *(_with_variables(b, known) for b in branches))
            elif isinstance(value, relax.Call):
                args = [named(a, bindings) if _is_computed(a) else a for a in value.args]
                value = _with_arguments(value, args)
            is_same = value.same_as(binding.value)
            bindings.append(binding if is_same else relax.VarBinding(binding.var, value))
        blocks.append(type(block)(bindings))
    return relax.SeqExpr(blocks, body.body)


def _with_arguments(call: Any, args: list[Any]) -> Any:
    """The call with other arguments; the same call if they are its own."""
    if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
        return call
    return ir.Call(call.op, args, attrs=call.attrs, ty_args=call.ty_args, ret_ty=call.ty)


def _is_computed(argument: Any) -> bool:
    """Whether an argument is a shape that is known at run time only."""
    return isinstance(argument, relax.ShapeExpr) and not all(
        isinstance(size, tirx.IntImm) for size in argument.values
    )
