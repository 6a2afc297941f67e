"""Batching rules of operators that work along axes.

Reductions, Softmax, normalisation and sorting name their axes, which all move by one. Convolution
and pooling have a batch as their first axis: the iterations and the batch become one axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from ...rewrite.symbolic import Dim
from .batching import BatchedNode, Plan, batching_rule, same_operator

_IDENTITY_ON_ONE = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})
"""Reductions whose result for a single element is that element."""


@batching_rule(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(op: BatchedNode) -> Plan:
    """Reduces the same axes; all axes of a slice where none are given."""
    op.need_only_first_batched()
    rank = op.rank(0)
    axes = [op.need_axis(a, rank) + 1 for a in op.integers(1, "axes")]
    each_element = not axes and (rank == 0 or bool(op.attribute("noop_with_empty_axes", 0)))
    if each_element:
        op.need(op.node.op in _IDENTITY_ON_ONE, "it reduces single elements")
        return Plan(lambda emit, operands: [operands[0]])
    axes = axes or list(range(1, rank + 1))
    keep = int(op.attribute("keepdims", 1))
    return Plan(lambda emit, operands: [emit.reduce(op.node.op, operands[0], axes, keep)])


@batching_rule("ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "Softmax")
def along_one_axis(op: BatchedNode) -> Plan:
    """Before opset 13 Softmax, LogSoftmax and Hardmax flatten the axes from `axis` on, by default 1.

    They also flatten the axes before it, so one more of these makes no difference.
    """
    rank = op.rank(0)
    is_search = op.node.op in ("ArgMax", "ArgMin")
    softmax_default = -1 if op.facts.opset >= 13 else 1
    axis = op.need_axis(op.attribute("axis", 0 if is_search else softmax_default), rank)
    if is_search:
        op.need_speculatable(symbolic.positive(op.shape(0)[axis]), "the axis may be empty")
    return Plan(same_operator(op, axis=axis + 1))


@batching_rule("CumSum")
def prefix_sum(op: BatchedNode) -> Plan:
    """The axis is an operand."""
    op.need_only_first_batched()
    (axis,) = op.integers(1)
    axis = op.need_axis(axis, op.rank(0)) + 1

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return same_operator(op)(emit, [operands[0], emit.scalar(axis)])

    return Plan(build)


@batching_rule("TopK")
def top_k(op: BatchedNode) -> Plan:
    """k is an operand since opset 10, and an attribute before."""
    op.need_only_first_batched()
    shape = op.shape(0)
    axis = op.need_axis(op.attribute("axis", -1), len(shape))
    k = op.facts.scalar(op.operand(1)) if op.has_operand(1) else op.attribute("k")
    enough = isinstance(k, int) and symbolic.le(k, shape[axis])
    op.need_speculatable(enough, "the axis may have fewer than k elements")
    return Plan(same_operator(op, axis=axis + 1))


@batching_rule("LayerNormalization", "RMSNormalization")
def layer_normalization(op: BatchedNode) -> Plan:
    """Normalises the axes from `axis` on."""
    op.need_only_first_batched()
    shape = op.shape(0)
    axis = op.need_axis(op.attribute("axis", -1), len(shape))
    same = all(
        symbolic.equal_shapes(shape[axis:], op.shape(slot)) for slot in op.optional_operands()
    )
    op.need_speculatable(same, "scale and bias may have another shape than the normalised axes")
    return Plan(same_operator(op, axis=axis + 1))


@batching_rule("OneHot")
def one_hot(op: BatchedNode) -> Plan:
    """Inserts an axis into the indices."""
    op.need_only_first_batched()
    axis = op.need_axis(op.attribute("axis", -1), op.rank(0) + 1)
    depth = op.facts.scalar(op.operand(1))
    op.need_speculatable(isinstance(depth, int) and depth > 0, "the depth may not be positive")
    return Plan(same_operator(op, axis=axis + 1))


# --- operators whose first axis is a batch ---


@batching_rule(
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
    "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN",
    "LpPool", "MaxPool", "SpaceToDepth",
)  # fmt: skip
def batch_first(op: BatchedNode) -> Plan:
    """Merges the iterations into the batch, and divides the batch of the result again."""
    op.need_only_first_batched()
    op.need(len(op.node.outputs) == 1, "it has several results")
    before, after = op.shape(0), op.result_shape()
    op.need(len(before) >= 2, "{} has no batch axis", op.operand(0))
    if _positive_sizes((*before[1:], *after)) is None:
        op.need_empty_reshapes()
    sizes = _positive_sizes((*before[1:], *after[1:]))
    op.need_speculatable(sizes is not None, "a size of {} is not known", op.operand(0))
    for slot in op.optional_operands():
        known = _positive_sizes(op.shape(slot)) is not None
        op.need_speculatable(known, "the shape of {} may not fit", op.operand(slot))
    # onnxruntime computes it by a Reshape that takes no empty batch.
    op.need_speculatable(op.node.op != "GroupNormalization", "it takes no empty batch")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, *weights = operands
        (result,) = same_operator(op)(emit, [_merge_batches(emit, x, before), *weights])
        return [_divide_batches(emit, result, x, before[0], after)]

    return Plan(build)


def _positive_sizes(dims: Sequence[Dim]) -> list[int] | None:
    """The sizes if all of them are known numbers other than 0."""
    sizes = [d for d in dims if isinstance(d, int) and d > 0]
    return sizes if len(sizes) == len(dims) else None


def _merge_batches(emit: Builder, value: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Merges the axis of the iterations with the batch axis; `shape` is that of a slice."""
    sizes = _positive_sizes(shape[1:])
    if sizes is not None:
        return emit("Reshape", value, emit.vector(-1, *sizes))
    both = emit.reduce("ReduceProd", emit.shape(value, 0, 2), [0], 1)
    others = emit.shape(value, 2, len(shape) + 1)
    return emit.reshape(value, emit.concat([both, others]))


def _divide_batches(
    emit: Builder, value: Tensor, batched: Tensor, batch: Dim, shape: Sequence[Dim]
) -> Tensor:
    """Divides the merged axis into iterations and batch, of the sizes that they have in `batched`.

    `shape` is that of a slice of the result.
    """
    sizes = _positive_sizes((batch, *shape[1:]))
    if sizes is not None:
        return emit("Reshape", value, emit.vector(-1, *sizes))
    both = emit.shape(batched, 0, 2)
    return emit.reshape(value, emit.concat([both, emit.shape(value, 1, len(shape))]))
