"""Work that only rows need is done for all of them at once, behind the loop.

   y, rs = Loop(n, , s) { h = f(s, x_t)  r = MatMul(h, W)  return true, h, r }
-> y, hs = Loop(n, , s) { h = f(s, x_t)  return true, h, h }
   rs = MatMul(hs, W)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import is_pure
from ...rewrite.graph.ir import Node, Tensor, bodies
from ...rewrite.graph.views import ScanOutput
from .independent_work import Outside, counted, is_moderate, is_outer, known_elements
from .operator_table import Plan, Work, rule_for, worth

_ROWS_PER_NODE = 2
"""Rows that take as long to collect as one node takes in the body."""


@dataclass(frozen=True)
class Axis:
    """The size of one axis of a row, as it is known without rows."""

    size: int | tuple[Tensor, int]
    """A number, or that of an axis of an outer value."""


class VectorizeAfterLoop(Rule):
    """What only rows need is computed from other rows for all iterations behind the loop."""

    root = ("Loop", "Scan")
    fires = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,2] r) <float[3,2] w = {1,2,3,4,5,6}> {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[2] row) {
        p = Mul(s, xt) so = Sin(p) q = MatMul(so, w) row = Exp(q) }> (s0, xs) }"""
    spares = {
        "nothing is computed for rows alone": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] row) {
        p = Mul(s, xt) so = Sin(p) row = Identity(p) }> (s0, xs) }""",
        "may differ between iterations": """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,1,1] r) {
      y, r = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[1,1] row) {
        p = Mul(s, xt) so = Sin(p) m = NonZero(p) k = Cast<to=1>(m) row = ReduceSum<keepdims=1>(k) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        behind = _Behind(m, steps)
        plans = behind.plans()
        if not plans:
            raise behind.miss or Miss("nothing is computed for rows alone", at=m.node)
        behind.peel(plans)
        m.need(bool(plans), "as many rows would have to be collected as nodes leave the body")
        collected = behind.collected(plans)
        rows = [row for row in behind.rows if m.index.producer(row.slice) in plans]
        more = sum(known_elements(m.facts, t) for t in collected)
        instead = sum(known_elements(m.facts, row.slice) for row in rows)
        m.need(is_moderate(more, instead), "{} elements of each iteration would be kept", more)
        shapes = {}
        if not steps.runs_at_least_once:
            shapes = {t: _axes_without_rows(m, steps, t) for t in collected}
        return {
            "steps": steps, "facts": m.facts, "plans": plans, "collected": collected,
            "rows": rows, "shapes": shapes,
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        steps: CountedLoop,
        facts: Facts,
        plans: dict[Node, Plan],
        collected: list[Tensor],
        rows: list[ScanOutput],
        shapes: dict[Tensor, list[Axis]],
    ) -> None:
        results = [row.stacked for row in rows if row.stacked is not None]
        outside = OutsideBehind(patch, steps, facts, plans, results)
        for inner in collected:
            stacked = (
                _rows_already(steps, inner) or patch.loop(steps.node).add_scan_outputs([inner])[0]
            )
            emit = outside.emit(inner)
            sizes = shapes.get(inner)
            outside[inner] = stacked if sizes is None else _shaped(emit, stacked, sizes)
        for node in sorted(plans, key=lambda n: n.order):
            outside.compute(node)
        for row in rows:
            assert row.stacked is not None
            emit = outside.emit(row.stacked)
            value = emit.scan_output(outside[row.slice], row, facts.rank(row.slice))
            patch.replace(row.stacked, value)
        patch.toward_normal_form()


class OutsideBehind(Outside):
    """Values of the body for all iterations, computed behind the loop."""

    def __init__(
        self,
        patch: Patch,
        steps: CountedLoop,
        facts: Facts,
        plans: dict[Node, Plan],
        results: Sequence[Tensor],
    ) -> None:
        super().__init__(patch, steps, facts, plans)
        self._results = results

    def emit(self, like: Tensor) -> Builder:
        return self.patch.builder_after(like, self._results)


class _Behind:
    """The nodes that only rows need, and what they need themselves."""

    def __init__(self, m: Match, steps: CountedLoop) -> None:
        self._m = m
        self._steps = steps
        self._first_row = len(steps.carried) + (0 if steps.iteration is None else 1)
        self.rows = [r for r in steps.scan_outputs if r.stacked and m.index.use_count(r.stacked)]
        self._read = {row.slice for row in self.rows}
        self._known: set[Tensor | None] = {read.slice for read in steps.reads}
        self._known.add(steps.iteration)
        self.miss: Miss | None = None

    def plans(self) -> dict[Node, Plan]:
        """How to compute each node that no state, and nothing else that stays, depends on."""
        found: dict[Node, Plan] = {}
        reading = {read.gather for read in self._steps.reads}
        nodes = sorted(self._m.index.nodes(self._steps.body), key=lambda n: -n.order)
        for node in nodes:
            # A copy stays: a body must return values of its own.
            if node in reading or node.op == "Identity" or not self._only_for_rows(node, found):
                continue
            try:
                found[node] = self._plan(node)
            except Miss as miss:
                self.miss = self.miss or miss
        return found

    def _only_for_rows(self, node: Node, found: Mapping[Node, Plan]) -> bool:
        uses = [(t, use) for t in node.outputs for use in self._m.index.uses(t)]
        return bool(uses) and all(
            use.reader in found
            or (
                use.reader is self._steps.body
                and use.slot >= self._first_row
                and tensor in self._read
            )
            for tensor, use in uses
        )

    def _plan(self, node: Node) -> Plan:
        facts, body = self._m.facts, self._steps.body
        batched = [bool(t.name) and not is_outer(facts, body, t) for t in node.inputs]
        work = Work(node, facts, batched, self._steps.runs_at_least_once)
        calm = not bodies(node) and is_pure(node, self._m.index) and any(batched)
        rule = work.need(
            rule_for(node) if calm else None, "{} works on one iteration at a time", node
        )
        for t in (*self._inner_operands(node), *node.outputs):
            shape = facts.shape(t)
            fixed = shape is not None and not any(facts.varies_in(d, body) for d in shape)
            work.need(fixed, "the shape of {} may differ between iterations", t)
        plan = rule(work)
        work.need(not plan.uniform, "its result is the same in every iteration")
        return plan

    def peel(self, plans: dict[Node, Plan]) -> None:
        """Takes out nodes that would need more rows than they are worth, first ones first."""
        needed = dict.fromkeys(self.collected(plans))
        for node in sorted(plans, key=lambda n: n.order):
            own = [t for t in self._inner_operands(node) if t in needed]
            if len(own) != len(self._inner_operands(node)):
                continue  # something it needs is computed behind the loop
            only = [t for t in own if self._readers(t, plans) == {node} and t not in self._read]
            instead = [t for t in node.outputs if self._readers(t, plans) and t not in self._read]
            if len(only) - len(instead) > _ROWS_PER_NODE * worth(node):
                del plans[node]
                for t in only:
                    del needed[t]
                needed.update((t, None) for t in node.outputs if self._readers(t, plans))

    def collected(self, plans: Mapping[Node, Plan]) -> list[Tensor]:
        """Values that stay in the body and are needed behind the loop."""
        found = dict.fromkeys(t for node in plans for t in self._inner_operands(node))
        producer = self._m.index.producer
        return [t for t in found if (made_by := producer(t)) is None or made_by not in plans]

    def _inner_operands(self, node: Node) -> list[Tensor]:
        facts, body = self._m.facts, self._steps.body
        return [
            t
            for t in dict.fromkeys(node.inputs)
            if t.name and t not in self._known and not is_outer(facts, body, t)
        ]

    def _readers(self, tensor: Tensor, plans: Mapping[Node, Plan]) -> set[object]:
        return {use.reader for use in self._m.index.uses(tensor) if use.reader in plans}


def _rows_already(steps: CountedLoop, inner: Tensor) -> Tensor | None:
    """The stacked rows of a value that the loop collects along axis 0 as it is."""
    for row in steps.scan_outputs:
        if row.slice is inner and row.axis == 0 and not row.reverse:
            return row.stacked
    return None


def _axes_without_rows(m: Match, steps: CountedLoop, inner: Tensor) -> list[Axis]:
    """The sizes of a row where a loop that does not run leaves none to take them from.

    onnxruntime then makes sizes of 0 of all that is not declared.
    """
    shape = m.need(m.facts.shape(inner), "the rank of {} is not known", inner, at=inner)
    sizes = all(isinstance(size, int) and size > 0 for size in shape)
    modern = sizes or m.facts.opset >= EMPTY_RESHAPES
    m.need(modern, "a size of {} is open, and Reshape has no sizes of 0", inner, at=inner)
    return [
        m.need(
            _find_size(m.facts, steps, size),
            "size {} of {} is not known outside, and the loop may not run",
            size,
            inner,
            at=inner,
        )
        for size in shape
    ]


def _find_size(facts: Facts, steps: CountedLoop, size: symbolic.Dim) -> Axis | None:
    if isinstance(size, int):
        return Axis(size)
    for outer in (*(s.initial for s in steps.carried), *(r.sequence for r in steps.reads)):
        for place, other in enumerate(facts.shape(outer) or ()):
            if symbolic.eq(size, other) is True:
                return Axis((outer, place))
    return None


def _shaped(emit: Builder, stacked: Tensor, sizes: list[Axis]) -> Tensor:
    """The rows with sizes that hold also where there are none; otherwise they have them already."""
    if all(isinstance(a.size, int) and a.size > 0 for a in sizes):
        return emit(
            "Reshape", stacked, emit.vector(0, *(a.size for a in sizes if isinstance(a.size, int)))
        )
    parts = [emit.shape(stacked, 0, 1)]
    for axis in sizes:
        if isinstance(axis.size, int):
            parts.append(emit.vector(axis.size))
        else:
            outer, place = axis.size
            parts.append(emit.shape(outer, place, place + 1))
    return emit.reshape(stacked, emit.concat(parts))
