"""Functions that nothing calls."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ..loops.roles import LOOP_PART, LoopRoles
from ..operators.recurrent_mark import RecurrentOperator


def without_unused(module: Any, before: Any = None) -> Any:
    """The module without the functions that nothing reaches from a public function.

    Functions of loops and marked recurrences stay only if something calls them, although they are
    public. Kernels that no Relax function called in `before`, the module before a pass, stay too:
    other kernels may call them by name.
    """
    callees = _all_callees(module)
    reached = set()
    pending = [variable for variable in callees if _is_root(module[variable].attrs or {})]
    while pending:
        variable = pending.pop()
        if variable not in reached:
            reached.add(variable)
            pending.extend(callees.get(variable, ()))
    called = set(callees).union(*callees.values())
    if before is not None:
        called = called.union(*_all_callees(before).values())
    present = set(module.get_global_vars())
    for variable in (called - reached) & present:
        del module[variable]
    return module


def _is_root(attributes: Any) -> bool:
    parts = (LoopRoles.ATTRIBUTE, LOOP_PART, RecurrentOperator.ATTRIBUTE)
    return "global_symbol" in attributes and not any(part in attributes for part in parts)


def _all_callees(module: Any) -> dict[Any, set[Any]]:
    return {
        variable: _callees(function)
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


def _callees(function: Any) -> set[Any]:
    """The functions of the module that a function names."""
    found = set()

    def visit(expression: Any) -> None:
        if isinstance(expression, tvm.ir.GlobalVar):
            found.add(expression)

    relax.analysis.post_order_visit(function.body, visit)
    return found
