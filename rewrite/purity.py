"""What rules may assume of an operator: that it is repeatable, that it never fails."""

from __future__ import annotations

from onnx import TensorProto

from . import symbolic
from .facts import FLOATS, Facts
from .ir import Node, bodies

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


def is_pure(node: Node) -> bool:
    """Whether the outputs depend on nothing but the operands: standard, not random, all through."""
    if node.domain or is_random(node):
        return False
    return all(is_pure(inner) for body in bodies(node) for inner in body.nodes)


def cannot_fail(node: Node, facts: Facts) -> bool:
    """Whether the node gives a result for all operands: Shape and Size do, and element-wise
    operators whose operands surely can be broadcast, but no Cast from or to strings.
    """
    if node.domain:
        return False
    if node.op in ("Shape", "Size"):
        return True
    known = [facts.of(t) for t in node.inputs if t.name]
    total_division = node.op == "Div" and known[0].dtype in FLOATS
    if node.op not in TOTAL_ELEMENTWISE and not total_division:
        return False
    if node.op == "Cast" and TensorProto.STRING in (known[0].dtype, int(node.attrs["to"])):
        return False
    shapes = [f.shape for f in known if f.shape is not None and f.dtype]
    return len(shapes) == len(known) and symbolic.surely_broadcast(shapes)
