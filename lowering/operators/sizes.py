"""Integers computed from sizes, in symbolic form.

`Shape -> Gather -> Mul -> Concat -> Reshape` gives a tensor whose dims are expressions over those
of the input. Computed with tensors, the dims would be unknown from the first Mul on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import ir, relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..derived_sizes import is_nonnegative
from ..values import Constant, Sizes, Value, as_int, as_tensor, fresh_dim, is_prim, is_tensor, match
from .broadcasting import known_dims
from .registry import ConverterContext

_TYPES = ("int64", "int32")
"""The types in which exporters compute sizes."""

_RESHAPE = ir.Op.get("relax.reshape")
_SHAPE_TO_TENSOR = ir.Op.get("relax.shape_to_tensor")

_MOST_MATCHED = 1024
"""The most elements of a vector of sizes that is computed at run time: a Split has many parts."""
MOST_SIZES = 64
"""The most elements of a tensor that holds sizes; a longer one is data."""


def read_sizes(value: Value) -> Sizes | None:
    """The integers of a value that may be sizes; None if it is data."""
    if value is None or isinstance(value, Sizes):
        return value
    if not isinstance(value, Constant) and is_tensor(value):
        return None
    if is_prim(value):
        return Sizes([value], ()) if str(value.ty) == "int64" else None
    if isinstance(value, relax.ShapeExpr):
        return Sizes.vector(value.values)
    if not isinstance(value, Constant) or str(value.ty.dtype) not in _TYPES:
        return None
    content = value.value.numpy()
    if content.size > MOST_SIZES:
        return None
    items = [tirx.IntImm("int64", int(item)) for item in content.reshape(-1)]
    return Sizes(items, content.shape, str(value.ty.dtype))


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
        return relax.const(np.array(known, sizes.dtype).reshape(sizes.shape), sizes.dtype)
    if sizes.dtype != "int64" or sizes.rank > 1:
        return sizes
    return relax.ShapeExpr(sizes.items) if sizes.rank else relax.prim_value(sizes.items[0])


def rearranged_sizes(
    sizes: Sizes, move: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
) -> Value:
    """Sizes rearranged by a NumPy function of their places."""
    try:
        return write_sizes(sizes.at(move(sizes.places)))
    except (ValueError, IndexError) as error:  # as NumPy says of a shape, an axis or an index
        raise UnsupportedError(str(error)) from error


def size_constant(value: int) -> Sizes:
    """A known scalar."""
    return Sizes([tirx.IntImm("int64", value)], ())


def map_sizes(compute: Callable[[Any, Any], Any], left: Sizes, right: Sizes) -> Sizes:
    """A binary function of integers, broadcast and simplified."""
    analyzer = sym.Analyzer()
    try:
        places = np.broadcast_arrays(left.places, right.places)
    except ValueError as error:
        shapes = f"{left.shape} and {right.shape}"
        raise UnsupportedError(f"tensors of shapes {shapes} do not broadcast") from error
    pairs = zip(*(each.at(place).items for each, place in zip((left, right), places, strict=True)))
    items = [analyzer.simplify(compute(a, b)) for a, b in pairs]
    return Sizes(items, places[0].shape, left.dtype)


def combine_sizes(
    compute: Callable[[Any, Any], Any], sizes: Sizes, keepdims: bool, empty: int | None = None
) -> Sizes:
    """All integers combined by a binary function: `empty` if there are none.

    The result is a scalar, or a tensor of the same rank with one element.
    """
    start = [] if empty is None else [tirx.IntImm("int64", empty)]
    item = sym.Analyzer().simplify(functools.reduce(compute, [*start, *sizes.items]))
    return Sizes([item], (1,) * sizes.rank if keepdims else (), sizes.dtype)


def divide(left: Any, right: Any) -> Any:
    """The quotient rounded towards zero, as ONNX's Div defines it for integers.

    A processor traps at a division by 0: 1 takes its place, as for tensors.
    """
    right = without_zero(right)
    if is_nonnegative(left) and is_nonnegative(right):
        return tirx.floordiv(left, right)
    return tirx.truncdiv(left, right)


def without_zero(divisor: Any) -> Any:
    """A divisor with 1 in place of 0."""
    number = as_int(divisor)
    if number is not None:
        return divisor if number else tirx.IntImm("int64", 1)
    if not may_be_zero(divisor):
        return divisor
    one = tirx.IntImm("int64", 1)
    return (
        tirx.max(divisor, one)
        if is_nonnegative(divisor)
        else tirx.Select(divisor == 0, one, divisor)
    )


def may_be_zero(size: Any) -> bool:
    """Whether a size is not known to be at least 1."""
    known = as_int(size)
    if known is not None:
        return known < 1
    return not is_nonnegative(sym.Analyzer().simplify(size - 1))


def sizes_of(bb: Any, value: Value) -> list[Any]:
    """The elements of an integer vector as symbolic expressions.

    A tensor computed at run time gets a new symbol for each element. Raises UnsupportedError if
    its length is not known, or too large.
    """
    sizes = read_sizes(value)
    if sizes is not None:
        return sizes.items
    tensor = as_tensor(bb, value)
    known = sizes_in_tensor(bb, tensor)
    if known is not None:
        return known
    dims = known_dims(tensor)
    length = None if dims is None else as_int(dims[0])
    if length is None:
        raise UnsupportedError("the number of elements of a vector of sizes is not known")
    need_few(length)
    if str(tensor.ty.dtype) != "int64":
        tensor = relax.op.astype(tensor, "int64")
    symbols = [fresh_dim(bb.get_unique_name("size")) for _ in range(length)]
    bb.match_cast(bb.normalize(relax.op.tensor_to_shape(tensor)), relax.ShapeType(symbols))
    return symbols


def need_few(length: int) -> None:
    """Raises UnsupportedError for a vector of too many sizes that are computed at run time."""
    if length > _MOST_MATCHED:
        raise UnsupportedError(f"a vector of {length} sizes that are not known")


def has_unknown_length(vector: Value | None) -> bool:
    """Whether this is a vector whose number of elements is not known."""
    is_tensor = isinstance(vector, relax.Expr) and isinstance(vector.ty, relax.TensorType)
    dims = (known_dims(vector) if is_tensor else None) or []
    return bool(dims) and as_int(dims[0]) is None


def with_length(bb: Any, vector: Value | None, length: int) -> Value | None:
    """A vector of unknown length, matched with the length that it must have; others as they are."""
    if vector is None or not has_unknown_length(vector):
        return vector
    return match(bb, vector, relax.TensorType([length], vector.ty.dtype))


def require_steps(bb: Any, value: Value) -> None:
    """Makes a run fail in which a step, or one of a vector of steps, is 0.

    Raises UnsupportedError if one always is.
    """
    tensor = as_tensor(bb, value)
    if isinstance(tensor, Constant):
        if not tensor.value.numpy().all():
            raise UnsupportedError("a step is 0")
        return
    is_zero = relax.op.equal(tensor, relax.const(0, tensor.ty.dtype))
    number = relax.op.sum(relax.op.astype(is_zero, "int64"), keepdims=False)
    count = bb.normalize(relax.op.reshape(number, [1]))
    _require_zeros(bb, bb.normalize(relax.op.tensor_to_shape(count)))


def require_zero(bb: Any, expression: Any) -> None:
    """Makes a run fail in which a symbolic expression is not 0."""
    _require_zeros(bb, bb.emit(relax.ShapeExpr([expression])))


def fail_when_run(bb: Any) -> None:
    """Makes each run fail that gets here."""
    _require_zeros(bb, bb.normalize(relax.op.tensor_to_shape(relax.const(np.ones(1, "int64")))))


def _require_zeros(bb: Any, shape: Value) -> None:
    """Makes a run fail in which a shape of one size is not (0,)."""
    bb.match_cast(shape, relax.ShapeType([tirx.IntImm("int64", 0)]))


def sizes_in_tensor(bb: Any, tensor: Value) -> list[Any] | None:
    """The symbolic sizes that a tensor was made from, in order; None for data."""
    call = defining_call(bb, tensor)
    if call is None or call.op not in (_RESHAPE, _SHAPE_TO_TENSOR):
        return None
    if call.op == _RESHAPE:
        return sizes_in_tensor(bb, call.args[0])
    return list(call.args[0].values) if isinstance(call.args[0], relax.ShapeExpr) else None


def defining_call(bb: Any, value: Value) -> Any:
    """The call of an operator that gives a value; None for any other value."""
    bound = bb.lookup_binding(value) if isinstance(value, relax.Var) else value
    return bound if isinstance(bound, ir.Call) and isinstance(bound.op, ir.Op) else None


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
