"""Buffers that each iteration writes one slice of become scan outputs.

y = Loop(n, , zeros(n, k)) { … return ScatterND(buffer, [[i]], r) }   ->   y = Loop(n, ) { … return r }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.facts.elements import element
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Graph, Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .accumulation import AccumulatorRule, need_only_updated, with_shape_of, with_sizes_of
from .affine_positions import Progression, need_progression


@dataclass(frozen=True)
class SliceWrite:
    """A scatter that overwrites one slice of a buffer."""

    scatter: Node
    axis: int
    position: Dim
    """The number of the slice along the axis."""
    values: Tensor
    """What the scatter writes."""
    squeezed: tuple[int, ...]
    """Axes of size 1 that the values have and a slice lacks."""
    unsqueezed: tuple[int, ...] = ()
    """Axes of size 1 that a slice has and the values lack."""
    order: tuple[int, ...] = ()
    """The axes of the values in the order of a slice; () if they have that order."""

    def slice(self, emit: Builder) -> Tensor:
        """The slice that the scatter writes, without the axis that the slices are numbered along."""
        value = emit.unsqueeze(emit.squeeze(self.values, self.squeezed), self.unsqueezed)
        return emit.transpose(value, self.order) if self.order else value


@dataclass(frozen=True)
class BufferScatter:
    """A scatter into a carried value, which may be transposed for it and back."""

    scatter: Node
    reader: Node
    """The node that reads the carried value: the scatter, or the Transpose before it."""
    perm: tuple[int, ...]
    """The axes of the carried value in the order in which the scatter sees them."""


@dataclass(frozen=True)
class WrittenRange:
    """The slices of a buffer that a loop writes."""

    first: int
    """The number of the first of them."""
    reverse: bool
    """Whether the first iteration writes the last of them."""
    is_whole: bool
    """Whether they are the whole buffer."""
    fits: bool
    """Whether the buffer is known to have room for all of them."""


@dataclass(frozen=True)
class BufferUpdate:
    """Each iteration overwrites the next slice of a buffer."""

    write: SliceWrite
    range: WrittenRange
    rank: int
    runs_at_least_once: bool
    """Whether the loop has at least one iteration."""


class ScatterToScanOutput(AccumulatorRule[BufferUpdate]):
    """Turns a buffer whose next slice each iteration writes into a scan output.

    Slices that no iteration writes keep their initial values.
    """

    no_accumulator = "no carried value is a buffer that slices are written to"
    fires = """g (float[T,3] x, float[3] s0) => (float[3] y, float[T,3] ys) {
      zero = Constant<value_int=0>() none = Constant<value_int=-1>() all = Shape(x)
      n = Gather(all, zero) b0 = ConstantOfShape(all)
      y, ys = Loop (n, , s0, b0) <body = b (int64 i, bool ci, float[3] s, float[T,3] q)
          => (bool co, float[3] so, float[T,3] qo) {
        co = Identity(ci) xt = Gather(x, i) so = Max(s, xt)
        at = Constant<value_ints=[1,1]>() one = Constant<value_ints=[0]>()
        k = Reshape(i, at) r = Unsqueeze(so, one) qo = ScatterND(q, k, r) }> }"""
    spares = {
        "is read in the body": """g (float[T,3] x) => (float[T,3] ys) {
      zero = Constant<value_int=0>() all = Shape(x) n = Gather(all, zero)
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) s = ReduceSum<keepdims=0>(q) wide = Constant<value_ints=[1,3]>()
        at = Constant<value_ints=[1,1]>() k = Reshape(i, at) r = Expand(s, wide)
        qo = ScatterND(q, k, r) }> }""",
        "does not change by a fixed step": """g (float[T,3] x, float[1,3] r) => (float[T,3] ys) {
      zero = Constant<value_int=0>() all = Shape(x) n = Gather(all, zero)
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Constant<value_ints=[1,1]>() two = Constant<value_int=2>()
        h = Div(i, two) k = Reshape(h, at) qo = ScatterND(q, k, r) }> }""",
        "not one after the other": """g (float[T,3] x, float[1,3] r, int64 n) => (float[T,3] ys) {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Constant<value_ints=[1,1]>() two = Constant<value_int=2>()
        h = Mul(i, two) k = Reshape(h, at) qo = ScatterND(q, k, r) }> }""",
        "no carried value is a buffer": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def update(
        self, m: Match, view: LoopView, number: int, carried: CarriedValue
    ) -> BufferUpdate | None:
        scatter = buffer_scatter(m, carried)
        if scatter is None:
            return None
        shape = m.need(m.facts.shape(carried.input), "the shape of {} is not known", carried.input)
        write = need_write(m, view, carried, scatter)
        need_only_updated(m, view, number, carried, Use(scatter.reader, 0))
        m.need(view.iteration_shape == (), "the iteration number is not a scalar in the body")
        position = need_progression(m, view, write.position, write.scatter.inputs[1])
        count = view.trips(m.facts) if view.never_stops_early(m.facts) else None
        written = _need_range(m, position, count, shape[write.axis], write)
        runs = view.runs_at_least_once(m.facts)
        keeps_sizes = runs or written.is_whole or m.facts.opset >= EMPTY_RESHAPES
        m.need(keeps_sizes, NO_EMPTY_RESHAPES)
        return BufferUpdate(write, written, len(shape), runs)

    def added(self, patch: Patch, update: BufferUpdate) -> Tensor:
        scatter, facts = update.write.scatter, patch.facts
        slice_ = update.write.slice(patch.builder(update.write.values, scatter))
        dtype = facts.of(scatter.inputs[0]).dtype
        if facts.rank(slice_) is None and dtype:
            # Otherwise onnxruntime gives an empty scan output one axis only.
            body: Graph = patch.root.attrs["body"]
            patch.declare_scan_output(body, slice_, dtype, [None] * (update.rank - 1))
        return slice_

    def result(
        self, emit: Builder, stacked: Tensor, carried: CarriedValue, update: BufferUpdate
    ) -> Tensor:
        written, axis, initial = update.range, update.write.axis, carried.initial
        count = emit.shape(stacked, 0, 1)
        ordered = emit.reverse(stacked, 0) if written.reverse else stacked
        result = emit.move_axis(ordered, 0, axis, update.rank)
        if not update.runs_at_least_once and written.is_whole:
            result = with_shape_of(emit, result, initial)
        elif not update.runs_at_least_once:
            result = with_sizes_of(emit, result, axis, update.rank, count, initial)
        if not written.is_whole:
            result = _with_unwritten_slices(emit, count, result, initial, axis, written)
        return result


def _with_unwritten_slices(
    emit: Builder, count: Tensor, result: Tensor, initial: Tensor, axis: int, written: WrittenRange
) -> Tensor:
    """The written slices among the slices of the initial buffer that no iteration writes."""
    zero, axes, start = emit.vector(0), emit.vector(axis), count
    end = emit.shape(initial, axis, axis + 1)
    parts = [result]
    if written.first:
        first = emit.vector(written.first)
        parts = [emit("Slice", initial, zero, first, axes), result]
        start = emit("Add", start, first)
    rest = emit("Slice", initial, start, end, axes)
    whole = emit("Concat", *parts, rest, axis=axis)
    if written.fits:
        return whole
    # A write past the end fails, except in a buffer of no elements, which keeps its size.
    return emit("Slice", whole, zero, end, axes)


def _need_range(
    m: Match, position: Progression, count: Dim | None, length: Dim, write: SliceWrite
) -> WrittenRange:
    """The slices that the iterations write. Raises Miss if they are not known to be adjacent."""
    reverse, first = position.step == -1, position.first
    if reverse and count is not None:
        # Positions below zero count from the end (ONNX operator specification, ScatterND).
        from_end = isinstance(first, int) and first < 0
        last = symbolic.add(first, length) if from_end else first
        first = symbolic.sub(symbolic.add(last, 1), count)
    known = isinstance(first, int) and first >= 0 and not (reverse and count is None)
    if not isinstance(first, int) or not known or abs(position.step) != 1:
        raise Miss(
            "slices are written from {} in steps of {}, not one after the other from a known one",
            position.first,
            position.step,
            at=write.scatter,
        )
    end = None if count is None else symbolic.add(count, first)
    fits = None if end is None else symbolic.le(end, length)
    m.need(
        fits is not False,
        "the loop writes slices up to {} of {}, which has {}",
        end,
        write.scatter.inputs[0],
        length,
        at=write.scatter,
    )
    is_whole = first == 0 and end is not None and symbolic.eq(end, length) is True
    return WrittenRange(first, reverse, is_whole, fits is True)


def buffer_scatter(m: Match, carried: CarriedValue) -> BufferScatter | None:
    """The scatter that updates a carried value; None if there is none.

    To write along an axis other than the first, exporters transpose the buffer, scatter, and
    transpose the result back.
    """
    scatter = m.producer(carried.output, "ScatterND", "ScatterElements")
    if scatter is not None:
        return BufferScatter(scatter, scatter, tuple(range(m.facts.rank(carried.input) or 0)))
    back = m.producer(carried.output, "Transpose")
    scatter = None if back is None else m.producer(back.inputs[0], "ScatterND", "ScatterElements")
    there = None if scatter is None else m.producer(scatter.inputs[0], "Transpose")
    rank = m.facts.rank(carried.input)
    if back is None or scatter is None or there is None or rank is None:
        return None
    default = range(rank)[::-1]
    perm, inverse = (tuple(n.attrs.get("perm") or default) for n in (there, back))
    only_reader = all(m.index.use_count(node.outputs[0]) == 1 for node in (there, scatter))
    if not only_reader or tuple(perm[k] for k in inverse) != tuple(range(rank)):
        return None
    return BufferScatter(scatter, there, perm)


def need_write(m: Match, view: LoopView, carried: CarriedValue, found: BufferScatter) -> SliceWrite:
    """What a scatter writes to a carried value. Raises Miss if it is not one whole slice."""
    scatter, buffer = found.scatter, carried.input
    shape = m.need(m.facts.shape(buffer), "the shape of {} is not known", buffer)
    m.need(bool(shape), "{} has no axes", buffer)
    writes_to = found.reader.inputs[0]
    m.need(
        writes_to is buffer and m.index.graph_of(scatter) is view.body,
        "{} does not write to {}",
        scatter,
        buffer,
    )
    overwrites = scatter.attrs.get("reduction", "none") == "none"
    m.need(overwrites, "{} does not overwrite, but combines", scatter, at=scatter)
    write_of = _write_of_elements if scatter.op == "ScatterElements" else _write_at_indices
    write = write_of(m, scatter, tuple(shape[axis] for axis in found.perm))
    rest = [axis for k, axis in enumerate(found.perm) if k != write.axis]
    order = tuple(sorted(range(len(rest)), key=rest.__getitem__))
    return replace(write, axis=found.perm[write.axis], order=order)


def _write_of_elements(m: Match, scatter: Node, shape: tuple[Dim, ...]) -> SliceWrite:
    """A ScatterElements whose indices are all the same position along its axis."""
    axis = int(scatter.attrs.get("axis", 0)) % len(shape)
    updates = m.facts.shape(scatter.inputs[2])
    whole = (*shape[:axis], 1, *shape[axis + 1 :])
    m.need(
        updates == whole, "{} does not write a whole slice of axis {}", scatter, axis, at=scatter
    )
    coordinate = tuple(symbolic.fresh(f"j{place}") for place in range(len(shape)))
    indices = scatter.inputs[1]
    position = element(m.facts, indices, coordinate)
    if position is None or _depends_on(position, coordinate):
        raise Miss("the position {} is not known", indices, at=scatter)
    return SliceWrite(scatter, axis, position, scatter.inputs[2], (axis,))


def _depends_on(position: Dim, coordinate: tuple[Dim, ...]) -> bool:
    return any(symbolic.symbols(position) & symbolic.symbols(place) for place in coordinate)


def _write_at_indices(m: Match, scatter: Node, shape: tuple[Dim, ...]) -> SliceWrite:
    """A ScatterND whose index tuples run through all axes that they name but one.

    The tuple at coordinate (j0, j1, …) must consist of the position of the iteration and of each of
    j0, j1, … once, in the order of the axes.
    """
    indices = scatter.inputs[1]
    sizes = m.need(m.facts.shape(indices), "the shape of {} is not known", indices)
    depth = sizes[-1] if sizes else None
    if not isinstance(depth, int):
        raise Miss("the number of indices per slice is not known", at=scatter)
    coordinate = tuple(symbolic.fresh(f"j{place}") for place in range(len(sizes) - 1))
    written: tuple[int, Dim] | None = None  # the axis that is not run through, and the position
    taken: list[int] = []
    units: list[int] = []
    for axis in range(depth):
        value = element(m.facts, indices, (*coordinate, axis))
        value = m.need(value, "index {} of {} is not known", axis, indices)
        place = next((k for k, c in enumerate(coordinate) if symbolic.eq(value, c) is True), None)
        if place is not None and symbolic.eq(sizes[place], shape[axis]) is True:
            taken.append(place)
        elif value == 0 and shape[axis] == 1:
            units.append(axis)
        else:
            m.need(written is None, "{} writes only part of a slice", scatter, at=scatter)
            written = (axis, value)
    axis, position = m.need(written, "{} writes the whole buffer", scatter, at=scatter)
    squeezed = tuple(k for k in range(len(coordinate)) if k not in taken)
    whole = taken == sorted(taken) and all(sizes[k] == 1 for k in squeezed)
    m.need(
        whole and not _depends_on(position, coordinate),
        "{} does not write one whole slice",
        scatter,
        at=scatter,
    )
    given, wanted = m.facts.shape(scatter.inputs[2]), (*sizes[:-1], *shape[depth:])
    fits = given is None or (
        len(given) == len(wanted)
        and all(symbolic.eq(*pair) is not False for pair in zip(given, wanted))
    )
    m.need(fits, "{} writes values of another shape than its indices name", scatter, at=scatter)
    unsqueezed = tuple(unit - (unit > axis) for unit in units)
    return SliceWrite(scatter, axis, position, scatter.inputs[2], squeezed, unsqueezed)
