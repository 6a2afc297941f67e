"""Values that hold nothing but zeros."""

from __future__ import annotations

import numpy as np

from ..rewrite.facts import Facts
from ..rewrite.ir import Constant, Tensor

_MOVES = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
"""Operators whose results hold nothing but elements of their first operand."""


def is_zero(facts: Facts, tensor: Tensor) -> bool:
    """Whether all elements are surely zero, and none of them -0, whatever the shape."""
    node = facts.index.producer(tensor)
    if node is not None and not node.domain and node.op in _MOVES:
        return is_zero(facts, node.inputs[0])
    if node is not None and not node.domain and node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return value is None or (isinstance(value, Constant) and _holds_zeros(value.values))
    array = facts.constant(tensor)
    return array is not None and _holds_zeros(array)


def _holds_zeros(array: np.ndarray) -> bool:
    return not np.any(array) and (array.dtype.kind != "f" or not np.any(np.signbit(array)))
