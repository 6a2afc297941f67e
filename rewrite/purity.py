"""What rules may assume of an operator: that it is repeatable, that it never fails."""

from __future__ import annotations

from .ir import Graph, Node

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial",
     "Bernoulli"}
)  # fmt: skip
"""Operators that may give another result every time."""

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
    return all(
        is_pure(inner)
        for body in node.attrs.values()
        if isinstance(body, Graph)
        for inner in body.nodes
    )
