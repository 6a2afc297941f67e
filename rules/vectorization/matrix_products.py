"""Batching rules of matrix products: one product over all iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.symbolic import Dim
from .operator_table import Plan, Work, aligned, as_is, batching


@batching("MatMul")
def matmul(work: Work) -> Plan:
    left, right = work.shape(0), work.shape(1)
    _must_fit(work, left, right)
    ranks = (len(left), len(right))
    # onnxruntime cannot broadcast matrices to no matrices at all.
    if not work.batched[0]:
        flat = ranks[1] == 1 and ranks[0] <= 2
        work.must_run(flat, "the left operand is the same in every iteration")
    if not work.batched[1]:
        if ranks[0] > 1:
            _must_not_fuse(work, work.operand(0))
        work.must_run(ranks[1] <= 2, "the right operand is a uniform stack of matrices")
    return Plan(lambda emit, operands: [_product(emit, operands, work.batched, ranks)])


def _must_fit(work: Work, left: Sequence[Dim], right: Sequence[Dim]) -> None:
    work.need(bool(left) and bool(right), "a scalar is no matrix")
    inner = right[-2] if len(right) > 1 else right[-1]
    same = symbolic.eq(left[-1], inner)
    work.must_run(same, "sizes {} and {} may differ", left[-1], inner)
    work.must_broadcast(left[:-2], right[:-2])


def _must_not_fuse(work: Work, left: Tensor) -> None:
    """onnxruntime makes one operator of a Transpose and a product, which takes no empty stack."""
    producer = work.facts.index.producer
    made_by = producer(left)
    if made_by is not None and made_by.op == "Gather":
        made_by = producer(made_by.inputs[0])  # what iterations read, turned as a whole
    work.must_run(not _turns_matrices(made_by), "the left operand is transposed")


def _turns_matrices(node: Node | None) -> bool:
    """Whether it is a Transpose that moves the last axis."""
    if node is None or node.op != "Transpose":
        return False
    order = node.attrs.get("perm")
    return order is None or (bool(order) and order[-1] != len(order) - 1)


def _product(
    emit: Builder, operands: Sequence[Tensor], batched: Sequence[bool], ranks: tuple[int, int]
) -> Tensor:
    """a @ b where slices have the given ranks; numpy.matmul's meaning of vectors included."""
    a, b = operands
    if ranks[0] == 1 and not batched[1] and ranks[1] <= 2:
        # All vectors together are the rows of one matrix already.
        return _rows_times(emit, a, b, ranks[1])
    if ranks[1] == 1 and not batched[0] and ranks[0] <= 2:
        return _rows_times(emit, b, a if ranks[0] == 1 else _turned(emit, a), ranks[0])
    wanted = max(*ranks, 2)
    a, row = _as_matrix(emit, a, batched[0], ranks[0], 0, wanted)
    b, column = _as_matrix(emit, b, batched[1], ranks[1], 1, wanted)
    product = emit("MatMul", a, b)
    return emit.squeeze(product, [axis for axis, added in ((-2, row), (-1, column)) if added])


def _rows_times(emit: Builder, rows: Tensor, other: Tensor, rank: int) -> Tensor:
    """Each row times a matrix, or times a vector."""
    if rank == 2:
        return emit("MatMul", rows, other)
    return emit.squeeze(emit("MatMul", rows, emit.unsqueeze(other, [1])), [-1])


def _as_matrix(
    emit: Builder, value: Tensor, batched: bool, rank: int, side: int, wanted: int
) -> tuple[Tensor, bool]:
    """The operand as matrices, and whether the product has an axis of size 1 for it."""
    if not batched:
        # A uniform vector on the left has its meaning for any number of axes on the right.
        column = rank == 1 and side == 1
        return (emit.unsqueeze(value, [1]) if column else value), column
    added = rank == 1
    if added:
        value = emit.unsqueeze(value, [1 if side == 0 else 2])
        rank = 2
    return aligned(emit, value, True, rank, wanted), added


def _turned(emit: Builder, matrix: Tensor) -> Tensor:
    """The transpose; of a constant, computed now."""
    if isinstance(matrix, Constant) and not matrix.overridable:
        return emit.constant(np.ascontiguousarray(np.asarray(matrix.values).T))
    return emit.transpose(matrix, [1, 0])


@batching("Gemm")
def gemm(work: Work) -> Plan:
    """alpha * a @ b + beta * c, as a product and a sum: Gemm takes matrices only."""
    a = _turned_shape(work, 0, "transA")
    b = _turned_shape(work, 1, "transB")
    _must_fit(work, a, b)
    work.must_run(work.batched[0], "the left operand is the same in every iteration")
    turned = bool(work.attr("transA", 0)) and not work.batched[1]
    work.must_run(not turned, "the left operand is transposed")
    bias = work.shape(2) if work.present(2) else None
    if bias is not None:
        work.must_broadcast((a[0], b[1]), bias)
    beta = float(work.attr("beta", 1.0))
    added = bias is not None and beta != 0.0 and not is_zero(work.facts, work.operand(2))
    dtype = work.facts.dtype(work.operand(0))
    number = np.dtype(_numpy(dtype)) if work.need(dtype, "the element type is not known") else None

    def scaled(emit: Builder, value: Tensor, factor: float) -> Tensor:
        return (
            value if factor == 1.0 else emit("Mul", value, emit.constant(np.array(factor, number)))
        )

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        sides = [
            _transposed_slices(emit, operands[side], work.batched[side], bool(work.attr(name, 0)))
            for side, name in ((0, "transA"), (1, "transB"))
        ]
        product = _product(emit, sides, work.batched, (2, 2))
        result = scaled(emit, product, float(work.attr("alpha", 1.0)))
        if added and bias is not None:
            wide = aligned(emit, operands[2], work.batched[2], len(bias), 2)
            result = emit("Add", result, scaled(emit, wide, beta))
        return [result]

    work.need(work.batched[0] or work.batched[1], "only what is added differs")
    return Plan(build)


def _numpy(dtype: int) -> np.dtype:
    from onnx import helper

    return helper.tensor_dtype_to_np_dtype(dtype)


def _turned_shape(work: Work, slot: int, attribute: str) -> tuple[Dim, ...]:
    shape = work.shape(slot)
    work.need(len(shape) == 2, "{} is no matrix", work.operand(slot))
    return shape[::-1] if work.attr(attribute, 0) else shape


def _transposed_slices(emit: Builder, value: Tensor, batched: bool, turn: bool) -> Tensor:
    if not turn:
        return value
    return emit.transpose(value, [0, 2, 1]) if batched else _turned(emit, value)


@batching("Einsum")
def einsum(work: Work) -> Plan:
    """Batched terms get one index more."""
    equation = str(work.attr("equation")).replace(" ", "")
    work.need("." not in equation, "the equation has an ellipsis")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    letters = set(terms)
    if not arrow:
        result = "".join(sorted(c for c in letters - {","} if terms.count(c) == 1))
    sizes: dict[str, Dim] = {}
    for slot, term in enumerate(operands):
        shape = work.shape(slot)
        work.need(len(shape) == len(term), "the equation does not fit {}", work.operand(slot))
        for letter, size in zip(term, shape):
            same = symbolic.eq(sizes.setdefault(letter, size), size)
            work.must_run(same, "the sizes of index {} may differ", letter)
    free = next((c for c in "TUVWXYZtuvwxyz" if c not in letters), None)
    time = work.need(free, "the equation leaves no letter free")
    longer = [time + t if b else t for t, b in zip(operands, work.batched)]
    return Plan(as_is(work, equation=f"{','.join(longer)}->{time}{result}"))
