"""The axes that an operator names, as an attribute or as an input depending on the opset."""

from __future__ import annotations

import numpy as np

from ..facts.facts import Facts
from .ir import Node


def named_axes(facts: Facts, node: Node) -> list[int] | None:
    """The axes that Squeeze removes, Unsqueeze adds or a reduction reduces, from the front.

    Squeeze and Unsqueeze take them as an input since opset 13, ReduceSum too, other reductions
    since opset 18 (ONNX operator specification). None where they are left out or not known, or the
    rank is not, of the result for Unsqueeze.
    """
    axes = node.attrs.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = facts.constant(node.inputs[1])
    rank = facts.rank(node.outputs[0] if node.op == "Unsqueeze" else node.inputs[0])
    if axes is None or rank is None:
        return None
    numbers = [int(axis) for axis in np.ravel(axes)]
    return [axis % rank for axis in numbers] if all(-rank <= a < rank for a in numbers) else None
