"""InlineLoops: the functions of loops as part of what calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.ir import is_prim_var
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..loops.roles import BODY, KERNEL, LOOP_PART, LoopRoles
from ..scheduling.relax.dataflow import split_function, with_body
from .unused import without_unused

_LOOP = "loop"
"""What `_part` calls the function of a whole loop."""


def inline_loops(module: tvm.IRModule) -> tvm.IRModule:
    """Inlines loops and their bodies into the functions that call them.

    A function stays if it is called more than once, or if the types of its arguments do not prove
    that they fit its parameters. What a branch calls stays, as the functions that run iterations
    do, because FuseOps in TVM 0.27 fails on dataflow blocks in branches.
    """
    return inline_parts(module, {_LOOP, BODY, KERNEL}, kept=_called_in_branches(module))


def inline_parts(module: tvm.IRModule, parts: set[str], kept: Collection[Any] = ()) -> tvm.IRModule:
    """Inlines the functions that are one of these parts of a loop, but for `kept`, at their only
    call.
    """
    callees: dict[Any, list[Any]] = {}
    for callee, callers in _callers(module).items():
        if len(callers) == 1 and callee not in kept and _part(module[callee]) in parts:
            callees.setdefault(callers[0], []).append(callee)
    if not callees:
        return module
    result = tvm.IRModule(
        dict(module.functions_items()), attrs=module.attrs, global_infos=module.global_infos
    )
    done: set[Any] = set()

    def visit(variable: Any) -> None:
        """Inlines what a function calls, innermost first."""
        if variable in done:
            return
        done.add(variable)
        for callee in callees.get(variable, ()):
            visit(callee)
        inlined = [v for v in callees.get(variable, ()) if not _has_branches(result[v])]
        if inlined:
            functions = {v: _as_one_block(result[v]) for v in inlined}
            function = _Inliner(functions).visit_expr(result[variable])
            result.update_func(variable, split_function(function))

    for variable in callees:
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
        if function is None or not arguments_fit(function, call):
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


def _called_in_branches(module: tvm.IRModule) -> set[Any]:
    """The functions that branches of an If call."""
    found = set()

    def note(expression: Any) -> None:
        if isinstance(expression, relax.Call) and isinstance(expression.op, ir.GlobalVar):
            found.add(expression.op)

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.If):
            for branch in (expression.true_branch, expression.false_branch):
                relax.analysis.post_order_visit(branch, note)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def _part(function: Any) -> str:
    """Which part of a loop a function is; empty for others."""
    attributes = function.attrs or {}
    return str(attributes.get(LOOP_PART, _LOOP if LoopRoles.ATTRIBUTE in attributes else ""))


def _has_branches(function: Any) -> bool:
    """Whether a function has an If, which a dataflow block cannot hold."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return any(isinstance(getattr(binding, "value", None), relax.If) for binding in bindings)


def _as_one_block(function: Any) -> Any:
    """A function without control flow as a single dataflow block."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], function.body.body)
    return with_body(function, body)


def arguments_fit(function: Any, call: Any) -> bool:
    """Whether the types of the arguments prove that they are of the types of the parameters."""
    values: dict[Any, Any] = {}
    for param, argument in zip(function.params, call.args, strict=True):
        for symbol, size in _pairs_of_sizes(param.ty, argument.ty):
            if is_prim_var(symbol):
                values.setdefault(symbol, size)

    def value(symbol: Any) -> Any:
        return values.get(symbol, symbol)

    for param, argument in zip(function.params, call.args, strict=True):
        wanted = tvm_ffi.structural_map(param.ty, (ir.Var, value), order="post")
        if not wanted.is_base_of(argument.ty):
            return False
    return True


def _pairs_of_sizes(kind: Any, given: Any) -> Iterator[tuple[Any, Any]]:
    """The sizes in the type of a parameter, each with that in the type of an argument."""
    if isinstance(kind, relax.TupleType) and isinstance(given, relax.TupleType):
        for pair in zip(kind.fields, given.fields, strict=True):
            yield from _pairs_of_sizes(*pair)
    elif isinstance(kind, relax.ShapeType) and isinstance(given, relax.ShapeType):
        if kind.values is not None and given.values is not None:
            yield from zip(kind.values, given.values, strict=True)
    elif all(_has_sizes(each) for each in (kind, given)):
        yield from zip(kind.shape.values, given.shape.values, strict=True)


def _has_sizes(kind: Any) -> bool:
    return isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.ShapeExpr)
