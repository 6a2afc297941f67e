"""Transpositions of concatenations, in kernels of their own.

    transpose(concat(a, b))     fused: no rule takes a transposition that chooses what it reads

Apart, the concatenation copies lines of its operands, and the transposition reads one tensor.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...processor import is_for_llvm
from ..relax.dataflow import rewritten_functions
from ..relax.size_names import OPAQUE
from .transposed_operands import axes_of


def keep_concatenations_apart(module: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels that FuseOps leaves alone for transpositions of concatenations.

    For targets that LLVM compiles for, and transpositions that move the last axis.
    """
    return rewritten_functions(_Transpositions(module), module) if is_for_llvm() else module


@mutator
class _Transpositions(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        """The kernel of a transposition, if it is one of a concatenation."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.permute_dims":
            return call
        data = call.args[0]
        made: Any = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        if not isinstance(made, ir.Call) or getattr(made.op, "name", "") != "relax.concat":
            return call
        axes = axes_of(call)
        if axes[-1] == len(axes) - 1 or not isinstance(call.ty.shape, relax.ShapeExpr):
            return call
        attributes = {"op_pattern": OPAQUE}
        return self.builder_.call_te(topi.transpose, data, axes, primfunc_attrs=attributes)
