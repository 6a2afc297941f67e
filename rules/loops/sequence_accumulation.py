"""Sequences that are only added to, at one end, are scan outputs.

   l = Loop(m, , SequenceConstruct(a)) { … return SequenceInsert(l, r) }   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   l = SplitToSequence(Concat([a], ys))   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   y = Concat([a], ys)
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, TO_THE_END, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from .accumulation import AccumulatorRule, need_only_updated

_SPLITTABLE = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.BOOL,
        onnx.TensorProto.FLOAT16,
    }
)
"""Types of which onnxruntime splits a tensor into a sequence."""


@dataclass(frozen=True)
class Inserted:
    """One tensor is added to a sequence."""

    row: Tensor
    first: list[Tensor]
    """What the sequence holds before the first iteration."""
    in_front: bool
    runs: bool
    """Whether there surely is a first iteration."""


class SequenceInsertToScanOutput(AccumulatorRule[Inserted]):
    """A sequence that each iteration adds one tensor to is a scan output, split again after it."""

    nothing = "no state is a sequence"
    fires = """g (float[3] x, int64 m) => (float[3] y, float[K,3] ys) {
      e = SequenceConstruct(x) y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[3] s, seq(float[3]) q)
          => (bool co, float[3] so, seq(float[3]) qo) {
        co = Identity(ci) so = Add(s, s) qo = SequenceInsert(q, so) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }"""
    spares = {
        "may differ in shape": """g (float[N] x, int64 m) => (float[P] y, float[K] ys) {
      e = SequenceEmpty() y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[P] s, seq(float[P]) q)
          => (bool co, float[P] so, seq(float[P]) qo) {
        co = Identity(ci) so = Concat<axis=0>(s, s) qo = SequenceInsert(q, so) }>
      ys = ConcatFromSequence<axis=0>(l) }""",
        "no known tensors": """g (float[3] x, int64 m, float[N,3] t) => (float[3] y, float[K,3] ys) {
      e = SplitToSequence<axis=0, keepdims=0>(t) y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[3] s, seq(float[3]) q)
          => (bool co, float[3] so, seq(float[3]) qo) {
        co = Identity(ci) so = Add(s, s) qo = SequenceInsert(q, so) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }""",
        "another shape": """g (float[3] x, float[M] z, int64 m) => (float[3] y, int64 n) {
      e = SequenceConstruct(z) y, l = Loop (m, , x, e) <body = b (int64 i, bool ci, float[3] s, seq(float[M]) q)
          => (bool co, float[3] so, seq(float[M]) qo) {
        co = Identity(ci) so = Add(s, s) qo = SequenceInsert(q, so) }>
      n = SequenceLength(l) }""",
        "is read in the body": """g (float[3] x, int64 m) => (int64 y, float[K,3] ys) <int64 z = {0}> {
      e = SequenceEmpty() y, l = Loop (m, , z, e) <body = b (int64 i, bool ci, int64 s, seq(float[3]) q)
          => (bool co, int64 so, seq(float[3]) qo) {
        co = Identity(ci) so = SequenceLength(q) qo = SequenceInsert(q, x) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }""",
        "no state is a sequence": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def accumulator(
        self, m: Match, view: LoopView, number: int, state: CarriedValue
    ) -> Inserted | None:
        if m.facts.of(state.initial).kind != "sequence":
            return None
        insert = m.need(
            m.producer(state.output, "SequenceInsert"),
            "the sequence `{}` changes otherwise than by SequenceInsert",
            state.input.name,
            at=state.output,
        )
        m.need(
            insert.inputs[0] is state.input and m.index.graph_of(insert) is view.body,
            "{} does not add to `{}` once per iteration",
            insert,
            state.input.name,
        )
        need_only_updated(m, view, number, state, Use(insert, 0))
        row = insert.inputs[1]
        first = _first_elements(m, state.initial)
        self._need_equal_shapes(m, view, row, state.final, first)
        runs = view.runs_at_least_once(m.facts)
        reshaped = bool(first) and not runs
        m.need(not reshaped or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        return Inserted(row, first, _adds_in_front(m, insert), runs)

    def _need_equal_shapes(
        self, m: Match, view: LoopView, row: Tensor, final: Tensor | None, first: list[Tensor]
    ) -> None:
        assert final is not None
        fact = m.facts.of(row)
        m.need(fact.kind == "tensor", "its elements are no tensors")
        stacked = bool(m.index.uses(final)) and all(
            isinstance(use.reader, Node) and _is_stack(use.reader) for use in m.index.uses(final)
        )
        m.need(
            fact.dtype in _SPLITTABLE or stacked,
            "onnxruntime splits no tensors of this type into sequences",
        )
        same = fact.shape is not None and not any(
            m.facts.varies_in(d, view.body) for d in fact.shape
        )
        m.need(same or stacked, "its elements `{}` may differ in shape", row.name, at=row)
        for part in first:
            alike = same and symbolic.equal_shapes(m.facts.shape(part), fact.shape)
            m.need(alike, "the first element `{}` may have another shape", part.name, at=part)

    def row(self, patch: Patch, found: Inserted) -> Tensor:
        return found.row

    def result(self, emit: Builder, rows: Tensor, state: CarriedValue, found: Inserted) -> Tensor:
        if found.in_front:
            rows = emit.reverse(rows, 0)
        if found.first:
            rows = _with_first(emit, rows, found)
        return emit("SplitToSequence", rows, axis=0, keepdims=0)


def _first_elements(m: Match, initial: Tensor) -> list[Tensor]:
    """What a sequence holds before the first iteration."""
    if m.facts.of(initial).length == 0:
        return []
    made = m.need(
        m.producer(initial, "SequenceConstruct"),
        "the sequence `{}` has at first no known tensors",
        initial.name,
        at=initial,
    )
    return list(made.inputs)


def _with_first(emit: Builder, rows: Tensor, found: Inserted) -> Tensor:
    """The rows behind the tensors that are there at first, or in front of them."""
    wide = [emit.unsqueeze(part, [0]) for part in found.first]
    if not found.runs:  # no rows have no sizes of their own
        sizes = [emit.shape(rows, 0, 1), emit.shape(wide[0], 1, TO_THE_END)]
        rows = emit.reshape(rows, emit.concat(sizes))
    return emit("Concat", *([rows, *wide] if found.in_front else [*wide, rows]), axis=0)


def _is_stack(node: Node) -> bool:
    """Whether the node puts the elements of a sequence side by side on a new axis."""
    if node.domain or node.op != "ConcatFromSequence":
        return False
    return bool(node.attrs.get("new_axis", 0))


def _adds_in_front(m: Match, insert: Node) -> bool:
    """Whether a SequenceInsert adds in front of all; declines where it does neither."""
    if len(insert.inputs) < 3 or not insert.inputs[2].name:
        return False
    position = m.facts.scalar(insert.inputs[2])
    m.need(
        position == 0,
        "{} adds at position {}, not at an end",
        insert,
        position,
        at=insert.inputs[2],
    )
    return True
