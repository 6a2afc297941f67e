"""Batching rules of operators whose first axis is a batch axis: time and batch become one axis."""

from __future__ import annotations

from collections.abc import Sequence

from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from ...rewrite.symbolic import Dim
from .operator_table import Plan, Work, as_is, batching


@batching(
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
    "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN",
    "LpPool", "MaxPool", "SpaceToDepth",
)  # fmt: skip
def batch_axis_first(work: Work) -> Plan:
    work.only(0)
    work.need(len(work.node.outputs) == 1, "it has several results")
    before, after = work.shape(0), work.result_shape()
    work.need(len(before) >= 2, "{} has no batch axis", work.operand(0))
    if not _are_sizes((*before[1:], *after)):
        work.computes_shapes()
    work.must_run(_are_sizes((*before[1:], *after[1:])), "a size of {} is open", work.operand(0))
    for slot in range(1, len(work.node.inputs)):
        fixed = not work.present(slot) or _are_sizes(work.shape(slot))
        work.must_run(fixed, "{} may not fit", work.operand(slot))
    # onnxruntime computes it by a Reshape that takes no empty batch.
    work.must_run(work.node.op != "GroupNormalization", "it takes no empty batch")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, *weights = operands
        (result,) = as_is(work)(emit, [merged(emit, x, before), *weights])
        return [divided(emit, result, x, before[0], after)]

    return Plan(build)


def _are_sizes(dims: Sequence[Dim]) -> bool:
    return all(isinstance(d, int) and d > 0 for d in dims)


def merged(emit: Builder, value: Tensor, shape: Sequence[Dim]) -> Tensor:
    """Time and batch as one axis; `shape` is that of a slice."""
    rest = shape[1:]
    if _are_sizes(rest):
        return emit("Reshape", value, emit.vector(-1, *map(int, rest)))  # type: ignore[arg-type]
    both = emit.reduce("ReduceProd", emit.shape(value, 0, 2), [0], 1)
    others = emit.shape(value, 2, len(shape) + 1)
    return emit.reshape(value, emit.concat([both, others]))


def divided(emit: Builder, value: Tensor, like: Tensor, batch: Dim, shape: Sequence[Dim]) -> Tensor:
    """The one axis as time and batch again, which have the sizes they have in `like`."""
    sizes = (batch, *shape[1:])
    if _are_sizes(sizes):
        return emit("Reshape", value, emit.vector(-1, *map(int, sizes)))  # type: ignore[arg-type]
    both = emit.shape(like, 0, 2)
    return emit.reshape(value, emit.concat([both, emit.shape(value, 1, len(shape))]))
