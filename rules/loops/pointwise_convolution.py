"""Convolutions of a single position in a loop body are matrix products.

x: [batch, 4, 1]     w: [8, 4, 1]
y = Conv(x, w, b)    ->   p = MatMul(Squeeze(x, [2]), Transpose(Squeeze(w, [2])))
                          y = Unsqueeze(p + b, [2])

Exporters write recurrent cells over images and channel-first sequences with such convolutions. The
rules for recurrences read the weights of a cell from matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import optional


@dataclass(frozen=True)
class PointwiseConvolution:
    """A Conv whose operand and kernel have one position."""

    positions: list[int]
    """The axes of positions, all of size 1."""
    has_bias: bool


class PointwiseConvToProduct(Rule[PointwiseConvolution]):
    """Turns a Conv of a single position in a loop body into a MatMul."""

    root = "Conv"
    promise = Promise(
        rounds="a matrix product instead of a convolution",
    )
    fires = """g (float[T,B,4,1] x, float[8,4,1] w, float[8,8,1] r, float[8] b, float[B,8,1] h0) => (float[B,8,1] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[B,8,1] h) => (bool co, float[B,8,1] ho) {
        co = Identity(ci) xt = Gather(x, i) p = Conv(xt, w, b) q = Conv(h, r) a = Add(p, q) ho = Tanh(a) }> }"""
    spares = {
        "not in a loop": """g (float[B,4,1] x, float[8,4,1] w) => (float[B,8,1] y) { y = Conv(x, w) }""",
        "more than one position": """g (float[8,8,1] w, float[B,8,L] h0, int64 n) => (float[B,8,L] y) {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[B,8,L] h) => (bool co, float[B,8,L] ho) {
        co = Identity(ci) a = Conv(h, w) ho = Tanh(a) }> }""",
        "pads": """g (float[8,8,1] w, float[B,8,1] h0, int64 n) => (float[B,8,1] y) <int64[1] one = {1}, int64[1] two = {2}> {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[B,8,1] h) => (bool co, float[B,8,1] ho) {
        co = Identity(ci) a = Conv<pads = [1, 1]>(h, w) c = Slice(a, one, two, two) ho = Tanh(c) }> }""",
        "groups": """g (float[8,4,1] w, float[B,8,1] h0, int64 n) => (float[B,8,1] y) {
      y = Loop (n, , h0) <body = s (int64 i, bool ci, float[B,8,1] h) => (bool co, float[B,8,1] ho) {
        co = Identity(ci) a = Conv<group = 2>(h, w) ho = Tanh(a) }> }""",
    }

    def match(self, m: Match) -> PointwiseConvolution:
        node = m.node
        owner = m.index.owner(m.graph())
        m.need(owner is not None and owner.op in ("Loop", "Scan"), "it is not in a loop")
        for tensor in node.inputs[:2]:
            shape = m.need(m.facts.shape(tensor), "the rank of {} is not known", tensor, at=tensor)
            single = all(size == 1 for size in shape[2:])
            m.need(single, "{} has more than one position", tensor, at=tensor)
        m.need(not any(node.attrs.get("pads", ())), "it pads its operand")
        m.need(node.attrs.get("group", 1) == 1, "it has groups")
        rank = len(m.facts.known_shape(node.inputs[0]))
        has_bias = optional(node.inputs, 2) is not None
        return PointwiseConvolution(list(range(2, rank)), has_bias)

    def apply(self, patch: Patch, found: PointwiseConvolution) -> None:
        x, weights, *bias = patch.root.inputs
        emit = patch.builder(patch.root.outputs[0])
        matrix = emit.transpose(emit.squeeze(weights, found.positions), [1, 0])
        product = emit("MatMul", emit.squeeze(x, found.positions), matrix)
        if found.has_bias:
            product = emit("Add", product, bias[0])
        patch.replace_node(patch.root, [emit.unsqueeze(product, found.positions)])
        patch.toward_normal_form()
