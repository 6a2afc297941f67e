"""Batching rules of elementwise operators: only the ranks of operands that broadcast matter."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.purity import TOTAL_ELEMENTWISE
from ...rewrite.graph.ir import Tensor
from .batching import BatchedNode, Plan, align_rank, batching_rule, same_operator

_PARTIAL_ELEMENTWISE = (
    "Acosh", "Asinh", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Celu", "Cosh", "Div", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "Mean", "Mish",
    "Mod", "Pow", "Reciprocal", "Selu", "Shrink", "Sinh", "Softsign", "Sum", "ThresholdedRelu",
)  # fmt: skip


@batching_rule(*(TOTAL_ELEMENTWISE - {"Identity"}), *_PARTIAL_ELEMENTWISE)
def elementwise(op: BatchedNode) -> Plan:
    """Operators with any number of operands that broadcast against each other."""
    if op.node.op == "Cast":
        strings = TensorProto.STRING in (op.facts.dtype(op.operand(0)), op.attribute("to"))
        op.need_speculatable(not strings, "a string may not be a number")
    if op.node.op in ("Div", "Mod") and not op.batched[1]:
        op.need_speculatable(_is_nonzero(op, 1), "a divisor may be 0")
    shapes = [op.shape(slot) for slot in range(len(op.node.inputs))]
    op.need_broadcast(*shapes)
    ranks = [len(shape) for shape in shapes]

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        aligned = [
            align_rank(emit, value, batched, rank, max(ranks))
            for value, batched, rank in zip(operands, op.batched, ranks)
        ]
        return same_operator(op)(emit, aligned)

    return Plan(build)


def _is_nonzero(op: BatchedNode, slot: int) -> bool:
    """Whether no element of a divisor is an integer 0.

    onnxruntime refuses to divide by an integer 0 even where there is nothing to divide.
    """
    divisor = op.operand(slot)
    if op.facts.dtype(divisor) in FLOAT_OR_DOUBLE:
        return True
    known = op.facts.constant(divisor)
    return known is not None and bool(known.all())


@batching_rule("Clip")
def clip(op: BatchedNode) -> Plan:
    """The bounds must be scalars, so they cannot be batched."""
    op.need_only_first_batched()
    scalars = all(op.shape(slot) == () for slot in op.optional_operands())
    op.need_speculatable(scalars, "a bound may not be a scalar")
    return Plan(same_operator(op))


@batching_rule("PRelu")
def prelu(op: BatchedNode) -> Plan:
    """The slope broadcasts to x; x does not broadcast to the slope."""
    op.need_only_first_batched()
    op.need(op.rank(1) <= op.rank(0), "the slope has more axes than a slice")
    op.need_broadcast(op.shape(0), op.shape(1))
    return Plan(same_operator(op))
