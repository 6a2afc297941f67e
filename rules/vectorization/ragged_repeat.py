"""Length regulators: each slice is repeated as often as a number that is read with it says.

   l = Loop(n, , []) { e = Expand(x_t, [d_t, 1])  return true, SequenceInsert(l, e) }
   y = ConcatFromSequence(l)
-> y = Gather(x, [0, 0, 1, 2, 2, 2, …])

Which slice stands where: row t of the matrix `k < d_t` is true d_t times, and NonZero lists the
places of what is true row by row (ONNX operator specification, NonZero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, counted_loop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from .independent_work import Outside, Parallel, is_outer, parallel_work


@dataclass(frozen=True)
class Repetition:
    """Each iteration appends `Expand(slice, sizes)`, of size 1 along the axis that is joined."""

    slice: Tensor
    sizes: Tensor
    axis: int
    rank: int


class RaggedRepeat(Rule):
    """Slices that a loop repeats and joins are gathered by their numbers."""

    root = "ConcatFromSequence"
    fires = """g (float[N,3] x, int64[N] d) => (float[R,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[P,3]) q) => (bool co, seq(float[P,3]) qo) <int64[1] first = {0}, int64[1] one = {1}> {
        xt = Gather(x, i) row = Unsqueeze(xt, first) dt = Gather(d, i) du = Unsqueeze(dt, first)
        sizes = Concat<axis=0>(du, one) r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
      y = ConcatFromSequence<axis=0>(l) }"""
    spares = {
        "not the list of a loop": """g (float[N,3] x, int64[N] d) => (float[R,3] y) {
      l = SequenceConstruct(x, x) y = ConcatFromSequence<axis=0>(l) }""",
        "not repeated": """g (float[N,3] x) => (float[R,3] y) <int64 zero = {0}> {
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

    def match(self, m: Match) -> dict[str, Any]:
        m.need(not m.node.attrs.get("new_axis", 0), "it joins along a new axis")
        joined = m.node.inputs[0]
        loop = m.producer(joined, "Loop")
        steps = None if loop is None else counted_loop(m.facts, loop)
        steps = m.need(steps, "{} is not the list of a loop of known length", joined)
        state = next((s for s in steps.carried if s.final is joined), None)
        state = m.need(state, "{} is not the list of a loop of known length", joined)
        m.need(m.graph() is m.index.graph_of(steps.node), "the loop stands in another graph")
        parallel = parallel_work(m.facts, steps)
        repetition = _repetition(m, steps, parallel, state)
        return {
            "node": m.node, "steps": steps, "facts": m.facts, "parallel": parallel,
            "repetition": repetition,
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        node: Node,
        steps: CountedLoop,
        facts: Facts,
        parallel: Parallel,
        repetition: Repetition,
    ) -> None:
        outside = Outside(patch, steps, facts, parallel.plans)
        outside.compute_for([repetition.slice, repetition.sizes])
        emit = outside.emit(node.outputs[0])
        slices = _stacked(emit, outside, steps, parallel, repetition.slice)
        sizes = _stacked(emit, outside, steps, parallel, repetition.sizes)
        axis, rank = repetition.axis, repetition.rank
        counts = emit("Gather", sizes, emit.scalar(axis), axis=1)
        flat = emit.move_axis(emit.squeeze(slices, [axis + 1]), 0, axis, rank)
        rows = emit("Gather", flat, _numbers(emit, counts), axis=axis)
        others = emit("Gather", sizes, _first_with_elements(emit, sizes), axis=0)
        ends = ((0, axis), (axis + 1, rank))
        before, behind = ([emit.slice(others, 0, slice(a, b, 1))] if a < b else [] for a, b in ends)
        target = emit.concat([*before, emit.vector(1), *behind])
        patch.replace(node.outputs[0], emit("Expand", rows, target))
        patch.remove(node)
        patch.toward_normal_form()


def _stacked(
    emit: Builder, outside: Outside, steps: CountedLoop, parallel: Parallel, inner: Tensor
) -> Tensor:
    value = outside[inner]
    if inner in parallel.batched:
        return value
    return emit.repeat(value, emit.trip_count(steps))


def _first_with_elements(emit: Builder, sizes: Tensor) -> Tensor:
    """The number of the first step that appends any element, or 0.

    That one tells how the other axes are expanded: all such steps do it alike, but onnxruntime
    joins pieces of no elements to any others.
    """
    least = emit.reduce("ReduceMin", sizes, [1], 0)
    flags = emit("Cast", emit("Greater", least, emit.scalar(0)), to=TensorProto.INT32)
    return emit("ArgMax", flags, axis=0, keepdims=0)


def _numbers(emit: Builder, counts: Tensor) -> Tensor:
    """0 counts[0] times, 1 counts[1] times, …"""
    most = emit.reduce("ReduceMax", counts, [0], 0)
    most = emit.max(most, emit.scalar(0))  # of no counts, it is the smallest of all numbers
    columns = emit("Range", emit.scalar(0), most, emit.scalar(1))
    matrix = emit("Less", columns, emit.unsqueeze(counts, [1]))
    return emit("Gather", emit("NonZero", matrix), emit.scalar(0), axis=0)


def _repetition(
    m: Match, steps: CountedLoop, parallel: Parallel, state: CarriedValue
) -> Repetition:
    empty = m.producer(state.initial, "SequenceEmpty")
    m.need(empty is not None, "the list is not empty at first", at=state.initial)
    insert = m.producer(state.output, "SequenceInsert")
    only = insert is not None and insert.inputs[0] is state.input and len(insert.inputs) == 2
    only = only and m.index.use_count(state.input) == m.index.use_count(state.output) == 1
    m.need(only, "the loop does not only append one value in each iteration", at=state.output)
    assert insert is not None
    value = insert.inputs[1]
    expand = m.need(m.producer(value, "Expand"), "{} is not repeated", value, at=value)
    source, sizes = expand.inputs
    for tensor in (source, sizes):
        known = tensor in parallel.batched or is_outer(m.facts, steps.body, tensor)
        m.need(known, "{} depends on a state", tensor, at=tensor)
    shape, asked = m.facts.shape(source), m.facts.shape(sizes)
    rank = m.need(m.facts.rank(source), "the rank of {} is not known", source, at=source)
    m.need(asked == (rank,), "{} gets more axes", source, at=source)
    axis = m.node.attrs["axis"]
    m.need(-rank <= axis < rank, "axis {} is outside rank {}", axis, rank)
    assert shape is not None
    size = shape[axis % rank]
    m.need(size == 1, "the size {} of what is repeated is not known to be 1", size, at=source)
    return Repetition(source, sizes, axis % rank, rank)
