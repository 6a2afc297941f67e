"""Maxima and minima along axes that start from an infinity.

    where(max(x · 0.5) == lowest finite number, -inf, max(x))  →  max(x)

TVM's maximum starts from the lowest finite number, which is wrong where all elements are -inf. The
importer therefore adds a second maximum that detects this case, so that its modules are right under
any pipeline. This pipeline starts the maximum from -inf and drops the second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...operators.extremes import initial_of_tvm, reduced_shape, source_indices
from ...processor import is_for_llvm
from ...values import Constant
from ..relax.dataflow import rewritten_functions

_EXTREMES = {"relax.max": (tirx.Max, -math.inf), "relax.min": (tirx.Min, math.inf)}
"""By operator, the class of expressions that combines two elements, and the result for none."""


def drop_second_extremes(module: tvm.IRModule) -> tvm.IRModule:
    """The module without the reductions that ask whether all elements are infinite.

    Modules for other targets stay as they are.
    """
    if not is_for_llvm():
        return module
    module = rewritten_functions(_Extremes(module), module)
    return relax.transform.DeadCodeElimination()(module)


@mutator
class _Extremes(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        return call.args[2] if self._only_corrects_infinities(call) else call

    def _only_corrects_infinities(self, call: Any) -> bool:
        if getattr(call.op, "name", "") != "relax.where":
            return False
        equal = self._value(call.args[0], "relax.equal")
        extreme = self._value(call.args[2], *_EXTREMES)
        if equal is None or extreme is None:
            return False
        of_halves = self._value(equal.args[0], extreme.op.name)
        halves = None if of_halves is None else self._value(of_halves.args[0], "relax.multiply")
        if halves is None or not tvm_ffi.structural_equal(of_halves.attrs, extreme.attrs):
            return False
        dtype = str(extreme.ty.dtype)
        infinity = _EXTREMES[extreme.op.name][1]
        return bool(
            halves.args[0].same_as(extreme.args[0])
            and _is_number(halves.args[1], 0.5)
            and _is_number(equal.args[1], initial_of_tvm(dtype, greatest=infinity < 0))
            and _is_number(call.args[1], infinity)
        )

    def _value(self, expression: Any, *operators: str) -> Any:
        """The call of one of the operators that a variable is bound to; None for anything else."""
        value = self.lookup_binding(expression) if isinstance(expression, relax.Var) else expression
        is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.Op)
        return value if is_call and value.op.name in operators else None


def _is_number(expression: Any, number: float) -> bool:
    if not isinstance(expression, Constant) or expression.ty.ndim != 0:
        return False
    return bool(expression.value.numpy() == number)


def legalize_extreme(
    legalize: Callable[[relax.BlockBuilder, Any], Any], bb: relax.BlockBuilder, call: Any
) -> Any:
    """A maximum or minimum of floating point data along axes, which starts from an infinity."""
    (data,), dims = call.args, getattr(call.args[0].ty, "shape", None)
    if "float" not in str(data.ty.dtype) or not isinstance(dims, relax.ShapeExpr):
        return legalize(bb, call)
    kind, start = _EXTREMES[call.op.name]
    rank, keepdims = len(dims.values), bool(call.attrs.keepdims)
    given = call.attrs.axis
    reduced = range(rank) if given is None else [int(axis) % rank for axis in given]

    def extreme(x: te.Tensor) -> te.Tensor:
        along = {axis: te.reduce_axis((0, x.shape[axis]), name="k") for axis in reduced}
        reduce = te.comm_reducer(lambda a, b: kind(a, b), lambda dtype: tirx.const(start, dtype))

        def element(*places: Any) -> Any:
            return reduce(x(*source_indices(along, places, keepdims)), axis=list(along.values()))

        return te.compute(reduced_shape(x, along, keepdims), element, name="extreme")

    return bb.call_te(extreme, data)
