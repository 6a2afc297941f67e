"""The input product of an operator takes up an affine map in front of it.

    Y = LSTM(x·A + b, W)   ->   Y = LSTM(x, W·A)   with W·b added to the bias

Exporters compute x·W for all steps in front of a loop; the operator that the loop became would then
multiply with an identity matrix.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Constant, Node, Tensor, Variable
from . import forms, movement, operators, products  # noqa: F401  the others fill the lifter's table
from .atoms import Source
from .coefficients import NotAffine, dense
from .lifting import FLOATS, Lifter, numpy_type
from .values import Batch, Value
from .weights import Array

_LINEAR = frozenset(
    {"Add", "Concat", "Div", "Einsum", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Slice", "Split",
     "Squeeze", "Sub", "Transpose", "Unsqueeze"}
)  # fmt: skip
_MOST_NODES = 64


@dataclass(frozen=True)
class Found:
    """What the operator's input is an affine map of."""

    source: Tensor
    order: list[int]
    """The axes of the source that are the time, the batch and the features."""
    matrix: Array
    """(features of the source, features of the input)"""
    bias: Array
    inside: set[Node]
    """What computes the map."""

    @property
    def is_identity(self) -> bool:
        same = self.matrix.shape[0] == self.matrix.shape[1] and not self.bias.any()
        return same and np.array_equal(self.matrix, np.eye(len(self.matrix)))


class AbsorbInputProjection(Rule):
    """An affine map in front of an operator becomes part of its input weights."""

    root = ("LSTM", "GRU", "RNN")
    fires = """g (float[T,B,2] x) => (float[T,1,B,3] y)
      <float[2,3] a = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3},
       float[1,3,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3, 0.5, 0, 0},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      p = MatMul(x, a) q = Add(p, b) y = RNN<hidden_size=3>(q, w, r) }"""
    spares = {
        "is read elsewhere": """g (float[T,B,2] x) => (float[T,1,B,3] y, float[T,B,3] z)
      <float[2,3] a = {1, 2, 3, 4, 5, 6}, float[1,3,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3, 0.5, 0, 0},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      p = MatMul(x, a) z = Neg(p) y = RNN<hidden_size=3>(p, w, r) }""",
        "more features": """g (float[T,B,3] x) => (float[T,1,B,3] y)
      <float[3,2] a = {1, 2, 3, 4, 5, 6}, float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
      p = MatMul(x, a) y = RNN<hidden_size=3>(p, w, r) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        node = m.node
        m.need(not node.attrs.get("layout", 0), "it has another layout")
        w = m.facts.constant(node.inputs[1])
        m.need(w is not None, "its weights are not known")
        has_bias = len(node.inputs) > 3 and bool(node.inputs[3].name)
        b = m.facts.constant(node.inputs[3]) if has_bias else _no_bias(w)
        m.need(b is not None, "its bias is not known")
        inside = _only_for(m.facts, node)
        m.need(bool(inside), "{} is no product, or is read elsewhere", node.inputs[0])
        try:
            found = _source(m.facts, node.inputs[0], inside)
        except NotAffine as reason:
            m.need(None, "{} is no affine map of one value: {}", node.inputs[0], str(reason))
            raise
        m.need(not found.is_identity, "{} is no product", node.inputs[0])
        smaller = found.matrix.shape[0] <= found.matrix.shape[1]
        m.need(smaller, "{} has more features than {}", found.source, node.inputs[0])
        return {"node": node, "found": found, "w": w, "b": b}

    def apply(self, patch: Patch, node: Node, found: Found, w: Array, b: Array) -> None:
        emit = patch.builder(node.inputs[1])
        wide, rows = w.astype(np.float64), w.shape[1]
        inputs = list(node.inputs) + [node.inputs[0]] * (4 - len(node.inputs))
        added = b.astype(np.float64)
        added[:, :rows] += wide @ found.bias.astype(np.float64)
        inputs[0] = emit.transpose(found.source, found.order)
        inputs[1] = emit.constant((wide @ found.matrix.T.astype(np.float64)).astype(w.dtype))
        inputs[3] = emit.constant(added.astype(w.dtype))
        outputs = patch.node(node.op, inputs, node.outputs, dict(node.attrs))
        for old, new in zip(list(node.outputs), outputs):
            if old.name:
                patch.replace(old, new)
        patch.remove(node)
        for there in sorted(found.inside, key=lambda n: -n.order):
            if patch.index.is_unused(there):
                patch.remove(there)


def _no_bias(w: Array | None) -> Array | None:
    return None if w is None else np.zeros((w.shape[0], 2 * w.shape[1]), w.dtype)


def _only_for(facts: Facts, node: Node) -> set[Node]:
    """The affine operators that compute the input of the node and nothing else."""
    index, graph = facts.index, facts.index.graph_of(node)
    inside: set[Node] = set()
    waiting = deque([node.inputs[0]])
    while waiting and len(inside) < _MOST_NODES:
        tensor = waiting.popleft()
        producer = index.producer(tensor)
        if producer is None or producer in inside or producer.domain:
            continue
        readers = [use.reader for t in producer.outputs for use in index.uses(t)]
        own = all(reader is node or reader in inside for reader in readers)
        if own and producer.op in _LINEAR and index.graph_of(producer) is graph:
            inside.add(producer)
            waiting.extend(producer.inputs)
    return inside


def _source(facts: Facts, tensor: Tensor, inside: set[Node]) -> Found:
    """Raises NotAffine where the value is no affine map of the last axis of one other."""
    lifter = Lifter(facts, {}, lambda node: node in inside, lambda t: _outer(facts, t))
    value = lifter.value(tensor)
    if len(value.form.terms) != 1:
        raise NotAffine("it is made of several values")
    ((atom, coefficient),) = value.form.atoms
    names = [a.name for a in value.axes if isinstance(a, Batch)]
    if not isinstance(atom, Source) or not isinstance(atom.origin, (Variable, Constant)):
        raise NotAffine("it is no product")
    if len(value.axes) != 3 or len(names) != 2 or None in names:
        raise NotAffine("its axes are not time, batch and features")
    if isinstance(value.axes[2], Batch):
        raise NotAffine("its features are mixed with the batch")
    matrix = dense(coefficient, atom.width)
    if not isinstance(matrix, np.ndarray) or not isinstance(value.form.bias, np.ndarray):
        raise NotAffine("its weights are not known")
    order = [n for n in names if n is not None]
    return Found(atom.origin, [*order, 2], matrix, value.form.bias, inside)


def _outer(facts: Facts, tensor: Tensor) -> Value | NotAffine:
    """A value of three axes, of which the last has the features."""
    shape = facts.shape(tensor)
    if shape is None or len(shape) != 3 or facts.dtype(tensor) not in FLOATS:
        return NotAffine(f"{tensor.name} has not three axes")
    width = shape[2]
    if not isinstance(width, int):
        return NotAffine(f"the number of features of {tensor.name} is not known")
    source = Source(("outer", id(tensor)), width, tensor)
    axes = (Batch(shape[0], 0), Batch(shape[1], 1), width)
    return Value(forms.of_atom(source, numpy_type(facts, tensor)), axes)
