"""How operators act on lifted values (ONNX operator specification).

The recurrent operators themselves, over a single time step, are in `time_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.facts.reads import axis_slices
from ...rewrite.facts.slices import AxisSlice
from ...rewrite.graph.einsum import einsum_letters
from ...rewrite.graph.ir import Node
from . import affine_forms, lifting, weights
from .affine_forms import ActivatedForm, AffineForm
from .length_masks import UNKNOWN_MASK
from .lifting import (
    RNN_FLOATS,
    Axis,
    BatchAxis,
    LiftedValue,
    Lifter,
    axes_of,
    broadcast,
    constant_value,
    lifts,
    numpy_type,
)
from .weights import Array, Weight

# --- elementwise ---

_FUNCTIONS: dict[str, tuple[tuple[str, float], ...]] = {
    "Abs": (),
    "Elu": (("alpha", 1.0),),
    "Exp": (),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (("alpha", 0.01),),
    "Relu": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": (("alpha", 1.0),),
}
"""Elementwise functions with their attributes and the defaults of these."""


@lifts(*_FUNCTIONS)
def _function(lifter: Lifter, node: Node) -> list[LiftedValue]:
    parameters = tuple(float(node.attrs.get(k, d)) for k, d in _FUNCTIONS[node.op])
    value = lifter.operand(node, 0)
    return [value.with_form(value.form.activated(node.op, parameters))]


@lifts("Identity", "Dropout")
def _identity(lifter: Lifter, node: Node) -> list[LiftedValue]:
    if lifter.has(node, 2):
        raise Miss("its dropout is random in training mode")
    return [lifter.operand(node, 0)]


@lifts("Cast")
def _cast(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    if lifter.facts.dtype(node.inputs[0]) == int(node.attrs["to"]):
        return [value]
    constant, dtype = _elements(value), numpy_type(lifter.facts, node.outputs[0])
    if constant is not None and "b" in (constant.dtype.kind, dtype.kind):
        return [value.with_form(affine_forms.constant(constant.astype(dtype)))]
    raise Miss("a cast between float types rounds")


def _elements(value: LiftedValue) -> Array | None:
    """The elements of a constant, one for each feature; None for any other value."""
    bias = value.form.bias
    return bias if not value.form.terms and isinstance(bias, np.ndarray) else None


@lifts("Neg")
def _neg(lifter: Lifter, node: Node) -> list[LiftedValue]:
    return [lifter.operand(node, 0).scaled(-1)]


@lifts("Add", "Sum")
def _add(lifter: Lifter, node: Node) -> list[LiftedValue]:
    operands = broadcast([lifter.value(t) for t in node.inputs])
    form = operands[0].form
    for operand in operands[1:]:
        form = form + operand.form
    return [operands[0].with_form(form)]


@lifts("Sub")
def _sub(lifter: Lifter, node: Node) -> list[LiftedValue]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    return [left.with_form(left.form + right.form.scaled(-1))]


@lifts("Mul")
def _mul(lifter: Lifter, node: Node) -> list[LiftedValue]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    return [left.with_form(left.form * right.form)]


@lifts("Div")
def _div(lifter: Lifter, node: Node) -> list[LiftedValue]:
    left, right = broadcast([lifter.operand(node, 0), lifter.operand(node, 1)])
    divisor = _elements(right)
    if divisor is not None:
        if np.any(divisor == 0):
            raise Miss("it divides by zero")
        return [left.with_form(left.form.scaled(1 / divisor))]
    softsign = _softsign(left.form, right.form)
    if softsign is not None:
        return [left.with_form(softsign)]
    return [left.with_form(left.form * _reciprocal_form(right.form))]


@lifts("Reciprocal")
def _reciprocal(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    return [value.with_form(_reciprocal_form(value.form))]


def _softsign(form: AffineForm, divisor: AffineForm) -> AffineForm | None:
    """`x / (1 + |x|)` as softsign(x); None for other quotients."""
    magnitude = form.activated("Abs").plus(1)
    return form.activated("Softsign") if magnitude.key == divisor.key else None


def _reciprocal_form(form: AffineForm) -> AffineForm:
    """`1 / (1 + exp(-x))` as sigmoid(x). Raises Miss for any other form."""
    exponential = AffineForm(form.width, form.terms, np.zeros(form.width, form.dtype))
    monomial, scale = exponential.single_monomial() or (None, form.bias)
    is_one = weights.is_filled(form.bias, 1) and weights.is_filled(scale, 1)
    if is_one and isinstance(monomial, ActivatedForm) and monomial.function == "Exp":
        return monomial.argument.scaled(-1).activated("Sigmoid")
    raise Miss("it divides by a value that is not constant")


# --- clipping ---


@lifts("Clip")
def _clip(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    low, high = _bound(lifter, node, 1, "min", -np.inf), _bound(lifter, node, 2, "max", np.inf)
    return [value.with_form(_clipped(value.form, low, high))]


@lifts("Max", "Min")
def _extremum(lifter: Lifter, node: Node) -> list[LiftedValue]:
    operands = [lifter.value(t) for t in node.inputs]
    limits = [v for v in operands if not v.form.terms]
    elements = _elements(limits[0]) if len(operands) == 2 and len(limits) == 1 else None
    if elements is None:
        raise Miss("it is not the {} of one value and a constant", node.op)
    value, _ = broadcast(sorted(operands, key=lambda v: v is limits[0]))
    if len(np.unique(elements)) != 1:
        raise Miss("its bounds differ between features")
    bound = float(elements[0])
    low, high = (bound, np.inf) if node.op == "Max" else (-np.inf, bound)
    return [value.with_form(_clipped(value.form, low, high))]


def _bound(lifter: Lifter, node: Node, slot: int, name: str, omitted: float) -> float:
    """A bound of a Clip: an input, or an attribute before opset 11."""
    if name in node.attrs:
        return float(node.attrs[name])
    if not lifter.has(node, slot):
        return omitted
    array = lifter.facts.constant(node.inputs[slot])
    if array is None or array.size != 1:
        raise Miss("its bounds are not constant")
    return float(array.ravel()[0])


def _clipped(form: AffineForm, low: float, high: float) -> AffineForm:
    """A clipped form, as Relu or HardSigmoid where it is one of these."""
    low, high = _effective_bound(low, form), _effective_bound(high, form)
    inner_low, inner_high, argument = _clip_bounds(form)
    if max(low, inner_low) <= min(high, inner_high):  # a clip of a clip is one clip
        low, high, form = max(low, inner_low), min(high, inner_high), argument
    if (low, high) == (-np.inf, np.inf):
        return form
    if low == 0 and high == np.inf:
        return form.activated("Relu")
    if low == 0 and high > 0:
        scale = np.full(form.width, high, form.dtype)
        return form.scaled(1 / scale).activated("HardSigmoid", (1.0, 0.0)).scaled(scale)
    return form.activated("Clip", (low, high))


def _effective_bound(bound: float, form: AffineForm) -> float:
    """Infinity for a bound that no number of the type exceeds."""
    is_unreachable = abs(bound) >= float(np.finfo(form.dtype.name).max)
    return float(np.copysign(np.inf, bound)) if is_unreachable else bound


def _clip_bounds(form: AffineForm) -> tuple[float, float, AffineForm]:
    """The bounds that a form is clipped to, and the form that is clipped."""
    monomial, scale = form.single_monomial() or (None, form.bias)
    if isinstance(monomial, ActivatedForm) and weights.is_filled(scale, 1):
        if monomial.function == "Clip":
            low, high = monomial.parameters
            return low, high, monomial.argument
        if monomial.function == "Relu":
            return 0.0, np.inf, monomial.argument
    return -np.inf, np.inf, form


# --- movement of elements ---


@lifts("Transpose")
def _transpose(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    axes = list(range(len(value.axes)))
    order = list(node.attrs.get("perm") or axes[::-1])
    if sorted(order) != axes:
        raise Miss("perm {} does not name each axis once", order)
    return [value.transpose(order)]


@lifts("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def _reshape(lifter: Lifter, node: Node) -> list[LiftedValue]:
    return [lifter.operand(node, 0).reshape(lifter.shape(node.outputs[0]))]


@lifts("Expand", "Tile")
def _repeat(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    shape = lifter.shape(node.outputs[0])
    padded: tuple[Axis, ...] = (1,) * (len(shape) - len(value.axes)) + value.axes
    axes: list[Axis] = []
    for axis, size in zip(padded, shape):
        own = axis.size if isinstance(axis, BatchAxis) else axis
        if own != 1 and symbolic.eq(own, size) is not True:
            raise Miss("it may repeat an axis of size {} to size {}", own, size)
        if own == 1 and size != 1:
            axes.append(size if isinstance(size, int) else BatchAxis(size))
        else:
            axes.append(axis)
    return [value.broadcast_to(tuple(axes))]


@lifts("Concat")
def _concat(lifter: Lifter, node: Node) -> list[LiftedValue]:
    return [lifting.concat([lifter.value(t) for t in node.inputs], int(node.attrs["axis"]))]


@lifts("Split")
def _split(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    axis = int(node.attrs.get("axis", 0)) % len(value.axes)
    results, first = [], 0
    for tensor in node.outputs:
        size = lifter.shape(tensor)[axis]
        if not isinstance(size, int):
            raise Miss("the size of its part {} is not known", tensor)
        results.append(value.select(axis, _between(first, first + size)))
        first += size
    return results


def _between(first: int, last: int) -> Callable[[Array], Array]:
    return lambda numbers: numbers[first:last]


@lifts("Gather")
def _gather(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    indices = lifter.facts.constant(node.inputs[1])
    if indices is None:
        raise Miss("its indices {} are not constant", node.inputs[1])
    axis = int(node.attrs.get("axis", 0)) % len(value.axes)
    size = value.axes[axis]
    if isinstance(size, int) and not bool(np.all((-size <= indices) & (indices < size))):
        raise Miss("its indices are out of bounds")
    return [value.select(axis, lambda numbers: np.asarray(np.take(numbers, indices)))]


@lifts("Slice")
def _slice(lifter: Lifter, node: Node) -> list[LiftedValue]:
    value = lifter.operand(node, 0)
    slices = axis_slices(lifter.facts, node)
    if slices is None:
        raise Miss("its axes or steps are not constant")
    for each in slices:
        value = _sliced(value, each)
    return [value]


def _sliced(value: LiftedValue, taken: AxisSlice) -> LiftedValue:
    if taken.is_whole(value.shape[taken.axis]):
        return value
    start, end, step = taken.start, taken.end, taken.step
    if not isinstance(start, int) or not isinstance(end, int):
        raise Miss("its bounds are not constant")
    return value.select(taken.axis, lambda numbers: numbers[start:end:step])


@lifts("ConstantOfShape")
def _constant_of_shape(lifter: Lifter, node: Node) -> list[LiftedValue]:
    given = node.attrs.get("value")
    dtype = numpy_type(lifter.facts, node.outputs[0])
    number = np.zeros(1, dtype) if given is None else np.asarray(given.values).reshape(1)
    if lifter.facts.dtype(node.outputs[0]) not in RNN_FLOATS:
        raise Miss("its result is not a float tensor")
    return [constant_value(number).broadcast_to(axes_of(lifter.shape(node.outputs[0])))]


# --- masks that are known to be all true or all false ---

_LOGIC: dict[str, Callable[..., Any]] = {
    "And": np.logical_and,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


@lifts(*_LOGIC)
def _logic(lifter: Lifter, node: Node) -> list[LiftedValue]:
    operands = broadcast([lifter.value(t) for t in node.inputs])
    truths = [_elements(v) for v in operands]
    if any(truth is None for truth in truths):
        raise _data_mask(node)
    return [operands[0].with_form(affine_forms.constant(_LOGIC[node.op](*truths)))]


@lifts("Where")
def _where(lifter: Lifter, node: Node) -> list[LiftedValue]:
    new, old = broadcast([lifter.operand(node, 1), lifter.operand(node, 2)])
    # Both may be one value in two spellings.
    if new.equals(old) and new.has_shape(lifter.shape(node.outputs[0])):
        return [new]
    mask = lifter.value_or_none(node.inputs[0])
    if mask is None:
        raise _data_mask(node)
    try:
        mask, new, old = broadcast([mask, new, old])
    except Miss:
        raise Miss("its mask {} differs between features", node.inputs[0]) from None
    truth = _elements(mask)
    if truth is None:
        raise _data_mask(node)
    if truth.all():
        return [new]
    if not truth.any():
        return [old]
    raise Miss("its mask {} selects features", node.inputs[0])


def _data_mask(node: Node) -> Miss:
    return Miss(f"its mask {{}} is data that is {UNKNOWN_MASK}", node.inputs[0])


# --- matrix products ---


@lifts("MatMul")
def _matmul(lifter: Lifter, node: Node) -> list[LiftedValue]:
    left, right = node.inputs
    matrix = lifter.weight(right)
    if matrix is not None:
        return [_stacked_product(lifter.value(left), matrix, -1)]
    matrix = lifter.weight(left)
    if matrix is None:
        raise Miss("neither of its operands is a weight")
    return [_stacked_product(lifter.value(right), matrix, -2)]


def _stacked_product(value: LiftedValue, matrix: Weight, summed: int) -> LiftedValue:
    """The product of a value and a matrix or stack of matrices, one result for each of them.

    `summed` is the axis of the value that is summed over: the last one, or the last but one for a
    matrix on the left.
    """
    rank = len(matrix.shape)
    if rank < 2:
        raise Miss("its weight is a vector")
    is_vector = len(value.axes) == 1
    stacks = [k - rank for k, n in enumerate(matrix.shape[:-2]) if n != 1]
    if len(stacks) > 1:
        raise Miss("its weight has {} axes besides those of a matrix", len(stacks))
    if not stacks:
        flat = weights.reshape(matrix, matrix.shape[-2:])
        flat = flat if summed == -1 else weights.transpose(flat)
        product = value.contract(-1 if is_vector else summed, flat)
        return _with_rank(product, rank - 1 if is_vector else rank)
    (stack,) = stacks
    results = []
    for number in range(matrix.shape[stack]):
        one = weights.take(matrix, np.array([number]), rank + stack)
        results.append(_stacked_product(_operand_of(value, stack, number), one, summed))
    return lifting.concat(results, stack + 1 if is_vector else stack)


def _operand_of(value: LiftedValue, axis: int, number: int) -> LiftedValue:
    """The operand of one matrix of a stack: one element along the axis, or all without the axis."""
    if len(value.axes) < -axis or value.axes[axis] == 1:
        return value
    return value.select(axis % len(value.axes), lambda numbers: numbers[[number]])


def _with_rank(value: LiftedValue, rank: int) -> LiftedValue:
    """The value with leading axes of size 1, as broadcasting adds them."""
    missing = max(rank - len(value.axes), 0)
    return LiftedValue(value.form, (1,) * missing + value.axes)


@lifts("Gemm")
def _gemm(lifter: Lifter, node: Node) -> list[LiftedValue]:
    attrs = node.attrs
    alpha, beta = float(attrs.get("alpha", 1.0)), float(attrs.get("beta", 1.0))
    flip_left, flip_right = bool(attrs.get("transA", 0)), bool(attrs.get("transB", 0))
    left, right = (lifter.weight(node.inputs[slot]) for slot in (0, 1))
    if right is not None:
        value = _flipped(lifter.operand(node, 0), flip_left)
        result = value.contract(-1, weights.transpose(right) if flip_right else right)
    elif left is not None:
        value = _flipped(lifter.operand(node, 1), flip_right)
        result = value.contract(-2, left if flip_left else weights.transpose(left))
    else:
        raise Miss("neither of its operands is a weight")
    result = result.scaled(alpha) if alpha != 1 else result
    if not lifter.has(node, 2) or beta == 0:
        return [result]
    addend = lifter.operand(node, 2)
    result, addend = broadcast([result, addend.scaled(beta) if beta != 1 else addend])
    return [result.with_form(result.form + addend.form)]


def _flipped(value: LiftedValue, flip: bool) -> LiftedValue:
    return value.transpose((1, 0)) if flip else value


@lifts("Einsum")
def _einsum(lifter: Lifter, node: Node) -> list[LiftedValue]:
    found = einsum_letters(node.attrs["equation"])
    if found is None or len(node.inputs) != 2:
        raise Miss("its equation has an ellipsis, or does not take two operands")
    letters, result = found
    for slot, tensor in enumerate(node.inputs):
        matrix = lifter.weight(tensor)
        if matrix is not None:
            value = lifter.operand(node, 1 - slot)
            return [_contraction(value, letters[1 - slot], matrix, letters[slot], result)]
    raise Miss("neither of its operands is a weight")


def _contraction(
    value: LiftedValue, own: str, matrix: Weight, other: str, result: str
) -> LiftedValue:
    """A value with the axes `own` times a weight with the axes `other`, with the axes `result`.

    Sums over the letters that the result lacks. A letter that all three have stands for a stack of
    weights, where each weight multiplies its own part of the value.
    """
    if any(len(set(letters)) != len(letters) for letters in (own, other, result)):
        raise Miss("its equation takes a diagonal")
    shared = next((c for c in own if c in other and c in result), None)
    if shared is not None:
        return _contraction_of_each(value, own, matrix, other, result, shared)
    summed = [c for c in own if c in other]
    kept, new = [c for c in own if c not in other], [c for c in other if c not in own]
    if not summed or sorted(result) != sorted([*kept, *new]):
        raise Miss("its equation is not a matrix product")
    sizes = dict(zip(other, matrix.shape))
    flat = weights.reshape(
        weights.permute_axes(matrix, [other.index(c) for c in (*summed, *new)]),
        (_product(sizes, summed), _product(sizes, new)),
    )
    value = value.transpose([own.index(c) for c in (*kept, *summed)])
    leading = value.shape[: len(kept)]
    product = value.reshape((*leading, flat.shape[0])).contract(-1, flat)
    product = product.reshape((*leading, *(sizes[c] for c in new)))
    axes = [*kept, *new]
    return product.transpose([axes.index(c) for c in result])


def _product(sizes: Mapping[str, int], letters: Sequence[str]) -> int:
    return math.prod(sizes[c] for c in letters)


def _contraction_of_each(
    value: LiftedValue, own: str, matrix: Weight, other: str, result: str, shared: str
) -> LiftedValue:
    """A contraction for each position along the axis `shared`, side by side."""
    axis, place, target = own.index(shared), other.index(shared), result.index(shared)
    rest = matrix.shape[:place] + matrix.shape[place + 1 :]
    letters = [text.replace(shared, "") for text in (own, other, result)]
    parts = []
    for number in range(matrix.shape[place]):
        one = weights.reshape(weights.take(matrix, np.array([number]), place), rest)
        part = _contraction(_element(value, axis, number), letters[0], one, letters[1], letters[2])
        parts.append(LiftedValue(part.form, (*part.axes[:target], 1, *part.axes[target:])))
    return lifting.concat(parts, target)


def _element(value: LiftedValue, axis: int, number: int) -> LiftedValue:
    """One element along a feature axis, without the axis."""
    return value.select(axis, lambda numbers: np.asarray(numbers[number]))
