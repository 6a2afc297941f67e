"""Length regulators: a loop repeats each slice as often as a number that it reads says.

    l = Loop(n, , []) { e = Expand(x_t, [d_t, 1])  return true, SequenceInsert(l, e) }
    y = ConcatFromSequence(l)
 -> y = Gather(x, [0, 0, 1, 2, 2, 2, …])

The indices follow from a mask: row t of the matrix `k < d_t` is true d_t times, and NonZero lists
the positions of true elements row by row (ONNX operator specification, NonZero).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import counted_loop
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from .independent_work import HoistedValues, IndependentWork, find_independent_work


@dataclass(frozen=True)
class RepeatedSlices:
    """Each iteration appends `Expand(slice, sizes)` to a sequence, which is concatenated."""

    work: IndependentWork
    slice: Tensor
    """Its size along the axis of the concatenation is 1."""
    sizes: Tensor
    axis: int
    """The axis of the concatenation; never negative."""
    rank: int


class RaggedRepeat(Rule[RepeatedSlices]):
    """Gathers slices by index that a loop repeats and concatenates."""

    root = "ConcatFromSequence"
    fires = """g (float[N,3] x, int64[N] d) => (float[R,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[P,3]) q) => (bool co, seq(float[P,3]) qo) <int64[1] first = {0}, int64[1] one = {1}> {
        xt = Gather(x, i) row = Unsqueeze(xt, first) dt = Gather(d, i) du = Unsqueeze(dt, first)
        sizes = Concat<axis=0>(du, one) r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
      y = ConcatFromSequence<axis=0>(l) }"""
    spares = {
        "not the final sequence of a counted loop": """g (float[N,3] x, int64[N] d) => (float[R,3] y) {
      l = SequenceConstruct(x, x) y = ConcatFromSequence<axis=0>(l) }""",
        "not the result of an Expand": """g (float[N,3] x) => (float[R,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[P,3]) q) => (bool co, seq(float[P,3]) qo) <int64[1] first = {0}> {
        xt = Gather(x, i) row = Unsqueeze(xt, first) qo = SequenceInsert(q, row) co = Identity(ci) }>
      y = ConcatFromSequence<axis=0>(l) }""",
        "not known to be 1": """g (float[N,M,3] x, int64[N] d) => (float[R,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[P,3]) q) => (bool co, seq(float[P,3]) qo) <int64[1] first = {0}, int64[1] one = {1}> {
        row = Gather(x, i) dt = Gather(d, i) du = Unsqueeze(dt, first)
        sizes = Concat<axis=0>(du, one) r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
      y = ConcatFromSequence<axis=0>(l) }""",
    }

    def match(self, m: Match) -> RepeatedSlices:
        m.need(not m.node.attrs.get("new_axis", 0), "it concatenates along a new axis")
        sequence = m.node.inputs[0]
        other = "{} is not the final sequence of a counted loop"
        node = m.need(m.producer(sequence, "Loop"), other, sequence)
        loop = m.need(counted_loop(m.facts, node), other, sequence)
        carried = next((c for c in loop.carried if c.final is sequence), None)
        carried = m.need(carried, other, sequence)
        m.need(m.graph() is m.index.graph_of(loop.node), "the loop is in another graph")
        work = find_independent_work(m.facts, loop)
        expand = _need_appended_expand(m, carried)
        source, sizes = expand.inputs
        for tensor in (source, sizes):
            independent = work.is_independent(m.index, tensor)
            m.need(independent, "{} depends on a carried value", tensor, at=tensor)
        shape = m.facts.shape(source)
        shape = m.need(shape, "the rank of {} is not known", source, at=source)
        rank = len(shape)
        m.need(m.facts.shape(sizes) == (rank,), "Expand adds axes to {}", source, at=source)
        axis = m.node.attrs["axis"]
        m.need(-rank <= axis < rank, "axis {} is outside rank {}", axis, rank)
        size = shape[axis % rank]
        open_size = "the size {} of the repeated axis is not known to be 1"
        m.need(size == 1, open_size, size, at=source)
        return RepeatedSlices(work, source, sizes, axis % rank, rank)

    def apply(self, patch: Patch, found: RepeatedSlices) -> None:
        node, work, axis, rank = patch.root, found.work, found.axis, found.rank
        hoisted = HoistedValues(patch, work.loop, work.plans)
        hoisted.build_producers([found.slice, found.sizes])
        emit = hoisted.builder(node.outputs[0])
        slices = _stacked(emit, hoisted, work, found.slice)
        sizes = _stacked(emit, hoisted, work, found.sizes)
        counts = emit("Gather", sizes, emit.scalar(axis), axis=1)
        joined = emit.move_axis(emit.squeeze(slices, [axis + 1]), 0, axis, rank)
        repeated = emit("Gather", joined, _repeated_indices(emit, counts), axis=axis)
        shape = emit("Gather", sizes, _first_nonempty(emit, sizes), axis=0)
        target = [
            *([emit.slice(shape, 0, slice(0, axis, 1))] if axis > 0 else []),
            emit.vector(1),
            *([emit.slice(shape, 0, slice(axis + 1, rank, 1))] if axis + 1 < rank else []),
        ]
        patch.replace(node.outputs[0], emit("Expand", repeated, emit.concat(target)))
        patch.remove(node)
        patch.toward_normal_form()


def _need_appended_expand(m: Match, carried: CarriedValue) -> Node:
    """The Expand that each iteration appends to a sequence, which is empty at first.

    Raises Miss if the loop does anything else to the sequence.
    """
    empty = m.producer(carried.initial, "SequenceEmpty")
    m.need(empty is not None, "the sequence is not empty at first", at=carried.initial)
    other = "the loop does more to the sequence than append one value in each iteration"
    insert = m.need(m.producer(carried.output, "SequenceInsert"), other, at=carried.output)
    appends = insert.inputs[0] is carried.input and len(insert.inputs) == 2
    uses = m.index.use_count(carried.input), m.index.use_count(carried.output)
    m.need(appends and uses == (1, 1), other, at=carried.output)
    value = insert.inputs[1]
    no_expand = "{} is not the result of an Expand"
    return m.need(m.producer(value, "Expand"), no_expand, value, at=value)


def _stacked(emit: Builder, hoisted: HoistedValues, work: IndependentWork, inner: Tensor) -> Tensor:
    """A value of the body for all iterations, stacked even if it is invariant."""
    value = hoisted[inner]
    if inner in work.batched:
        return value
    return emit.repeat(value, emit.trip_count(work.loop))


def _first_nonempty(emit: Builder, sizes: Tensor) -> Tensor:
    """The number of the first iteration that appends any element, or 0.

    All such iterations expand the other axes to the same sizes. Those of an iteration that appends
    no elements may differ, because onnxruntime concatenates an empty tensor with any other.
    """
    smallest = emit.reduce("ReduceMin", sizes, [1], 0)
    flags = emit("Cast", emit("Greater", smallest, emit.scalar(0)), to=TensorProto.INT32)
    return emit("ArgMax", flags, axis=0, keepdims=0)


def _repeated_indices(emit: Builder, counts: Tensor) -> Tensor:
    """0 counts[0] times, 1 counts[1] times, …"""
    largest = emit.reduce("ReduceMax", counts, [0], 0)
    # The maximum of no counts is the smallest int64.
    largest = emit.max(largest, emit.scalar(0))
    columns = emit("Range", emit.scalar(0), largest, emit.scalar(1))
    matrix = emit("Less", columns, emit.unsqueeze(counts, [1]))
    return emit("Gather", emit("NonZero", matrix), emit.scalar(0), axis=0)
