"""States that hold the states of several cells, one behind the other.

   h' = Loop(…, h) { a = h[0:1]  b = h[1:2]  …  return Concat(a', b') }
-> a', b' = Loop(…, h[0:1], h[1:2]) { … return a', b' }   h' = Concat(a', b')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.reads import axis_range
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue


@dataclass(frozen=True)
class JoinedState:
    """A state that is joined anew in every iteration."""

    number: int
    state: CarriedValue
    axis: int
    sizes: list[int]
    parts: list[Tensor]
    """What is joined (inside)."""
    reads: list[tuple[Tensor, int, bool]]
    """What the body picks out: the value, the piece it is, and whether it lacks the axis."""


class SplitCarriedValue(Rule):
    """A state that is taken apart and joined again in every iteration is several states."""

    root = ("Loop", "Scan")
    fires = """g (float[2,3] s0, int64 m) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        p = Slice(s, zero, one, zero) q = Slice(s, one, two, zero)
        u = Sin(p) v = Add(q, u) co = Identity(ci) so = Concat<axis=0>(u, v) }> }"""
    spares = {
        "no state is joined": """g (float[2,3] s0, int64 m) => (float[2,3] y) {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "other pieces": """g (float[3] s0, float[1] x, int64 m) => (float[3] y)
      <int64[1] zero = {0}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        p = Slice(s, zero, two, zero) co = Identity(ci) so = Concat<axis=0>(x, p) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        first: Miss | None = None
        for number, state in enumerate(m.carried()):
            try:
                return {"node": m.node, "pieces": _pieces(m, number, state)}
            except Miss as miss:
                first = first or miss
        raise first or Miss("it carries no state", at=m.node)

    def apply(self, patch: Patch, node: Node, pieces: JoinedState) -> None:
        inner: list[Tensor] = [Variable(part.name) for part in pieces.parts]
        emit = patch.builder(pieces.state.initial)
        whole = pieces.state.initial
        initial = emit.split(whole, pieces.axis, pieces.sizes, [whole] * len(inner))
        finals = _finals(patch, pieces)
        _read_pieces(patch, node.attrs["body"], pieces, inner)
        new = [CarriedValue(*each) for each in zip(initial, inner, pieces.parts, finals)]
        patch.loop(node).replace_carried(pieces.number, new)
        patch.toward_normal_form()


def _pieces(m: Match, number: int, state: CarriedValue) -> JoinedState:
    body: Graph = m.node.attrs["body"]
    joined = m.producer(state.output, "Concat")
    if joined is None or m.index.graph_of(joined) is not body:
        raise Miss("no state is joined from pieces", at=m.node)
    shape = m.facts.shape(state.input)
    m.need(shape is not None, "the shape of {} is not known", state.input, at=state.input)
    assert shape is not None
    axis = int(joined.attrs["axis"]) % len(shape)
    sizes = [_size(m.facts, part, axis) for part in joined.inputs]
    known = [n for n in sizes if n is not None]
    m.need(
        len(known) == len(sizes) > 1 and sum(known) == shape[axis],
        "the sizes of the pieces of {} are not known",
        state.output,
        at=joined,
    )
    reads: list[tuple[Tensor, int, bool]] = []
    for use in m.index.uses(state.input):
        found = _picked(m.facts, use.reader, axis, known) if isinstance(use.reader, Node) else None
        m.need(found is not None, "{} reads other pieces of {} than are joined", use.reader,
               state.input, at=joined)  # fmt: skip
        assert found is not None
        reads += found
    return JoinedState(number, state, axis, known, list(joined.inputs), reads)


def _size(facts: Facts, part: Tensor, axis: int) -> int | None:
    shape = facts.shape(part)
    size = None if shape is None else shape[axis]
    return size if isinstance(size, int) else None


def _picked(
    facts: Facts, node: Node, axis: int, sizes: Sequence[int]
) -> list[tuple[Tensor, int, bool]] | None:
    """The pieces a node picks out of the state; None where it does anything else."""
    bounds = list(pairwise([0, *accumulate(sizes)]))
    picked = []
    for output in node.outputs:
        found = axis_range(facts, output)
        if found is None or found.axis != axis or (found.start, found.end) not in bounds:
            return None
        picked.append((output, bounds.index((found.start, found.end)), not found.keeps_axis))
    return picked


def _read_pieces(patch: Patch, body: Graph, pieces: JoinedState, inner: Sequence[Tensor]) -> None:
    """Lets the body read the new states; the nodes that took the old one apart go."""
    for value, number, lacks_axis in pieces.reads:
        there = inner[number]
        if lacks_axis:
            there = patch.builder(value, patch.start(body)).squeeze(there, [pieces.axis])
        patch.replace(value, there)
    for reader in patch.index.consumers(pieces.state.input):
        patch.remove(reader)


def _finals(patch: Patch, pieces: JoinedState) -> list[Tensor]:
    """The outputs of the loop for the pieces, joined behind it where the state is read."""
    final = pieces.state.final
    if final is None or not patch.index.use_count(final):
        return [Variable("") for _ in pieces.parts]
    outputs: list[Tensor] = [Variable(final.name) for _ in pieces.parts]
    emit = patch.builder_after(final)
    patch.replace(final, emit("Concat", *outputs, axis=pieces.axis))
    return outputs
