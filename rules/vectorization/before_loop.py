"""Vectorisation before a loop: the part of a body that depends on no carried value leaves the loop.

    y = Loop(n, , s) { x_t = Gather(x, i)  p = MatMul(x_t, W)  return true, s + p }
 -> P = MatMul(x[:n], W)
    y = Loop(n, , s) { p = Gather(P, i)  return true, s + p }

This is `vmap` over that part of the body.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Node, Tensor
from .batching import relative_cost
from .independent_work import HoistedValues, IndependentWork, need_independent_work


@dataclass(frozen=True)
class WorkBeforeLoop:
    """Nodes of a loop body that move before the loop."""

    work: IndependentWork
    moved: list[Node]
    """In the order in which they run."""
    read: list[Tensor]
    """Their results that the rest of the body reads."""


class VectorizeBeforeLoop(Rule[WorkBeforeLoop]):
    """Computes what depends on slice reads alone for all iterations at once, before the loop.

    Moves only what cannot fail unless the loop always runs, and only where that leaves fewer nodes.
    """

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="products of all iterations are computed at once",
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,2] xs, float[3] s0) => (float[3] y) <float[2,3] w = {1,2,3,4,5,6}> {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[2] xt) => (float[3] so) {
        p = MatMul(xt, w) e = Exp(p) a = Sin(s) so = Add(a, e) }> (s0, xs) }"""
    spares = {
        "no node depends on slice reads alone": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        p = Mul(s, xt) so = Sin(p) }> (s0, xs) }""",
        "the loop may not run": """g (float[T,K] xs, float[K,3] w, float[2,3] v, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) p = MatMul(xt, v) a = Sin(s) co = Identity(ci) so = Add(a, p) }> }""",
        "no fewer nodes": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) e = Exp(xt) p = Mul(s, xt) co = Identity(ci) so = Add(p, e) }> }""",
        "may end early": """g (float[T,3] xs, float[3] s0, int64 n) => (float[3] y) <float big = {100}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(xs, i) e = Exp(xt) so = Add(s, e) q = ReduceMax<keepdims=0>(so) co = Less(q, big) }> }""",
    }

    def match(self, m: Match) -> WorkBeforeLoop:
        work = need_independent_work(m)
        if not work.plans:
            raise work.first_miss or Miss("no node depends on slice reads alone", at=m.node)
        cost = _CostModel(m.index, work)
        moved = cost.worth_moving()
        unchanged = "moving {} before the loop would leave no fewer nodes in the body"
        m.need(bool(moved), unchanged, next(iter(work.plans)))
        return WorkBeforeLoop(work, moved, cost.results_read_inside(moved))

    def apply(self, patch: Patch, found: WorkBeforeLoop) -> None:
        work = found.work
        loop, edit = work.loop, patch.loop(work.loop.node)
        edit.declare_scan_outputs(loop)
        hoisted = HoistedValues(patch, loop, work.plans)
        for node in found.moved:
            hoisted.build(node)
        slices = []
        for inner in found.read:
            if inner in work.invariant:
                patch.replace(inner, hoisted[inner])
            else:
                slices.append((inner, hoisted[inner]))
        edit.read_slices(slices)
        for node in reversed(found.moved):
            patch.remove(node)
        edit.drop_unread_scan_inputs()
        patch.toward_normal_form()


class _CostModel:
    """Chooses which of the nodes that can leave the body do, by the number of nodes left.

    The body then reads slices of their results, which takes a Gather in a Loop and no node in a
    Scan.
    """

    def __init__(self, index: Index, work: IndependentWork) -> None:
        self._index = index
        self._work = work
        self._loop = work.loop
        self._slices = [read.slice for read in work.loop.reads]

    def worth_moving(self) -> list[Node]:
        """The nodes to move; [] if that would leave no fewer nodes in the body."""
        moved = dict.fromkeys(self._work.plans)
        if self._loop.iteration is None:
            return list(moved)
        read = set(self.results_read_inside(moved))
        read.update(t for t in self._slices if self._is_read_inside(t, moved))
        for node in reversed(list(moved)):
            if self._is_cheaper_inside(node, moved, read):
                del moved[node]
                read.difference_update(node.outputs)
                read.update(t for t in node.inputs if t in self._work.batched)
        return list(moved) if self._saved_nodes(moved) > 0 else []

    def results_read_inside(self, moved: Collection[Node]) -> list[Tensor]:
        """Results of moved nodes that the rest of the body reads."""
        nodes = set(moved)
        return [t for n in moved for t in n.outputs if self._is_read_inside(t, nodes)]

    def _is_read_inside(self, tensor: Tensor, moved: Collection[object]) -> bool:
        return any(use.reader not in moved for use in self._index.uses(tensor))

    def _read_cost(self, tensor: Tensor) -> int:
        """The nodes that it takes to read a value: none if only scan outputs do.

        VectorizeScanOutputs takes the value for them from outside.
        """
        if tensor not in self._work.batched or tensor is self._loop.iteration:
            return 0
        return 0 if all(map(self._loop.is_scan_output_use, self._index.uses(tensor))) else 1

    def _is_cheaper_inside(
        self, node: Node, moved: Mapping[Node, None], read: Collection[Tensor]
    ) -> bool:
        """Whether reading the operands of a node is cheaper than reading its results."""
        if any(use.reader in moved for t in node.outputs for use in self._index.uses(t)):
            return False
        results = sum(self._read_cost(t) for t in node.outputs if t in read)
        operands = {t for t in node.inputs if t in self._work.batched and t not in read}
        return results - sum(map(self._read_cost, operands)) > self._gain(node)

    def _gain(self, node: Node) -> int:
        """The gain of moving a node; none for index arithmetic, which is cheaper than a read."""
        return 0 if node.outputs[0] in self._work.index_values else relative_cost(node)

    def _saved_nodes(self, moved: Mapping[Node, None]) -> int:
        dropped = sum(
            1 for t in self._slices if self._read_cost(t) and not self._is_read_inside(t, moved)
        )
        added = sum(map(self._read_cost, self.results_read_inside(moved)))
        return sum(map(self._gain, moved)) + dropped - added
