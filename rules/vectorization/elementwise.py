"""Batching rules of element-wise operators: broadcasting ranks are all there is to mind."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE
from ...rewrite.facts.purity import TOTAL_ELEMENTWISE
from ...rewrite.graph.ir import Tensor
from .operator_table import Plan, Work, aligned, as_is, batching

_MORE = (
    "Acosh", "Asinh", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "Celu", "Cosh", "Div", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "Mean", "Mish",
    "Mod", "Pow", "Reciprocal", "Selu", "Shrink", "Sinh", "Softsign", "Sum", "ThresholdedRelu",
)  # fmt: skip


@batching(*(TOTAL_ELEMENTWISE - {"Identity"}), *_MORE)
def elementwise(work: Work) -> Plan:
    """Any number of operands that broadcast against each other."""
    if work.node.op == "Cast":
        texts = TensorProto.STRING in (work.facts.dtype(work.operand(0)), work.attr("to"))
        work.must_run(not texts, "texts may not be numbers")
    if work.node.op in ("Div", "Mod") and not work.batched[1]:
        work.must_run(_is_no_zero(work), "a divisor may be 0")
    shapes = [work.shape(slot) for slot in range(len(work.node.inputs))]
    work.must_broadcast(*shapes)
    wanted = max(map(len, shapes))
    ranks = list(map(len, shapes))

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        wide = [
            aligned(emit, value, batched, rank, wanted)
            for value, batched, rank in zip(operands, work.batched, ranks)
        ]
        return as_is(work)(emit, wide)

    return Plan(build)


def _is_no_zero(work: Work) -> bool:
    """Whether nothing is divided by an integer 0: onnxruntime refuses one even where there is
    nothing to divide.
    """
    divisor = work.operand(1)
    if work.facts.dtype(divisor) in FLOAT_OR_DOUBLE:
        return True
    known = work.facts.constant(divisor)
    return known is not None and bool(known.all())


@batching("Clip")
def clip(work: Work) -> Plan:
    """The bounds are scalars, and those of all iterations are no scalars any more."""
    work.only(0)
    bounds = [work.shape(slot) for slot in range(1, len(work.node.inputs)) if work.present(slot)]
    work.must_run(not any(bounds), "a bound may be no scalar")
    return Plan(as_is(work))


@batching("PRelu")
def prelu(work: Work) -> Plan:
    """The slope broadcasts against x, never the other way round."""
    work.only(0)
    rank = work.rank(1)
    work.need(rank <= work.rank(0), "the slope has more axes than a slice")
    work.must_broadcast(work.shape(0), work.shape(1))
    return Plan(as_is(work))
