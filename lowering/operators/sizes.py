"""Integers computed from sizes, in symbolic form.

`Shape -> Gather -> Mul -> Concat -> Reshape` gives a tensor whose dimensions are formulas over
those of the input. Computed with tensors, they would be unknown from the first Mul on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Constant, Sizes, as_int, is_prim, is_tensor

_TYPES = ("int64", "int32")
"""The types in which exporters compute sizes."""

_LONGEST = 64
"""A longer constant is data, not sizes."""


def read_sizes(value: Any) -> Sizes | None:
    """The integers that a value stands for, or None if it is data."""
    if value is None or isinstance(value, Sizes):
        return value
    if not isinstance(value, Constant) and is_tensor(value):
        return None
    if is_prim(value):
        return Sizes([value], 0) if str(value.ty) == "int64" else None
    if isinstance(value, relax.ShapeExpr):
        return Sizes(list(value.values), 1)
    if not isinstance(value, Constant) or str(value.ty.dtype) not in _TYPES:
        return None
    content = value.value.numpy()
    if content.ndim > 1 or content.size > _LONGEST:
        return None
    items = [tirx.IntImm("int64", int(item)) for item in content.reshape(-1)]
    return Sizes(items, content.ndim, str(value.ty.dtype))


def read_symbolic(inputs: Sequence[Any]) -> list[Sizes]:
    """The integers of all inputs. Empty if one is data, or if all are constants."""
    if all(isinstance(value, Constant) for value in inputs):
        return []
    operands = []
    for value in inputs:
        operand = read_sizes(value)
        if operand is None:
            return []
        operands.append(operand)
    return operands


def write_sizes(sizes: Sizes) -> Any:
    """Integers as a value: a constant if they are known, else in symbolic form."""
    known = [as_int(item) for item in sizes.items]
    if None not in known:
        content = np.array(known, sizes.dtype).reshape((-1,) if sizes.rank else ())
        return relax.const(content, sizes.dtype)
    if sizes.dtype != "int64":
        return sizes
    return relax.ShapeExpr(sizes.items) if sizes.rank else relax.prim_value(sizes.items[0])


def elementwise(compute: Callable[[Any, Any], Any], left: Sizes, right: Sizes) -> Sizes:
    """A binary function of integers, broadcast and simplified."""
    analyzer = sym.Analyzer()
    length = max(len(left.items), len(right.items))
    if {len(left.items), len(right.items)} - {1, length}:
        lengths = f"{len(left.items)} and {len(right.items)}"
        raise UnsupportedError(f"vectors of lengths {lengths} do not broadcast")
    pairs = zip(_repeat(left.items, length), _repeat(right.items, length), strict=True)
    items = [analyzer.simplify(compute(a, b)) for a, b in pairs]
    return Sizes(items, max(left.rank, right.rank), left.dtype)


def _repeat(items: list[Any], length: int) -> list[Any]:
    return items * length if len(items) == 1 else items


def divide(left: Any, right: Any) -> Any:
    """The quotient rounded towards zero, as ONNX's Div has it for integers."""
    if is_nonnegative(left) and is_nonnegative(right):
        return tirx.floordiv(left, right)
    return tirx.truncdiv(left, right)


def is_nonnegative(item: Any) -> bool:
    """Whether an integer is not negative, given that sizes are not."""
    number = as_int(item)
    if number is not None:
        return number >= 0
    if isinstance(item, tirx.Add | tirx.Mul | tirx.FloorDiv | tirx.FloorMod | tirx.Max | tirx.Min):
        return is_nonnegative(item.a) and is_nonnegative(item.b)
    return bool(tvm.ir.is_prim_var(item))
