"""Batching rules of operators that work along axes: reductions, Softmax, normalisation, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from .operator_table import Plan, Work, as_is, batching

_OF_ONE_ITSELF = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})
"""Reductions that give a single element as it is."""


@batching(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(work: Work) -> Plan:
    work.only(0)
    rank = work.rank(0)
    axes = [work.axis(a, rank) + 1 for a in work.ints(1, "axes")]
    if not axes:
        if work.attr("noop_with_empty_axes", 0):
            plain = work.node.op in _OF_ONE_ITSELF
            work.need(plain, "it reduces each element for itself")
            return Plan(lambda emit, operands: [operands[0]])
        axes = list(range(1, rank + 1))
    keep = int(work.attr("keepdims", 1))
    if not axes:
        work.need(work.node.op in _OF_ONE_ITSELF, "it reduces scalars")
        return Plan(lambda emit, operands: [operands[0]])
    return Plan(lambda emit, operands: [emit.reduce(work.node.op, operands[0], axes, keep)])


@batching("ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax")
def along_one_axis(work: Work) -> Plan:
    """Before opset 13 Softmax works on everything from its axis on, by default 1. That the axes in
    front of it are one axis more makes no difference.
    """
    rank = work.rank(0)
    soft = work.node.op not in ("ArgMax", "ArgMin")
    last = -1 if work.facts.opset >= 13 else 1
    axis = work.axis(work.attr("axis", last if soft else 0), rank)
    if not soft:
        size = work.shape(0)[axis]
        work.must_run(symbolic.positive(size), "the axis may be empty")
    return Plan(as_is(work, axis=axis + 1))


@batching("CumSum")
def running_sum(work: Work) -> Plan:
    work.only(0)
    (axis,) = work.ints(1)
    axis = work.axis(axis, work.rank(0)) + 1

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return as_is(work)(emit, [operands[0], emit.scalar(axis)])

    return Plan(build)


@batching("TopK")
def top(work: Work) -> Plan:
    work.only(0)
    shape = work.shape(0)
    axis = work.axis(work.attr("axis", -1), len(shape))
    count = work.facts.scalar(work.operand(1)) if work.present(1) else work.attr("k")
    enough = isinstance(count, int) and symbolic.le(count, shape[axis])
    work.must_run(enough, "there may be too few elements")
    return Plan(as_is(work, axis=axis + 1))


@batching("LayerNormalization", "RMSNormalization")
def layer_normalization(work: Work) -> Plan:
    work.only(0)
    shape = work.shape(0)
    axis = work.axis(work.attr("axis", -1), len(shape))
    others = [work.shape(slot) for slot in range(1, len(work.node.inputs)) if work.present(slot)]
    inner = shape[axis:]
    same = all(symbolic.equal_shapes(inner, other) for other in others)
    work.must_run(same, "scale and bias may not fit")
    return Plan(as_is(work, axis=axis + 1))


@batching("OneHot")
def one_hot(work: Work) -> Plan:
    work.only(0)
    axis = work.axis(work.attr("axis", -1), work.rank(0) + 1)
    depth = work.facts.scalar(work.operand(1))
    work.must_run(isinstance(depth, int) and depth > 0, "the depth may be wrong")
    return Plan(as_is(work, axis=axis + 1))
