"""Matrix products of transposed operands, without the transposition.

The kernel of a product reads its left operand at any distance of rows, and copies its right operand
to panels. So it can read both as they are before a transposition, which then has no reader.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import ir, relax, sym, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...values import Constant
from ..relax.dataflow import rewritten_functions


def absorb_transpositions(module: tvm.IRModule) -> tvm.IRModule:
    """The module with products that read what a transposition reads.

    For stacks of matrices of float32 and equal sizes, which are no constants and have more rows
    than one. A transposition that nothing else reads goes.
    """
    return relax.transform.DeadCodeElimination()(rewritten_functions(_Products(module), module))


@mutator
class _Products(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        """The product, of operands before their transpositions."""
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.matmul" or not _is_stack(call):
            return call
        operands, orders = zip(*map(self._before, call.args), strict=True)
        if all(order == sorted(order) for order in orders):
            return call
        product = functools.partial(_product, orders=orders)
        return self.builder_.call_te(product, *operands, primfunc_name_hint="matmul")

    def _before(self, operand: Any) -> tuple[Any, list[int]]:
        """What an operand is before it is transposed, and the order of axes that it gets."""
        rank = len(operand.ty.shape.values)
        call: Any = self.lookup_binding(operand) if isinstance(operand, relax.Var) else None
        same = operand, list(range(rank))
        if not isinstance(call, ir.Call) or getattr(call.op, "name", "") != "relax.permute_dims":
            return same
        before = call.args[0]
        # A transposition in an earlier dataflow block may read what only that block sees.
        is_hidden = isinstance(before, relax.DataflowVar)
        if isinstance(before, Constant) or (
            is_hidden and not isinstance(operand, relax.DataflowVar)
        ):
            return same
        return before, axes_of(call)


def axes_of(transposition: Any) -> list[int]:
    """The axes of what a transposition reads, in the order of its result."""
    axes, rank = transposition.attrs.axes, transposition.ty.ndim
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def _is_stack(call: Any) -> bool:
    """Whether a product is one of equal stacks of float32 matrices with several rows."""
    types = [operand.ty for operand in call.args]
    if any(str(given.dtype) != "float32" for given in types):
        return False
    if not all(isinstance(getattr(given, "shape", None), relax.ShapeExpr) for given in types):
        return False
    left, right = (list(given.shape.values) for given in types)
    if len(left) != len(right) or len(left) < 3 or isinstance(call.args[1], Constant):
        return False
    is_row = isinstance(left[-2], tirx.IntImm) and int(left[-2]) == 1
    pairs = zip(left[:-2], right[:-2], strict=True)
    return not is_row and all(sym.Analyzer().can_prove_equal(a, b) for a, b in pairs)


def _product(left: te.Tensor, right: te.Tensor, orders: Sequence[Sequence[int]]) -> te.Tensor:
    """The product of operands whose axes are permuted by `orders` first."""
    shapes = [[t.shape[axis] for axis in o] for t, o in zip((left, right), orders, strict=True)]
    k = te.reduce_axis((0, shapes[0][-1]), name="k")

    def read(operand: te.Tensor, order: Sequence[int], *indices: Any) -> Any:
        return operand[tuple(indices[list(order).index(axis)] for axis in range(len(order)))]

    def element(*indices: Any) -> Any:
        *stack, row, column = indices
        a = read(left, orders[0], *stack, row, k)
        return te.sum(a * read(right, orders[1], *stack, k, column), axis=k)

    return te.compute((*shapes[0][:-1], shapes[1][-1]), element, name="matmul")
