"""Nodes that compute nothing new: results that nothing reads, copies of an operand.

u = Neg(x)   y = Abs(x)        ->   y = Abs(x)
u = Identity(x)   y = Abs(u)   ->   y = Abs(x)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...rewrite.engine.edits import can_be_output
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import ANY, Match, Rule
from ...rewrite.graph.declarations import numpy_type
from ...rewrite.graph.ir import Node, Tensor, optional
from .padding import pad_amounts

_DROPOUT_OF_INFERENCE = 7
"""The first opset in which Dropout without further inputs is not in training mode."""
_DROPOUT_WITH_INPUTS = 12
"""The first opset in which Dropout takes the ratio and the training mode as inputs."""


class EliminateDeadNode(Rule[Node]):
    """Removes a node whose results nothing reads."""

    root = ANY
    fires = "g (float[2] x) => (float[2] y) { u = Neg(x) y = Abs(x) }"
    spares = {"is read": "g (float[2] x) => (float[2] y) { y = Abs(x) }"}

    def match(self, m: Match) -> Node:
        m.need(m.index.is_unused(m.node), "a result is read")
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.remove(found)


class EliminateIdentity(Rule[Tensor]):
    """Removes Identity, And with true, Or with false, and Casts, Pads and Dropouts that change nothing."""

    root = ("Identity", "Cast", "Pad", "Dropout", "And", "Or")
    fires = "g (float[2] x) => (float[2] y) { u = Identity(x) y = Abs(u) }"
    spares = {
        "another type": "g (int64[2] x) => (float[2] y) { u = Cast<to=1>(x) y = Abs(u) }",
        "a node of its own": "g (float[2] x) => (float[2] y) { y = Identity(x) }",
        "may add or remove": """g (float[N] x) => (float[M] y) <int64[2] pads = {0, 1}> {
      u = Pad(x, pads) y = Abs(u) }""",
        "Dropout may fail": """g (float[2] x, float r) => (float[2] y) {
      u = Dropout(x, r) y = Abs(u) }""",
    }

    def match(self, m: Match) -> Tensor:
        source, copy = _equal_operand(m), m.node.outputs[0]
        m.need(not m.index.is_unused(m.node), "nothing reads the copy")
        if m.index.is_model_output(copy):
            m.need(
                can_be_output(m.index, source),
                "{} is an output of the model and needs a node of its own",
                copy,
            )
        return source

    def apply(self, patch: Patch, found: Tensor) -> None:
        patch.replace_node(patch.root, [found])


def _equal_operand(m: Match) -> Tensor:
    """The operand that equals the result of the root. Raises Miss if there is none."""
    first: Tensor = m.node.inputs[0]
    if m.node.op == "Cast":
        first = _before_round_trip(m, first)
        same = m.facts.dtype(first) == int(m.node.attrs["to"])
        m.need(same, "{} has another type than it is cast to", first, at=first)
    if m.node.op == "Pad":
        rank = m.need(m.facts.rank(first), "the rank of {} is not known", first, at=first)
        amounts = pad_amounts(m.facts, m.node, rank)
        m.need(amounts is not None and not any(amounts), "Pad may add or remove elements")
    if m.node.op == "Dropout":
        _check_dropout(m)
    if m.node.op not in ("And", "Or"):
        return first
    neutral = m.node.op == "And"
    shape = m.facts.shape(m.node.outputs[0])
    for operand, other in ((first, m.node.inputs[1]), (m.node.inputs[1], first)):
        values = m.facts.of(other).values
        is_neutral = values is not None and all(v is neutral for v in values)
        if is_neutral and shape is not None and m.facts.shape(operand) == shape:
            return operand
    raise Miss("no operand is known to leave the other one as it is", at=m.node)


def _check_dropout(m: Match) -> None:
    """Raises Miss for a Dropout that may drop elements or fail, or whose mask is read."""
    node, opset = m.node, m.facts.opset
    m.need(opset >= _DROPOUT_OF_INFERENCE, "Dropout may be in training mode before opset 7")
    for mask in node.outputs[1:]:
        m.need(not m.index.use_count(mask), "the mask {} is read", mask)
    if opset < _DROPOUT_WITH_INPUTS:
        return
    training = optional(node.inputs, 2)
    if training is not None:
        is_off = m.facts.scalar(training) is False
        m.need(is_off, "Dropout may be in training mode: {} is not known to be false", training)
    ratio = optional(node.inputs, 1)
    if ratio is not None:
        value = m.facts.constant(ratio)
        is_valid = value is not None and value.shape == () and 0 <= value < 1
        m.need(
            is_valid, "the ratio {} is not known to be from 0 to below 1: Dropout may fail", ratio
        )


def _before_round_trip(m: Match, between: Tensor) -> Tensor:
    """What was cast to a type that holds all its values, if the root casts it back.

    Else the operand of the root. onnxruntime removes such pairs, even where only a body reads their
    result, which is then missing when the body runs.
    """
    cast = m.producer(between, "Cast")
    if cast is None or m.facts.dtype(cast.inputs[0]) != int(m.node.attrs["to"]):
        return between
    types = [numpy_type(m.facts.dtype(tensor)) for tensor in (cast.inputs[0], between)]
    return cast.inputs[0] if _holds_all_values(types[1], types[0]) else between


def _holds_all_values(wide: np.dtype[Any] | None, narrow: np.dtype[Any] | None) -> bool:
    """Whether a cast to the wide type and back leaves every number as it is.

    A cast to float8 saturates, so it does not leave infinity as it is.
    """
    if wide is None or narrow is None or wide.kind not in "iuf" or narrow.kind not in "biuf":
        return False
    if any(kind.kind == "f" and kind.itemsize == 1 for kind in (wide, narrow)):
        return False
    if wide.kind == "f" and narrow.kind in "iu":
        return bool(8 * narrow.itemsize <= np.finfo(wide).nmant + 1)
    return np.can_cast(narrow, wide, "safe")
