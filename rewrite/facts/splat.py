"""Splat values: values all of whose elements are known, often one number, whatever the shape."""

from __future__ import annotations

import numpy as np

from ..graph.ir import Constant, Tensor
from .facts import Facts

_ELEMENTS_OF_FIRST = frozenset(
    {"Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
"""Operators whose results have no elements but those of their first operand."""


def is_zero(facts: Facts, tensor: Tensor) -> bool:
    """Whether all elements are known to be 0, and none of them -0."""
    elements = _elements(facts, tensor)
    return elements is not None and not np.any(elements) and not _any_negative_sign(elements)


def has_negative_zero(facts: Facts, tensor: Tensor) -> bool:
    """Whether the elements are known, and one of them may be -0."""
    elements = _elements(facts, tensor)
    return elements is not None and _any_negative_sign(elements[elements == 0])


def is_filled_with(facts: Facts, tensor: Tensor, number: float) -> bool:
    """Whether all elements are known to equal one number."""
    elements = _elements(facts, tensor)
    return elements is not None and bool(np.all(elements == number))


def _elements(facts: Facts, tensor: Tensor) -> np.ndarray | None:
    """An array that has every element of a value; None where they are not known."""
    node = facts.index.producer(tensor)
    while node is not None and not node.domain and node.op in _ELEMENTS_OF_FIRST:
        tensor = node.inputs[0]
        node = facts.index.producer(tensor)
    if node is not None and not node.domain and node.op == "ConstantOfShape":
        value = node.attrs.get("value")
        return np.asarray(value.values if isinstance(value, Constant) else 0.0)
    return facts.constant(tensor)


def _any_negative_sign(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and bool(np.any(np.signbit(array)))
