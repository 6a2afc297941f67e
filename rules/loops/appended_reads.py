"""Carries the element that one iteration appends and the next one reads.

   q = Loop(n, , [a]) { h = SequenceAt(q, -1)  return SequenceInsert(q, f(h)) }
-> q = Loop(n, , [a], a) { h' = f(h)  return SequenceInsert(q, h'), h' }

A tensor that grows by Concat is read as `q[-1]`, `q[-1:]` or `q[i + 1]`. What grows is then only
appended to, so that SequenceInsertToScanOutput and ConcatToScanOutput can collect it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.facts.reads import axis_slices
from ...rewrite.facts.slices import END
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .sequence_accumulation import inserts_at_front


@dataclass(frozen=True)
class AppendedElement:
    """A carried value that grows, and whose last element each iteration reads."""

    carried: CarriedValue
    append: Node
    """The SequenceInsert or Concat."""
    axis: int | None
    """The axis along which a tensor grows; None for a sequence."""
    reads: dict[Node, bool]
    """The nodes that read the last element, and whether their results have the axis."""


class CarryAppendedElement(Rule[AppendedElement]):
    """Carries the last element of a sequence or tensor that grows as a value of its own."""

    root = "Loop"
    fires = """g (float[3] a, int64 m) => (float[K,3] ys) <int64 last = {-1}> {
      e = SequenceConstruct(a) l = Loop (m, , e) <body = b (int64 i, bool ci, seq(float[3]) q)
          => (bool co, seq(float[3]) qo) {
        co = Identity(ci) h = SequenceAt(q, last) f = Sin(h) qo = SequenceInsert(q, f) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }"""
    spares = {
        "no value that grows": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "other elements": """g (float[3] a, int64 m) => (float[K,3] ys) <int64 first = {0}> {
      e = SequenceConstruct(a) l = Loop (m, , e) <body = b (int64 i, bool ci, seq(float[3]) q)
          => (bool co, seq(float[3]) qo) {
        co = Identity(ci) h = SequenceAt(q, first) f = Sin(h) qo = SequenceInsert(q, f) }>
      ys = ConcatFromSequence<axis=0, new_axis=1>(l) }""",
        "may have no element": """g (float[N,3] x, int64 m) => (float[K,3] ys) <int64 last = {-1}, int64[1] nil = {0}> {
      ys = Loop (m, , x) <body = b (int64 i, bool ci, float[P,3] q) => (bool co, float[Q,3] qo) {
        co = Identity(ci) h = Gather(q, last) f = Sin(h) u = Unsqueeze(f, nil) qo = Concat<axis=0>(q, u) }> }""",
    }

    def match(self, m: Match) -> AppendedElement:
        view = m.loop()
        none = "it carries no value that grows and that the body reads"
        return m.first(lambda carried: _appended_element(m, view, carried), view.carried, none)

    def apply(self, patch: Patch, found: AppendedElement) -> None:
        carried, axis = found.carried, found.axis
        loop = counted_loop(patch.facts, patch.root)
        if loop is not None:
            patch.loop(patch.root).declare_scan_outputs(loop)
        first = next(iter(found.reads))
        emit = patch.builder(first.outputs[0])
        appended = found.append.inputs[1]
        if axis is None:
            initial = emit("SequenceAt", carried.initial, emit.scalar(-1))
        else:
            initial = emit("Gather", carried.initial, emit.scalar(-1), axis=axis)
            appended = patch.builder(appended, found.append).squeeze(appended, [axis])
        value = Variable(first.outputs[0].name)
        for read, keeps_axis in found.reads.items():
            like = patch.builder(read.outputs[0], read)
            axes = [axis] if keeps_axis and axis is not None else []
            patch.replace_node(read, [like.unsqueeze(value, axes)])
        if any(appended is read.outputs[0] for read in found.reads):
            appended = value
        patch.loop(patch.root).add_carried([CarriedValue(initial, value, appended, None)])
        patch.toward_normal_form()


def _appended_element(m: Match, view: LoopView, carried: CarriedValue) -> AppendedElement | None:
    """The carried value if it grows and the body reads it, else None.

    Raises Miss if the body reads another element than the last one.
    """
    append = m.producer(carried.output, "SequenceInsert", "Concat")
    if append is None or append.inputs[0] is not carried.input:
        return None
    readers = [use.reader for use in m.index.uses(carried.input) if use != Use(append, 0)]
    if not readers or m.index.graph_of(append) is not view.body:
        return None
    axis: int | None = None
    length: Dim | None = None
    if append.op == "Concat":
        axis = _axis_of_growth(m, append)
        shape = m.facts.shape(carried.initial)
        length = None if shape is None else shape[axis]
    else:
        length = m.facts.of(carried.initial).length
        at_front = inserts_at_front(m, view, append, length)
        m.need(not at_front, "{} does not append to {}", append, carried.input, at=append)
    if length is None or not symbolic.positive(length):
        raise Miss("{} may have no element", carried.initial, at=append)
    reads: dict[Node, bool] = {}
    for reader in readers:
        inside = isinstance(reader, Node) and m.index.graph_of(reader) is view.body
        keeps_axis = None
        if isinstance(reader, Node) and inside:
            keeps_axis = _reads_last(m, view, reader, axis, length)
        if not isinstance(reader, Node) or keeps_axis is None:
            other = "the body reads other elements of {} than the last one"
            raise Miss(other, carried.input, at=append)
        reads[reader] = keeps_axis
    return AppendedElement(carried, append, axis, reads)


def _axis_of_growth(m: Match, append: Node) -> int:
    """The axis along which a Concat appends one element. Raises Miss if it does anything else."""
    grown, *parts = append.inputs
    shape = m.facts.shape(parts[0])
    if len(parts) != 1 or shape is None:
        raise Miss("{} does not append one element to {}", append, grown, at=append)
    axis = int(append.attrs["axis"]) % len(shape)
    m.need(shape[axis] == 1, "{} does not append one element to {}", append, grown, at=append)
    return axis


def _reads_last(
    m: Match, view: LoopView, reader: Node, axis: int | None, length: Dim
) -> bool | None:
    """Whether the result of a read of the last element has the axis; None for any other read.

    In iteration i, what grows has `length` + i elements.
    """
    if reader.domain:
        return None
    if axis is None:
        is_last = reader.op == "SequenceAt" and _is_last(m, view, reader.inputs[1], length)
        return False if is_last else None
    if reader.op == "Slice":
        slices = axis_slices(m.facts, reader)
        if slices is None or len(slices) != 1 or slices[0].axis != axis:
            return None
        start, end, step = slices[0].start, slices[0].end, slices[0].step
        return True if (start, step) == (-1, 1) and isinstance(end, int) and end >= END else None
    whole, rank = (m.facts.rank(tensor) for tensor in reader.inputs[:2])
    if reader.op != "Gather" or not whole or rank not in (0, 1):
        return None
    along = int(reader.attrs.get("axis", 0)) % whole
    return rank == 1 if along == axis and _is_last(m, view, reader.inputs[1], length) else None


def _is_last(m: Match, view: LoopView, position: Tensor, length: Dim) -> bool:
    """Whether a scalar, or a vector of one number, is the position of the last element."""
    values = m.facts.of(position).values or ()
    number = values[0] if len(values) == 1 else None
    if number is None or isinstance(number, bool):
        return False
    if number == -1:
        return True
    iteration = m.facts.scalar(view.iteration)
    if iteration is None:
        return False
    return symbolic.eq(number, symbolic.sub(symbolic.add(iteration, length), 1)) is True
