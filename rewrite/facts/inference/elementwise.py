"""Element-wise operators, including the elements of small integer and bool tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import onnx

from ... import symbolic
from ...symbolic import Dim
from ..fact import BOOL, FLOAT_OR_DOUBLE, INTEGERS, MOST_VALUES, Element, Fact
from .broadcast import broadcast
from .registry import NodeContext, register
from .where import value_of_where

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


@register(*_UNARY)
def unary(ctx: NodeContext) -> Sequence[Fact]:
    """The shape and type of the first input."""
    x = ctx.fact(0)
    if ctx.node.op == "Identity":
        return [x]
    if ctx.node.op in _RANKED and x.shape is not None and ctx.is_nonempty(0):
        axis = ctx.attr("axis", _RANKED[ctx.node.op] if ctx.opset >= 13 else 1)
        ctx.axis(axis, len(x.shape))
    function = _UNARY_VALUES.get(ctx.node.op)
    values = None
    if function is not None and x.values is not None and x.dtype in INTEGERS:
        values = representable([function(v) for v in x.values], x.dtype)
    return [_with_values(x, values)]


def _absolute(v: Element) -> Element:
    if v is None:
        return None
    return v if symbolic.nonnegative(v) else (abs(v) if isinstance(v, int) else None)


_UNARY_VALUES: dict[str, Callable[[Element], Element]] = {
    "Neg": lambda v: None if v is None else symbolic.neg(v),
    "Abs": _absolute,
    "Relu": lambda v: None if v is None else symbolic.maximum(v, 0),
}


def representable(values: list[Element], dtype: int) -> tuple[Element, ...] | None:
    """The elements, or None if one is unknown or may wrap around in the type.

    Dims are assumed to be small enough for the integer arithmetic of exporters. Other numbers, such
    as an integer input of the model, may have any value.
    """
    kept: list[Element] = []
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
"""By the bits of a type: the largest factor by which a multiple of a dim is assumed to fit."""


def combine(function: Callable[..., Element], operands: Sequence[Fact]) -> list[Element] | None:
    """Applies a function to broadcast elements; None if those of an operand are not known.

    Each element of a small bool tensor of static shape counts as known, as True, False or None.
    """
    arrays = [None if f.dtype in FLOAT_OR_DOUBLE else _open_bools(f).array() for f in operands]
    known = [a for a in arrays if a is not None]
    if len(known) != len(arrays):
        return None
    count = int(np.prod(np.broadcast_shapes(*(a.shape for a in known))))
    if count > MOST_VALUES:
        return None
    flat = [a.reshape(-1) for a in np.broadcast_arrays(*known)]
    return [function(*column) for column in zip(*flat)]


def _divide(a: Dim, b: Dim) -> Element:
    """Integer division, which rounds toward zero in ONNX."""
    if b == 0:
        return None
    if symbolic.nonnegative(a) and symbolic.positive(b):
        return symbolic.floordiv(a, b)
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not isinstance(b, int) or b <= 0:
        return None
    # At most one of the two terms is not 0: the quotient rounded down for a positive a, rounded up
    # for a negative one.
    up, down = symbolic.ceildiv(a, b), symbolic.floordiv(a, b)
    return symbolic.add(symbolic.maximum(down, 0), symbolic.minimum(up, 0))


def _modulo(a: Dim, b: Dim) -> Element:
    """Mod with fmod=0, which has the sign of the divisor."""
    return symbolic.mod(a, b) if symbolic.positive(b) else None


_ARITHMETIC: dict[str, Callable[[Dim, Dim], Element]] = {
    "Add": symbolic.add,
    "Sub": symbolic.sub,
    "Mul": symbolic.mul,
    "Div": _divide,
    "Mod": _modulo,
    "Min": symbolic.minimum,
    "Max": symbolic.maximum,
}


@register("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean")
def arithmetic(ctx: NodeContext) -> Sequence[Fact]:
    """The broadcast shape, in the type of the first operand."""
    operands = ctx.inputs()
    same_type = operands[:1] if ctx.node.op == "Pow" else operands
    dtype = next((f.dtype for f in same_type if f.dtype), 0)
    shape = broadcast(ctx, *(f.shape for f in operands))
    ranks = None if shape is not None else _joint_ranks(operands)
    function = _ARITHMETIC.get(ctx.node.op)
    values = None
    if function is not None and dtype in INTEGERS and not ctx.attr("fmod", 0):
        compute = function

        def fold(*column: Element) -> Element:
            return reduce(lambda a, b: None if a is None or b is None else compute(a, b), column)

        computed = combine(fold, operands)
        # Min and Max return one of the operands, which is in the range of the type.
        fits = ctx.node.op in ("Min", "Max") and computed is not None and None not in computed
        if computed is not None:
            values = tuple(computed) if fits else representable(computed, dtype)
    first = operands[0]
    if shape is not None and shape == first.shape and dtype == first.dtype:
        return [_with_values(first, values)]
    return [Fact(dtype, shape, ranks, values)]


def _with_values(like: Fact, values: tuple[Element, ...] | None) -> Fact:
    """The fact with other elements; the same object if nothing differs, to save memory."""
    if like.values is values and like.kind == "tensor":
        return like
    return Fact(like.dtype, like.shape, like.ranks, values)


def _joint_ranks(operands: Sequence[Fact]) -> frozenset[int] | None:
    """The possible ranks of a broadcast whose operands have one of several ranks."""
    possible = [f.possible_ranks() for f in operands]
    known = [p for p in possible if p is not None]
    if len(known) != len(possible):
        return None
    ranks = {0}
    for some in known:
        ranks = {max(a, b) for a in ranks for b in some}
    return frozenset(ranks)


def _both(a: Element, b: Element) -> Element:
    if a is False or b is False:
        return False
    return True if a is True and b is True else None


def _any(a: Element, b: Element) -> Element:
    if a is True or b is True:
        return True
    return False if a is False and b is False else None


def _differ(a: Element, b: Element) -> Element:
    return None if a is None or b is None else a != b


def _equal(a: Element, b: Element) -> Element:
    if a is None or b is None:
        return None
    if isinstance(a, bool) or isinstance(b, bool):
        return a == b
    return symbolic.eq(a, b)


def _ordered(decide: Callable[[Dim, Dim], bool | None]) -> Callable[[Element, Element], Element]:
    return lambda a, b: None if a is None or b is None else decide(a, b)


_COMPARISONS: dict[str, Callable[[Element, Element], Element]] = {
    "And": _both,
    "Or": _any,
    "Xor": _differ,
    "Equal": _equal,
    "Less": _ordered(symbolic.lt),
    "LessOrEqual": _ordered(symbolic.le),
    "Greater": _ordered(lambda a, b: symbolic.lt(b, a)),
    "GreaterOrEqual": _ordered(lambda a, b: symbolic.le(b, a)),
}


@register(*_COMPARISONS)
def comparison(ctx: NodeContext) -> Sequence[Fact]:
    """A bool per broadcast element."""
    operands = ctx.inputs()
    shape = broadcast(ctx, *(f.shape for f in operands))
    values = combine(_COMPARISONS[ctx.node.op], operands)
    return [Fact(BOOL, shape, None, _unknown_bools(shape) if values is None else tuple(values))]


def _open_bools(fact: Fact) -> Fact:
    """The fact; a small bool tensor of static shape gets unknown elements if it has none."""
    if fact.values is not None or fact.dtype != BOOL:
        return fact
    return replace(fact, values=_unknown_bools(fact.shape))


def _unknown_bools(shape: tuple[Dim, ...] | None) -> tuple[Element, ...] | None:
    """Unknown elements for a small bool tensor of static shape."""
    count = None if shape is None else symbolic.product(shape)
    return (None,) * count if isinstance(count, int) and count <= MOST_VALUES else None


@register("Not")
def negation(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    values = None
    if x.values is not None:
        values = tuple(None if v is None else not v for v in x.values)
    return [Fact(BOOL, x.shape, x.ranks, values)]


@register("IsNaN", "IsInf")
def test(ctx: NodeContext) -> Sequence[Fact]:
    return [Fact(BOOL, ctx.shape(0), ctx.fact(0).ranks)]


@register("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu")
def binary(ctx: NodeContext) -> Sequence[Fact]:
    return [Fact(ctx.fact(0).dtype, broadcast(ctx, ctx.shape(0), ctx.shape(1)))]


@register("Where")
def where(ctx: NodeContext) -> Sequence[Fact]:
    condition, yes, no = ctx.fact(0), ctx.fact(1), ctx.fact(2)
    dtype = yes.dtype or no.dtype
    shape = broadcast(ctx, condition.shape, yes.shape, no.shape)
    values = None
    if dtype in INTEGERS or dtype == BOOL:
        chosen = combine(_choose, [condition, yes, no])
        if chosen == [None] and dtype in INTEGERS:
            chosen = [_without_condition(ctx, yes.scalar(), no.scalar())]
        if chosen is not None and (dtype == BOOL or None not in chosen):
            values = tuple(chosen)
    return [Fact(dtype, shape, None, values)]


def _without_condition(ctx: NodeContext, yes: Element, no: Element) -> Element:
    if yes is None or no is None or isinstance(yes, bool) or isinstance(no, bool):
        return None
    return value_of_where(ctx, yes, no)


def _choose(condition: Element, yes: Element, no: Element) -> Element:
    if condition is None:
        return yes if yes is not None and yes == no else None
    return yes if condition else no


@register("Cast", "CastLike")
def cast(ctx: NodeContext) -> Sequence[Fact]:
    x = ctx.fact(0)
    dtype = ctx.fact(1).dtype if ctx.node.op == "CastLike" else int(ctx.attr("to", 0))
    values: tuple[Element, ...] | None = None
    if x.values is not None and dtype == BOOL and x.dtype not in FLOAT_OR_DOUBLE:
        values = tuple(_truth(v) for v in x.values)
    elif x.values is not None and x.dtype in FLOAT_OR_DOUBLE and not _all_exact(x.values):
        pass
    elif x.values is not None and dtype in INTEGERS and None not in x.values:
        values = _narrow([int(v) if isinstance(v, bool) else v for v in x.values], dtype)
    elif dtype in INTEGERS or dtype == BOOL:
        values = _cast_constant(ctx, dtype)
    elif dtype in FLOAT_OR_DOUBLE and x.dtype in INTEGERS and x.values is not None:
        values = _whole_numbers(x.values)
    return [Fact(dtype, x.shape, x.ranks, values)]


def _whole_numbers(values: tuple[Element, ...]) -> tuple[Element, ...] | None:
    """Integers in a float tensor: sizes, and numbers that are exact in single precision.

    They show that the float is an integer. Because large sizes are rounded, no decision uses them.
    """
    for value in values:
        low, high = (None, None) if value is None else symbolic.bounds(value)
        if low is None or low < -_EXACT or (high is not None and high > _EXACT):
            return None
    return values


def _narrow(values: list[Element], dtype: int) -> tuple[Element, ...] | None:
    """The elements after a cast. Dims keep their value in wide types, other data may wrap."""
    if any(symbolic.bounds(v or 0)[0] is None for v in values):
        return None
    return representable(values, dtype)


def _truth(v: Element) -> Element:
    if v is None or isinstance(v, bool):
        return v
    equal = symbolic.eq(v, 0)
    return None if equal is None else not equal


def _cast_constant(ctx: NodeContext, dtype: int) -> tuple[Element, ...] | None:
    """The elements of a small float constant after a cast to integers or bools."""
    array = ctx.constant(0)
    if array is None or array.size > MOST_VALUES or array.dtype.kind != "f":
        return None
    if dtype == BOOL:
        return tuple(bool(v) for v in array.reshape(-1))
    if not np.all(np.isfinite(array)):
        return None
    return representable([int(v) for v in np.trunc(array).reshape(-1)], dtype)


def _all_exact(values: tuple[Element, ...]) -> bool:
    """Whether a float held these integers without rounding."""
    return all(v is not None and symbolic.bounds(v)[1] is not None for v in values)
