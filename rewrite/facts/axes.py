"""Operands that are an attribute in old opsets and an input in newer ones, such as axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..graph.ir import Node, Tensor, optional
from .facts import Facts

T = TypeVar("T")


def attribute_or_input(
    node: Node,
    name: str,
    slot: int,
    look_up: Callable[[Tensor], T | None],
    omitted: T | None = None,
) -> T | list[Any] | None:
    """The elements of an operand: the attribute `name`, or what `look_up` returns for the input.

    Returns `omitted` if the node has neither.
    """
    if name in node.attrs:
        return list(node.attrs[name])
    operand = optional(node.inputs, slot)
    return omitted if operand is None else look_up(operand)


def named_axes(facts: Facts, node: Node) -> list[int] | None:
    """The axes that Squeeze removes, Unsqueeze adds, or a reduction reduces; never negative.

    Squeeze, Unsqueeze and ReduceSum take them as an input since opset 13, other reductions since
    opset 18 (ONNX operator specification). None where they are omitted or not known, or where the
    rank of the operand (for Unsqueeze, of the result) is not known.
    """
    axes = attribute_or_input(node, "axes", 1, facts.constant)
    rank = facts.rank(node.outputs[0] if node.op == "Unsqueeze" else node.inputs[0])
    if axes is None or rank is None:
        return None
    numbers = [int(axis) for axis in np.ravel(axes)]
    return [axis % rank for axis in numbers] if all(-rank <= a < rank for a in numbers) else None
