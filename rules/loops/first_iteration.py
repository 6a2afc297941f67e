"""Index set splitting: a loop whose first iteration differs becomes two loops.

   y, ys = Loop(n, , s) { u = If(i == 0) { f(s) } else { g(s) }  return true, u, u }
-> a, as = Loop(min(n, 1), , s) { u = f(s)  return true, u, u }
   y, bs = Loop(n - min(n, 1), , a) { u = g(s)  return true, u, u }      ys = Concat(as, bs)

The first loop runs at most once. The second one does the same in each iteration, which other rules
can recognise and vectorise: programs take a state from the first element of a sequence, and go on
with a recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import BOOL, INTEGERS
from ...rewrite.graph.clone import clone_nodes, clone_without_nodes
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable, number_nodes
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim
from .affine_positions import affine

_MOST_NODES = 200
"""The most nodes of a loop that the rule duplicates."""

_COMPARISONS: dict[str, Callable[[float], bool]] = {
    "Equal": lambda difference: difference == 0,
    "Greater": lambda difference: difference > 0,
    "GreaterOrEqual": lambda difference: difference >= 0,
    "Less": lambda difference: difference < 0,
    "LessOrEqual": lambda difference: difference <= 0,
}
"""By operator, whether it holds for a difference of its operands."""


@dataclass(frozen=True)
class _Truths:
    """Whether a condition holds in the first iteration, and in each one after it."""

    first: bool
    later: bool


class SplitFirstIteration(Rule[LoopView]):
    """Splits a loop with an If on the first iteration into that iteration and a loop of the others."""

    root = "Loop"
    fires = """g (float[T,3] x, int64 n, float[3] s0) => (float[3] y, float[R,3] ys) <int64 zero = {0}> {
      y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        co = Identity(ci) c = Equal(i, zero)
        so = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                     else_branch = e () => (float[3] q) { h = Add(s, s) q = Tanh(h) }>
        r = Mul(so, so) }> }"""
    spares = {
        "no If": """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "asks for the first iteration": """g (float[3] x, int64 n) => (float[3] y) <int64 two = {2}> {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) c = Less(i, two)
        so = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                     else_branch = e () => (float[3] q) { q = Sin(s) }> }> }""",
        "may end it early": """g (float[3] x, int64 n, float lim) => (float[3] y) <int64 zero = {0}> {
      y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        c = Equal(i, zero)
        so = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                     else_branch = e () => (float[3] q) { q = Sin(s) }>
        m = ReduceMax<keepdims=0>(so) co = Less(m, lim) }> }""",
    }

    def match(self, m: Match) -> LoopView:
        view = m.loop()
        ifs = [n for n in m.index.nodes(view.body) if n.op == "If" and not n.domain]
        m.need(bool(ifs), "there is no If in the body")
        m.need(view.never_stops_early(m.facts), "a condition may end it early")
        m.need(view.trip is not None, "it has no trip count")
        m.need(view.iteration_shape == (), "the body takes {} as a vector", view.iteration)
        truths = [_truths(m, view, node.inputs[0]) for node in ifs]
        differs = any(found is not None and found.first != found.later for found in truths)
        m.need(differs, "no If asks for the first iteration", at=ifs[0])
        count = sum(len(graph.nodes) for graph in m.index.graphs(view.body))
        m.need(
            count <= _MOST_NODES,
            "the loop has {} nodes, more than the {} that can be duplicated",
            count,
            _MOST_NODES,
        )
        return view

    def apply(self, patch: Patch, found: LoopView) -> None:
        node, index = patch.root, patch.index
        emit, trip = patch.builder(found.iteration), found.trip
        assert trip is not None
        once = emit.min(trip, emit.scalar(1))
        rest = emit("Sub", trip, once)
        zero, one = (patch.constant(np.array(n), like=found.iteration) for n in (0, 1))
        results: list[Tensor] = [carried.initial for carried in found.carried]
        like = [*(carried.output for carried in found.carried), *found.scan_outputs]
        parts = []
        for count, body in (
            (once, _body(index, found, zero, None)),
            (rest, _body(index, found, None, one)),
        ):
            inputs = [count, found.node.inputs[1], *results]
            outputs = patch.node("Loop", inputs, like, {"body": body})
            for graph in index.graphs(body):
                for inner in index.nodes(graph):
                    patch.touch(inner)
            results, slices = outputs[: len(results)], outputs[len(results) :]
            parts.append(slices)
        stacked = [
            _joined(emit, first, later, rest) if output.name else None
            for output, first, later in zip(node.outputs[len(results) :], *parts)
        ]
        patch.replace_node(node, [*results, *stacked])
        patch.split_loop()


def _truths(m: Match, view: LoopView, condition: Tensor) -> _Truths | None:
    """What a condition is, if it is the same in all iterations but the first."""
    known = m.facts.scalar(condition)
    if isinstance(known, bool):
        return _Truths(known, known)
    node = m.producer(condition, "Cast", "Identity", "Not", "Reshape", "Squeeze", *_COMPARISONS)
    if node is None:
        return None
    operand = node.inputs[0]
    if node.op in _COMPARISONS:
        left, right = (m.facts.scalar(side) for side in node.inputs)
        if left is None or right is None or m.facts.dtype(operand) not in INTEGERS:
            return None
        return _truths_of(m, view, symbolic.sub(left, right), _COMPARISONS[node.op])
    if node.op == "Not":
        found = _truths(m, view, operand)
        return None if found is None else _Truths(not found.first, not found.later)
    if m.facts.dtype(operand) == BOOL:
        return _truths(m, view, operand)
    number = m.facts.scalar(operand)
    if node.op != "Cast" or number is None or m.facts.dtype(operand) not in INTEGERS:
        return None
    found = _truths_of(m, view, number, _COMPARISONS["Equal"])
    return None if found is None else _Truths(not found.first, not found.later)


def _truths_of(
    m: Match, view: LoopView, difference: Dim, holds: Callable[[float], bool]
) -> _Truths | None:
    """What a comparison is whose operands differ by a number that changes by a fixed step.

    It is monotone in the difference, or holds for a difference of 0 only.
    """
    found = affine(m.facts, view, difference)
    if found is None or not isinstance(found.first, int):
        return None
    first, step = found.first, found.step
    later = {holds(first + step), holds(float("inf") if step > 0 else float("-inf"))}
    meets_zero_later = first % step == 0 and -first // step > 1
    if len(later) > 1 or (holds(0) and not holds(1) and not holds(-1) and meets_zero_later):
        return None
    return _Truths(holds(first), later.pop())


def _body(index: Index, view: LoopView, number: Tensor | None, offset: Tensor | None) -> Graph:
    """A copy of the body: for one iteration number, or for numbers that are an offset higher."""
    renamed: dict[Tensor, Tensor] = {}
    nodes: list[Node] = []
    copy = clone_without_nodes(view.body, view.body.inputs, renamed, index)
    if number is not None:
        renamed[view.iteration] = number
    if offset is not None:
        counter, shifted = renamed[view.iteration], Variable(view.iteration.name)
        addition = Node("Add", "", {}, [counter, offset], [shifted])
        addition.origin = view.node.origin
        nodes.append(addition)
        renamed[view.iteration] = shifted
    nodes += clone_nodes(index.nodes_in_order(view.body), renamed, index)
    number_nodes(nodes)
    copy.nodes = nodes
    copy.outputs = [renamed.get(t, t) for t in view.body.outputs]
    for old, new in zip(view.body.outputs, copy.outputs):
        if old in view.body.output_info:
            copy.output_info[new] = view.body.output_info[old]
    return copy


def _joined(emit: Builder, first: Tensor, later: Tensor, count: Tensor) -> Tensor:
    """The slices of the first loop and of the second one, which has `count` of them.

    onnxruntime does not know the shape of slices that were not computed: the Reshape gives no
    slices the shape of the first one. Before opset 14, a 0 in its target copies the size of the
    operand, which is 0 as well.
    """
    slice_shape = emit.slice(emit("Shape", first), 0, slice(1, None, 1))
    shape = emit("Concat", emit("Reshape", count, emit.vector(1)), slice_shape, axis=0)
    keeps_zeros = {"allowzero": 1} if emit.patch.opset >= EMPTY_RESHAPES else {}
    return emit("Concat", first, emit("Reshape", later, shape, **keeps_zeros), axis=0)
