"""Loop distribution: a loop of its own computes the carried values that depend on no others.

    s, u = Loop(n, , s, u) { s' = f(s, x_t)  u' = u * exp(s') + y_t }
 -> s, S = Loop(n, , s) { s' = f(s, x_t)  return s', s' }
    u = Loop(n, , u) { u' = u * exp(S_t) + y_t }

The second loop knows S for all iterations, so VectorizeBeforeLoop can move work that depends on S
out of its body (Allen and Kennedy: Optimizing compilers for modern architectures, 2001, section 5).
In RWKV 4, the running maximum of the exponents is such a carried value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.clone import clone_nodes, clone_without_nodes
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable, bodies, number_nodes
from ...rewrite.graph.views import CarriedValue, LoopView
from ..loops.counted_loop_checks import need_counted_loop
from .after_loop import Size, need_sizes, with_slice_shape
from .batching import batching_rule_of, relative_cost
from .independent_work import (
    IndependentWork,
    may_materialize,
    need_independent_work,
    static_size,
)

_MOST_GROUPS = 8
"""How many sets of carried values are tried as those of the first loop."""
_LOOP_COST = 2
"""The overhead of a second loop in each iteration, as a number of nodes; measured on onnxruntime."""


@dataclass(frozen=True)
class DistributableLoop:
    """A loop, and the carried values that depend on no others."""

    loop: CountedLoop
    numbers: list[int]
    """The numbers of the carried values of the first loop."""
    nodes: list[Node]
    """The nodes that compute them, in the order in which they run."""
    shared: list[Tensor]
    """Values of the first loop that the second one reads."""
    sizes: list[list[Size]]
    """The shapes of the shared values, known outside; empty if the loop runs at least once."""


class DistributeLoop(Rule[DistributableLoop]):
    """Loop distribution: computes carried values that depend on no others in a loop of their own."""

    root = ("Loop", "Scan")
    promise = Promise(accepts="those that read past the end of the sequence")
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
        m.need(constant, "its body computes the loop condition")
        nodes = m.index.nodes_in_order(loop.body)
        for node in nodes:
            movable = not bodies(node) and is_pure(node, m.index)
            m.need(movable, "{} has a body or is random", node)
        none = "each carried value depends on all the others"
        groups = _closed_groups(loop, nodes)
        m.need(bool(groups), none)
        work = need_independent_work(m)
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
            shaped = zip(found.shared, stacked, found.sizes)
            stacked = [with_slice_shape(patch.builder(t), v, sizes) for t, v, sizes in shaped]
        edit.read_slices(list(zip(found.shared, stacked)))
        for value in carried:
            # Dead nodes still read it until EliminateDeadNode removes them.
            patch.replace(value.input, value.initial)
        edit.drop_carried(found.numbers)
        patch.split_loop()


def _distribution(
    m: Match, work: IndependentWork, nodes: list[Node], numbers: list[int]
) -> DistributableLoop:
    """The loop with these carried values in the first loop. Raises Miss if that does not pay off."""
    loop = work.loop
    carried = [loop.carried[number] for number in numbers]
    for value in carried:
        _need_fixed_shape(m, value)
    inputs, outputs = [c.input for c in carried], [c.output for c in carried]
    first = _needed(nodes, outputs, ())
    computed = {t for node in first for t in node.outputs}
    for output in outputs:
        m.need(output in computed, "{} is not computed in the body", output)
    others = [c.output for number, c in enumerate(loop.carried) if number not in numbers]
    others += [output.slice for output, _ in loop.read_scan_outputs(m.index)]
    second = _needed(nodes, others, {*inputs, *outputs})
    read = {t for node in second for t in node.inputs} | set(others)
    shared = [t for t in dict.fromkeys((*inputs, *outputs)) if t in read]
    saved = _saved_cost(m.index, work, second, shared)
    little = (
        "knowing {} beforehand would save {} nodes in each iteration, too little for a second loop"
    )
    m.need(saved > _LOOP_COST + len(shared), little, inputs, saved)
    held = sum(static_size(m.facts, t) for t in shared)
    replaced = sum(static_size(m.facts, r.slice) for r in loop.reads)
    too_large = "{} would be too large to hold for all iterations"
    m.need(may_materialize(held, replaced), too_large, shared)
    sizes = [] if loop.runs_at_least_once else [need_sizes(m, loop, t) for t in shared]
    return DistributableLoop(loop, numbers, first, shared, sizes)


def _need_fixed_shape(m: Match, carried: CarriedValue) -> None:
    """Raises Miss unless a carried value has the same known shape before and in each iteration."""
    shape = m.facts.shape(carried.initial)
    same = shape is not None and all(
        symbolic.equal_shapes(m.facts.shape(t), shape) for t in (carried.input, carried.output)
    )
    m.need(same, "the shape of {} may change in the loop", carried.input)


def _needed(nodes: list[Node], wanted: Iterable[Tensor], known: Collection[Tensor]) -> list[Node]:
    """The nodes that compute the wanted values from known ones, in the order in which they run."""
    needed, found = set(wanted).difference(known), []
    for node in reversed(nodes):
        if any(t in needed for t in node.outputs):
            found.append(node)
            needed.update(t for t in node.inputs if t.name and t not in known)
    return found[::-1]


def _saved_cost(
    index: Index, work: IndependentWork, nodes: list[Node], shared: list[Tensor]
) -> int:
    """The cost of the nodes that can leave the second loop because it knows the shared values."""
    known, saved = set(shared), 0
    for node in nodes:
        depends = any(t in known for t in node.inputs)
        rest = (t for t in node.inputs if t.name and t not in known)
        movable = depends and batching_rule_of(node) is not None
        if movable and all(work.is_independent(index, t) for t in rest):
            known.update(node.outputs)
            saved += relative_cost(node)
    return saved


def _closed_groups(loop: CountedLoop, nodes: list[Node]) -> list[list[int]]:
    """The sets of carried values that depend on no others, the smallest first; not that of all."""
    operands = _operands(loop, nodes)
    groups = {tuple(sorted(_closure(operands, number))) for number in range(len(loop.carried))}
    return [list(group) for group in sorted(groups, key=len) if len(group) < len(loop.carried)]


def _operands(loop: CountedLoop, nodes: list[Node]) -> list[list[int]]:
    """For each carried value, the numbers of those from which an iteration computes it."""
    # A set of carried values is a number with a bit for each, which is fast in large bodies.
    needed_by: dict[Tensor, int] = {}
    for number, carried in enumerate(loop.carried):
        needed_by[carried.output] = needed_by.get(carried.output, 0) | 1 << number
    for node in reversed(nodes):
        updates = 0
        for tensor in node.outputs:
            updates |= needed_by.get(tensor, 0)
        for tensor in node.inputs:
            if tensor.name:
                needed_by[tensor] = needed_by.get(tensor, 0) | updates
    updated = [needed_by.get(carried.input, 0) for carried in loop.carried]
    count = len(loop.carried)
    return [[k for k in range(count) if updated[k] >> number & 1] for number in range(count)]


def _closure(operands: list[list[int]], number: int) -> set[int]:
    """A carried value and all those that it depends on, in this or an earlier iteration."""
    reached, waiting = {number}, [number]
    while waiting:
        more = set(operands[waiting.pop()]) - reached
        reached |= more
        waiting += more
    return reached


def _first_loop(
    patch: Patch, found: DistributableLoop, carried: list[CarriedValue]
) -> tuple[list[Tensor], list[Tensor]]:
    """Adds the first loop. Returns the final carried values, and the stacked shared values."""
    node = found.loop.node
    body = _first_body(patch.index, found, carried)
    initial = _with_carried(found.loop, node.inputs, [c.initial for c in carried])
    like = [*(c.input for c in carried), *found.shared]
    of_scan_outputs = ("scan_output_axes", "scan_output_directions")
    attrs = {name: value for name, value in node.attrs.items() if name not in of_scan_outputs}
    outputs = patch.node(node.op, initial, like, {**attrs, "body": body})
    for inner in body.nodes:
        patch.touch(inner)
    return outputs[: len(carried)], outputs[len(carried) :]


def _first_body(index: Index, found: DistributableLoop, carried: list[CarriedValue]) -> Graph:
    """The body of the first loop, which has the shared values as scan outputs."""
    loop = found.loop
    renamed: dict[Tensor, Tensor] = {}
    inputs = _with_carried(loop, loop.body.inputs, [c.input for c in carried])
    body = clone_without_nodes(loop.body, inputs, renamed, index)
    body.nodes = clone_nodes(found.nodes, renamed, index)
    slices = [Variable(inner.name) for inner in found.shared]
    for inner, copy in zip(found.shared, slices):
        body.nodes.append(Node("Identity", "", {}, [renamed[inner]], [copy], ""))
    number_nodes(body.nodes)
    results = [c.output for c in carried]
    if loop.node.op == "Loop":
        results.insert(0, LoopView(loop.node).condition_out)
    body.outputs = [*(renamed.get(t, t) for t in results), *slices]
    return body


def _with_carried(
    loop: CountedLoop, inputs: Sequence[Tensor], carried: Sequence[Tensor]
) -> list[Tensor]:
    """The inputs of the loop or of its body, with these carried values instead of its own."""
    first = 2 if loop.node.op == "Loop" else 0
    return [*inputs[:first], *carried, *inputs[first + len(loop.carried) :]]
