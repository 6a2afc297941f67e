"""Vectorisation after a loop: work that only scan outputs need leaves the body.

    y, rs = Loop(n, , s) { h = f(s, x_t)  r = MatMul(h, W)  return true, h, r }
 -> y, hs = Loop(n, , s) { h = f(s, x_t)  return true, h, h }
    rs = MatMul(hs, W)

The loop collects the operands instead of the results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.ir import Node, Tensor, bodies
from ...rewrite.graph.views import ScanOutput
from ..loops.counted_loop_checks import need_counted_loop, need_declared_sizes
from .batching import BatchedNode, Plan, batching_rule_of, relative_cost
from .independent_work import HoistedValues, may_materialize, static_size

_SLICES_PER_NODE = 2
"""The number of slices that take as long to collect as one light node takes in the body."""

Size = int | tuple[Tensor, int]
"""The size of an axis: a number, or the size of an axis of an outer value."""


@dataclass(frozen=True)
class WorkAfterLoop:
    """Nodes of a loop body that move after the loop."""

    loop: CountedLoop
    plans: dict[Node, Plan]
    """How to compute each of them for all iterations."""
    collected: list[Tensor]
    """Their operands, which the loop collects."""
    computed: list[tuple[ScanOutput, Tensor]]
    """The scan outputs that they compute."""
    sizes: dict[Tensor, list[Size]]
    """The shape of a slice of each operand, if the loop may not run."""


class VectorizeAfterLoop(Rule[WorkAfterLoop]):
    """Computes what only scan outputs need for all iterations at once, after the loop."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="products of all iterations are computed at once",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,2] r) <float[3,2] w = {1,2,3,4,5,6}> {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[2] row) {
        p = Mul(s, xt) so = Sin(p) q = MatMul(so, w) row = Exp(q) }> (s0, xs) }"""
    spares = {
        "only scan outputs need": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Identity(p) }> (s0, xs) }""",
        "may differ between iterations": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,1,1] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[1,1] row) {
        p = Mul(s, xt) so = Sin(p) m = NonZero(p) k = Cast<to=1>(m) row = ReduceSum<keepdims=1>(k) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> WorkAfterLoop:
        loop = need_counted_loop(m)
        candidates = _Candidates(m, loop)
        plans = candidates.plans
        if not plans:
            raise candidates.first_miss or Miss("there is no node that only scan outputs need")
        candidates.drop_unprofitable()
        m.need(bool(plans), "collecting the operands would cost more than the nodes in the body do")
        collected = candidates.collected()
        outputs = loop.read_scan_outputs(m.index)
        computed = [(o, stacked) for o, stacked in outputs if m.index.producer(o.slice) in plans]
        for output, _ in computed:
            need_declared_sizes(m, loop, output)
        added = sum(static_size(m.facts, t) for t in collected)
        replaced = sum(static_size(m.facts, output.slice) for output, _ in computed)
        many = "the loop would collect {} elements in each iteration instead of {}"
        m.need(may_materialize(added, replaced), many, added, replaced)
        sizes = {}
        if not loop.runs_at_least_once:
            sizes = {t: need_sizes(m, loop, t) for t in collected}
        return WorkAfterLoop(loop, plans, collected, computed, sizes)

    def apply(self, patch: Patch, found: WorkAfterLoop) -> None:
        loop, facts = found.loop, patch.facts
        results = [stacked for _, stacked in found.computed]
        hoisted = HoistedValues(patch, loop, found.plans, after=results)
        edit = patch.loop(loop.node)
        for inner in found.collected:
            stacked = existing_scan_output(loop, inner) or edit.add_scan_outputs([inner])[0]
            emit = hoisted.builder(inner)
            sizes = found.sizes.get(inner)
            hoisted[inner] = stacked if sizes is None else with_slice_shape(emit, stacked, sizes)
        for node in sorted(found.plans, key=lambda n: n.order):
            hoisted.build(node)
        for output, stacked in found.computed:
            emit = hoisted.builder(stacked)
            value = emit.scan_output(hoisted[output.slice], output, facts.rank(output.slice))
            patch.replace(stacked, value)
        patch.toward_normal_form()


class _Candidates:
    """The nodes of a body that only scan outputs need."""

    def __init__(self, m: Match, loop: CountedLoop) -> None:
        self._facts = m.facts
        self._index = m.index
        self._loop = loop
        self._collected = {output.slice for output, _ in loop.read_scan_outputs(m.index)}
        self._known_outside: set[Tensor | None] = {read.slice for read in loop.reads}
        self._known_outside.add(loop.iteration)
        self.first_miss: Miss | None = None
        self.plans = self._find()

    def _find(self) -> dict[Node, Plan]:
        """How to compute each of the nodes for all iterations, the last node first."""
        plans: dict[Node, Plan] = {}
        reading = {read.gather for read in self._loop.reads}
        for node in reversed(self._index.nodes_in_order(self._loop.body)):
            # An Identity stays: a body must return values of its own.
            if node in reading or node.op == "Identity" or not self._is_unread_inside(node, plans):
                continue
            try:
                plans[node] = self._plan(node)
            except Miss as miss:
                self.first_miss = self.first_miss or miss
        return plans

    def _is_unread_inside(self, node: Node, plans: dict[Node, Plan]) -> bool:
        """Whether only scan outputs and nodes that leave the body read the results of a node."""
        uses = [(t, use) for t in node.outputs for use in self._index.uses(t)]
        return bool(uses) and all(
            use.reader in plans or (self._loop.is_scan_output_use(use) and t in self._collected)
            for t, use in uses
        )

    def _plan(self, node: Node) -> Plan:
        """How to compute a node for all iterations; raises Miss if it must stay."""
        facts, loop = self._facts, self._loop
        batched = [bool(t.name) and not loop.is_outer_value(self._index, t) for t in node.inputs]
        op = BatchedNode(node, facts, batched, loop.runs_at_least_once)
        movable = not bodies(node) and is_pure(node, self._index) and any(batched)
        rule = batching_rule_of(node) if movable else None
        rule = op.need(rule, "there is no batching rule for {}", node)
        for t in (*self._collected_operands(node), *node.outputs):
            shape = facts.shape(t)
            fixed = shape is not None and not any(facts.varies_in(d, loop.body) for d in shape)
            op.need(fixed, "the shape of {} may differ between iterations", t)
        plan = rule(op)
        op.need(not plan.invariant, "its result is the same in every iteration")
        return plan

    def drop_unprofitable(self) -> None:
        """Keeps nodes in the body whose operands cost more to collect than moving them saves."""
        plans = self.plans
        needed = set(self.collected())
        for node in sorted(plans, key=lambda n: n.order):
            operands = self._collected_operands(node)
            if not needed.issuperset(operands):
                continue  # an operand is computed after the loop
            spared = [
                t for t in operands if self._readers(t) == {node} and t not in self._collected
            ]
            added = [t for t in node.outputs if self._readers(t) and t not in self._collected]
            if len(spared) - len(added) > _SLICES_PER_NODE * relative_cost(node):
                del plans[node]
                needed.difference_update(spared)
                needed.update(t for t in node.outputs if self._readers(t))

    def collected(self) -> list[Tensor]:
        """The values that the body computes and that nodes after the loop need."""
        operands = dict.fromkeys(t for node in self.plans for t in self._collected_operands(node))
        return [t for t in operands if self._index.producer(t) not in self.plans]

    def _collected_operands(self, node: Node) -> list[Tensor]:
        """The operands that are not known outside of the loop otherwise."""
        return [
            t
            for t in dict.fromkeys(node.inputs)
            if t.name
            and t not in self._known_outside
            and not self._loop.is_outer_value(self._index, t)
        ]

    def _readers(self, tensor: Tensor) -> set[object]:
        """The nodes that read a value after the loop."""
        return {use.reader for use in self._index.uses(tensor) if use.reader in self.plans}


def existing_scan_output(loop: CountedLoop, inner: Tensor) -> Tensor | None:
    """The stacked tensor of a value that the loop collects along axis 0 already."""
    for output in loop.scan_outputs:
        if output.slice is inner and output.axis == 0 and not output.reverse:
            return output.stacked
    return None


def need_sizes(m: Match, loop: CountedLoop, inner: Tensor) -> list[Size]:
    """The shape of a value of the body, known outside; raises Miss if it is not.

    If a loop does not run, onnxruntime sets all sizes of a scan output to 0 that are not declared.
    """
    shape = m.need(m.facts.shape(inner), "the rank of {} is not known", inner, at=inner)
    static = all(isinstance(size, int) and size > 0 for size in shape)
    m.need(static or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES, at=inner)
    sizes: list[Size] = []
    for dim in shape:
        size = _size_outside(m.facts, loop, dim)
        if size is None:
            unknown = "size {} of {} is not known outside, and the loop may not run"
            raise Miss(unknown, dim, inner, at=inner)
        sizes.append(size)
    return sizes


def _size_outside(facts: Facts, loop: CountedLoop, size: symbolic.Dim) -> Size | None:
    if isinstance(size, int):
        return size
    operands = (*(c.initial for c in loop.carried), *(r.sequence for r in loop.reads))
    for outer in (*operands, *facts.index.captures(loop.node)):
        shape = facts.shape(outer) if facts.of(outer).kind == "tensor" else None
        for axis, other in enumerate(shape or ()):
            if symbolic.eq(size, other) is True:
                return outer, axis
    return None


def with_slice_shape(emit: Builder, stacked: Tensor, sizes: list[Size]) -> Tensor:
    """Reshapes stacked slices to their shape, which an empty scan output does not have yet."""
    static = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(static) == len(sizes):
        return emit("Reshape", stacked, emit.vector(0, *static))
    parts = [emit.shape(stacked, 0, 1)]
    for size in sizes:
        if isinstance(size, int):
            parts.append(emit.vector(size))
        else:
            outer, axis = size
            parts.append(emit.shape(outer, axis, axis + 1))
    return emit.reshape(stacked, emit.concat(parts))
