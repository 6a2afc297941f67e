"""Reads of a buffer that the loop writes slice by slice.

The slice that one iteration writes and the next one reads is carried as a value of its own:

   y = Loop(n, , b) { h = Gather(buffer, i)  return ScatterND(buffer, [[i + 1]], f(h)) }
-> y = Loop(n, , b, b[0]) { h' = f(h)  return ScatterND(buffer, [[i + 1]], h'), h' }

A slice that no iteration has written yet is that of the initial buffer:

   y = Loop(n, , b) { h = Gather(buffer, i)  return ScatterND(buffer, [[i]], f(h)) }
-> y = Loop(n, , b) { h = Gather(b, i)  return ScatterND(buffer, [[i]], f(h)) }

The buffer is then only written to, so that ScatterToScanOutput can collect its slices. Compilers call
the first rewrite scalar replacement (Carr, Kennedy: Improving the ratio of memory operations to
floating-point operations in loops, 1994).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.facts.elements import element
from ...rewrite.facts.iteration_bounds import nonnegative_in_iteration
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor, Variable
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .affine_positions import Progression, need_progression
from .scatter_accumulation import SliceWrite, buffer_scatter, need_write

_NONE = "it does not write to a buffer that it reads"


@dataclass(frozen=True)
class ReadBuffer:
    """A buffer: each iteration reads the slice that the previous one wrote."""

    carried: CarriedValue
    write: SliceWrite
    reads: list[Node]
    """The Gathers that read the slice."""
    first: int
    """The number of the slice that iteration 0 reads."""


class CarryWrittenSlice(Rule[ReadBuffer]):
    """Carries the slice of a buffer that the next iteration reads as a value of its own."""

    root = "Loop"
    promise = Promise(accepts="those that read past the end of an empty buffer")
    fires = """g (float[5,3] b0, int64 n) => (float[5,3] ys) <int64 one = {1}, int64[1] zero = {0}, int64[2] at = {1, 1}> {
      ys = Loop (n, , b0) <body = b (int64 i, bool ci, float[5,3] q) => (bool co, float[5,3] qo) {
        co = Identity(ci) h = Gather(q, i) f = Sin(h) p = Add(i, one) k = Reshape(p, at) u = Unsqueeze(f, zero)
        qo = ScatterND(q, k, u) }> }"""
    spares = {
        "does not write": """g (float[T,3] x, float[1,3] r, int64 n) => (float[T,3] ys) <int64[2] at = {1, 1}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) k = Reshape(i, at) qo = ScatterND(q, k, r) }> }""",
        "that the previous iteration wrote": """g (float[T,3] x, int64 n) => (float[T,3] ys) <int64 two = {2}, int64[1] zero = {0}, int64[2] at = {1, 1}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) h = Gather(q, i) f = Sin(h) u = Unsqueeze(f, zero) p = Add(i, two)
        k = Reshape(p, at) qo = ScatterND(q, k, u) }> }""",
    }

    def match(self, m: Match) -> ReadBuffer:
        view = m.loop()
        return m.first(lambda carried: _read_buffer(m, view, carried), view.carried, _NONE)

    def apply(self, patch: Patch, found: ReadBuffer) -> None:
        carried, axis = found.carried, found.write.axis
        loop = counted_loop(patch.facts, patch.root)
        if loop is not None:
            patch.loop(patch.root).declare_scan_outputs(loop)
        emit = patch.builder(found.reads[0].outputs[0])
        initial = emit("Gather", carried.initial, emit.scalar(found.first), axis=axis)
        value = Variable(found.reads[0].outputs[0].name)
        for read in found.reads:
            rank = patch.facts.rank(read.inputs[1]) or 0
            like = patch.builder(read.outputs[0], read)
            patch.replace_node(read, [like.unsqueeze(value, range(axis, axis + rank))])
        written = found.write.slice(patch.builder(found.write.values, found.write.scatter))
        patch.loop(patch.root).add_carried([CarriedValue(initial, value, written, None)])
        patch.toward_normal_form()


def _read_buffer(m: Match, view: LoopView, carried: CarriedValue) -> ReadBuffer | None:
    """The carried value if it is a buffer that the body writes and reads, else None.

    Raises Miss if the body reads another slice than the one that the previous iteration wrote.
    """
    scatter = buffer_scatter(m, carried)
    if scatter is None:
        return None
    update = Use(scatter.reader, 0)
    reads = [use.reader for use in m.index.uses(carried.input) if use != update]
    if not reads:
        return None
    write = need_write(m, view, carried, scatter)
    shape = m.facts.known_shape(carried.input)
    m.need(view.iteration_shape == (), "the iteration number is not a scalar in the body")
    position = need_progression(m, view, write.position, write.scatter.inputs[1])
    first = position.first
    if not isinstance(first, int) or first < 1 or position.step != 1:
        raise Miss(
            "slices are written from {} in steps of {}, not in steps of 1 from a known position after 0",
            first,
            position.step,
            at=write.scatter,
        )
    gathers = [_need_previous_slice(m, view, reader, write, first - 1) for reader in reads]
    length = shape[write.axis]
    inside = symbolic.le(first, length) is True or view.runs_at_least_once(m.facts)
    m.need(inside, "{} may be empty, and the loop may not run", carried.initial)
    if m.options.strict:
        # A scatter to a buffer of no elements does not fail at any position.
        trips = view.trips(m.facts)
        fits = trips is not None and symbolic.le(symbolic.add(trips, first - 1), length) is True
        m.need(fits, "--strict: the loop may read past the end of {}", carried.input)
    return ReadBuffer(carried, write, gathers, first - 1)


@dataclass(frozen=True)
class UnwrittenReads:
    """Reads of slices of a buffer that no iteration has written yet."""

    carried: CarriedValue
    reads: list[Node]


class ReadInitialBuffer(Rule[UnwrittenReads]):
    """Reads slices of a buffer that no iteration has written yet from its initial value."""

    root = "Loop"
    fires = """g (float[T,3] x, int64 n) => (float[T,3] ys) <int64[1] zero = {0}, int64[2] at = {1, 1}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) h = Gather(q, i) f = Sin(h) k = Reshape(i, at) u = Unsqueeze(f, zero)
        qo = ScatterND(q, k, u) }> }"""
    spares = {
        "does not write": CarryWrittenSlice.spares["does not write"],
        "may have been written": """g (float[T,3] x, int64 n) => (float[T,3] ys) <int64 one = {1}, int64[1] zero = {0}, int64[2] at = {1, 1}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) h = Gather(q, i) f = Sin(h) p = Add(i, one) k = Reshape(p, at) u = Unsqueeze(f, zero)
        qo = ScatterND(q, k, u) }> }""",
        "may go around": """g (float[T,3] x, int64 n) => (float[T,3] ys) <int64 three = {3}, int64[1] zero = {0}, int64[2] at = {1, 1}> {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) p = Sub(three, i) h = Gather(q, p) f = Sin(h) k = Reshape(p, at) u = Unsqueeze(f, zero)
        qo = ScatterND(q, k, u) }> }""",
    }

    def match(self, m: Match) -> UnwrittenReads:
        view = m.loop()
        return m.first(lambda carried: _unwritten_reads(m, view, carried), view.carried, _NONE)

    def apply(self, patch: Patch, found: UnwrittenReads) -> None:
        for read in found.reads:
            patch.replace_input(read, 0, found.carried.initial)
        patch.toward_normal_form()


def _unwritten_reads(m: Match, view: LoopView, carried: CarriedValue) -> UnwrittenReads | None:
    """The reads of a buffer that a rule can move to its initial value; None if it is no buffer.

    Raises Miss if no read is known to be of slices that no iteration has written yet.
    """
    scatter = buffer_scatter(m, carried)
    if scatter is None:
        return None
    update = Use(scatter.reader, 0)
    readers = [use.reader for use in m.index.uses(carried.input) if use != update]
    if not readers:
        return None
    write = need_write(m, view, carried, scatter)
    m.need(view.iteration_shape == (), "the iteration number is not a scalar in the body")
    written = _need_order(m, view, write.position, write.scatter.inputs[1])

    def unwritten(reader: object) -> Node | None:
        first = _first_position(m, reader, write.axis)
        if not isinstance(reader, Node) or first is None:
            raise Miss("{} is read in another way than by slices", carried.input, at=write.scatter)
        read = _need_order(m, view, first, reader.inputs[1])
        ahead = symbolic.mul(1 if written.step > 0 else -1, symbolic.sub(read.first, written.first))
        never = read.step == written.step and symbolic.nonnegative(ahead)
        # A Slice also reads what follows, which is written before where the positions fall.
        never = never and (written.step > 0 or reader.op == "Gather")
        m.need(
            never, "what {} reads may have been written by an earlier iteration", reader, at=reader
        )
        return reader

    return UnwrittenReads(carried, m.every(unwritten, readers, _NONE))


def _first_position(m: Match, reader: object, axis: int) -> Dim | None:
    """The first position along an axis that a Gather or Slice reads; None if it is not known."""
    if not isinstance(reader, Node) or reader.domain:
        return None
    if reader.op == "Slice":
        cut = next((s for s in axis_slices(m.facts, reader) or () if s.axis == axis), None)
        return cut.start if cut is not None and cut.step == 1 else None
    rank = m.facts.rank(reader.inputs[0]) if reader.op == "Gather" else None
    if not rank or int(reader.attrs.get("axis", 0)) % rank != axis:
        return None
    sizes = m.facts.shape(reader.inputs[1])
    if sizes is None or any(size != 1 for size in sizes):
        return None
    return element(m.facts, reader.inputs[1], (0,) * len(sizes))


def _need_order(m: Match, view: LoopView, position: Dim, at: Tensor) -> Progression:
    """A position as a function of the iteration number.

    Raises Miss if it may change its sign: negative ones count from the end (ONNX operator
    specification, Gather and ScatterND), so that it might reach a slice a second time.
    """
    found = need_progression(m, view, position, at)
    if found.step > 0:
        one_sign = symbolic.nonnegative(found.first)
    else:
        from_end = isinstance(found.first, int) and found.first < 0
        one_sign = from_end or nonnegative_in_iteration(m.facts, position)
    m.need(one_sign, "position {} may go around the end of the buffer", position, at=at)
    return found


def _need_previous_slice(
    m: Match, view: LoopView, reader: object, write: SliceWrite, first: int
) -> Node:
    """A Gather of the slice that the previous iteration wrote. Raises Miss for another reader."""
    buffer = write.scatter.inputs[0]
    other = "the body reads other slices of {} than the one that the previous iteration wrote"
    if not isinstance(reader, Node) or reader.op != "Gather" or reader.domain:
        raise Miss(other, buffer, at=write.scatter)
    data, indices = reader.inputs
    rank, sizes = m.facts.rank(data) or 0, m.facts.shape(indices)
    same_axis = rank > 0 and int(reader.attrs.get("axis", 0)) % rank == write.axis
    single = sizes is not None and all(size == 1 for size in sizes)
    m.need(same_axis and single and m.index.graph_of(reader) is view.body, other, buffer, at=reader)
    number = element(m.facts, indices, (0,) * len(sizes or ()))
    number = m.need(number, "the position {} is not known", indices, at=reader)
    read = need_progression(m, view, number, indices)
    m.need((read.first, read.step) == (first, 1), other, buffer, at=reader)
    return reader
