"""Batching rules of matrix products: one product over all iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.facts.splat import is_zero
from ...rewrite.graph.einsum import einsum_letters
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.symbolic import Dim
from .batching import BatchedNode, Plan, align_rank, batching_rule, same_operator

_EINSUM_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64)
"""The types for which onnxruntime has an Einsum."""
_LETTERS = "abcdefgh"
"""The indices of the axes before those of matrices."""


@batching_rule("MatMul")
def matmul(op: BatchedNode) -> Plan:
    """A product of stacks; of batched vectors, a product of the matrix whose rows they are."""
    left, right = op.shape(0), op.shape(1)
    _need_product(op, left, right)
    ranks = (len(left), len(right))
    # onnxruntime cannot broadcast matrices to an empty stack of matrices.
    if not op.batched[0]:
        is_matrix_times_rows = ranks[1] == 1 and ranks[0] <= 2
        op.need_speculatable(
            is_matrix_times_rows, "the left operand is the same in every iteration"
        )
    if not op.batched[1]:
        if not op.runs_at_least_once and ranks[1] > 2:
            return _product_of_stacks(op, left, right)
        if ranks[0] > 1:
            _need_no_transpose_fusion(op, op.operand(0))
    return Plan(lambda emit, operands: [_stacked_product(emit, operands, op.batched, ranks)])


def _product_of_stacks(op: BatchedNode, left: Sequence[Dim], right: Sequence[Dim]) -> Plan:
    """The product with an invariant stack of matrices as an Einsum, for loops that may not run.

    It pairs matrices of the two stacks; onnxruntime 1.31 computes that for no slices, too, whatever
    the other sizes are.
    """
    paired = len(right) - 2
    are_paired = len(left) >= len(right) and symbolic.equal_shapes(
        left[-paired - 2 : -2], right[:-2]
    )
    names = "the stacks {} and {} may not pair"
    op.need_speculatable(are_paired, names, op.operand(0), op.operand(1))
    is_known = op.facts.dtype(op.operand(0)) in _EINSUM_TYPES
    op.need_speculatable(is_known, "onnxruntime has no Einsum of the type of {}", op.operand(0))
    stack = _LETTERS[: len(left) - 2]
    op.need(len(stack) == len(left) - 2, "{} has too many axes", op.operand(0))
    equation = f"t{stack}mk,{stack[len(stack) - paired :]}kn->t{stack}mn"
    return Plan(lambda emit, operands: [emit("Einsum", *operands, equation=equation)])


def _need_product(op: BatchedNode, left: Sequence[Dim], right: Sequence[Dim]) -> None:
    """Raises Miss if the loop may not run and operands of these shapes may not have a product."""
    op.need(bool(left) and bool(right), "an operand is a scalar")
    inner = right[-2] if len(right) > 1 else right[-1]
    same = symbolic.eq(left[-1], inner)
    op.need_speculatable(same, "sizes {} and {} may differ", left[-1], inner)
    op.need_broadcast(left[:-2], right[:-2])


def _need_no_transpose_fusion(op: BatchedNode, left: Tensor) -> None:
    """Raises Miss if the loop may not run and the left operand is a Transpose.

    onnxruntime fuses a Transpose and a product into one operator, which takes no empty stack.
    """
    producer = op.facts.index.producer
    node = producer(left)
    if node is not None and node.op == "Gather":
        node = producer(node.inputs[0])  # a Transpose of the whole tensor that iterations read
    op.need_speculatable(not _moves_last_axis(node), "the left operand is transposed")


def _moves_last_axis(node: Node | None) -> bool:
    """Whether a node is a Transpose that moves the last axis."""
    if node is None or node.op != "Transpose":
        return False
    perm = node.attrs.get("perm")
    return perm is None or (bool(perm) and perm[-1] != len(perm) - 1)


def _stacked_product(
    emit: Builder, operands: Sequence[Tensor], batched: Sequence[bool], ranks: tuple[int, int]
) -> Tensor:
    """a @ b for slices of these ranks, with the meaning that numpy.matmul gives to vectors."""
    a, b = operands
    if ranks[0] == 1 and not batched[1] and ranks[1] <= 2:
        # The stacked vectors are the rows of one matrix.
        return _rows_times(emit, a, b, ranks[1])
    if ranks[1] == 1 and not batched[0] and ranks[0] <= 2:
        return _rows_times(emit, b, a if ranks[0] == 1 else _transpose(emit, a), ranks[0])
    target = max(*ranks, 2)
    a, added_row = _as_matrices(emit, a, batched[0], ranks[0], 0, target)
    b, added_column = _as_matrices(emit, b, batched[1], ranks[1], 1, target)
    product = emit("MatMul", a, b)
    added = [axis for axis, is_added in ((-2, added_row), (-1, added_column)) if is_added]
    return emit.squeeze(product, added)


def _rows_times(emit: Builder, rows: Tensor, other: Tensor, rank: int) -> Tensor:
    """Each row times a matrix, or times a vector."""
    if rank == 2:
        return emit("MatMul", rows, other)
    return emit.squeeze(emit("MatMul", rows, emit.unsqueeze(other, [1])), [-1])


def _as_matrices(
    emit: Builder, value: Tensor, batched: bool, rank: int, slot: int, target: int
) -> tuple[Tensor, bool]:
    """An operand as a stack of matrices, and whether that adds an axis of size 1 to the product."""
    if not batched:
        # MatMul takes an invariant vector on the left with any number of axes on the right.
        is_column = rank == 1 and slot == 1
        return (emit.unsqueeze(value, [1]) if is_column else value), is_column
    is_vector = rank == 1
    if is_vector:
        value = emit.unsqueeze(value, [1 if slot == 0 else 2])
        rank = 2
    return align_rank(emit, value, True, rank, target), is_vector


def _transpose(emit: Builder, matrix: Tensor) -> Tensor:
    """The transpose of a matrix; of a constant, another constant."""
    if isinstance(matrix, Constant) and not matrix.overridable:
        return emit.constant(np.ascontiguousarray(np.asarray(matrix.values).T))
    return emit.transpose(matrix, [1, 0])


@batching_rule("Gemm")
def gemm(op: BatchedNode) -> Plan:
    """alpha * a @ b + beta * c as a MatMul and an Add, because Gemm takes matrices only."""
    a = _factor_shape(op, 0, "transA")
    b = _factor_shape(op, 1, "transB")
    _need_product(op, a, b)
    op.need_speculatable(op.batched[0], "the left operand is the same in every iteration")
    fused = bool(op.attribute("transA", 0)) and not op.batched[1]
    op.need_speculatable(not fused, "the left operand is transposed")
    bias = op.shape(2) if op.has_operand(2) else None
    if bias is not None:
        op.need_broadcast((a[0], b[1]), bias)
    beta = float(op.attribute("beta", 1.0))
    if beta == 0.0 or (bias is not None and is_zero(op.facts, op.operand(2))):
        bias = None
    dtype = op.need(op.facts.dtype(op.operand(0)), "the element type is not known")
    kind = helper.tensor_dtype_to_np_dtype(dtype)

    def scale(emit: Builder, value: Tensor, factor: float) -> Tensor:
        if factor == 1.0:
            return value
        return emit("Mul", value, emit.constant(np.array(factor, kind)))

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        factors = [
            _factor(emit, operands[slot], op.batched[slot], bool(op.attribute(name, 0)))
            for slot, name in ((0, "transA"), (1, "transB"))
        ]
        product = _stacked_product(emit, factors, op.batched, (2, 2))
        result = scale(emit, product, float(op.attribute("alpha", 1.0)))
        if bias is not None:
            aligned = align_rank(emit, operands[2], op.batched[2], len(bias), 2)
            result = emit("Add", result, scale(emit, aligned, beta))
        return [result]

    op.need(op.batched[0] or op.batched[1], "only the bias differs between iterations")
    return Plan(build)


def _factor_shape(op: BatchedNode, slot: int, transposed: str) -> tuple[Dim, ...]:
    """The shape of a factor of a Gemm, transposed if that attribute says so."""
    shape = op.shape(slot)
    op.need(len(shape) == 2, "{} is not a matrix", op.operand(slot))
    return shape[::-1] if op.attribute(transposed, 0) else shape


def _factor(emit: Builder, value: Tensor, batched: bool, transposed: bool) -> Tensor:
    """A factor of a Gemm, transposed if asked for."""
    if not transposed:
        return value
    return emit.transpose(value, [0, 2, 1]) if batched else _transpose(emit, value)


@batching_rule("Einsum")
def einsum(op: BatchedNode) -> Plan:
    """Gives the batched terms and the result one more index."""
    terms, result = op.need(
        einsum_letters(op.node.attrs["equation"]), "the equation has an ellipsis"
    )
    letters = set("".join(terms))
    sizes: dict[str, Dim] = {}
    for slot, term in enumerate(terms):
        shape = op.shape(slot)
        op.need(len(shape) == len(term), "the equation does not fit {}", op.operand(slot))
        for letter, size in zip(term, shape):
            same = symbolic.eq(sizes.setdefault(letter, size), size)
            op.need_speculatable(same, "the sizes of index {} may differ", letter)
    free = next((c for c in "TUVWXYZtuvwxyz" if c not in letters), None)
    new = op.need(free, "the equation leaves no letter free")
    stacked = [new + term if batched else term for term, batched in zip(terms, op.batched)]
    # onnxruntime 1.31 divides by zero in "Te,Tde->Td" where T is 0, not in "Tde,Te->Td".
    order = sorted(range(len(terms)), key=lambda slot: -len(terms[slot]))
    equation = f"{','.join(stacked[slot] for slot in order)}->{new}{result}"
    build = same_operator(op, equation=equation)
    return Plan(lambda emit, operands: build(emit, [operands[slot] for slot in order]))
