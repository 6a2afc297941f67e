"""InlineLoops: the functions of loops as part of what calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import ir, relax
from tvm.ir import is_prim_var
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..loops.roles import LOOP_PART, LoopRoles
from ..scheduling.dataflow import split_function
from .unused import without_unused

_ITERATION = "iteration"


def inline_loops(module: tvm.IRModule) -> tvm.IRModule:
    """Inlines loops and their parts, except the functions that repeat, at their only call.

    A function stays if it is called more than once, or with tensors of which the call does not
    know the sizes that its parameters name.
    """
    callers = _callers(module)
    once = {v for v, found in callers.items() if len(found) == 1 and _may_inline(module[v])}
    if not once:
        return module
    result = tvm.IRModule(dict(module.functions_items()))
    done: set[Any] = set()

    def visit(variable: Any) -> None:
        """Inlines what a function calls, innermost first."""
        if variable in done:
            return
        done.add(variable)
        callees = [callee for callee in once if callers[callee] == [variable]]
        for callee in callees:
            visit(callee)
        callees = [callee for callee in callees if _may_inline(result[callee])]
        if callees:
            functions = {v: _as_one_block(result[v]) for v in callees}
            inlined = _Inliner(functions).visit_expr(result[variable])
            result.update_func(variable, split_function(inlined))

    for variable, function in module.functions_items():
        if isinstance(function, relax.Function):
            visit(variable)
    return without_unused(result, module)


@mutator
class _Inliner(PyExprMutator):  # type: ignore[misc]
    """Replaces calls by the bodies of what they call.

    `InlinePrivateFunctions` of TVM 0.27 leaves the symbols of an inlined function undefined
    wherever its body states a shape; `Function.bind_params` binds them.
    """

    def __init__(self, functions: dict[Any, Any]) -> None:
        super().__init__()
        self._functions = functions

    def visit_call_(self, call: Any) -> Any:
        """The body of the callee, over the arguments."""
        call = self.visit_expr_post_order(call)
        function = self._functions.get(call.op) if isinstance(call.op, ir.GlobalVar) else None
        if function is None or not _knows_sizes(function, call):
            return call
        body = function.bind_params(dict(zip(function.params, call.args, strict=True))).body
        # Its type lacks the sizes of the caller, which a function without parameters cannot name.
        return relax.SeqExpr(body.blocks, body.body)


def _callers(module: tvm.IRModule) -> dict[Any, list[Any]]:
    """For each Relax function, the functions that call it, one entry per call."""
    found: dict[Any, list[Any]] = {}
    for caller, function in module.functions_items():
        if not isinstance(function, relax.Function):
            continue

        def visit(expression: Any, caller: Any = caller) -> None:
            if isinstance(expression, relax.Call) and isinstance(expression.op, ir.GlobalVar):
                found.setdefault(expression.op, []).append(caller)

        relax.analysis.post_order_visit(function.body, visit)
    return {v: each for v, each in found.items() if isinstance(module[v], relax.Function)}


def _part(function: Any) -> str:
    """Which part of a loop a function is; empty for others."""
    attributes = function.attrs or {}
    return str(attributes.get(LOOP_PART, "loop" if LoopRoles.ATTRIBUTE in attributes else ""))


def _may_inline(function: Any) -> bool:
    part = _part(function)
    if part == _ITERATION:
        # FuseOps in TVM 0.27 does not find what a branch defines outside of dataflow blocks.
        return all(isinstance(block, relax.DataflowBlock) for block in function.body.blocks)
    # Others are called in dataflow blocks, which have no control flow.
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return bool(part) and not any(_is_choice(binding) for binding in bindings)


def _is_choice(binding: Any) -> bool:
    return isinstance(binding, relax.VarBinding) and isinstance(binding.value, relax.If)


def _as_one_block(function: Any) -> Any:
    """A function without control flow as a single dataflow block."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], function.body.body)
    attrs = function.attrs
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, attrs=attrs)


def _knows_sizes(function: Any, call: Any) -> bool:
    """Whether the types of the arguments have a size for each symbol of the parameters."""
    known: set[Any] = set()
    for param, argument in zip(function.params, call.args, strict=True):
        known.update(_named_sizes(param.ty, argument.ty))
    params = function.params
    return known.issuperset(s for p in params for s in relax.analysis.tir_vars_in_type(p.ty))


def _named_sizes(kind: Any, given: Any) -> Iterator[Any]:
    """The symbols in the type of a parameter that the type of an argument has a size for."""
    if isinstance(kind, relax.TupleType) and isinstance(given, relax.TupleType):
        for pair in zip(kind.fields, given.fields, strict=True):
            yield from _named_sizes(*pair)
    elif isinstance(kind, relax.ShapeType) and isinstance(given, relax.ShapeType):
        yield from filter(is_prim_var, (kind.values or ()) if given.values is not None else ())
    elif isinstance(kind, relax.TensorType) and isinstance(given, relax.TensorType):
        has_sizes = all(isinstance(each.shape, relax.ShapeExpr) for each in (kind, given))
        yield from filter(is_prim_var, kind.shape.values if has_sizes else ())
