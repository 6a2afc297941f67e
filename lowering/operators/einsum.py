"""Einsum, as a product of matrices where it is one."""

from __future__ import annotations

import functools
import operator
import string
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ...rewrite.graph.einsum import einsum_letters, is_equation
from ..values import Value, as_int, fresh_dim
from .accumulation import accumulate_in_float32
from .broadcasting import ONE, broadcast_dims, broadcast_to, known_dims, match_dims
from .matmul import BYTE_TYPES
from .reductions import fill_if_empty
from .registry import ConverterContext, converts


@converts("Einsum")
@accumulate_in_float32
def einsum(ctx: ConverterContext) -> Value:
    """Einsum, see https://onnx.ai/onnx/operators/onnx__Einsum.html.

    Operands are broadcast first along a letter whose sizes may differ: TVM takes one of them for
    all, and onnxruntime broadcasts a size of 1.
    """
    equation = ctx.attr("equation")
    if not is_equation(equation, len(ctx.inputs)):
        raise UnsupportedError(f"'{equation}' is no equation of {len(ctx.inputs)} operands")
    shapes = [known_dims(value) for value in ctx.inputs]
    if None in shapes:
        return ctx.by_tvm()
    ranks = [len(shape or ()) for shape in shapes]
    letters = einsum_letters(_with_letters(equation, ranks))
    operands = [] if letters is None else letters[0]
    if letters is None or [len(names) for names in operands] != ranks:
        raise UnsupportedError(f"the equation is not one for operands of ranks {ranks}")
    sizes: dict[str, list[Any]] = {}
    for names, shape in zip(operands, shapes, strict=True):
        for letter, size in zip(names, shape or (), strict=True):
            sizes.setdefault(letter, []).append([size])
    common = {letter: broadcast_dims(found)[0] for letter, found in sizes.items()}
    # A symbol replaces each choice between two sizes: TVM derives no shape from choices.
    named = {c: fresh_dim(c) if isinstance(d, tirx.Select) else d for c, d in common.items()}
    aligned = []
    for value, names in zip(ctx.inputs, operands, strict=True):
        whole = broadcast_to(ctx.bb, value, [common[letter] for letter in names])
        aligned.append(match_dims(ctx.bb, whole, [named[letter] for letter in names]))
    product = _as_product(ctx, aligned, operands, letters[1], named)
    if product is not None:
        return product
    summed = [size for letter, size in named.items() if letter not in letters[1]]
    return fill_if_empty(ctx, ctx.bb.normalize(ctx.by_tvm(aligned)), summed, 0)


def _with_letters(equation: str, ranks: Sequence[int]) -> str:
    """The equation with letters in place of each ellipsis; as it is where a rank is too small.

    The axes of an ellipsis are broadcast from the last one on. A result that is not given has them
    first. Raises UnsupportedError for a result that lacks them, as onnxruntime does.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    if "..." not in operands:
        return equation.replace("...", "")
    counts = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    free = [letter for letter in string.ascii_letters if letter not in equation]
    if min(counts) < 0 or max(counts) > len(free):
        return equation
    if arrow and max(counts) and "..." not in result:
        raise UnsupportedError("the result lacks the axes of an ellipsis, which are not summed")
    names = "".join(free[: max(counts)])
    terms = [
        term.replace("...", names[len(names) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    if not arrow:
        once = {letter for letter in operands if letter.isalpha() and operands.count(letter) == 1}
        result = "..." + "".join(sorted(once))
    return ",".join(terms) + "->" + result.replace("...", names)


def _as_product(
    ctx: ConverterContext,
    values: Sequence[Value],
    operands: Sequence[str],
    result: str,
    sizes: Mapping[str, Any],
) -> Value | None:
    """An Einsum of two operands as a product of matrices; None where it is none.

    Letters of both operands are batch axes if the result has them, and contracted otherwise. The
    other letters of the left operand are rows, those of the right one columns.
    """
    if len(operands) != 2 or any(len(set(names)) < len(names) for names in (*operands, result)):
        return None
    if str(values[0].ty.dtype) in BYTE_TYPES:
        return None  # MatMul adds them up in int32.
    if any(as_int(size) == 0 for size in sizes.values()):
        return None  # `reshape` would read 0 as a size of the operand.
    left, right = operands
    batch = [letter for letter in result if letter in left and letter in right]
    rows = [letter for letter in result if letter not in right]
    columns = [letter for letter in result if letter not in left]
    summed = [letter for letter in left if letter in right and letter not in result]
    summed_alone = [c for c in set(left) ^ set(right) if c not in result]
    if summed_alone or not (rows and columns and summed):
        return None
    ends = (rows, columns), (columns, rows)
    if len(summed) == 1 and any(result[-2] in a and result[-1] in b for a, b in ends):
        return None  # The kernel for such a product reads the operands where they are.
    factors = (
        _with_axes(ctx.bb, value, names, [*([letter] for letter in batch), *groups], sizes)
        for value, names, groups in zip(
            values, operands, ([rows, summed], [summed, columns]), strict=True
        )
    )
    product = ctx.apply("MatMul", *factors)
    order = [*batch, *rows, *columns]
    if len(rows) + len(columns) > 2:
        shape = relax.ShapeExpr([sizes[letter] for letter in order])
        product = ctx.bb.normalize(relax.op.reshape(product, shape))
    return _permuted(ctx.bb, product, order, result)


def _with_axes(
    bb: Any, value: Value, names: str, groups: Sequence[Sequence[str]], sizes: Mapping[str, Any]
) -> Value:
    """An operand with one axis for each group of letters."""
    permuted = _permuted(bb, value, names, [letter for group in groups for letter in group])
    if all(len(group) == 1 for group in groups):
        return permuted
    shape = [functools.reduce(operator.mul, (sizes[c] for c in group), ONE) for group in groups]
    return bb.normalize(relax.op.reshape(permuted, relax.ShapeExpr(shape)))


def _permuted(bb: Any, value: Value, names: Sequence[str], wanted: Sequence[str]) -> Value:
    """A tensor with the axes `names` in another order."""
    if list(names) == list(wanted):
        return value
    axes = [names.index(letter) for letter in wanted]
    return bb.normalize(relax.op.permute_dims(value, axes))
