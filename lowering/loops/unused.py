"""Functions that nothing calls: attempts to emit a loop body for types that did not hold."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def without_unused(module: Any) -> Any:
    """The module without the functions that `main` does not reach.

    Kernels that no Relax function calls stay: other kernels may call them by name.
    """
    callees = {
        variable: _callees(function)
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    reached = set()
    pending = [module.get_global_var("main")]
    while pending:
        variable = pending.pop()
        if variable not in reached:
            reached.add(variable)
            pending.extend(callees.get(variable, ()))
    called = set(callees).union(*callees.values())
    for variable in called - reached:
        del module[variable]
    return module


def _callees(function: Any) -> set[Any]:
    """The functions of the module that a function names."""
    found = set()

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.ir.GlobalVar):
            found.add(expression)

    relax.analysis.post_order_visit(function.body, visit)
    return found
