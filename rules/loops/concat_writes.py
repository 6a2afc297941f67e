"""Writes one slice of a carried value by ScatterND instead of by a Concat of what surrounds it.

   Loop(n, , b) { return Concat(Slice(q, 0, i), r, Slice(q, i + 1, end)) }
-> Loop(n, , b) { return ScatterND(q, [[i]], r) }

Runtimes without a scatter write the elements of a list so. ScatterToScanOutput, CarryWrittenSlice
and SplitCarriedValue recognise the ScatterND.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.fact import INT64
from ...rewrite.facts.reads import axis_slices
from ...rewrite.facts.slices import AxisSlice
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .affine_positions import need_in_range, need_progression


@dataclass(frozen=True)
class ConcatWrite:
    """A Concat whose result is a carried value with one slice replaced."""

    concat: Node
    carried: CarriedValue
    axis: int
    ends: Tensor
    """The ends of the Slice before the replaced slice."""
    number: int
    """The element of `ends` that is the position of the replaced slice."""


class ConcatToScatter(Rule[ConcatWrite]):
    """Replaces a Concat of a new slice and the rest of a carried value by ScatterND."""

    root = "Loop"
    fires = """g (float[T,3] x) => (float[T,3] ys) <int64 nil = {0}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] far = {2147483647}> {
      all = Shape(x) n = Gather(all, nil)
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Unsqueeze(i, zero) next = Add(at, one) left = Slice(q, zero, at, zero)
        xt = Gather(x, at) r = Sin(xt) right = Slice(q, next, far, zero)
        qo = Concat<axis=0>(left, r, right) }> }"""
    spares = {
        "a Concat that replaces a slice": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "may be outside the axis": """g (float[T,3] x, float[1,3] r, int64 n) => (float[T,3] ys) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] far = {2147483647}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Unsqueeze(i, zero) next = Add(at, one) left = Slice(q, zero, at, zero)
        right = Slice(q, next, far, zero) qo = Concat<axis=0>(left, r, right) }> }""",
        "does not continue one position after": """g (float[T,3] x, float[1,3] r) => (float[T,3] ys) <int64 nil = {0}, int64[1] zero = {0}, int64[1] far = {2147483647}> {
      all = Shape(x) n = Gather(all, nil)
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[P,3] q) => (bool co, float[Q,3] qo) {
        co = Identity(ci) at = Unsqueeze(i, zero) left = Slice(q, zero, at, zero)
        right = Slice(q, at, far, zero) qo = Concat<axis=0>(left, r, right) }> }""",
    }

    def match(self, m: Match) -> ConcatWrite:
        view = m.loop()
        m.need(m.facts.opset >= 11, "before opset 11 there is no ScatterND")
        none = "it carries no value that is updated by a Concat that replaces a slice of it"
        return m.first(lambda carried: _concat_write(m, view, carried), view.carried, none)

    def apply(self, patch: Patch, found: ConcatWrite) -> None:
        concat, axis = found.concat, found.axis
        buffer, row = found.carried.input, concat.inputs[1]
        emit = patch.builder(concat.outputs[0], concat)
        position = emit("Gather", found.ends, emit.scalar(found.number))
        if patch.facts.dtype(found.ends) != INT64:
            position = emit("Cast", position, to=INT64)
        if axis == 0:
            written = emit("ScatterND", buffer, emit.unsqueeze(position, [0, 1]), row)
        else:
            places = emit("Expand", position, emit("Shape", row))
            written = emit("ScatterElements", buffer, places, row, axis=axis)
        patch.replace_node(concat, [written])
        patch.toward_normal_form()


def _concat_write(m: Match, view: LoopView, carried: CarriedValue) -> ConcatWrite | None:
    """How a Concat replaces a slice of a carried value; None for another update of the value.

    The value keeps the shape of its initial value: that holds in the first iteration, and in each
    iteration the three parts together are as long as what they replace.
    """
    concat = m.producer(carried.output, "Concat")
    if concat is None or len(concat.inputs) != 3 or m.index.graph_of(concat) is not view.body:
        return None
    reads = [m.producer(part, "Slice") for part in (concat.inputs[0], concat.inputs[2])]
    left, right = reads
    if (
        left is None
        or right is None
        or any(n.inputs[0] is not carried.input for n in (left, right))
    ):
        return None
    shape = m.need(m.facts.shape(carried.initial), "the shape of {} is not known", carried.initial)
    axis = int(concat.attrs["axis"]) % len(shape)
    row = m.facts.shape(concat.inputs[1])
    m.need(row is not None and row[axis] == 1, "{} is not one slice", concat.inputs[1], at=concat)
    before, after = (_need_slice_of_axis(m, node, axis, shape) for node in (left, right))
    position, start = before.end, after.start
    if position is None or start is None:
        raise Miss("where {} ends or {} starts is not known", left, right, at=concat)
    m.need(
        symbolic.eq(start, symbolic.add(position, 1)) is True,
        "{} does not continue one position after {}",
        right,
        left,
        at=concat,
    )
    is_rest = before.start == 0 and after.reaches_end(shape[axis])
    m.need(is_rest, "{} leaves out more than one slice", concat, at=concat)
    progression = need_progression(m, view, position, left.inputs[2])
    need_in_range(m, view, progression, 1, shape[axis])
    return ConcatWrite(concat, carried, axis, left.inputs[2], before.number)


def _need_slice_of_axis(m: Match, node: Node, axis: int, shape: Sequence[Dim]) -> AxisSlice:
    """The range that a Slice takes of one axis. Raises Miss if it shortens another one too."""
    slices = axis_slices(m.facts, node)
    along = [s for s in slices or () if s.axis == axis]
    whole = all(s.is_whole(shape[s.axis]) for s in slices or () if s.axis != axis)
    if len(along) != 1 or not whole or along[0].step != 1:
        raise Miss("{} is not known to be a part of axis {}", node, axis, at=node)
    return along[0]
