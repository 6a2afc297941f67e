"""Loop-invariant code motion.

y = Loop(m, , x) { e = Exp(w); return s + e }    ->   e = Exp(w)   y = Loop(m, , x) { return s + e }
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.purity import cannot_fail_in_iteration, is_pure
from ...rewrite.graph.index import Index
from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, bodies


@dataclass(frozen=True)
class InvariantNodes:
    """Nodes of a body that compute the same in every iteration."""

    nodes: list[Node]


class HoistLoopInvariantCode(Rule[InvariantNodes]):
    """Moves computations on outer values before the loop.

    A node that may fail moves only if the loop has at least one iteration. A node that reads nothing but constants
    stays: FoldConstants and runtimes fold it where it is. They do not fold a DequantizeLinear, which moves unless a
    reader may be part of a quantised operator.
    """

    root = ("Loop", "Scan")
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Exp(x) co = Identity(ci) so = Add(s, e) }> }"""
    spares = {
        "no node of the body": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Exp(s) co = Identity(ci) so = Add(s, e) }> }""",
        "may fail": """g (float[N] x, int64[1] k, float[3] z, int64 m) => (float[3] y) {
      y = Loop (m, , z) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        e = Gather(x, k) co = Identity(ci) so = Add(s, e) }> }""",
    }

    def match(self, m: Match) -> InvariantNodes:
        invariant = _invariant_nodes(m.index, m.node.attrs["body"])
        m.need(bool(invariant), "no node of the body computes on outer values alone")
        # onnxruntime refuses a Scan over empty sequences.
        runs = m.node.op == "Scan" or m.loop().runs_at_least_once(m.facts)
        safe = [n for n in invariant if runs or cannot_fail_in_iteration(n, m.facts)]
        first = invariant[0]
        m.need(bool(safe), "{} may fail, and the loop may not run", first, at=first)
        return InvariantNodes(safe)

    def apply(self, patch: Patch, found: InvariantNodes) -> None:
        home = patch.index.graph_of(patch.root)
        for node in found.nodes:
            for tensor in node.inputs:
                if isinstance(tensor, Constant) and tensor.name:
                    patch.hoist_constant(tensor, home)
        patch.hoist(found.nodes, before=patch.root)


def _invariant_nodes(index: Index, body: Graph) -> list[Node]:
    """Pure nodes without bodies that read an outer value, and otherwise only constants."""
    found = []
    for node in index.nodes(body):
        homes = [index.home(t) for t in node.inputs if t.name and not isinstance(t, Constant)]
        # A copy stays: a body must return values of its own.
        if node.op == "Identity" or bodies(node) or not is_pure(node, index):
            continue
        if body not in homes and (homes or _is_dequantised_weight(index, node)):
            found.append(node)
    return found


_KEEPS_ELEMENTS = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")


def _is_dequantised_weight(index: Index, node: Node) -> bool:
    """Whether a node dequantises bytes for readers that read no other dequantised value.

    Runtimes recognise a quantised operator by the DequantizeLinear of each of its operands, and a
    product with weights in blocks, or of 4 bits, by that of the weights alone.
    """
    if node.op != "DequantizeLinear" or node.attrs.get("block_size"):
        return False
    weight = node.inputs[0]
    if not isinstance(weight, Constant) or weight.dtype not in (np.int8, np.uint8):
        return False
    waiting, read = [node], list[Node]()
    while waiting:
        for reader in index.consumers(waiting.pop().outputs[0]):
            (waiting if reader.op in _KEEPS_ELEMENTS else read).append(reader)
    others = (t for reader in read for t in reader.inputs)
    producers = (_computed_by(index, t) for t in others)
    return all(p is None or p is node or p.op != "DequantizeLinear" for p in producers)


def _computed_by(index: Index, tensor: Tensor) -> Node | None:
    """The node that computes the elements of a value."""
    node = index.producer(tensor)
    while node is not None and node.op in _KEEPS_ELEMENTS:
        node = index.producer(node.inputs[0])
    return node
