"""Sequences that each iteration inserts a tensor into, at one end, become scan outputs.

   l = Loop(m, , SequenceConstruct(a)) { … return SequenceInsert(l, r) }   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   l = SplitToSequence(Concat([a], ys))   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   y = Concat([a], ys)
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, TO_THE_END, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .accumulation import AccumulatorRule, need_only_updated

_SPLITTABLE = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.BOOL,
        TensorProto.FLOAT16,
    }
)
"""The element types for which onnxruntime has a SplitToSequence."""


@dataclass(frozen=True)
class Insertion:
    """The SequenceInsert that adds one tensor to a sequence."""

    tensor: Tensor
    initial: list[Tensor]
    """What the sequence holds before the first iteration."""
    at_front: bool
    runs_at_least_once: bool
    """Whether the loop has at least one iteration."""


class SequenceInsertToScanOutput(AccumulatorRule[Insertion]):
    """Collects the tensors that each iteration inserts into a sequence in a scan output.

    A SplitToSequence after the loop makes it a sequence again.
    """

    no_accumulator = "no carried value is a sequence"
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
        "not made of known tensors": """g (float[3] x, int64 m, float[N,3] t) => (float[3] y, float[K,3] ys) {
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
        "no carried value is a sequence": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def update(
        self, m: Match, view: LoopView, number: int, carried: CarriedValue
    ) -> Insertion | None:
        if m.facts.of(carried.initial).kind != "sequence":
            return None
        insert = m.need(
            m.producer(carried.output, "SequenceInsert"),
            "an operator other than SequenceInsert changes the sequence {}",
            carried.input,
            at=carried.output,
        )
        m.need(
            insert.inputs[0] is carried.input and m.index.graph_of(insert) is view.body,
            "{} does not insert into {} once per iteration",
            insert,
            carried.input,
        )
        final = need_only_updated(m, view, number, carried, Use(insert, 0))
        tensor = insert.inputs[1]
        initial = _initial_elements(m, carried.initial)
        _need_equal_shapes(m, view, tensor, final, initial)
        runs = view.runs_at_least_once(m.facts)
        m.need(runs or not initial or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        at_front = inserts_at_front(m, view, insert, len(initial))
        return Insertion(tensor, initial, at_front, runs)

    def added(self, patch: Patch, update: Insertion) -> Tensor:
        return update.tensor

    def result(
        self, emit: Builder, stacked: Tensor, carried: CarriedValue, update: Insertion
    ) -> Tensor:
        if update.at_front:
            stacked = emit.reverse(stacked, 0)
        if update.initial:
            stacked = _with_initial_elements(emit, stacked, update)
        return emit("SplitToSequence", stacked, axis=0, keepdims=0)


def _need_equal_shapes(
    m: Match, view: LoopView, tensor: Tensor, final: Tensor, initial: list[Tensor]
) -> None:
    """Declines where the elements of a sequence may differ in shape.

    New elements may differ if every reader of the sequence stacks them: it fails in the original.
    """
    fact = m.facts.of(tensor)
    m.need(fact.kind == "tensor", "its elements are not tensors")
    stacked = bool(m.index.uses(final)) and all(
        isinstance(use.reader, Node) and _is_stack(use.reader) for use in m.index.uses(final)
    )
    m.need(
        fact.dtype in _SPLITTABLE or stacked,
        "onnxruntime cannot split tensors of this type into sequences",
    )
    shape = fact.shape
    same = shape is not None and not any(m.facts.varies_in(d, view.body) for d in shape)
    m.need(same or stacked, "its elements {} may differ in shape", tensor, at=tensor)
    for part in initial:
        equal = same and symbolic.equal_shapes(m.facts.shape(part), shape)
        m.need(equal, "the initial element {} may have another shape", part, at=part)


def _initial_elements(m: Match, initial: Tensor) -> list[Tensor]:
    """What a sequence holds before the first iteration. Raises Miss if it is not known."""
    if m.facts.of(initial).length == 0:
        return []
    made = m.need(
        m.producer(initial, "SequenceConstruct"),
        "the initial sequence {} is not made of known tensors",
        initial,
        at=initial,
    )
    return list(made.inputs)


def _with_initial_elements(emit: Builder, stacked: Tensor, update: Insertion) -> Tensor:
    """Concatenates the initial elements and those of the iterations along axis 0."""
    parts = [emit.unsqueeze(part, [0]) for part in update.initial]
    if not update.runs_at_least_once:  # an empty scan output does not have the right sizes
        sizes = [emit.shape(stacked, 0, 1), emit.shape(parts[0], 1, TO_THE_END)]
        stacked = emit.reshape(stacked, emit.concat(sizes))
    ordered = [stacked, *parts] if update.at_front else [*parts, stacked]
    return emit("Concat", *ordered, axis=0)


def _is_stack(node: Node) -> bool:
    """Whether a node stacks the elements of a sequence along a new axis."""
    if node.domain or node.op != "ConcatFromSequence":
        return False
    return bool(node.attrs.get("new_axis", 0))


def inserts_at_front(m: Match, view: LoopView, insert: Node, initial: Dim | None) -> bool:
    """Whether a SequenceInsert inserts at the front. Raises Miss if it does so at neither end.

    Iteration i finds `initial` + i elements in the sequence.
    """
    if len(insert.inputs) < 3 or not insert.inputs[2].name:
        return False
    position, iteration = m.facts.scalar(insert.inputs[2]), m.facts.scalar(view.iteration)
    length = None
    if iteration is not None and initial is not None:
        length = symbolic.add(iteration, initial)
    if position is not None and length is not None and symbolic.eq(position, length) is True:
        return False
    m.need(
        position == 0,
        "{} inserts at position {}, not at an end",
        insert,
        "unknown" if position is None else position,
        at=insert.inputs[2],
    )
    return True
