"""Values all of whose elements are one number."""

from __future__ import annotations

import numpy as np

from ..graph.ir import Constant, Tensor
from .facts import Facts

_MOVES = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
"""Operators whose results hold nothing but elements of their first operand."""


def is_zero(facts: Facts, tensor: Tensor) -> bool:
    """Whether all elements are surely zero, and none of them -0, whatever the shape."""
    elements = _elements(facts, tensor)
    return elements is not None and not np.any(elements) and not _has_sign(elements)


def has_negative_zero(facts: Facts, tensor: Tensor) -> bool:
    """Whether the elements are known, and one of them may be -0."""
    elements = _elements(facts, tensor)
    return elements is not None and _has_sign(elements[elements == 0])


def is_filled_with(facts: Facts, tensor: Tensor, number: float) -> bool:
    """Whether all elements surely equal one number, whatever the shape."""
    elements = _elements(facts, tensor)
    return elements is not None and bool(np.all(elements == number))


def _elements(facts: Facts, tensor: Tensor) -> np.ndarray | None:
    """Numbers among which all elements are; None where they are not known."""
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and node.op in _MOVES:
        tensor = node.inputs[0]
        node = facts.index.producer(tensor)
    if node is not None and not node.domain and node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return np.asarray(value.values if isinstance(value, Constant) else 0.0)
    return facts.constant(tensor)


def _has_sign(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and bool(np.any(np.signbit(array)))
