"""Length regulators: a loop repeats each slice by a count that it also reads.

    l = Loop(n, , []) { e = Expand(x_t, [d_t, 1])  return true, SequenceInsert(l, e) }
    y = ConcatFromSequence(l)
 -> y = Gather(x, [0, 0, 1, 2, 2, 2, …])

An iteration may also expand along a second axis of size 1, and then merge both axes by a Reshape:
`Reshape(Expand(x_t, [1, d_t, 4]), [-1, 4])`, as torch.repeat_interleave is exported.

The indices follow from a mask: row t of the matrix `k < d_t` is true d_t times, and NonZero lists
the positions of true elements row by row (ONNX operator specification, NonZero).
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.elements import vector
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue
from ..loops.counted_loop_checks import need_counted_loop
from .independent_work import HoistedValues, IndependentWork, need_independent_work


@dataclass(frozen=True)
class RepeatedSlices:
    """Each iteration appends `Expand(slice, sizes)` to a sequence, which is concatenated."""

    joined: Node
    """The ConcatFromSequence."""
    work: IndependentWork
    slice: Tensor
    """Its size along the axis of the concatenation is 1."""
    sizes: Tensor
    axis: int
    """The axis of the concatenation; never negative."""
    rank: int
    """The rank of the slice."""
    merges_axes: bool
    """Whether a Reshape merges this axis of the expanded slice and the next one."""


class RaggedRepeat(Rule[RepeatedSlices]):
    """Replaces a loop that repeats and concatenates slices by a Gather."""

    root = "Loop"
    promise = Promise(
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[N,3] x, int64[N] d) => (float[R,3] y) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[P,3]) q) => (bool co, seq(float[P,3]) qo) <int64[1] first = {0}, int64[1] one = {1}> {
        xt = Gather(x, i) row = Unsqueeze(xt, first) dt = Gather(d, i) du = Unsqueeze(dt, first)
        sizes = Concat<axis=0>(du, one) r = Expand(row, sizes) qo = SequenceInsert(q, r) co = Identity(ci) }>
      y = ConcatFromSequence<axis=0>(l) }"""
    spares = {
        "concatenated after it": """g (float[N,3] x) => (seq(float[1,3]) l) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero) e = SequenceEmpty<dtype=1>()
      l = Loop (n, , e) <body = b (int64 i, bool ci, seq(float[1,3]) q) => (bool co, seq(float[1,3]) qo) <int64[1] first = {0}, int64[2] ones = {1, 1}> {
        xt = Gather(x, i) row = Unsqueeze(xt, first) r = Expand(row, ones) qo = SequenceInsert(q, r) co = Identity(ci) }> }""",
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
        loop = need_counted_loop(m)
        joined = [
            (carried, reader)
            for carried in loop.carried
            if carried.final is not None
            for reader in m.index.consumers(carried.final)
            if reader.op == "ConcatFromSequence" and not reader.domain
        ]
        none = "no sequence that it appends to is concatenated after it"
        return m.first(lambda each: _repeated_slices(m, loop, *each), joined, none)

    def apply(self, patch: Patch, found: RepeatedSlices) -> None:
        node, work, axis = found.joined, found.work, found.axis
        hoisted = HoistedValues(patch, work.loop, work.plans)
        hoisted.build_producers([found.slice, found.sizes])
        emit = hoisted.builder(node.outputs[0])
        slices = _stacked(emit, hoisted, work, found.slice)
        sizes = _stacked(emit, hoisted, work, found.sizes)
        emptied = [axis + 1, axis + 2] if found.merges_axes else [axis + 1]
        counts = emit("Gather", sizes, emit.vector(*(k - 1 for k in emptied)), axis=1)
        counts = emit.reduce("ReduceProd", counts, [1], 0)
        rank = found.rank - found.merges_axes
        joined = emit.move_axis(emit.squeeze(slices, emptied), 0, axis, rank)
        y = emit("Gather", joined, _repeated_indices(emit, counts), axis=axis)
        if not found.merges_axes:
            y = emit("Expand", y, _other_sizes(emit, sizes, axis, rank))
        patch.replace(node.outputs[0], y)
        patch.remove(node)
        patch.toward_normal_form()


def _other_sizes(emit: Builder, sizes: Tensor, axis: int, rank: int) -> Tensor:
    """What the iterations expand the axes to other than the repeated one, which has a 1."""
    shape = emit("Gather", sizes, _first_nonempty(emit, sizes), axis=0)
    return emit.concat(
        [
            *([emit.slice(shape, 0, slice(0, axis, 1))] if axis > 0 else []),
            emit.vector(1),
            *([emit.slice(shape, 0, slice(axis + 1, rank, 1))] if axis + 1 < rank else []),
        ]
    )


def _repeated_slices(
    m: Match, loop: CountedLoop, carried: CarriedValue, joined: Node
) -> RepeatedSlices:
    """How a ConcatFromSequence concatenates repeated slices. Raises Miss for anything else."""
    m.need(not joined.attrs.get("new_axis", 0), "{} adds an axis", joined, at=joined)
    same = m.graph() is m.index.graph_of(joined)
    m.need(same, "{} is in another graph", joined, at=joined)
    appended = _need_appended_value(m, carried)
    reshape = m.producer(appended, "Reshape")
    value = appended if reshape is None else reshape.inputs[0]
    no_expand = "{} is not the result of an Expand"
    expand = m.need(m.producer(value, "Expand"), no_expand, value, at=value)
    source, sizes = expand.inputs
    work = need_independent_work(m)
    for tensor in (source, sizes):
        independent = work.is_independent(m.index, tensor)
        m.need(independent, "{} depends on a carried value", tensor, at=tensor)
    shape = m.need(m.facts.shape(source), "the rank of {} is not known", source, at=source)
    rank = len(shape)
    m.need(m.facts.shape(sizes) == (rank,), "Expand adds axes to {}", source, at=source)
    merges_axes = reshape is not None
    axis, result_rank = joined.attrs["axis"], rank - merges_axes
    inside = -result_rank <= axis < result_rank
    m.need(inside, "axis {} is outside rank {}", axis, result_rank, at=joined)
    axis %= result_rank
    if reshape is not None:
        _need_merged_axes(m, expand, reshape, axis)
    for size in shape[axis : axis + 1 + merges_axes]:
        unknown = "the size {} of the repeated axis is not known to be 1"
        m.need(size == 1, unknown, size, at=source)
    return RepeatedSlices(joined, work, source, sizes, axis, rank, merges_axes)


def _need_merged_axes(m: Match, expand: Node, reshape: Node, axis: int) -> None:
    """Raises Miss unless a Reshape is known to merge this axis and the next one, and no other."""
    source, sizes = expand.inputs
    shape, factors = m.facts.known_shape(source), vector(m.facts, sizes)
    target = m.need(
        m.facts.constant(reshape.inputs[1]), "the shape of {} is not constant", reshape, at=reshape
    ).tolist()
    merges = len(target) == len(shape) - 1 and target[axis] == -1
    m.need(merges, "{} does more than merge two axes", reshape, at=reshape)
    kept = [k for k in range(len(shape)) if k not in (axis, axis + 1)]
    for k, wanted in zip(kept, target[:axis] + target[axis + 1 :]):
        known = factors is not None and factors[k] == 1
        fits = shape[k] == wanted and (wanted > 1 or (wanted == 1 and known))
        m.need(fits, "{} may change axis {} of {}", reshape, k, source, at=reshape)


def _need_appended_value(m: Match, carried: CarriedValue) -> Tensor:
    """The value that each iteration appends to a sequence, which is empty at first.

    Raises Miss if the loop does anything else to the sequence.
    """
    empty = m.producer(carried.initial, "SequenceEmpty")
    m.need(empty is not None, "the sequence is not empty at first", at=carried.initial)
    other = "the loop does more to the sequence than append one value in each iteration"
    insert = m.need(m.producer(carried.output, "SequenceInsert"), other, at=carried.output)
    appends = insert.inputs[0] is carried.input and len(insert.inputs) == 2
    uses = m.index.use_count(carried.input), m.index.use_count(carried.output)
    m.need(appends and uses == (1, 1), other, at=carried.output)
    value: Tensor = insert.inputs[1]
    return value


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
