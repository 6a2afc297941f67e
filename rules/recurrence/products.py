"""How products with weights act on forms (ONNX operator specification)."""

from __future__ import annotations

from ...rewrite.ir import Node
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
        return [_applied(lifter.value(left), -1, _flat(matrix))]
    matrix = lifter.weight(left)
    if matrix is None:
        raise NotAffine("MatMul of two values is no affine function")
    value = lifter.value(right)
    axis = -1 if len(value.axes) == 1 else -2
    return [_applied(value, axis, weights.transposed(_flat(matrix)))]


def _flat(matrix: Weight) -> Weight:
    """A weight with two axes; axes of size 1 in front of them go."""
    if len(matrix.shape) < 2 or any(n != 1 for n in matrix.shape[:-2]):
        raise NotAffine("its weight is no matrix")
    return weights.reshaped(matrix, matrix.shape[-2:])


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
    """One letter of the value is summed over with the matrix, whose other letter takes its place."""
    inner, new = set(own) & set(other), set(other) - set(own)
    kept = [c for c in own if c not in inner]
    plain = len(inner) == len(new) == 1 and len(other) == 2 and len(set(own)) == len(own)
    if not plain or sorted(result) != sorted([*kept, *new]):
        raise NotAffine("the Einsum is of a kind that is not followed")
    (summed,), (made,) = inner, new
    turned = matrix if other == summed + made else weights.transposed(matrix)
    place = own.index(summed)
    applied = values.contracted(value, place, turned, behind=False)
    there = own.replace(summed, made)
    return values.transposed(applied, [there.index(c) for c in result])
