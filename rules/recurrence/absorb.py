"""LSTM, GRU and RNN absorb what precedes and follows them: reversals and projections of the input.

    Y = LSTM(x[::-1])  y = Y[::-1]    ->    y = LSTM<direction = reverse>(x)
    y = x[::-1][::-1]                 ->    y = x
    Y = LSTM(x·A + b, W)              ->    Y = LSTM(x, W·A), with W·b added to the bias

Exporters compute x·W for all time steps before a loop; the operator that the loop becomes would then
multiply by an identity matrix.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import reversed_axis
from ...rewrite.graph.ir import Constant, Node, Tensor, Variable, optional
from . import affine_forms
from .affine_forms import SymbolicInput, as_matrix
from .lifting import RNN_FLOATS, BatchAxis, LiftedValue, Lifter, numpy_type
from .position_runs import uniform_integer
from .time_steps import direction
from .weights import Array

_MOST_NODES = 64
"""The most nodes of a projection."""
_AFFINE = frozenset(
    {"Add", "Concat", "Div", "Einsum", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Slice", "Split",
     "Squeeze", "Sub", "Transpose", "Unsqueeze"}
)  # fmt: skip
_WEIGHTS = """<float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
       float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64[1] m = {-1}, int64[1] l = {-9223372036854775807},
       int64[1] a = {0}> { """


# --- reversals ---


@dataclass(frozen=True)
class ReversedSequence:
    """An operator whose input and result are reversed along the time axis."""

    source: Tensor
    """The sequence before its reversal."""
    perms: list[list[int]]
    """The transpositions between the reversal and the operator, the last one first."""
    reversals: list[Node]
    """The Slices that reverse Y."""


class AbsorbReversal(Rule[ReversedSequence]):
    """Replaces the reversals before and after an LSTM, GRU or RNN by the opposite direction."""

    root = ("LSTM", "GRU", "RNN")
    fires = (
        "g (float[T,B,2] x) => (float[T,1,B,3] y) "
        + _WEIGHTS
        + """v = Slice(x, m, l, a, m) u = RNN<hidden_size=3>(v, w, r) y = Slice(u, m, l, a, m) }"""
    )
    spares = {
        "is not a reversed sequence": "g (float[T,B,2] x) => (float[T,1,B,3] y) "
        + _WEIGHTS
        + "y = RNN<hidden_size=3>(x, w, r) }",
        "without being reversed": "g (float[T,B,2] x) => (float[T,1,B,3] y, float[T,1,B,3] z) "
        + _WEIGHTS
        + """v = Slice(x, m, l, a, m) u = RNN<hidden_size=3>(v, w, r) y = Slice(u, m, l, a, m)
          z = Neg(u) }""",
    }

    def match(self, m: Match) -> ReversedSequence:
        node, y = m.node, m.node.outputs[0]
        m.need(direction(node) != "bidirectional", "it runs in both directions already")
        lengths = optional(node.inputs, 4)
        m.need(lengths is None, "it has sequence lengths: each row would be reversed on its own")
        m.need(not node.attrs.get("layout", 0), "it has layout 1, with the batch first")
        source, perms = m.need(
            _reversal(m.facts, node.inputs[0], 0), "{} is not a reversed sequence", node.inputs[0]
        )
        reversals = _reversals_of(m.facts, y, 0) if y.name else []
        reversals = m.need(reversals, "{} is also read without being reversed", y)
        return ReversedSequence(source, perms, reversals)

    def apply(self, patch: Patch, found: ReversedSequence) -> None:
        node = patch.root
        emit = patch.builder(node.inputs[0])
        patch.replace_input(node, 0, _transposed(emit, found.source, found.perms))
        opposite = "reverse" if direction(node) == "forward" else "forward"
        patch.set_attribute(node, "direction", opposite)
        for reversal in found.reversals:
            patch.replace(reversal.outputs[0], reversal.inputs[0])
            patch.remove(reversal)
        patch.toward_normal_form()


def _reversal(facts: Facts, tensor: Tensor, axis: int) -> tuple[Tensor, list[list[int]]] | None:
    """The source of a reversal along an axis, and the transpositions after it; or None."""
    perms: list[list[int]] = []
    while (node := facts.index.producer(tensor)) is not None and not node.domain:
        if node.op == "Slice":
            return (node.inputs[0], perms) if reversed_axis(facts, node) == axis else None
        perm = node.attrs.get("perm")
        if node.op != "Transpose" or perm is None:
            return None
        perms.append(list(perm))
        tensor, axis = node.inputs[0], perm[axis]
    return None


def _transposed(emit: Builder, value: Tensor, perms: list[list[int]]) -> Tensor:
    """A value after transpositions, the last one first."""
    for perm in reversed(perms):
        value = emit.transpose(value, perm)
    return value


def _reversals_of(facts: Facts, tensor: Tensor, axis: int) -> list[Node] | None:
    """The Slices that reverse a value along an axis; None if it is read in any other way."""
    found: list[Node] = []
    waiting = [(tensor, axis)]
    while waiting:
        tensor, axis = waiting.pop()
        for reader, slot in facts.index.uses(tensor):
            if not isinstance(reader, Node) or reader.domain or slot != 0:
                return None
            if reversed_axis(facts, reader) == axis:
                found.append(reader)
                continue
            moved = _result_axis(facts, reader, axis)
            if moved is None:
                return None
            waiting.append((reader.outputs[0], moved))
    return found


def _result_axis(facts: Facts, node: Node, axis: int) -> int | None:
    """The position of an axis after a Transpose or Squeeze; None after any other node."""
    perm = node.attrs.get("perm")
    if node.op == "Transpose" and perm is not None:
        return int(list(perm).index(axis))
    axes = named_axes(facts, node) if node.op == "Squeeze" else None
    if axes is not None:
        return None if axis in axes else axis - sum(a < axis for a in axes)
    return None


@dataclass(frozen=True)
class TwiceReversed:
    """A value that is reversed along an axis and back."""

    source: Tensor
    perms: list[list[int]]
    """The transpositions between the two reversals, the last one first."""


class CancelReversals(Rule[TwiceReversed]):
    """Removes the reversal of a reversed sequence."""

    root = "Slice"
    fires = (
        "g (float[T,B,2] x) => (float[T,B,2] y) "
        + _WEIGHTS
        + "u = Slice(x, m, l, a, m) y = Slice(u, m, l, a, m) }"
    )
    spares = {
        "is not reversed along axis 0": "g (float[T,B,2] x) => (float[T,B,2] y) "
        + _WEIGHTS
        + "y = Slice(x, m, l, a, m) }",
        "does not reverse an axis": "g (float[T,B,2] x) => (float[?,B,2] y) "
        + _WEIGHTS
        + "u = Slice(x, m, l, a, m) y = Slice(u, a, m, a) }",
    }

    def match(self, m: Match) -> TwiceReversed:
        node, value = m.node, m.node.inputs[0]
        axis = m.need(reversed_axis(m.facts, node), "it does not reverse an axis")
        source, perms = m.need(
            _reversal(m.facts, value, axis), "{} is not reversed along axis {}", value, axis
        )
        return TwiceReversed(source, perms)

    def apply(self, patch: Patch, found: TwiceReversed) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        patch.replace(node.outputs[0], _transposed(emit, found.source, found.perms))
        patch.remove(node)
        patch.toward_normal_form()


class AbsorbReversalOfWholeSequence(Rule[int]):
    """Replaces a ReverseSequence that reverses every row from end to end by a Slice."""

    root = "ReverseSequence"
    promise = Promise(
        accepts="lengths that do not fit the batch",
    )
    fires = """g (float[T,B,2] x) => (float[T,B,2] y) {
      t = Shape<start=0, end=1>(x) b = Shape<start=1, end=2>(x) l = Expand(t, b)
      y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }"""
    spares = {
        "are not known to be": """g (float[T,B,2] x, int64[B] l) => (float[T,B,2] y) {
      y = ReverseSequence<time_axis=0, batch_axis=1>(x, l) }""",
    }

    def match(self, m: Match) -> int:
        x, lengths = m.node.inputs
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x)
        axis = int(m.node.attrs.get("time_axis", 0)) % len(shape)
        length = uniform_integer(m.facts, lengths)
        is_whole = length is not None and symbolic.eq(length, shape[axis]) is True
        m.need(is_whole, "the lengths {} are not known to be {}", lengths, shape[axis])
        batch = shape[int(m.node.attrs.get("batch_axis", 1)) % len(shape)]
        m.need(
            not m.options.strict or m.facts.shape(lengths) == (batch,),
            "--strict: ReverseSequence fails unless {} has one length for each row",
            lengths,
        )
        return axis

    def apply(self, patch: Patch, found: int) -> None:
        node, output = patch.root, patch.root.outputs[0]
        patch.replace(output, patch.builder(output).reverse(node.inputs[0], found))
        patch.remove(node)
        patch.toward_normal_form()


# --- projections of the input ---


@dataclass(frozen=True)
class InputProjection:
    """An affine map that computes the input X of an operator and nothing else."""

    source: Tensor
    """The value that is mapped."""
    perm: list[int]
    """The axes of the source that are the time, the batch and the features."""
    matrix: Array
    """(features of the source, features of X)"""
    bias: Array
    nodes: list[Node]
    """The nodes of the map, the last one first."""
    w: Array
    """W of the operator."""
    b: Array
    """B of the operator."""

    @property
    def is_identity(self) -> bool:
        rows, columns = self.matrix.shape
        return rows == columns and not self.bias.any() and np.array_equal(self.matrix, np.eye(rows))


class AbsorbInputProjection(Rule[InputProjection]):
    """Folds an affine map before an LSTM, GRU or RNN into its weights W and B."""

    root = ("LSTM", "GRU", "RNN")
    promise = Promise(
        rounds="two matrices are multiplied beforehand",
        nonfinite="an infinite input times a weight of 0",
    )
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

    def match(self, m: Match) -> InputProjection:
        node, x = m.node, m.node.inputs[0]
        m.need(not node.attrs.get("layout", 0), "it has layout 1, with the batch first")
        w = m.need(
            m.facts.constant(node.inputs[1]), "its weights {} are not constant", node.inputs[1]
        )
        b = np.zeros((w.shape[0], 2 * w.shape[1]), w.dtype)
        bias = optional(node.inputs, 3)
        if bias is not None:
            b = m.need(m.facts.constant(bias), "its bias {} is not constant", bias)
        nodes = _nodes_of_input(m.facts, node)
        m.need(bool(nodes), "{} is not an affine map, or it is read elsewhere", x)
        found = _projection(m.facts, x, nodes, w, b)
        m.need(not found.is_identity, "{} is not a projection: the map is the identity", x)
        rows, columns = found.matrix.shape
        m.need(rows <= columns, "{} has more features than {}", found.source, x)
        return found

    def apply(self, patch: Patch, found: InputProjection) -> None:
        node = patch.root
        emit = patch.builder(node.inputs[1])
        w, b = found.w.astype(np.float64), found.b.astype(np.float64)
        b[:, : w.shape[1]] += w @ found.bias.astype(np.float64)
        inputs = list(node.inputs) + [node.inputs[0]] * (4 - len(node.inputs))
        inputs[0] = emit.transpose(found.source, found.perm)
        inputs[1] = emit.constant((w @ found.matrix.T.astype(np.float64)).astype(found.w.dtype))
        inputs[3] = emit.constant(b.astype(found.w.dtype))
        outputs = patch.node(node.op, inputs, node.outputs, dict(node.attrs))
        for old, new in zip(list(node.outputs), outputs):
            if old.name:
                patch.replace(old, new)
        patch.remove(node)
        for inner in found.nodes:
            if patch.index.is_unused(inner):
                patch.remove(inner)


def _nodes_of_input(facts: Facts, node: Node) -> list[Node]:
    """The affine operators that compute the input of a node and nothing else, the last one first."""
    index, graph = facts.index, facts.index.graph_of(node)
    found: set[Node] = set()
    waiting = deque([node.inputs[0]])
    while waiting and len(found) < _MOST_NODES:
        producer = index.producer(waiting.popleft())
        if producer is None or producer in found or producer.domain:
            continue
        readers = [use.reader for t in producer.outputs for use in index.uses(t)]
        is_private = all(reader is node or reader in found for reader in readers)
        if is_private and producer.op in _AFFINE and index.graph_of(producer) is graph:
            found.add(producer)
            waiting.extend(producer.inputs)
    return sorted(found, key=lambda n: -n.order)


def _projection(facts: Facts, x: Tensor, nodes: list[Node], w: Array, b: Array) -> InputProjection:
    """Raises Miss where x is not an affine map along the last axis of one value."""

    def outer(tensor: Tensor) -> LiftedValue | Miss:
        return _three_axes(facts, tensor)

    lifter = Lifter(facts, {}, set(nodes).__contains__, outer)
    try:
        value = lifter.value(x)
    except Miss as reason:
        raise Miss("{} is not an affine map of one value: {}", x, reason) from None
    if len(value.form.terms) != 1:
        raise Miss("{} is an affine map of {} values", x, len(value.form.terms))
    ((monomial, coefficient),) = value.form.monomials
    source = monomial.origin if isinstance(monomial, SymbolicInput) else None
    if not isinstance(monomial, SymbolicInput) or not isinstance(source, (Variable, Constant)):
        raise Miss("{} is not an affine map of a value", x)
    axes = [a.name for a in value.axes if isinstance(a, BatchAxis) and a.name is not None]
    if len(value.axes) != 3 or len(axes) != 2 or isinstance(value.axes[2], BatchAxis):
        raise Miss("the axes of {} are not time, batch and features", x)
    matrix, bias = as_matrix(coefficient, monomial.width), value.form.bias
    if not isinstance(matrix, np.ndarray) or not isinstance(bias, np.ndarray):
        raise Miss("the weights of the map that computes {} are not constant", x)
    return InputProjection(source, [*axes, 2], matrix, bias, nodes, w, b)


def _three_axes(facts: Facts, tensor: Tensor) -> LiftedValue | Miss:
    """A value with two batch axes, named 0 and 1, and the features."""
    shape = facts.shape(tensor)
    if shape is None or len(shape) != 3 or facts.dtype(tensor) not in RNN_FLOATS:
        return Miss("{} is not a float tensor with three axes", tensor)
    width = shape[2]
    if not isinstance(width, int):
        return Miss("the number of features of {} is not known", tensor)
    source = SymbolicInput(("outer", id(tensor)), width, tensor)
    axes = (BatchAxis(shape[0], 0), BatchAxis(shape[1], 1), width)
    return LiftedValue(affine_forms.from_monomial(source, numpy_type(facts, tensor)), axes)
