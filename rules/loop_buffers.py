"""Buffers that each iteration writes one slice of are scan outputs.

y = Loop(n, , zeros(n, k)) { … return ScatterND(buffer, [[i]], r) }   ->   y = Loop(n, ) { … return r }
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rewrite import symbolic
from ..rewrite.elements import element
from ..rewrite.index import Use
from ..rewrite.ir import Node, Tensor
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Miss, Rule
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView, State
from .loop_growing import surely_runs
from .loop_reads import Progression, need_progression
from .row_layout import Behind, collect_rows, drop_state


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


class CollectScatteredRows(Rule):
    """A buffer of which each iteration writes the next slice, unread before the end, is a scan output.

    What no iteration writes is taken from the initial buffer.
    """

    root = "Loop"
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

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        miss = Miss("no state is a buffer that slices are written to", (), m.node)
        for number, state in enumerate(view.states):
            if m.producer(state.output, "ScatterND", "ScatterElements") is not None:
                try:
                    return {"node": m.node, "number": number, **_collected(m, view, number, state)}
                except Miss as reason:
                    miss = reason
        raise miss

    def apply(
        self,
        patch: Patch,
        node: Node,
        number: int,
        state: State,
        write: Write,
        place: Place,
        runs: bool,
        rank: int,
    ) -> None:
        row = write.row
        for axis in reversed(write.dropped):
            row = patch.squeeze(row, axis, row, before=write.node)
        for axis in write.added:
            row = patch.unsqueeze(row, axis, row, before=write.node)
        final = state.final
        assert final is not None
        rows = collect_rows(patch, node, row, final)
        behind = Behind(patch, final)
        ordered = behind.reversed(rows) if place.reverse else rows
        result = behind.moved(ordered, write.axis, rank)
        if not runs and place.full:
            result = behind.shaped_like(result, state.initial)
        elif not runs:
            count = behind.count(rows)
            result = behind.resized(result, write.axis, rank, count, state.initial)
        if not place.full:
            result = _with_the_rest(behind, rows, result, state.initial, write.axis, place)
        patch.replace(final, result)
        drop_state(patch, node, number, state)


def _with_the_rest(
    behind: Behind, rows: Tensor, result: Tensor, initial: Tensor, axis: int, place: Place
) -> Tensor:
    """The rows among the slices of the initial buffer that no iteration overwrote."""
    size = behind.node("Shape", [initial])
    end = behind.node("Slice", [size, behind.numbers(axis), behind.numbers(axis + 1)])
    zero, along, begin = behind.numbers(0), behind.numbers(axis), behind.count(rows)
    parts = [result]
    if place.first:
        start = behind.numbers(place.first)
        parts = [behind.node("Slice", [initial, zero, start, along]), result]
        begin = behind.node("Add", [begin, start])
    rest = behind.node("Slice", [initial, begin, end, along])
    whole = behind.node("Concat", [*parts, rest], {"axis": axis})
    if place.fits:
        return whole
    # Writes behind the end fail, except in a buffer of no elements: that one keeps its size.
    return behind.node("Slice", [whole, zero, end, along])


def _collected(m: Match, view: LoopView, number: int, state: State) -> dict[str, Any]:
    m.need(state.final is not None, "nobody reads the buffer `{}`", state.input.name)
    shape = m.need(m.facts.shape(state.input), "the shape of `{}` is not known", state.input.name)
    m.need(bool(shape), "`{}` has no axes", state.input.name)
    write = need_write(m, view, state, shape)
    readers = [u for u in m.index.uses(state.input) if u != Use(write.node, 0)]
    m.need(not readers, "the buffer `{}` is read in the body", state.input.name)
    again = m.index.uses(state.output) != [Use(view.body, 1 + number)]
    m.need(not again, "the buffer `{}` is read in the body", state.output.name)
    m.need(view.iteration_shape == (), "the iteration number is no scalar in the body")
    found = need_progression(m, view, write.position, write.node.inputs[1])
    place = _place(m, found, _count(m, view), shape[write.axis], write)
    runs = surely_runs(m, view)
    m.need(
        runs or place.full or m.facts.opset >= 14,
        "before opset 14 no Reshape can be told of sizes that may be 0",
    )
    return {"state": state, "write": write, "place": place, "runs": runs, "rank": len(shape)}


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


def _count(m: Match, view: LoopView) -> Dim | None:
    """The number of iterations, where no condition ends the loop."""
    if view.trip is None or not view.never_stops_early(m.facts):
        return None
    trips = m.facts.scalar(view.trip)
    return None if isinstance(trips, bool) else trips


def need_write(m: Match, view: LoopView, state: State, shape: tuple[Dim, ...]) -> Write:
    """What a ScatterND or ScatterElements writes, where that is one whole slice of the buffer."""
    node = m.producer(state.output, "ScatterND", "ScatterElements")
    assert node is not None
    m.need(
        node.inputs[0] is state.input and m.index.graph_of(node) is view.body,
        "{} does not write to `{}`",
        node,
        state.input.name,
    )
    m.need(node.attrs.get("reduction", "none") == "none", "{} adds to what is there", node, at=node)
    if node.op == "ScatterElements":
        return _written_along_axis(m, node, shape)
    return _written_at_indices(m, view, node, shape)


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


def _written_at_indices(m: Match, view: LoopView, node: Node, shape: tuple[Dim, ...]) -> Write:
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
