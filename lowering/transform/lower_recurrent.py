"""LowerRecurrent: calls of functions marked as LSTM, GRU or RNN become calls of a kernel."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..operators.recurrent_mark import RecurrentOperator
from ..operators.recurrent_operator import emit_kernel
from ..processor import is_for_llvm
from .unused import without_unused


def lower_recurrent(module: tvm.IRModule) -> tvm.IRModule:
    """Replaces the calls of marked functions by calls of a kernel for the target in scope.

    They stay, and run their bodies, for a target that LLVM does not compile for, such as a GPU.
    """
    if not is_for_llvm():
        return module
    marked = {
        variable: operator
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
        and (operator := RecurrentOperator.of(function)) is not None
    }
    if not marked:
        return module
    lowering = _Lowering(module, marked)
    for variable, function in module.functions_items():
        if isinstance(function, relax.Function) and variable not in marked:
            lowering.builder_.update_func(variable, lowering.visit_expr(function))
    return without_unused(lowering.builder_.get(), module)


@mutator
class _Lowering(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: tvm.IRModule, marked: dict[Any, RecurrentOperator]) -> None:
        super().__init__(module)
        self._marked = marked

    def visit_call_(self, call: Any) -> Any:
        """The outputs of the kernel, as a tuple."""
        call = self.visit_expr_post_order(call)
        operator = self._marked.get(call.op) if isinstance(call.op, ir.GlobalVar) else None
        if operator is None:
            return call
        return relax.Tuple(emit_kernel(self.builder_, operator, list(call.args)))
