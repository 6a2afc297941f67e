"""Sequences that each iteration inserts tensors into, at one end, become scan outputs.

   l = Loop(m, , SequenceConstruct(a)) { … return SequenceInsert(l, r) }   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   l = SplitToSequence(Concat([a], ys))   y = ConcatFromSequence(l)
-> ys = Loop(m, ) { … return r }   y = Concat([a], ys)

Several tensors of one iteration are stacked: the scan output has a slice of all of them.
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
    """The SequenceInserts that add the tensors of one iteration to a sequence."""

    last: Node
    """The last of the SequenceInserts."""
    tensors: list[Tensor]
    """In the order in which they are inserted."""
    element: tuple[Dim, ...] | None
    """The shape of each of several tensors; None if an iteration inserts only one."""
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
        inserts = _need_inserts(m, view, carried)
        final = need_only_updated(m, view, number, carried, Use(inserts[0], 0))
        tensors = [insert.inputs[1] for insert in inserts]
        initial = _initial_elements(m, carried.initial)
        for tensor in tensors:
            _need_equal_shapes(m, view, tensor, final, initial)
        element = _need_stackable(m, tensors) if len(tensors) > 1 else None
        runs = view.runs_at_least_once(m.facts)
        m.need(runs or not initial or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
        fronts = {
            inserts_at_front(m, view, insert, before, len(inserts))
            for before, insert in enumerate(inserts, start=len(initial))
        }
        both = "one iteration inserts into {} at both ends"
        m.need(len(fronts) == 1, both, carried.input, at=inserts[0])
        return Insertion(inserts[-1], tensors, element, initial, fronts.pop(), runs)

    def added(self, patch: Patch, update: Insertion) -> Tensor:
        if update.element is None:
            return update.tensors[0]
        emit = patch.builder(update.tensors[0], update.last)
        return emit("Concat", *(emit.unsqueeze(t, [0]) for t in update.tensors), axis=0)

    def result(
        self, emit: Builder, stacked: Tensor, carried: CarriedValue, update: Insertion
    ) -> Tensor:
        if update.element is not None:
            stacked = _merged(emit, stacked, update.element)
        if update.at_front:
            stacked = emit.reverse(stacked, 0)
        if update.initial:
            stacked = _with_initial_elements(emit, stacked, update)
        return emit("SplitToSequence", stacked, axis=0, keepdims=0)


def _need_inserts(m: Match, view: LoopView, carried: CarriedValue) -> list[Node]:
    """The SequenceInserts of an iteration in their order. Raises Miss if other nodes read between."""
    inserts: list[Node] = []
    sequence = carried.output
    while sequence is not carried.input:
        insert = m.need(
            m.producer(sequence, "SequenceInsert"),
            "an operator other than SequenceInsert changes the sequence {}",
            carried.input,
            at=sequence,
        )
        inside = m.index.graph_of(insert) is view.body
        once = "{} does not insert into {} once per iteration"
        m.need(inside, once, insert, carried.input, at=insert)
        only = not inserts or m.index.uses(sequence) == [Use(inserts[-1], 0)]
        m.need(only, "{} is read in the body", sequence, at=sequence)
        inserts.append(insert)
        sequence = insert.inputs[0]
    return inserts[::-1]


def _need_stackable(m: Match, tensors: list[Tensor]) -> tuple[Dim, ...]:
    """The shape of several tensors. Raises Miss if it is not known to be the same."""
    first, *others = (m.facts.shape(t) for t in tensors)
    equal = all(symbolic.equal_shapes(shape, first) for shape in others)
    shape = m.need(first if equal else None, "{} may differ in shape", tensors, at=tensors[0])
    m.need(_fixed_sizes(shape) is not None or m.facts.opset >= EMPTY_RESHAPES, NO_EMPTY_RESHAPES)
    return shape


def _fixed_sizes(shape: tuple[Dim, ...]) -> list[int] | None:
    """The sizes if all are numbers other than 0, which a Reshape can keep in any opset."""
    sizes = [size for size in shape if isinstance(size, int) and size > 0]
    return sizes if len(sizes) == len(shape) else None


def _merged(emit: Builder, stacked: Tensor, element: tuple[Dim, ...]) -> Tensor:
    """Stacks of several elements as one stack. An empty scan output may lack some of the axes."""
    if (sizes := _fixed_sizes(element)) is not None:
        return emit("Reshape", stacked, emit.vector(-1, *sizes))
    return emit.merge_axes(stacked, 0, len(element) + 2)


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


def inserts_at_front(
    m: Match, view: LoopView, insert: Node, initial: Dim | None, each: int = 1
) -> bool:
    """Whether a SequenceInsert inserts at the front. Raises Miss if it does so at neither end.

    In iteration i it finds `initial` + `each` * i elements in the sequence.
    """
    if len(insert.inputs) < 3 or not insert.inputs[2].name:
        return False
    position, iteration = m.facts.scalar(insert.inputs[2]), m.facts.scalar(view.iteration)
    length = None
    if iteration is not None and initial is not None:
        length = symbolic.add(symbolic.mul(each, iteration), initial)
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
