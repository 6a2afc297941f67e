"""Batching rules of LSTM, GRU and RNN: the rows of all iterations are one batch.

X (iterations, time, batch, features) is run as (time, iterations * batch, features).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from .batching import BatchedNode, Plan, batching_rule

_BATCH_AXES = {0: 1, 4: 0, 5: 1, 6: 1}
"""The batch axis of X, sequence_lens, initial_h and initial_c, by slot; weights have none."""
_RESULT_AXES = (2, 1, 1)
"""The batch axis of Y, Y_h and Y_c (ONNX operator specification, LSTM with layout 0)."""


@batching_rule("GRU", "LSTM", "RNN")
def recurrent_operator(op: BatchedNode) -> Plan:
    """The operator over a batch of the rows of all iterations."""
    op.need(not op.attribute("layout", 0), "it has layout 1, with the batch first")
    # onnxruntime's LSTM and GRU end the process for a batch of no rows.
    op.need_speculatable(False, "it may fail on an empty batch")
    op.need_empty_reshapes()
    for slot, is_batched in enumerate(op.batched):
        weight = "its weights {} differ from iteration to iteration"
        op.need(slot in _BATCH_AXES or not is_batched, weight, op.operand(slot))
    ranks = [len(op.shape(slot)) for slot in (0, 5, 6) if op.has_operand(slot)]
    op.need(set(ranks) == {3}, "an operand does not have 3 axes")
    return Plan(lambda emit, operands: _over_all_rows(emit, op, operands))


def _over_all_rows(emit: Builder, op: BatchedNode, operands: Sequence[Tensor]) -> list[Tensor]:
    first = op.batched.index(True)
    iterations = emit.shape(operands[first], 0, 1)
    axis = _BATCH_AXES[first] + 1
    rows = emit.shape(operands[first], axis, axis + 1)
    merged = list(operands)
    for slot, axis in _BATCH_AXES.items():
        if not op.has_operand(slot):
            continue
        rank = op.rank(slot)
        value = operands[slot]
        if op.batched[slot]:
            value = emit.move_axis(value, 0, axis, rank + 1)
        else:
            ones = [emit.vector(1)] * (rank + 1)
            ones[axis] = iterations
            value = emit("Expand", emit.unsqueeze(value, [axis]), emit.concat(ones))
        merged[slot] = emit.merge_axes(value, axis, rank + 1)
    results = emit.outputs(op.node.op, merged, op.node.outputs, **op.node.attrs)
    return [
        _by_iteration(emit, result, iterations, rows, axis) if result.name else result
        for result, axis in zip(results, _RESULT_AXES)
    ]


def _by_iteration(
    emit: Builder, result: Tensor, iterations: Tensor, rows: Tensor, axis: int
) -> Tensor:
    """A result whose batch axis is split into iterations, which become axis 0, and rows."""
    rank = 4 if axis == 2 else 3
    sizes = [emit.shape(result, 0, axis), iterations, rows, emit.shape(result, axis + 1, rank)]
    return emit.move_axis(emit.reshape(result, emit.concat(sizes)), axis, 0, rank + 1)
