"""How products with weights act on forms (ONNX operator specification)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ...rewrite.graph.ir import Node
from . import forms, values, weights
from .coefficients import NotAffine
from .lifting import Lifter, lifts
from .operators import broadcast, times
from .values import Value
from .weights import Weight


@lifts("MatMul")
def _matmul(lifter: Lifter, node: Node) -> list[Value]:
    left, right = node.inputs
    matrix = lifter.weight(right)
    if matrix is not None:
        return [_stacked(lifter.value(left), matrix, -1)]
    matrix = lifter.weight(left)
    if matrix is None:
        raise NotAffine("MatMul of two values is no affine function")
    return [_stacked(lifter.value(right), matrix, -2)]


def _stacked(value: Value, matrix: Weight, summed: int) -> Value:
    """The value times a matrix, or a stack of them: one result for each, side by side. The axis of
    the value that is summed over is the last, or the last but one for a matrix on the left.
    """
    rank = len(matrix.shape)
    if rank < 2:
        raise NotAffine("its weight is no matrix")
    is_vector = len(value.axes) == 1
    stacks = [k - rank for k, n in enumerate(matrix.shape[:-2]) if n != 1]
    if len(stacks) > 1:
        raise NotAffine("its weight is a stack of stacks of matrices")
    if not stacks:
        flat = weights.reshaped(matrix, matrix.shape[-2:])
        applied = _applied(value, -1 if is_vector else summed, _as_right(flat, summed))
        return _with_rank(applied, rank - 1 if is_vector else rank)
    (stack,) = stacks
    results = []
    for number in range(matrix.shape[stack]):
        one = weights.take(matrix, np.array([number]), rank + stack)
        part = _stacked(_element(value, stack, number), one, summed)
        results.append(part)
    return values.joined(results, stack + 1 if is_vector else stack)


def _as_right(matrix: Weight, summed: int) -> Weight:
    return matrix if summed == -1 else weights.transposed(matrix)


def _element(value: Value, axis: int, number: int) -> Value:
    """What of a value meets one matrix of a stack: one element of the axis, or all if it has none."""
    if len(value.axes) < -axis or value.axes[axis] == 1:
        return value
    return values.along(value, axis % len(value.axes), lambda numbers: numbers[[number]])


def _with_rank(value: Value, rank: int) -> Value:
    """The value with axes of size 1 in front, as broadcasting adds them."""
    missing = max(rank - len(value.axes), 0)
    return Value(value.form, (1,) * missing + value.axes)


def _applied(value: Value, axis: int, matrix: Weight) -> Value:
    return values.contracted(value, axis, matrix, behind=False)


@lifts("Gemm")
def _gemm(lifter: Lifter, node: Node) -> list[Value]:
    attrs = node.attrs
    alpha, beta = float(attrs.get("alpha", 1.0)), float(attrs.get("beta", 1.0))
    flip_left, flip_right = bool(attrs.get("transA", 0)), bool(attrs.get("transB", 0))
    left, right = (lifter.weight(node.inputs[slot]) for slot in (0, 1))
    if right is not None:
        value = _flipped(lifter.operand(node, 0), flip_left)
        result = _applied(value, -1, weights.transposed(right) if flip_right else right)
    elif left is not None:
        value = _flipped(lifter.operand(node, 1), flip_right)
        result = _applied(value, -2, left if flip_left else weights.transposed(left))
    else:
        raise NotAffine("Gemm of two values is no affine function")
    result = times(result, alpha) if alpha != 1 else result
    if not lifter.has(node, 2) or beta == 0:
        return [result]
    addend = lifter.operand(node, 2)
    total = broadcast([result, times(addend, beta) if beta != 1 else addend])
    return [total[0].with_form(forms.added(total[0].form, total[1].form))]


def _flipped(value: Value, flip: bool) -> Value:
    return values.transposed(value, (1, 0)) if flip else value


@lifts("Einsum")
def _einsum(lifter: Lifter, node: Node) -> list[Value]:
    equation = node.attrs["equation"]
    equation = (equation.decode() if isinstance(equation, bytes) else equation).replace(" ", "")
    if "->" not in equation or "." in equation or len(node.inputs) != 2:
        raise NotAffine("the Einsum is of a kind that is not followed")
    terms, result = equation.split("->")
    letters = terms.split(",")
    slot = next((k for k in (0, 1) if lifter.weight(node.inputs[k]) is not None), None)
    if slot is None:
        raise NotAffine("Einsum of two values is no affine function")
    matrix = lifter.weight(node.inputs[slot])
    assert matrix is not None
    value = lifter.operand(node, 1 - slot)
    return [_contraction(value, letters[1 - slot], matrix, letters[slot], result)]


def _contraction(value: Value, own: str, matrix: Weight, other: str, result: str) -> Value:
    """A value with axes `own` times a weight with axes `other`, summed over what is not in `result`.

    A letter that all three have stands for a stack of weights, each of which meets its own part.
    """
    if any(len(set(letters)) != len(letters) for letters in (own, other, result)):
        raise NotAffine("the Einsum takes a diagonal")
    shared = next((c for c in own if c in other and c in result), None)
    if shared is not None:
        return _contraction_of_each(value, own, matrix, other, result, shared)
    summed = [c for c in own if c in other]
    kept, new = [c for c in own if c not in other], [c for c in other if c not in own]
    if not summed or sorted(result) != sorted([*kept, *new]):
        raise NotAffine("the Einsum is of a kind that is not followed")
    sizes = dict(zip(other, matrix.shape))
    turned = weights.reshaped(
        weights.rearranged(matrix, [other.index(c) for c in (*summed, *new)]),
        (_product(sizes, summed), _product(sizes, new)),
    )
    apart = values.transposed(value, [own.index(c) for c in (*kept, *summed)])
    ahead = apart.shape[: len(kept)]
    flat = values.reshaped(apart, (*ahead, turned.shape[0]))
    applied = values.reshaped(_applied(flat, -1, turned), (*ahead, *(sizes[c] for c in new)))
    there = [*kept, *new]
    return values.transposed(applied, [there.index(c) for c in result])


def _product(sizes: Mapping[str, int], letters: Sequence[str]) -> int:
    return math.prod(sizes[c] for c in letters)


def _contraction_of_each(
    value: Value, own: str, matrix: Weight, other: str, result: str, shared: str
) -> Value:
    axis, place = own.index(shared), other.index(shared)
    rest = matrix.shape[:place] + matrix.shape[place + 1 :]
    letters = [text.replace(shared, "") for text in (own, other, result)]
    parts = []
    for number in range(matrix.shape[place]):
        one = weights.reshaped(weights.take(matrix, np.array([number]), place), rest)
        part = _contraction(_at(value, axis, number), letters[0], one, letters[1], letters[2])
        behind = result.index(shared)
        parts.append(Value(part.form, (*part.axes[:behind], 1, *part.axes[behind:])))
    return values.joined(parts, result.index(shared))


def _at(value: Value, axis: int, number: int) -> Value:
    """One element of a feature axis, without the axis."""
    return values.along(value, axis, lambda numbers: np.asarray(numbers[number]))
