"""Buffers that each iteration writes one slice of are scan outputs.

y = Loop(n, , zeros(n, k)) { … return ScatterND(buffer, [[i]], r) }   ->   y = Loop(n, ) { … return r }
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import EMPTY_RESHAPES, NO_EMPTY_RESHAPES, Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match
from ...rewrite.facts.elements import element
from ...rewrite.graph.index import Use
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import CarriedValue, LoopView
from ...rewrite.symbolic import Dim
from .accumulation import AccumulatorRule, need_only_updated, resized, shaped_like
from .iteration_positions import Progression, need_progression


@dataclass(frozen=True)
class Write:
    """One slice of a buffer is overwritten."""

    node: Node
    axis: int
    position: Dim
    """Which slice along the axis."""
    row: Tensor
    """What is written."""
    dropped: tuple[int, ...]
    """Axes of size 1 that the row has more than a slice."""
    added: tuple[int, ...] = ()
    """Axes of size 1 that a slice has more than the row."""


@dataclass(frozen=True)
class Place:
    """Where in the buffer the rows stand that a loop writes."""

    first: int
    """The slice that is the first of them."""
    reverse: bool
    """Whether the last row comes first."""
    full: bool
    """Whether they are all there is."""
    fits: bool
    """Whether there surely is room for all of them."""


@dataclass(frozen=True)
class Buffer:
    """Each iteration overwrites the next slice."""

    write: Write
    place: Place
    runs: bool
    """Whether there surely is a first iteration."""
    rank: int


class ScatterToScanOutput(AccumulatorRule[Buffer]):
    """A buffer of which each iteration writes the next slice, unread before the end, is a scan output.

    What no iteration writes is taken from the initial buffer.
    """

    nothing = "no state is a buffer that slices are written to"
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
        "does not advance": """g (float[T,3] x, float[1,3] r) => (float[T,3] ys) {
      zero = Constant<value_int=0>() all = Shape(x) n = Gather(all, zero)
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Constant<value_ints=[1,1]>() two = Constant<value_int=2>()
        h = Div(i, two) k = Reshape(h, at) qo = ScatterND(q, k, r) }> }""",
        "not one after the other": """g (float[T,3] x, float[1,3] r, int64 n) => (float[T,3] ys) {
      ys = Loop (n, , x) <body = b (int64 i, bool ci, float[T,3] q) => (bool co, float[T,3] qo) {
        co = Identity(ci) at = Constant<value_ints=[1,1]>() two = Constant<value_int=2>()
        h = Mul(i, two) k = Reshape(h, at) qo = ScatterND(q, k, r) }> }""",
        "no state is a buffer": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def accumulator(
        self, m: Match, view: LoopView, number: int, state: CarriedValue
    ) -> Buffer | None:
        return _buffer(m, view, number, state)

    def row(self, patch: Patch, found: Buffer) -> Tensor:
        write = found.write
        inside = patch.builder(write.row, write.node)
        return inside.unsqueeze(inside.squeeze(write.row, write.dropped), write.added)

    def result(self, emit: Builder, rows: Tensor, state: CarriedValue, found: Buffer) -> Tensor:
        place, axis, initial = found.place, found.write.axis, state.initial
        count = emit.shape(rows, 0, 1)
        ordered = emit.reverse(rows, 0) if place.reverse else rows
        result = emit.move_axis(ordered, 0, axis, found.rank)
        if not found.runs and place.full:
            result = shaped_like(emit, result, initial)
        elif not found.runs:
            result = resized(emit, result, axis, found.rank, count, initial)
        if not place.full:
            result = _with_the_rest(emit, count, result, initial, axis, place)
        return result


def _with_the_rest(
    emit: Builder, count: Tensor, result: Tensor, initial: Tensor, axis: int, place: Place
) -> Tensor:
    """The rows among the slices of the initial buffer that no iteration overwrote."""
    zero, along, begin = emit.vector(0), emit.vector(axis), count
    end = emit.shape(initial, axis, axis + 1)
    parts = [result]
    if place.first:
        start = emit.vector(place.first)
        parts = [emit("Slice", initial, zero, start, along), result]
        begin = emit("Add", begin, start)
    rest = emit("Slice", initial, begin, end, along)
    whole = emit("Concat", *parts, rest, axis=axis)
    if place.fits:
        return whole
    # Writes behind the end fail, except in a buffer of no elements: that one keeps its size.
    return emit("Slice", whole, zero, end, along)


def _buffer(m: Match, view: LoopView, number: int, state: CarriedValue) -> Buffer | None:
    scatter = m.producer(state.output, "ScatterND", "ScatterElements")
    if scatter is None:
        return None
    shape = m.need(m.facts.shape(state.input), "the shape of `{}` is not known", state.input.name)
    m.need(bool(shape), "`{}` has no axes", state.input.name)
    write = need_write(m, view, state, scatter, shape)
    need_only_updated(m, view, number, state, Use(scatter, 0))
    m.need(view.iteration_shape == (), "the iteration number is no scalar in the body")
    found = need_progression(m, view, write.position, write.node.inputs[1])
    count = view.trips(m.facts) if view.never_stops_early(m.facts) else None
    place = _place(m, found, count, shape[write.axis], write)
    runs = view.runs_at_least_once(m.facts)
    m.need(
        runs or place.full or m.facts.opset >= EMPTY_RESHAPES,
        NO_EMPTY_RESHAPES,
    )
    return Buffer(write, place, runs, len(shape))


def _place(m: Match, found: Progression, count: Dim | None, length: Dim, write: Write) -> Place:
    """Where the rows stand, where they stand side by side."""
    reverse, first = found.step == -1, found.first
    if reverse and count is not None:
        # Positions below zero count from the end (ONNX operator specification, ScatterND).
        from_end = isinstance(first, int) and first < 0
        last = symbolic.add(first, length) if from_end else first
        first = symbolic.sub(symbolic.add(last, 1), count)
    known = isinstance(first, int) and first >= 0 and not (reverse and count is None)
    m.need(
        known and abs(found.step) == 1,
        "slices are written from {} in steps of {}, not one after the other from a known one on",
        found.first,
        found.step,
        at=write.node,
    )
    assert isinstance(first, int)
    end = None if count is None else symbolic.add(count, first)
    fits = None if end is None else symbolic.le(end, length)
    m.need(fits is not False, "slices up to {} are written, of {}", end, length, at=write.node)
    full = first == 0 and end is not None and symbolic.eq(end, length) is True
    return Place(first, reverse, full, fits is True)


def need_write(
    m: Match, view: LoopView, state: CarriedValue, node: Node, shape: tuple[Dim, ...]
) -> Write:
    """What a ScatterND or ScatterElements writes, where that is one whole slice of the buffer."""
    m.need(
        node.inputs[0] is state.input and m.index.graph_of(node) is view.body,
        "{} does not write to `{}`",
        node,
        state.input.name,
    )
    m.need(node.attrs.get("reduction", "none") == "none", "{} adds to what is there", node, at=node)
    if node.op == "ScatterElements":
        return _written_along_axis(m, node, shape)
    return _written_at_indices(m, node, shape)


def _written_along_axis(m: Match, node: Node, shape: tuple[Dim, ...]) -> Write:
    """ScatterElements whose indices all are the same position along its axis."""
    axis = int(node.attrs.get("axis", 0)) % len(shape)
    updates = m.facts.shape(node.inputs[2])
    whole = (*shape[:axis], 1, *shape[axis + 1 :])
    m.need(updates == whole, "{} does not write a whole slice of axis {}", node, axis, at=node)
    spots = tuple(symbolic.fresh(f"j{place}") for place in range(len(shape)))
    position = element(m.facts, node.inputs[1], spots)
    m.need(
        position is not None and not _depends_on(position, spots),
        "the position `{}` is not known",
        node.inputs[1].name,
        at=node,
    )
    assert position is not None
    return Write(node, axis, position, node.inputs[2], (axis,))


def _depends_on(position: Dim, spots: tuple[Dim, ...]) -> bool:
    return any(symbolic.symbols(position) & symbolic.symbols(spot) for spot in spots)


def _written_at_indices(m: Match, node: Node, shape: tuple[Dim, ...]) -> Write:
    """ScatterND whose index tuples run through all axes they name but one.

    The tuple at coordinate (j0, j1, …) must be made of the iteration's position and of each of
    j0, j1, … once, in the order of the axes.
    """
    indices = m.need(
        m.facts.shape(node.inputs[1]), "the shape of `{}` is not known", node.inputs[1].name
    )
    depth = indices[-1]
    m.need(isinstance(depth, int), "the number of indices per slice is not known", at=node)
    assert isinstance(depth, int)
    spots = tuple(symbolic.fresh(f"j{place}") for place in range(len(indices) - 1))
    axis, position, taken, units = None, None, [], []
    for place in range(depth):
        value = element(m.facts, node.inputs[1], (*spots, place))
        m.need(value is not None, "index {} of `{}` is not known", place, node.inputs[1].name)
        assert value is not None
        spot = next((k for k, s in enumerate(spots) if symbolic.eq(value, s) is True), None)
        if spot is not None and symbolic.eq(indices[spot], shape[place]) is True:
            taken.append(spot)
            continue
        if value == 0 and shape[place] == 1:
            units.append(place)
            continue
        m.need(axis is None, "{} writes only part of a slice", node, at=node)
        axis, position = place, value
    m.need(axis is not None, "{} writes the whole buffer", node, at=node)
    assert axis is not None
    assert position is not None
    dropped = tuple(k for k in range(len(spots)) if k not in taken)
    whole = taken == sorted(taken) and all(indices[k] == 1 for k in dropped)
    m.need(
        whole and not _depends_on(position, spots), "{} writes no single whole slice", node, at=node
    )
    added = tuple(place - (place > axis) for place in units)
    return Write(node, axis, position, node.inputs[2], dropped, added)
