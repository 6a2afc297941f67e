"""What rules may assume of an operator: that it is repeatable, that it never fails."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from .. import symbolic
from ..graph.index import Index
from ..graph.ir import Node, bodies
from ..symbolic import Dim
from .facts import FLOATS, Facts
from .iterations import never_negative

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip
"""Operators that draw anew in every run, with or without a seed (ONNX operator specification)."""

TOTAL_ELEMENTWISE = frozenset(
    [
        "Abs",
        "Acos",
        "Add",
        "And",
        "Asin",
        "Atan",
        "Cast",
        "Ceil",
        "Cos",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Relu",
        "Round",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Sqrt",
        "Sub",
        "Tan",
        "Tanh",
        "Where",
        "Xor",
    ]
)
"""Element-wise operators that give a result for all operands that can be broadcast."""


def is_random(node: Node) -> bool:
    """Whether two runs of the node may differ; Dropout only in training mode."""
    if node.op == "Dropout" and not node.domain:
        return len(node.inputs) > 2 and bool(node.inputs[2].name)
    return node.op in RANDOM and not node.domain


def is_pure(node: Node, index: Index) -> bool:
    """Whether the outputs depend on nothing but the operands: standard, not random, all through."""
    if node.domain or is_random(node):
        return False
    return all(is_pure(inner, index) for body in bodies(node) for inner in index.nodes(body))


def cannot_fail(node: Node, facts: Facts) -> bool:
    """Whether the node gives a result for all operands: Shape and Size do, Gather at positions that
    surely are on the axis, and element-wise operators whose operands surely can be broadcast, but
    no Cast from or to strings.
    """
    if node.domain:
        return False
    if node.op in ("Shape", "Size"):
        return True
    if node.op == "Gather":
        return _is_on_axis(node, facts, symbolic.nonnegative)
    known = [facts.of(t) for t in node.inputs if t.name]
    total_division = node.op == "Div" and known[0].dtype in FLOATS
    if node.op not in TOTAL_ELEMENTWISE and not total_division:
        return False
    if node.op == "Cast" and TensorProto.STRING in (known[0].dtype, int(node.attrs["to"])):
        return False
    shapes = [f.shape for f in known if f.shape is not None and f.dtype]
    return len(shapes) == len(known) and symbolic.surely_broadcast(shapes)


def cannot_fail_in_iteration(node: Node, facts: Facts) -> bool:
    """Whether the node gives a result for all operands while an iteration runs of each Loop around
    whose iteration number it reads: `Gather(x, i)` does where x has an element per iteration.
    """
    if node.op == "Gather" and not node.domain:
        return _is_on_axis(node, facts, lambda dim: never_negative(facts, dim))
    return cannot_fail(node, facts)


def _is_on_axis(node: Node, facts: Facts, nonnegative: Callable[[Dim], bool]) -> bool:
    """Whether all positions of a Gather are in [-extent, extent) (ONNX operator specification)."""
    shape, positions = facts.shape(node.inputs[0]), facts.of(node.inputs[1]).values
    if not shape or positions is None:
        return False
    extent = shape[int(node.attrs.get("axis", 0)) % len(shape)]
    return all(
        position is not None
        and nonnegative(symbolic.add(position, extent))
        and nonnegative(symbolic.sub(symbolic.sub(extent, position), 1))
        for position in positions
    )
