"""Positions along an axis that are linear in the iteration number, and reads at them, in the forms
that exporters write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .scope import BY_RANK, Kind, Scope, Value

LAST = 2**63 - 1


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor that a loop walks along."""

    tensor: Value
    rank: int
    number: int
    size: Value
    """The number of slices, an integer."""

    @property
    def slice_kind(self) -> Kind:
        return BY_RANK[self.rank - 1]


@dataclass(frozen=True)
class Walk:
    """Iteration i is at position first + stride * i; `first` may count from the end."""

    first: int
    stride: int

    @property
    def is_plain(self) -> bool:
        return (self.first, self.stride) == (0, 1)


PLAIN = Walk(0, 1)
BACK = Walk(-1, -1)
WALKS = (PLAIN, PLAIN, PLAIN, BACK, BACK, Walk(1, 1), Walk(0, 2), Walk(1, 3), Walk(-1, -2))


def axis_of(scope: Scope) -> Axis:
    """An axis of an input of rank 1 to 3, and its size in one of several forms."""
    rank = scope.random.choice([1, 2, 2, 3, 3, 3])
    if scope.chance(0.25):
        tensor = _of_known_sizes(scope, rank)
        number = scope.random.randrange(rank)
        return Axis(tensor, rank, number, size_along(scope, tensor, rank, number))
    tensor = scope.input("block" if rank == 3 else "table")
    if rank == 1:
        tensor = scope.add("Gather", [tensor, scope.integer(0)], Kind.SERIES, axis=1)
    number = scope.random.randrange(rank)
    return Axis(tensor, rank, number, size_along(scope, tensor, rank, number))


def _of_known_sizes(scope: Scope, rank: int) -> Value:
    """A tensor of static shape whose elements differ between runs."""
    sizes = [scope.random.choice([1, 1, 2, 3, 7]) for _ in range(rank)]
    numbers = np.random.default_rng(scope.random.randrange(99)).normal(size=sizes)
    moved = scope.add("ReduceSum", [scope.input("x")], Kind.SCALAR, keepdims=0)
    kind = BY_RANK[rank]
    return scope.add("Add", [scope.constant(np.round(numbers, 2), kind), moved], kind)


def size_along(scope: Scope, tensor: Value, rank: int, number: int) -> Value:
    way = scope.random.randrange(4)
    if way == 0 and scope.opset >= 13:
        # onnxruntime respects keepdims=0 for a split without sizes.
        pieces = scope.add("SplitToSequence", [tensor], Kind.ROWS, axis=number, keepdims=0)
        return scope.add("SequenceLength", [pieces], Kind.INT)
    if way == 1 and scope.opset >= 15:
        shape = scope.add("Shape", [tensor], Kind.INTS, start=number, end=number + 1)
        return scope.squeeze(shape, 0, Kind.INT)
    shape = scope.add("Shape", [tensor], Kind.INTS)
    if way == 2:
        bounds = [scope.constant([v], Kind.INTS) for v in (number, number + 1)]
        return scope.squeeze(scope.add("Slice", [shape, *bounds], Kind.INTS), 0, Kind.INT)
    return scope.add("Gather", [shape, scope.integer(number - rank * scope.chance(0.3))], Kind.INT)


def iterations_along(scope: Scope, size: Value, walk: Walk) -> Value:
    """The number of iterations that stay within the axis."""
    if walk.first < 0:
        first = scope.add("Sub", [size, scope.integer(1)], Kind.INT)
        return _length_of_range(scope, first, scope.integer(-1), walk.stride)
    if walk.is_plain and scope.chance(0.7):
        return size
    return _length_of_range(scope, scope.integer(walk.first), size, walk.stride)


def _length_of_range(scope: Scope, start: Value, end: Value, stride: int) -> Value:
    """max(0, ceil((end - start) / stride)), computed in floats or integers."""
    span = scope.add("Sub", [end, start], Kind.INT)
    if scope.chance(0.6):
        wide = scope.add("Cast", [span], Kind.SCALAR, to=Kind.SCALAR.element)
        quotient = scope.add("Div", [wide, scope.constant(stride, Kind.SCALAR)], Kind.SCALAR)
        rounded = scope.add("Ceil", [quotient], Kind.SCALAR)
        return scope.add("Cast", [rounded], Kind.INT, to=Kind.INT.element)
    further = scope.integer(stride - 1 if stride > 0 else stride + 1)
    return scope.add(
        "Div", [scope.add("Add", [span, further], Kind.INT), scope.integer(stride)], Kind.INT
    )


# --- positions -----------------------------------------------------------------------------------


def position(body: Scope, axis: Axis, iteration: Value, walk: Walk) -> Value:
    """The position at which iteration i reads or writes."""
    place = _advanced(body, axis, iteration, walk)
    while body.chance(0.3):
        place = _normalised(body, axis, place)
    return place


def _advanced(body: Scope, axis: Axis, iteration: Value, walk: Walk) -> Value:
    if walk.is_plain and body.chance(0.7):
        return iteration
    if walk.first >= 0:
        along = _times(body, iteration, walk.stride)
        first = body.integer(walk.first)
        return body.add("Add", _either_way(body, along, first), Kind.INT)
    if body.chance(0.3):
        along = _times(body, iteration, walk.stride)
        return body.add("Add", _either_way(body, along, body.integer(walk.first)), Kind.INT)
    if body.chance(0.3):
        rest = body.add("Sub", [axis.size, _times(body, iteration, -walk.stride)], Kind.INT)
        return body.add("Sub", [rest, body.integer(-walk.first)], Kind.INT)
    last = body.add("Sub", [axis.size, body.integer(-walk.first)], Kind.INT)
    if body.chance(0.5):
        return body.add("Sub", [last, _times(body, iteration, -walk.stride)], Kind.INT)
    return body.add("Add", _either_way(body, last, _times(body, iteration, walk.stride)), Kind.INT)


def _either_way(body: Scope, a: Value, b: Value) -> list[Value | None]:
    return [a, b] if body.chance(0.5) else [b, a]


def _times(body: Scope, value: Value, factor: int) -> Value:
    if factor == 1 and body.chance(0.7):
        return value
    if factor == -1 and body.chance(0.4):
        return body.add("Neg", [value], Kind.INT)
    return body.add("Mul", _either_way(body, value, body.integer(factor)), Kind.INT)


def _normalised(body: Scope, axis: Axis, place: Value) -> Value:
    """The same position in another form."""
    way = body.random.randrange(6)
    if way == 0:
        negative = body.add("Less", [place, body.integer(0)], Kind.BOOL)
        wrapped = body.add("Add", [place, axis.size], Kind.INT)
        return body.add("Where", [negative, wrapped, place], Kind.INT)
    if way == 1:
        small = body.add("Cast", [place], Kind.INT32, to=Kind.INT32.element)
        return body.add("Cast", [small], Kind.INT, to=Kind.INT.element)
    if way == 2:
        return body.add("Add", [place, body.integer(0)], Kind.INT)
    if way == 3:
        shaped = body.add("Reshape", [place, body.constant([1], Kind.INTS)], Kind.INTS)
        none = body.constant(np.zeros(0), Kind.INTS)
        return body.add("Reshape", [shaped, none], Kind.INT)
    if way == 4:
        return body.squeeze(body.unsqueeze(place, 0, Kind.INTS), 0, Kind.INT)
    return body.add("Identity", [place], Kind.INT)


def as_vector(body: Scope, place: Value) -> Value:
    if body.chance(0.5):
        return body.unsqueeze(place, 0, Kind.INTS)
    return body.add("Reshape", [place, body.constant([-1], Kind.INTS)], Kind.INTS)


# --- reads ---------------------------------------------------------------------------------------


def slice_at(body: Scope, axis: Axis, place: Value) -> Value:
    """One slice, without the axis."""
    way = body.random.randrange(7)
    if way == 0 and body.opset >= 13:
        pieces = body.add("SplitToSequence", [axis.tensor], Kind.ROWS, axis=axis.number, keepdims=0)
        return body.add("SequenceAt", [pieces, place], axis.slice_kind)
    if way in (1, 2):
        return _squeezed(body, axis, sliced(body, axis, as_vector(body, place), 1))
    if way == 3:
        kept = body.add(
            "Gather", [axis.tensor, as_vector(body, place)], BY_RANK[axis.rank], axis=axis.number
        )
        return _squeezed(body, axis, kept)
    if way == 4 and axis.number == 0:
        return body.add("GatherND", [axis.tensor, as_vector(body, place)], axis.slice_kind)
    if way == 5 and body.opset >= 13:
        pieces = body.add("SplitToSequence", [axis.tensor], Kind.ROWS, axis=axis.number, keepdims=1)
        return _squeezed(body, axis, body.add("SequenceAt", [pieces, place], BY_RANK[axis.rank]))
    number = axis.number - axis.rank * body.chance(0.2)
    return body.add("Gather", [axis.tensor, place], axis.slice_kind, axis=number)


def _squeezed(body: Scope, axis: Axis, kept: Value) -> Value:
    return body.squeeze(kept, axis.number, axis.slice_kind)


def sliced(body: Scope, axis: Axis, start: Value, extent: int) -> Value:
    """`extent` slices from a position on, by a Slice along one axis or all axes."""
    end = body.add("Add", [start, body.constant([extent], Kind.INTS)], Kind.INTS)
    if extent == 1 and body.chance(0.2):
        # For the position -1, the end would be 0.
        zero = body.constant([0], Kind.INTS)
        wraps = body.add("Equal", [end, zero], Kind.BOOLS)
        end = body.add("Where", [wraps, body.constant([LAST], Kind.INTS), end], Kind.INTS)
    kind = BY_RANK[axis.rank]
    if body.chance(0.3):
        return _sliced_on_all_axes(body, axis, start, end)
    if axis.number == 0 and body.chance(0.2):
        return body.add("Slice", [axis.tensor, start, end], kind)
    return body.add(
        "Slice", [axis.tensor, start, end, body.constant([axis.number], Kind.INTS)], kind
    )


def _sliced_on_all_axes(body: Scope, axis: Axis, start: Value, end: Value) -> Value:
    starts: list[Value | None] = [body.constant([0], Kind.INTS) for _ in range(axis.rank)]
    ends: list[Value | None] = [body.constant([LAST], Kind.INTS) for _ in range(axis.rank)]
    starts[axis.number], ends[axis.number] = start, end
    if axis.rank == 1:
        return body.add("Slice", [axis.tensor, start, end], BY_RANK[1])
    bounds = [body.add("Concat", part, Kind.INTS, axis=0) for part in (starts, ends)]
    return body.add("Slice", [axis.tensor, *bounds], BY_RANK[axis.rank])


def summed_chunk(body: Scope, axis: Axis, start: Value, extent: int) -> Value:
    """The sum of several neighbouring slices."""
    chunk = sliced(body, axis, as_vector(body, start), extent)
    if body.opset < 13:
        return body.add("ReduceSum", [chunk], axis.slice_kind, axes=[axis.number], keepdims=0)
    along = body.constant([axis.number], Kind.INTS)
    return body.add("ReduceSum", [chunk, along], axis.slice_kind, keepdims=0)
