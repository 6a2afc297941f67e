"""Element-wise operators, with the values of small integer and bool tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import onnx

from ... import symbolic
from ...symbolic import Dim
from ..facts import BOOL, FLOATS, INTEGERS, MOST_VALUES, Fact, Value
from .broadcast import broadcast
from .choices import choice
from .registry import Site, shape_of

_UNARY = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "MeanVarianceNormalization",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "BitwiseNot",
    "Trilu",
    "LpNormalization",
    "LRN",
    "InstanceNormalization",
]
_RANKED = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "LpNormalization": -1}


@shape_of(*_UNARY)
def unary(site: Site) -> Sequence[Fact]:
    """The shape and type of the first input."""
    x = site.fact(0)
    if site.node.op == "Identity":
        return [x]
    if site.node.op in _RANKED and x.shape is not None and site.surely_has_elements(0):
        axis = site.attr("axis", _RANKED[site.node.op] if site.opset >= 13 else 1)
        site.axis(axis, len(x.shape))
    function = _UNARY_VALUES.get(site.node.op)
    values = None
    if function is not None and x.values is not None and x.dtype in INTEGERS:
        values = representable([function(v) for v in x.values], x.dtype)
    return [_of_values(x, values)]


def _absolute(v: Value) -> Value:
    if v is None:
        return None
    return v if symbolic.nonnegative(v) else (abs(v) if isinstance(v, int) else None)


_UNARY_VALUES: dict[str, Callable[[Value], Value]] = {
    "Neg": lambda v: None if v is None else symbolic.neg(v),
    "Abs": _absolute,
    "Relu": lambda v: None if v is None else symbolic.maximum(v, 0),
}


def representable(values: list[Value], dtype: int) -> tuple[Value, ...] | None:
    """Element-wise values, unless one is unknown or may leave the range of the type.

    Dims are taken to be small enough for the integer arithmetic that exporters do with them;
    other numbers, such as an integer input of the model, may be anything and wrap around.
    """
    kept: list[Value] = []
    limits = np.iinfo(onnx.helper.tensor_dtype_to_np_dtype(dtype))
    for value in values:
        if value is None or not _fits(value, limits):
            return None
        kept.append(value)
    return tuple(kept)


def _fits(value: Dim, limits: np.iinfo) -> bool:
    low, high = symbolic.bounds(value)
    if low is not None and low < limits.min:
        return False
    if high is not None and high > limits.max:
        return False
    if low is not None and high is not None:
        return True
    if limits.bits < 32 or (low is None and limits.min == 0):
        return False
    single = symbolic.single_symbol(value)
    if single is not None:
        return True
    most = _LARGEST_FACTOR[limits.bits]
    return symbolic.is_size(value) and symbolic.largest_factor(value) <= most


_EXACT = 1 << 24
"""Integers up to this size are exact in single precision."""
_LARGEST_FACTOR = {32: 1 << 12, 64: 1 << 40}
"""Factors up to which multiples of dims are taken to fit, by the bits of the type."""


def combine(function: Callable[..., Value], operands: Sequence[Fact]) -> list[Value] | None:
    """Applies a function over broadcast element-wise values; None when one side has none."""
    arrays = [None if f.dtype in FLOATS else f.array() for f in operands]
    known = [a for a in arrays if a is not None]
    if len(known) != len(arrays):
        return None
    count = int(np.prod(np.broadcast_shapes(*(a.shape for a in known))))
    if count > MOST_VALUES:
        return None
    flat = [a.reshape(-1) for a in np.broadcast_arrays(*known)]
    return [function(*column) for column in zip(*flat)]


def _divide(a: Dim, b: Dim) -> Value:
    """Integer division of ONNX rounds toward zero."""
    if b == 0:
        return None
    if symbolic.nonnegative(a) and symbolic.positive(b):
        return symbolic.floordiv(a, b)
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not isinstance(b, int) or b <= 0:
        return None
    # Only one of the two is not 0: that rounded down where a is positive, or else that rounded up.
    up, down = symbolic.ceildiv(a, b), symbolic.floordiv(a, b)
    return symbolic.add(symbolic.maximum(down, 0), symbolic.minimum(up, 0))


def _modulo(a: Dim, b: Dim) -> Value:
    """Mod with fmod=0: the sign of the divisor."""
    return symbolic.mod(a, b) if symbolic.positive(b) else None


_ARITHMETIC: dict[str, Callable[[Dim, Dim], Value]] = {
    "Add": symbolic.add,
    "Sub": symbolic.sub,
    "Mul": symbolic.mul,
    "Div": _divide,
    "Mod": _modulo,
    "Min": symbolic.minimum,
    "Max": symbolic.maximum,
}


@shape_of("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean")
def arithmetic(site: Site) -> Sequence[Fact]:
    """Broadcast result in the type of the first operand."""
    operands = site.inputs()
    same_type = operands[:1] if site.node.op == "Pow" else operands
    dtype = next((f.dtype for f in same_type if f.dtype), 0)
    shape = broadcast(site, *(f.shape for f in operands))
    ranks = None if shape is not None else _joint_ranks(operands)
    function = _ARITHMETIC.get(site.node.op)
    values = None
    if function is not None and dtype in INTEGERS and not site.attr("fmod", 0):
        safe = function

        def fold(*column: Value) -> Value:
            return reduce(lambda a, b: None if a is None or b is None else safe(a, b), column)

        computed = combine(fold, operands)
        # The smallest and the largest of numbers are among them.
        chosen = site.node.op in ("Min", "Max") and computed is not None and None not in computed
        if computed is not None:
            values = tuple(computed) if chosen else representable(computed, dtype)
    first = operands[0]
    if shape is not None and shape == first.shape and dtype == first.dtype:
        return [_of_values(first, values)]
    return [Fact(dtype, shape, ranks, values)]


def _of_values(like: Fact, values: tuple[Value, ...] | None) -> Fact:
    """The fact of a tensor like another with other elements: most often that very fact, so that
    long chains of one shape share it.
    """
    if like.values is values and like.kind == "tensor":
        return like
    return Fact(like.dtype, like.shape, like.ranks, values)


def _joint_ranks(operands: Sequence[Fact]) -> frozenset[int] | None:
    """The ranks a broadcast can have when an operand has one of several."""
    possible = [f.possible_ranks() for f in operands]
    known = [p for p in possible if p is not None]
    if len(known) != len(possible):
        return None
    ranks = {0}
    for some in known:
        ranks = {max(a, b) for a in ranks for b in some}
    return frozenset(ranks)


def _both(a: Value, b: Value) -> Value:
    if a is False or b is False:
        return False
    return True if a is True and b is True else None


def _any(a: Value, b: Value) -> Value:
    if a is True or b is True:
        return True
    return False if a is False and b is False else None


def _differ(a: Value, b: Value) -> Value:
    return None if a is None or b is None else a != b


def _equal(a: Value, b: Value) -> Value:
    if a is None or b is None:
        return None
    if isinstance(a, bool) or isinstance(b, bool):
        return a == b
    return symbolic.eq(a, b)


def _ordered(decide: Callable[[Dim, Dim], bool | None]) -> Callable[[Value, Value], Value]:
    return lambda a, b: None if a is None or b is None else decide(a, b)


_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "And": _both,
    "Or": _any,
    "Xor": _differ,
    "Equal": _equal,
    "Less": _ordered(symbolic.lt),
    "LessOrEqual": _ordered(symbolic.le),
    "Greater": _ordered(lambda a, b: symbolic.lt(b, a)),
    "GreaterOrEqual": _ordered(lambda a, b: symbolic.le(b, a)),
}


@shape_of(*_COMPARISONS)
def comparison(site: Site) -> Sequence[Fact]:
    """A bool per broadcast element."""
    operands = site.inputs()
    shape = broadcast(site, *(f.shape for f in operands))
    values = combine(_COMPARISONS[site.node.op], operands)
    return [Fact(BOOL, shape, None, _unknown_bools(shape) if values is None else tuple(values))]


def _unknown_bools(shape: tuple[Dim, ...] | None) -> tuple[Value, ...] | None:
    """What is known of the elements of a small bool tensor before anything is: their number."""
    count = None if shape is None else symbolic.product(shape)
    return (None,) * count if isinstance(count, int) and count <= MOST_VALUES else None


@shape_of("Not")
def negation(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    values = None
    if x.values is not None:
        values = tuple(None if v is None else not v for v in x.values)
    return [Fact(BOOL, x.shape, x.ranks, values)]


@shape_of("IsNaN", "IsInf")
def test(site: Site) -> Sequence[Fact]:
    return [Fact(BOOL, site.shape(0), site.fact(0).ranks)]


@shape_of("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu")
def binary(site: Site) -> Sequence[Fact]:
    return [Fact(site.fact(0).dtype, broadcast(site, site.shape(0), site.shape(1)))]


@shape_of("Where")
def where(site: Site) -> Sequence[Fact]:
    condition, yes, no = site.fact(0), site.fact(1), site.fact(2)
    dtype = yes.dtype or no.dtype
    shape = broadcast(site, condition.shape, yes.shape, no.shape)
    values = None
    if dtype in INTEGERS or dtype == BOOL:
        chosen = combine(_choose, [condition, yes, no])
        if chosen == [None] and dtype in INTEGERS:
            chosen = [_either_way(site, yes.scalar(), no.scalar())]
        if chosen is not None and (dtype == BOOL or None not in chosen):
            values = tuple(chosen)
    return [Fact(dtype, shape, None, values)]


def _either_way(site: Site, yes: Value, no: Value) -> Value:
    if yes is None or no is None or isinstance(yes, bool) or isinstance(no, bool):
        return None
    return choice(site, yes, no)


def _choose(condition: Value, yes: Value, no: Value) -> Value:
    if condition is None:
        return yes if yes is not None and yes == no else None
    return yes if condition else no


@shape_of("Cast", "CastLike")
def cast(site: Site) -> Sequence[Fact]:
    x = site.fact(0)
    dtype = site.fact(1).dtype if site.node.op == "CastLike" else int(site.attr("to", 0))
    values: tuple[Value, ...] | None = None
    if x.values is not None and dtype == BOOL and x.dtype not in FLOATS:
        values = tuple(_truth(v) for v in x.values)
    elif x.values is not None and x.dtype in FLOATS and not _all_exact(x.values):
        pass
    elif x.values is not None and dtype in INTEGERS and None not in x.values:
        values = _narrow([int(v) if isinstance(v, bool) else v for v in x.values], dtype)
    elif dtype in INTEGERS or dtype == BOOL:
        values = _cast_constant(site, dtype)
    elif dtype in FLOATS and x.dtype in INTEGERS and x.values is not None:
        values = _whole_numbers(x.values)
    return [Fact(dtype, x.shape, x.ranks, values)]


def _whole_numbers(values: tuple[Value, ...]) -> tuple[Value, ...] | None:
    """Integers in a float tensor: sizes, and numbers that are exact in single precision.

    Nothing is decided by them, since large sizes are rounded; they tell that a float is whole.
    """
    for value in values:
        low, high = (None, None) if value is None else symbolic.bounds(value)
        if low is None or low < -_EXACT or (high is not None and high > _EXACT):
            return None
    return values


def _narrow(values: list[Value], dtype: int) -> tuple[Value, ...] | None:
    """Dims keep their value in any wide integer type; arbitrary data may wrap around."""
    if any(symbolic.bounds(v or 0)[0] is None for v in values):
        return None
    return representable(values, dtype)


def _truth(v: Value) -> Value:
    if v is None or isinstance(v, bool):
        return v
    equal = symbolic.eq(v, 0)
    return None if equal is None else not equal


def _cast_constant(site: Site, dtype: int) -> tuple[Value, ...] | None:
    """A float constant that a cast turns into a small integer tensor."""
    array = site.constant(0)
    if array is None or array.size > MOST_VALUES or array.dtype.kind != "f":
        return None
    if dtype == BOOL:
        return tuple(bool(v) for v in array.reshape(-1))
    if not np.all(np.isfinite(array)):
        return None
    return representable([int(v) for v in np.trunc(array).reshape(-1)], dtype)


def _all_exact(values: tuple[Value, ...]) -> bool:
    """Whether a float held these integers without rounding."""
    return all(v is not None and symbolic.bounds(v)[1] is not None for v in values)
