"""Interval analysis of floats: bounds on the elements of a value, from the operators before it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor, optional

Range = tuple[float, float]
"""The least and the greatest value; infinite where there is no bound."""
UNBOUNDED: Range = (-math.inf, math.inf)
_MAX_DEPTH = 24
"""How many nodes before a value the analysis looks at."""

_RESULT_RANGES: dict[str, Range] = {
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
"""The ranges of results whatever the operands are (ONNX operator specification)."""

_ELEMENTS_OF_FIRST = frozenset(
    ("Expand", "Flatten", "Gather", "Identity", "ReduceMax", "ReduceMean", "ReduceMin", "Reshape",
     "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators whose results lie in the range of their first operand."""


def float_range(facts: Facts, tensor: Tensor) -> Range:
    """Bounds on all elements of a value that are not NaN; infinite where nothing is known."""

    @functools.cache
    def range_of(tensor: Tensor, depth: int) -> Range:
        known = facts.constant(tensor)
        if known is not None:
            numbers = known.size and known.dtype.kind in "fiu" and not np.isnan(known).any()
            return (float(known.min()), float(known.max())) if numbers else UNBOUNDED
        node = facts.index.producer(tensor)
        if node is None or node.domain or depth == 0:
            return (0.0, 1.0) if facts.dtype(tensor) == TensorProto.BOOL else UNBOUNDED
        if node.op == "Cast" and facts.dtype(node.inputs[0]) == TensorProto.BOOL:
            return (0.0, 1.0)
        return _intersect(
            _RESULT_RANGES.get(node.op, UNBOUNDED),
            _propagate(node, lambda slot: range_of(node.inputs[slot], depth - 1)),
        )

    return range_of(tensor, _MAX_DEPTH)


def _propagate(node: Node, operand: Callable[[int], Range]) -> Range:
    """The range of a result from the ranges of the operands."""
    op = node.op
    if op in _ELEMENTS_OF_FIRST:
        return operand(0)
    if op in ("Concat", "Max", "Min"):
        ranges = [operand(slot) for slot in range(len(node.inputs))]
        low, high = _hull(ranges)
        if op == "Max":
            low = max(each[0] for each in ranges)
        if op == "Min":
            high = min(each[1] for each in ranges)
        return (low, high)
    if op == "Clip":
        return _clip(node, operand)
    if op == "Where":
        return _hull([operand(1), operand(2)])
    if op == "Neg":
        low, high = operand(0)
        return (-high, -low)
    if op in _INCREASING:
        low, high = map(_INCREASING[op], operand(0))
        return (low, high)
    if op == "Pow":
        (low, high), (least, most) = operand(0), operand(1)
        is_increasing = low >= 0 and least == most > 0
        return (_power(low, most), _power(high, most)) if is_increasing else UNBOUNDED
    if op == "Reciprocal":
        return _quotient((1.0, 1.0), operand(0))
    if op == "Div":
        return _quotient(operand(0), operand(1))
    if op == "Add":
        (a, b), (c, d) = operand(0), operand(1)
        return (a + c, b + d)
    if op == "Sub":
        (a, b), (c, d) = operand(0), operand(1)
        return (a - d, b - c)
    if op == "Mul":
        return _product(operand(0), operand(1))
    return UNBOUNDED


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _sqrt(value: float) -> float:
    return math.sqrt(max(value, 0.0))


def _power(value: float, exponent: float) -> float:
    return math.exp(exponent * math.log(value)) if 0 < value < math.inf else value


_INCREASING: dict[str, Callable[[float], float]] = {"Exp": _exp, "Log": _log, "Sqrt": _sqrt}


def _clip(node: Node, operand: Callable[[int], Range]) -> Range:
    """The range of a Clip, whose limits are optional inputs; attributes before opset 11."""

    def limit(slot: int, attribute: str, absent: float) -> Range:
        if optional(node.inputs, slot) is not None:
            return operand(slot)
        given = float(node.attrs.get(attribute, absent))
        return (given, given)

    lows, highs = limit(1, "min", -math.inf), limit(2, "max", math.inf)
    low, high = (min(max(*pair[:2]), pair[2]) for pair in zip(operand(0), lows, highs))
    return (low, high)


def _quotient(a: Range, b: Range) -> Range:
    """The range of a quotient, if the divisor has one sign."""
    if b[0] <= 0 <= b[1]:
        return UNBOUNDED
    return _product(a, (_inverse(b[1]), _inverse(b[0])))


def _inverse(value: float) -> float:
    return 0.0 if math.isinf(value) else 1 / value


def _product(a: Range, b: Range) -> Range:
    products = [_multiply(x, y) for x in a for y in b]
    return (min(products), max(products))


def _multiply(x: float, y: float) -> float:
    """The product of two bounds; 0 times an infinite bound, which no element reaches, is 0."""
    return 0.0 if x == 0 or y == 0 else x * y


def _intersect(a: Range, b: Range) -> Range:
    return (max(a[0], b[0]), min(a[1], b[1]))


def _hull(ranges: list[Range]) -> Range:
    return (min(low for low, _ in ranges), max(high for _, high in ranges))
