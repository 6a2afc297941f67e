"""Sequences that are only added to, at one end, are scan outputs.

   l = Loop(m, , SequenceConstruct(a)) { … return SequenceInsert(l, r) }   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   l = SplitToSequence(Concat([a], ys))   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   y = Concat([a], ys)
"""

from __future__ import annotations

from typing import Any

import onnx

from ..rewrite import symbolic
from ..rewrite.index import Use
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Miss, Rule
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView, State
from .loop_growing import surely_runs
from .row_layout import Behind, collect_rows, drop_state

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


class CollectInsertedRows(Rule):
    """A sequence that each iteration adds one tensor to is a scan output, split again after it."""

    root = "Loop"
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
        "also reads": """g (float[3] x, int64 m) => (int64 y, float[K,3] ys) <int64 z = {0}> {
      e = SequenceEmpty() y, l = Loop (m, , z, e) <body = b (int64 i, bool ci, int64 s, seq(float[3]) q)
          => (bool co, int64 so, seq(float[3]) qo) {
        co = Identity(ci) so = SequenceLength(q) qo = SequenceInsert(q, x) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }""",
        "no state is a sequence": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        miss = Miss("no state is a sequence", (), m.node)
        for number, state in enumerate(view.states):
            if m.facts.of(state.initial).kind == "sequence":
                try:
                    return {"node": m.node, **self._collected(m, view, number, state)}
                except Miss as reason:
                    miss = reason
        raise miss

    def _collected(self, m: Match, view: LoopView, number: int, state: State) -> dict[str, Any]:
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
        other = [u for u in m.index.uses(state.input) if u != Use(insert, 0)]
        m.need(not other, "the body also reads the sequence `{}`", state.input.name)
        appended = m.index.uses(state.output) == [Use(view.body, 1 + number)]
        m.need(appended, "the body also reads the sequence `{}`", state.output.name)
        row = insert.inputs[1]
        m.need(state.final is not None, "nobody reads the sequence")
        first = _first_elements(m, state.initial)
        self._need_equal_shapes(m, view, row, state.final, first)
        runs = surely_runs(m, view)
        m.need(
            runs or not first or m.facts.opset >= 14,
            "before opset 14 no Reshape can be told of sizes that may be 0",
        )
        return {
            "number": number, "row": row, "state": state, "first": first,
            "reverse": _adds_in_front(m, insert), "runs": runs,
        }  # fmt: skip

    def _need_equal_shapes(
        self, m: Match, view: LoopView, row: Tensor, final: Tensor | None, first: list[Tensor]
    ) -> None:
        assert final is not None
        fact = m.facts.of(row)
        m.need(fact.kind == "tensor", "its elements are no tensors")
        m.need(
            fact.dtype in _SPLITTABLE or all(_is_stack(n) for n in m.index.consumers(final)),
            "onnxruntime splits no tensors of this type into sequences",
        )
        same = fact.shape is not None and not any(m.facts.escapes(d, view.body) for d in fact.shape)
        stacked = bool(m.index.uses(final)) and all(
            isinstance(use.reader, Node) and _is_stack(use.reader) for use in m.index.uses(final)
        )
        m.need(same or stacked, "its elements `{}` may differ in shape", row.name, at=row)
        for part in first:
            alike = same and _equal(m.facts.shape(part), fact.shape)
            m.need(alike, "the first element `{}` may have another shape", part.name, at=part)

    def apply(
        self,
        patch: Patch,
        node: Node,
        number: int,
        row: Tensor,
        state: State,
        first: list[Tensor],
        reverse: bool,
        runs: bool,
    ) -> None:
        final = state.final
        assert final is not None
        rows = collect_rows(patch, node, row, final)
        behind = Behind(patch, final)
        if reverse:
            rows = behind.reversed(rows)
        if first:
            rows = _with_first(behind, rows, first, reverse, runs)
        patch.replace(final, behind.node("SplitToSequence", [rows], {"axis": 0, "keepdims": 0}))
        drop_state(patch, node, number, state)


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


def _equal(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    if a is None or b is None or len(a) != len(b):
        return False
    return all(symbolic.eq(x, y) is True for x, y in zip(a, b))


def _with_first(
    behind: Behind, rows: Tensor, first: list[Tensor], in_front: bool, runs: bool
) -> Tensor:
    """The rows behind the tensors that are there at first, or in front of them."""
    wide = [behind.unsqueezed(part, 0) for part in first]
    if not runs:
        rows = behind.alike(rows, wide[0])
    return behind.node("Concat", [rows, *wide] if in_front else [*wide, rows], {"axis": 0})


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
