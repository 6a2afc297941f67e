"""Integers computed from sizes, in symbolic form.

`Shape -> Gather -> Mul -> Concat -> Reshape` gives a tensor whose dims are expressions over those
of the input. Computed with tensors, the dims would be unknown from the first Mul on.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..values import Constant, Sizes, Value, as_int, as_tensor, fresh_dim, is_prim, is_tensor
from .broadcasting import known_dims
from .registry import ConverterContext

_TYPES = ("int64", "int32")
"""The types in which exporters compute sizes."""

_LONGEST = 64
"""A longer constant is data, not sizes."""


def read_sizes(value: Value) -> Sizes | None:
    """The integers of a value that may be sizes; None if it is data."""
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


def read_symbolic(inputs: Sequence[Value]) -> list[Sizes]:
    """The integers of all inputs. Empty if one input is data, or if all are constants."""
    if all(isinstance(value, Constant) for value in inputs):
        return []
    operands = [read_sizes(value) for value in inputs]
    known = [operand for operand in operands if operand is not None]
    return known if len(known) == len(operands) else []


def write_sizes(sizes: Sizes) -> Value:
    """Integers as a value: a constant if all are known, else in symbolic form."""
    known = [as_int(item) for item in sizes.items]
    if None not in known:
        content = np.array(known, sizes.dtype).reshape((-1,) if sizes.rank else ())
        return relax.const(content, sizes.dtype)
    if sizes.dtype != "int64":
        return sizes
    return relax.ShapeExpr(sizes.items) if sizes.rank else relax.prim_value(sizes.items[0])


def size_constant(value: int) -> Sizes:
    """A known scalar."""
    return Sizes([tirx.IntImm("int64", value)], 0)


def map_sizes(compute: Callable[[Any, Any], Any], left: Sizes, right: Sizes) -> Sizes:
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


def product_of_sizes(sizes: Sizes, rank: int) -> Value:
    """The product of integers, as a scalar or a vector of one element."""
    factors = [Sizes([item], 0) for item in sizes.items]
    multiply = functools.partial(map_sizes, operator.mul)
    product = functools.reduce(multiply, factors, size_constant(1))
    return write_sizes(Sizes(product.items, rank, sizes.dtype))


def divide(left: Any, right: Any) -> Any:
    """The quotient rounded towards zero, as ONNX's Div defines it for integers."""
    if is_nonnegative(left) and is_nonnegative(right):
        return tirx.floordiv(left, right)
    return tirx.truncdiv(left, right)


def is_nonnegative(item: Any) -> bool:
    """Whether an integer is known not to be negative. Symbols are sizes, so not negative."""
    number = as_int(item)
    if number is not None:
        return number >= 0
    if isinstance(item, tirx.Add | tirx.Mul | tirx.FloorDiv | tirx.FloorMod | tirx.Max | tirx.Min):
        return is_nonnegative(item.a) and is_nonnegative(item.b)
    return bool(tvm.ir.is_prim_var(item))


def may_be_zero(size: Any) -> bool:
    """Whether a size is not known to be at least 1."""
    known = as_int(size)
    if known is not None:
        return known < 1
    return not is_nonnegative(sym.Analyzer().simplify(size - 1))


def sizes_of(bb: Any, value: Value) -> list[Any]:
    """The elements of an integer vector as symbolic expressions.

    A tensor computed at run time gets a new symbol for each element. Raises UnsupportedError if
    its length is not known.
    """
    sizes = read_sizes(value)
    if sizes is not None:
        return sizes.items
    tensor = as_tensor(bb, value)
    dims = known_dims(tensor)
    length = None if dims is None else as_int(dims[0])
    if length is None:
        raise UnsupportedError("the number of elements of a vector of sizes is not known")
    if str(tensor.ty.dtype) != "int64":
        tensor = relax.op.astype(tensor, "int64")
    symbols = [fresh_dim(bb.get_unique_name("size")) for _ in range(length)]
    bb.match_cast(bb.normalize(relax.op.tensor_to_shape(tensor)), relax.ShapeType(symbols))
    return symbols


def name_sizes(bb: Any, sizes: Sequence[Any]) -> list[Any]:
    """Sizes with a new symbol in place of each expression that is neither a number nor a symbol."""
    places = [
        place
        for place, size in enumerate(sizes)
        if as_int(size) is None and not tvm.ir.is_prim_var(size)
    ]
    if not places:
        return list(sizes)
    # TVM 0.27 crashes on a shape that is matched directly.
    vector = as_tensor(bb, relax.ShapeExpr([sizes[place] for place in places]))
    symbols = dict(zip(places, sizes_of(bb, vector), strict=True))
    return [symbols.get(place, size) for place, size in enumerate(sizes)]


def size_of(ctx: ConverterContext, value: Value) -> Any:
    """The one element of a scalar or a vector as a symbolic expression.

    A tensor computed at run time gets a new symbol.
    """
    content = ctx.known_elements(value)
    if content is not None:
        return tirx.IntImm("int64", int(content.item()))
    (size,) = sizes_of(ctx.bb, ctx.bb.normalize(relax.op.reshape(as_tensor(ctx.bb, value), [1])))
    return size
