"""Between which numbers a float tensor lies, as far as its last operators tell."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor

Range = tuple[float, float]
EVERYTHING: Range = (-math.inf, math.inf)
_DEEPEST = 24

_ALWAYS: dict[str, Range] = {
    "Abs": (0.0, math.inf),
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Exp": (0.0, math.inf),
    "HardSigmoid": (0.0, 1.0),
    "Relu": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Softplus": (0.0, math.inf),
    "Softsign": (-1.0, 1.0),
    "Sqrt": (0.0, math.inf),
    "Tanh": (-1.0, 1.0),
}
"""The results of operators whatever the operands are (ONNX operator specification)."""

_ELEMENTS_OF_THE_FIRST = frozenset(
    ("Expand", "Flatten", "Gather", "Identity", "ReduceMax", "ReduceMean", "ReduceMin", "Reshape",
     "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip
_ELEMENTS_OF_ALL = frozenset(("Concat", "Max", "Min"))


def float_range(facts: Facts, tensor: Tensor, depth: int = _DEEPEST) -> Range:
    """Bounds of all elements that are numbers; infinite where nothing is known."""
    known = facts.constant(tensor)
    if known is not None:
        numbers = known.size and known.dtype.kind in "fiu" and not np.isnan(known).any()
        return (float(known.min()), float(known.max())) if numbers else EVERYTHING
    node = facts.index.producer(tensor)
    if node is None or node.domain or depth == 0:
        return EVERYTHING
    return _meet(
        _ALWAYS.get(node.op, EVERYTHING),
        _computed(node, lambda slot: float_range(facts, node.inputs[slot], depth - 1)),
    )


def _computed(node: Node, operand: Callable[[int], Range]) -> Range:
    """What the ranges of the operands make of that of the result."""
    op = node.op
    if op in _ELEMENTS_OF_THE_FIRST:
        return operand(0)
    if op in _ELEMENTS_OF_ALL:
        return _join([operand(slot) for slot in range(len(node.inputs))])
    if op == "Where":
        return _join([operand(1), operand(2)])
    if op == "Neg":
        low, high = operand(0)
        return (-high, -low)
    if op == "Exp":
        low, high = operand(0)
        return (_exp(low), _exp(high))
    if op == "Add":
        (a, b), (c, d) = operand(0), operand(1)
        return (a + c, b + d)
    if op == "Sub":
        (a, b), (c, d) = operand(0), operand(1)
        return (a - d, b - c)
    if op == "Mul":
        products = [_product(x, y) for x in operand(0) for y in operand(1)]
        return (min(products), max(products))
    return EVERYTHING


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _product(x: float, y: float) -> float:
    """0 times a bound that is never reached is 0."""
    return 0.0 if x == 0 or y == 0 else x * y


def _meet(a: Range, b: Range) -> Range:
    return (max(a[0], b[0]), min(a[1], b[1]))


def _join(ranges: list[Range]) -> Range:
    return (min(low for low, _ in ranges), max(high for _, high in ranges))
