"""Calls between the functions of a loop, without what only calls from outside need.

The functions of a loop call each other in every iteration. Checking their arguments would take a
third of the time of a small iteration, and a second call per iteration another third.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ...loops.roles import ITERATION, LOOP_PART
from ...transform.inline_loops import arguments_fit, inline_parts
from .dataflow import with_body

_PROVEN = "looplift.arguments_proven"
"""The attribute of functions whose arguments and results need no check."""

_MATCH = "vm.builtin.match_shape"
_CHECKS = {_MATCH, *(f"vm.builtin.check_{kind}_info" for kind in ("tensor", "shape", "tuple"))}

_STORE = 1
"""The code of `vm.builtin.match_shape` that stores a size; others compare it."""

_PLACES = ("loc=param[", "loc=return,")
"""Where a check stands, in the words of its error; a `match_cast` of the model has others."""


def inline_iterations(module: tvm.IRModule) -> tvm.IRModule:
    """Inlines each iteration in the branch that calls it.

    This comes after FuseOps, which in TVM 0.27 fails on dataflow blocks in branches.
    """
    return inline_parts(module, {ITERATION})


def mark_proven_arguments(module: tvm.IRModule) -> tvm.IRModule:
    """Marks the parts of loops whose parameter types every call in the module satisfies."""
    parts = {v for v, function in module.functions_items() if LOOP_PART in (function.attrs or {})}
    unproven = {v for v in parts if not module[v].ret_ty.is_base_of(module[v].body.ty)}

    def visit(expression: Any) -> None:
        is_call = isinstance(expression, relax.Call) and expression.op in parts
        if is_call and not arguments_fit(module[expression.op], expression):
            unproven.add(expression.op)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    for variable in parts - unproven:
        module[variable] = module[variable].with_attr(_PROVEN, 1)
    return module


def drop_proven_checks(module: tvm.IRModule) -> tvm.IRModule:
    """Drops the checks of VMShapeLower from the functions that were marked before it."""
    for variable, function in list(module.functions_items()):
        if _PROVEN in (function.attrs or {}):
            blocks = [
                relax.BindingBlock([b for b in block.bindings if not _is_check(b)])
                for block in function.body.blocks
            ]
            body = relax.SeqExpr(blocks, function.body.body)
            unchecked = with_body(function.without_attr(_PROVEN), body)
            module[variable] = relax.analysis.remove_all_unused(unchecked)
    return module


def _is_check(binding: Any) -> bool:
    """Whether a binding only checks a parameter or the result."""
    call = binding.value
    if not isinstance(call, relax.Call) or not isinstance(call.op, relax.ExternFunc):
        return False
    name = str(call.op.global_symbol)
    if name not in _CHECKS or not any(place in str(call.args[-1].value) for place in _PLACES):
        return False
    # The arguments are: value, heap, rank, a code and a number for each axis, context.
    return name != _MATCH or all(int(code.value) != _STORE for code in call.args[3:-1:2])
