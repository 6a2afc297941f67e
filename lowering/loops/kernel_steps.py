"""How often a loop runs, as far as that is known, and where a kernel reads the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from ..operators.sizes import sizes_of
from ..values import Constant, Value, as_int
from .kernel_body import NoKernelError
from .kernel_inputs import dims_of
from .plan import Plan


@dataclass(frozen=True)
class Steps:
    """The number of iterations, or the most there may be if the body has a condition."""

    static: int | None
    """The number if it is known."""
    size: Any
    """The number as a dimension, where tensors have it as one."""
    argument: Value = None
    """The number as an int64 scalar, where it is neither known nor a dimension."""
    condition: Value = None
    """Whether the first iteration runs, a bool scalar; only with a condition."""


def count_steps(bb: Any, plan: Plan, *, conditional: bool) -> Steps:
    """`conditional` says whether the body decides about another iteration.

    NoKernelError: nothing ends the loop, or the sizes of its outputs cannot be known beforehand.
    """
    if plan.sliced:
        return _length(plan)
    if conditional:
        return _with_condition(plan)
    if plan.limit is None:
        raise NoKernelError("nothing ends it")
    static = _known(plan.limit)
    starts = True if plan.condition is None else _known(plan.condition)
    if starts is not None and not starts:
        static = 0
    if static is not None and starts is not None:
        static = max(static, 0)
        return Steps(static, tirx.IntImm("int64", static))
    limit = plan.limit
    if starts is None:
        limit = bb.emit(relax.op.where(plan.condition, limit, relax.const(0, "int64")))
    if not plan.wanted:
        return Steps(None, None, limit)
    limit = relax.op.reshape(relax.op.maximum(limit, relax.const(0, "int64")), (1,))
    return Steps(None, sizes_of(bb, bb.emit(limit))[0])


def _length(plan: Plan) -> Steps:
    """The length of the scan inputs, on which they agree."""
    first = plan.sliced[0]
    dims = dims_of(first.data.ty)
    return Steps(as_int(dims[first.axis]), dims[first.axis])


def _with_condition(plan: Plan) -> Steps:
    if plan.wanted:
        raise NoKernelError("a condition decides how many rows its scan outputs get")
    condition = relax.const(True, "bool") if plan.condition is None else plan.condition
    static = None if plan.limit is None else _known(plan.limit)
    argument = plan.limit if static is None else None
    return Steps(static, None, argument, condition)


def _known(scalar: Value) -> int | None:
    """The content of an integer or bool scalar, if it is known."""
    return int(scalar.value.numpy().item()) if isinstance(scalar, Constant) else None
