"""States that hold the states of several cells, one behind the other.

   h' = Loop(…, h) { a = h[0:1]  b = h[1:2]  …  return Concat(a', b') }
-> a', b' = Loop(…, h[0:1], h[1:2]) { … return a', b' }   h' = Concat(a', b')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ...rewrite.facts import Facts
from ...rewrite.ir import Graph, Node, Tensor, Variable
from ...rewrite.patch import Patch
from ...rewrite.rule import Match, Miss, Rule
from ...rewrite.views import State
from ..loop_states import states_of
from ..step_emit import OLDEST, Emit, EmitBehind
from .cuts import one_axis_cut

_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


@dataclass(frozen=True)
class Pieces:
    """A state that is joined anew in every iteration."""

    number: int
    state: State
    axis: int
    sizes: list[int]
    parts: list[Tensor]
    """What is joined (inside)."""
    reads: list[tuple[Tensor, int, bool]]
    """What the body picks out: the value, the piece it is, and whether it lacks the axis."""


class SplitState(Rule):
    """A state that is taken apart and joined again in every iteration is several states."""

    root = ("Loop", "Scan")
    fires = (
        _HEADER
        + """g (float[2,3] s0, int64 m) => (float[2,3] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        p = Slice(s, zero, one, zero) q = Slice(s, one, two, zero)
        u = Sin(p) v = Add(q, u) co = Identity(ci) so = Concat<axis=0>(u, v) }> }"""
    )
    spares = {
        "no state is joined": _HEADER
        + """g (float[2,3] s0, int64 m) => (float[2,3] y) {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "other pieces": _HEADER
        + """g (float[3] s0, float[1] x, int64 m) => (float[3] y)
      <int64[1] zero = {0}, int64[1] two = {2}> {
      y = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        p = Slice(s, zero, two, zero) co = Identity(ci) so = Concat<axis=0>(x, p) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.facts.opset >= OLDEST, "operators before opset {} take axes in other ways", OLDEST)
        first: Miss | None = None
        for number, state in enumerate(states_of(m)):
            try:
                return {"node": m.node, "pieces": _pieces(m, number, state)}
            except Miss as miss:
                first = first or miss
        raise first or Miss("it carries no state", (), m.node)

    def apply(self, patch: Patch, node: Node, pieces: Pieces) -> None:
        inner: list[Tensor] = [Variable(part.name) for part in pieces.parts]
        emit = Emit(patch, pieces.state.initial)
        sizes = emit.ints(*pieces.sizes)
        like = [pieces.state.initial] * len(inner)
        initial = emit.nodes("Split", [pieces.state.initial, sizes], like, axis=pieces.axis)
        finals = _finals(patch, pieces)
        _read_pieces(patch, node.attrs["body"], pieces, inner)
        _set_states(patch, node, pieces, initial, inner, finals)
        patch.toward_normal_form()


def _pieces(m: Match, number: int, state: State) -> Pieces:
    body: Graph = m.node.attrs["body"]
    joined = m.producer(state.output, "Concat")
    if joined is None or m.index.graph_of(joined) is not body:
        raise Miss("no state is joined from pieces", (), m.node)
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
    return Pieces(number, state, axis, known, list(joined.inputs), reads)


def _size(facts: Facts, part: Tensor, axis: int) -> int | None:
    shape = facts.shape(part)
    size = None if shape is None else shape[axis]
    return size if isinstance(size, int) else None


def _picked(
    facts: Facts, node: Node, axis: int, sizes: Sequence[int]
) -> list[tuple[Tensor, int, bool]] | None:
    """The pieces a node picks out of the state; None where it does anything else."""
    bounds = [0, *accumulate(sizes)]
    if node.op == "Split" and node.attrs.get("axis", 0) == axis:
        own = [_size(facts, t, axis) for t in node.outputs]
        return [(t, k, False) for k, t in enumerate(node.outputs)] if own == list(sizes) else None
    if node.op == "Gather" and node.attrs.get("axis", 0) == axis:
        index = facts.constant(node.inputs[1])
        if index is None or index.size != 1:
            return None
        place = int(index.ravel()[0]) % bounds[-1]
        if index.ndim > 1 or place not in bounds or sizes[bounds.index(place)] != 1:
            return None
        return [(node.outputs[0], bounds.index(place), index.ndim == 0)]
    window = _window(facts, node, axis, bounds[-1]) if node.op == "Slice" else None
    if window is None or window not in list(pairwise(bounds)):
        return None
    return [(node.outputs[0], bounds.index(window[0]), False)]


def _window(facts: Facts, node: Node, axis: int, size: int) -> tuple[int, int] | None:
    """First and last of what a Slice along this axis alone takes, in steps of 1."""
    cut = one_axis_cut(facts, node)
    if cut is None or cut.axis != axis:
        return None
    first, last, _ = slice(cut.start, cut.end).indices(size)
    return first, last


def _read_pieces(patch: Patch, body: Graph, pieces: Pieces, inner: Sequence[Tensor]) -> None:
    """Lets the body read the new states; the nodes that took the old one apart go."""
    for value, number, lacks_axis in pieces.reads:
        there = inner[number]
        if lacks_axis:
            axes = patch.constant(np.array([pieces.axis]), like=value)
            there = patch.node_first(body, "Squeeze", [there, axes], [value])[0]
        patch.replace(value, there)
    for reader in patch.index.consumers(pieces.state.input):
        patch.remove(reader)


def _finals(patch: Patch, pieces: Pieces) -> list[Tensor]:
    """The outputs of the loop for the pieces, joined behind it where the state is read."""
    final = pieces.state.final
    if final is None or not patch.index.use_count(final):
        return [Variable("") for _ in pieces.parts]
    outputs: list[Tensor] = [Variable(final.name) for _ in pieces.parts]
    emit = EmitBehind(patch, final, [final])
    patch.replace(final, emit("Concat", *outputs, axis=pieces.axis))
    return outputs


def _set_states(
    patch: Patch,
    node: Node,
    pieces: Pieces,
    initial: Sequence[Tensor],
    inner: Sequence[Tensor],
    finals: Sequence[Tensor],
) -> None:
    body: Graph = node.attrs["body"]
    ahead = 2 if node.op == "Loop" else 0
    number = pieces.number

    def exchanged(values: Sequence[Tensor], first: int, new: Sequence[Tensor]) -> list[Tensor]:
        place = first + number
        return [*values[:place], *new, *values[place + 1 :]]

    patch.set_interface(
        node,
        exchanged(node.inputs, ahead, initial),
        exchanged(body.inputs, ahead, inner),
        exchanged(body.outputs, ahead // 2, pieces.parts),
        exchanged(node.outputs, 0, finals),
    )
