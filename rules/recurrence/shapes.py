"""Between the axes that a loop's values have and those of the RNN operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from .layout import Layout


def to_operator(
    emit: Builder, value: Tensor, layout: Layout, ahead: int, direction: bool = False
) -> Tensor:
    """A value as (…, batch, features), behind `ahead` axes that stay; with an axis for the direction
    in front of the batch if asked for.
    """
    if direction and _has_place_for_direction(layout):
        return value
    value = emit.squeeze(value, [ahead + k for k in layout.units])
    value = emit.transpose(value, [*range(ahead), *(ahead + k for k in layout.order)])
    if len(layout.features) != 1:
        value = emit("Reshape", value, _sizes(emit, layout, ahead, [math.prod(layout.sizes)]))
    made = [ahead] if direction else []
    made += [ahead + len(made)] if layout.batch is None else []
    return emit.unsqueeze(value, made)


def _sizes(emit: Builder, layout: Layout, ahead: int, features: Sequence[int]) -> Tensor:
    """Of a value with the axes ahead, the batch and then the features; 0 stands for what is there."""
    return emit.vector(*[0] * (ahead + (layout.batch is not None)), *features)


def from_operator(emit: Builder, value: Tensor, layout: Layout, ahead: int) -> Tensor:
    """The inverse: from (…, direction, batch, features), of which the operator has one."""
    if _has_place_for_direction(layout):
        return value
    value = emit.squeeze(value, [ahead, *([ahead + 1] if layout.batch is None else [])])
    if len(layout.features) != 1:
        value = emit("Reshape", value, _sizes(emit, layout, ahead, layout.sizes))
    back = [layout.order.index(k) for k in range(len(layout.order))]
    value = emit.transpose(value, [*range(ahead), *(ahead + k for k in back)])
    return emit.unsqueeze(value, [ahead + k for k in layout.units])


def _has_place_for_direction(layout: Layout) -> bool:
    return layout.units == [0] and layout.batch == 1 and layout.features == (2,)


def only_number(facts: Facts, tensor: Tensor) -> symbolic.Dim | None:
    """The number that all elements of an integer tensor are; None where it is not known."""
    values = facts.of(tensor).values
    while not values:
        node = facts.index.producer(tensor)
        if node is None or node.domain or node.op not in _REPEATING:
            return None
        if facts.dtype(tensor) not in (TensorProto.INT32, TensorProto.INT64):
            return None  # a Cast to another type may wrap around
        tensor = node.inputs[0]
        values = facts.of(tensor).values
    first = values[0]
    same = all(v == first for v in values)
    return first if same and first is not None and not isinstance(first, bool) else None


_REPEATING = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Tile", "Unsqueeze"})
"""Operators whose results hold nothing but elements of their first operand."""
