"""Loop distribution: carried values that others only read are computed in a loop before.

    s, u = Loop(n, , s, u) { s' = f(s, x_t)  u' = u * exp(s') + y_t }
 -> s, S = Loop(n, , s) { s' = f(s, x_t)  return s', s' }
    u = Loop(n, , u) { u' = u * exp(S_t) + y_t }

In the second loop, what depends on S is known for all iterations, and VectorizeBeforeLoop moves it
out of the body (Allen and Kennedy: Optimizing compilers for modern architectures, 2001, section 5).
The maximum that RWKV 4 keeps of its exponents is such a carried value.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.clone import clone_constants, clone_nodes
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies
from ...rewrite.graph.views import CarriedValue, LoopView
from ..loops.counted_loop_checks import need_counted_loop
from .after_loop import Size, need_sizes, with_slice_shape
from .batching import batching_rule_of, relative_cost
from .independent_work import (
    IndependentWork,
    find_independent_work,
    may_materialize,
    static_size,
)

_MOST_GROUPS = 8
"""The sets of carried values that are tried in a first loop, the smallest first."""
_LOOP_COST = 2
"""The time of one more loop, in nodes of its body; measured on onnxruntime."""


@dataclass(frozen=True)
class DistributableLoop:
    """A loop and the carried values that do not depend on the others."""

    loop: CountedLoop
    numbers: list[int]
    """The numbers of the carried values of the first loop."""
    nodes: list[Node]
    """The nodes that the first loop needs, in the order in which they run."""
    read: list[Tensor]
    """Values of the first loop that the second one reads."""
    sizes: list[list[Size]]
    """Their shapes, known outside; empty where the loop is known to run."""


class DistributeLoop(Rule[DistributableLoop]):
    """Computes carried values that do not depend on the others in a loop before (distribution)."""

    root = ("Loop", "Scan")
    promise = Promise(accepts="those that read after the end of the sequence")
    fires = """g (float[T,3] x, float[3] s0, float[3] u0) => (float[3] s, float[3] u) {
      s, u = Scan <num_scan_inputs=1, body = b (float[3] si, float[3] ui, float[3] xt) => (float[3] sn, float[3] un) {
        sn = Max(si, xt) d = Sub(xt, sn) e = Exp(d) f = Sub(si, sn) g = Exp(f) h = Mul(e, xt)
        a = Mul(g, ui) b = Add(a, h) un = Tanh(b) }> (s0, u0, x) }"""
    spares = {
        "depends on all the others": """g (float[T,3] x, float[3] s0, float[3] u0) => (float[3] s, float[3] u) {
      s, u = Scan <num_scan_inputs=1, body = b (float[3] si, float[3] ui, float[3] xt) => (float[3] sn, float[3] un) {
        sn = Max(ui, xt) un = Add(si, xt) }> (s0, u0, x) }""",
        "too little": """g (float[T,3] x, float[3] s0, float[3] u0) => (float[3] s, float[3] u) {
      s, u = Scan <num_scan_inputs=1, body = b (float[3] si, float[3] ui, float[3] xt) => (float[3] sn, float[3] un) {
        sn = Max(si, xt) e = Exp(sn) a = Mul(ui, e) un = Tanh(a) }> (s0, u0, x) }""",
    }

    def match(self, m: Match) -> DistributableLoop:
        loop = need_counted_loop(m)
        m.need(len(loop.carried) > 1, "it carries fewer than two values")
        constant = m.node.op == "Scan" or isinstance(m.loop().condition_out, Constant)
        m.need(constant, "its body computes a condition")
        nodes = m.index.nodes_in_order(loop.body)
        for node in nodes:
            movable = not bodies(node) and is_pure(node, m.index)
            m.need(movable, "{} has a body or is random", node)
        none = "each carried value depends on all the others"
        groups = _closed_groups(loop, nodes)
        m.need(bool(groups), none)
        work = find_independent_work(m.facts, loop)
        return m.first(
            lambda numbers: _distribution(m, work, nodes, numbers), groups[:_MOST_GROUPS], none
        )

    def apply(self, patch: Patch, found: DistributableLoop) -> None:
        loop = found.loop
        edit = patch.loop(loop.node)
        edit.declare_scan_outputs(loop)
        carried = [loop.carried[number] for number in found.numbers]
        finals, stacked = _first_loop(patch, found, carried)
        for value, final in zip(carried, finals):
            if value.final is not None and patch.index.use_count(value.final):
                patch.replace(value.final, final)
        if found.sizes:
            shaped = zip(found.read, stacked, found.sizes)
            stacked = [with_slice_shape(patch.builder(t), v, sizes) for t, v, sizes in shaped]
        edit.read_slices(list(zip(found.read, stacked)))
        for value in carried:
            # Dead nodes still read it until EliminateDeadNode removes them.
            patch.replace(value.input, value.initial)
        edit.drop_carried(found.numbers)
        patch.split_loop()


def _distribution(
    m: Match, independent: IndependentWork, nodes: list[Node], numbers: list[int]
) -> DistributableLoop:
    """The distribution with these carried values in the first loop; raises Miss if it costs more."""
    loop = independent.loop
    carried = [loop.carried[number] for number in numbers]
    inputs, outputs = [c.input for c in carried], [c.output for c in carried]
    for value in carried:
        shape = m.facts.shape(value.initial)
        same = shape is not None and all(
            symbolic.equal_shapes(m.facts.shape(t), shape) for t in (value.input, value.output)
        )
        m.need(same, "the shape of {} may change in the loop", value.input)
    first = _needed(nodes, outputs, ())
    others = [c.output for number, c in enumerate(loop.carried) if number not in numbers]
    others += [output.slice for output, _ in loop.read_scan_outputs(m.index)]
    boundary = {*inputs, *outputs}
    second = _needed(nodes, others, boundary)
    reached = {t for node in second for t in node.inputs} | set(others)
    read = [t for t in dict.fromkeys((*inputs, *outputs)) if t in reached]
    computed = {t for node in first for t in node.outputs}
    m.need(computed.issuperset(outputs), "{} is not computed in the body", outputs[0])
    known, saved = set(read), 0
    for node in second:
        varying = [t for t in node.inputs if t in known]
        rest = (t for t in node.inputs if t.name and t not in known)
        if (
            varying
            and batching_rule_of(node) is not None
            and all(independent.is_independent(m.index, t) for t in rest)
        ):
            known.update(node.outputs)
            saved += relative_cost(node)
    cost = _LOOP_COST + len(read)
    little = "the values of {} would spare {} nodes in each iteration, too little for a second loop"
    m.need(saved > cost, little, inputs, saved)
    held = sum(static_size(m.facts, t) for t in read)
    given = sum(static_size(m.facts, r.slice) for r in loop.reads)
    m.need(may_materialize(held, given), "{} are too large to hold for all iterations", read)
    sizes = [] if loop.runs_at_least_once else [need_sizes(m, loop, t) for t in read]
    return DistributableLoop(loop, numbers, first, read, sizes)


def _needed(nodes: list[Node], wanted: Iterable[Tensor], known: Collection[Tensor]) -> list[Node]:
    """The nodes that these values need, in the order in which they run; `known` needs none."""
    needed, found = set(wanted).difference(known), []
    for node in reversed(nodes):
        if any(t in needed for t in node.outputs):
            found.append(node)
            needed.update(t for t in node.inputs if t.name and t not in known)
    return found[::-1]


def _closed_groups(loop: CountedLoop, nodes: list[Node]) -> list[list[int]]:
    """The sets of carried values that depend on no others, without that of all, small first."""
    count = len(loop.carried)
    updated: dict[Tensor, int] = {}
    """The carried values, as the bits of a number, whose updates need a value."""
    for number, carried in enumerate(loop.carried):
        updated[carried.output] = updated.get(carried.output, 0) | 1 << number
    for node in reversed(nodes):
        mask = functools.reduce(operator.or_, (updated.get(t, 0) for t in node.outputs), 0)
        for tensor in node.inputs:
            if tensor.name:
                updated[tensor] = updated.get(tensor, 0) | mask
    masks = [updated.get(carried.input, 0) for carried in loop.carried]
    read = [
        [other for other in range(count) if masks[other] >> number & 1] for number in range(count)
    ]
    found = {tuple(sorted(_reached(read, number))) for number in range(count)}
    return [list(group) for group in sorted(found, key=len) if len(group) < count]


def _reached(read: list[list[int]], number: int) -> set[int]:
    """What a carried value depends on, over all iterations, and itself."""
    reached, waiting = {number}, [number]
    while waiting:
        more = set(read[waiting.pop()]) - reached
        reached |= more
        waiting += more
    return reached


def _first_loop(
    patch: Patch, found: DistributableLoop, carried: list[CarriedValue]
) -> tuple[list[Tensor], list[Tensor]]:
    """The loop that computes the carried values; returns the final values and the stacked ones."""
    loop, node, index = found.loop, found.loop.node, patch.index
    body = Graph(name=loop.body.name, doc_string=loop.body.doc_string)
    body.origin = loop.body.origin
    fixed = 0 if loop.iteration is None else 2
    kept = [*loop.body.inputs[:fixed], *(c.input for c in carried)]
    kept += loop.body.inputs[fixed + len(loop.carried) :]
    renamed: dict[Tensor, Tensor] = {t: Variable(t.name) for t in kept}
    for old in kept:
        renamed[old].info = old.info
    body.inputs = [renamed[t] for t in kept]
    clone_constants(loop.body, body, renamed, index)
    body.nodes = clone_nodes(found.nodes, renamed, index)
    for place, copy in enumerate(body.nodes):
        copy.order = float(place)
    results = [c.output for c in carried]
    slices = []
    for inner in found.read:
        copy = Node("Identity", "", {}, [renamed[inner]], [Variable(inner.name)], "")
        copy.order = float(len(body.nodes))
        body.nodes.append(copy)
        slices.append(copy.outputs[0])
    attrs = {**node.attrs, "body": body}
    inputs = [c.initial for c in carried]
    if fixed:
        condition = LoopView(node).condition_out
        inputs = [*node.inputs[:2], *inputs]
        results = [condition, *results]
    else:
        for name in ("scan_output_axes", "scan_output_directions"):
            attrs.pop(name, None)
        inputs = [*inputs, *node.inputs[len(loop.carried) :]]
    body.outputs = [*(renamed.get(t, t) for t in results), *slices]
    like = [*(c.input for c in carried), *found.read]
    outputs = patch.node(node.op, inputs, like, attrs)
    for inner in body.nodes:
        patch.touch(inner)
    return outputs[: len(carried)], outputs[len(carried) :]
