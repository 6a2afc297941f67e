"""Comparisons of integers that were cast to floats.

y = Greater(Cast<to = float>(n), 8.5)   ->   y = Greater(n, 8)

Exporters cast sizes before they compare them. Facts know the numbers that integers are, and so which
branch an If by a size takes, but nothing about floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import MIRRORED
from ...rewrite.graph.ir import Node, Tensor

_ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Equal": np.asarray,
    "Greater": np.floor,
    "GreaterOrEqual": np.ceil,
    "Less": np.ceil,
    "LessOrEqual": np.floor,
}
"""The integers that a limit on the right becomes, by operator."""
_EXACT: dict[int, int] = {TensorProto.FLOAT: 1 << 24, TensorProto.DOUBLE: 1 << 53}
"""All integers up to this size are exact in a type. Rounding does not move a larger integer below a
smaller limit."""
_FIRST_OPSET = 9
"""From here on, all comparisons take integers."""


@dataclass(frozen=True)
class CastComparison:
    """A comparison of an integer with a limit, both cast to floats."""

    number: Tensor
    """The integer before the Cast."""
    limit: np.ndarray
    """The integer to compare it with instead."""
    is_left: bool
    """Whether the integer is the left operand."""


class CompareBeforeCast(Rule[CastComparison]):
    """Compares integers themselves instead of the floats that they are cast to."""

    root = tuple(_ROUND)
    fires = """g (float[N,3] x) => (float[N,3] y) <int64 axis = {0}, float limit = {8.0}> {
      s = Shape(x) n = Gather(s, axis) f = Cast<to = 1>(n) c = Greater(f, limit)
      y = If(c) <then_branch = t () => (float[N,3] a) { a = Sin(x) },
                 else_branch = e () => (float[N,3] b) { b = Cos(x) }> }"""
    spares = {
        "no operand is a Cast": """g (float[N] x) => (bool[N] y) <float limit = {8.0}> {
      y = Greater(x, limit) }""",
        "is not constant": """g (int64[N] q, float limit) => (bool[N] y) {
      f = Cast<to = 1>(q) y = Greater(f, limit) }""",
        "is not exact": """g (int64[N] q) => (bool[N] y) <float limit = {16777216.0}> {
      f = Cast<to = 1>(q) y = Less(f, limit) }""",
        "is not an integer": """g (int32[N] q) => (bool[N] y) <float limit = {0.5}> {
      f = Cast<to = 1>(q) y = Equal(f, limit) }""",
    }

    def match(self, m: Match) -> CastComparison:
        node = m.node
        m.need(m.facts.opset >= _FIRST_OPSET, "it takes only floats before opset 9")
        left, right = (self._cast_integer(m, tensor) for tensor in node.inputs)
        number = m.need(left or right, "no operand is a Cast of an integer to float or double")
        limit = node.inputs[0 if left is None else 1]
        values = m.need(m.facts.constant(limit), "{} is not constant", limit, at=limit)
        largest = _EXACT.get(m.facts.dtype(limit))
        largest = m.need(largest, "{} is neither float nor double", limit, at=limit)
        exact = bool(np.all(np.abs(values) < largest))  # also excludes NaN
        inexact = "the comparison is not exact: not all integers near {} are exact as floats"
        m.need(exact, inexact, limit)
        op = node.op if left is not None else MIRRORED.get(node.op, node.op)
        rounded = _ROUND[op](values)
        whole = op != "Equal" or bool(np.all(values == np.floor(values)))
        m.need(whole, "{} is not an integer, so no integer equals it", limit)
        dtype = helper.tensor_dtype_to_np_dtype(m.facts.dtype(number))
        return CastComparison(number, rounded.astype(dtype), left is not None)

    def apply(self, patch: Patch, found: CastComparison) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        operands = [found.number, emit.constant(found.limit)]
        result = emit(node.op, *(operands if found.is_left else operands[::-1]))
        patch.replace_node(node, [result])
        patch.toward_normal_form()

    @staticmethod
    def _cast_integer(m: Match, tensor: Tensor) -> Tensor | None:
        """The 32- or 64-bit integer that was cast to a float; None for any other value."""
        cast: Node | None = m.producer(tensor, "Cast")
        if cast is None or m.facts.dtype(tensor) not in _EXACT:
            return None
        source = cast.inputs[0]
        is_integer = m.facts.dtype(source) in (TensorProto.INT32, TensorProto.INT64)
        return source if is_integer else None
