"""Slice, Split and Concat along axes of symbolic size.

Bounds of a slice are numbers, expressions over sizes, or symbols for elements that a run computes.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ...rewrite.facts.slices import END
from ..derived_sizes import DerivedSizes
from ..small_kernels import range_along
from ..tvm_onnx import InputList
from ..values import Constant, Sizes, Value, as_int, as_tensor, fresh_dim, match
from .broadcasting import (
    ONE,
    ZERO,
    dims_of,
    known_dims,
    lacks_shape,
    match_other_axes,
    require_size,
)
from .registry import Accepts, ConverterContext, converts
from .sizes import (
    MOST_SIZES,
    has_unknown_length,
    read_sizes,
    read_symbolic,
    rearranged_sizes,
    require_steps,
    sizes_of,
    with_length,
)

_LAST_PART_MAY_BE_SMALLER = 18
"""The opset since which equal parts of a Split need not add up to the axis."""


# --- Concat and Split ----------------------------------------------------------------------------


@converts("Concat", accepts=Accepts.SYMBOLIC)
def concat(ctx: ConverterContext) -> Value:
    """Concat, see https://onnx.ai/onnx/operators/onnx__Concat.html.

    A run in which the inputs differ in another axis fails.
    """
    operands = read_symbolic(ctx.inputs)
    if operands and sum(len(operand.items) for operand in operands) <= MOST_SIZES:
        return _concatenated_sizes(operands, ctx.attr("axis", 1))
    tensors, axis = ctx.tensors(), ctx.attr("axis", 1)
    result = ctx.bb.normalize(ctx.by_tvm(tensors))
    if lacks_shape(result):
        tensors = match_other_axes(ctx.bb, tensors, axis)
        result = ctx.bb.normalize(ctx.by_tvm(tensors))
    # No schedule for GPUs takes kernels that read a part without elements.
    parts = [tensor for tensor in tensors if not _is_empty(tensor, axis)]
    if len(parts) == len(tensors) or not parts:
        return result
    return ctx.by_tvm(parts) if len(parts) > 1 else parts[0]


def _is_empty(tensor: Value, axis: int) -> bool:
    dims = known_dims(tensor)
    return dims is not None and as_int(dims[axis]) == 0


def _concatenated_sizes(operands: Sequence[Sizes], axis: int) -> Value:
    items = [item for operand in operands for item in operand.items]
    firsts = itertools.accumulate((len(operand.items) for operand in operands), initial=0)
    places = [operand.places + first for operand, first in zip(operands, firsts, strict=False)]
    return rearranged_sizes(
        Sizes.vector(items, operands[0].dtype), lambda _: np.concatenate(places, axis)
    )


@converts("Split", accepts=Accepts.SIZES)
def split(ctx: ConverterContext) -> Value:
    """Split, see https://onnx.ai/onnx/operators/onnx__Split.html.

    A run in which a size is negative, or the sizes do not add up to that of the axis, fails.
    """
    given = with_length(ctx.bb, ctx.inputs[1], ctx.num_outputs)
    ctx = ctx.derive(inputs=[ctx.tensor(0), given])
    data = ctx.inputs[0]
    dims = dims_of(data, "data")
    axis = ctx.attr("axis", 0) % len(dims)
    sizes = _split_sizes(ctx, dims[axis])
    for lengths in (sizes, [tirx.max(size, ZERO) for size in sizes]):
        data = require_size(ctx.bb, data, axis, functools.reduce(operator.add, lengths))
    is_constant = given is None or ctx.known_elements(given) is not None
    # TVM takes no indices that are equal.
    if is_constant and not any(as_int(size) == 0 for size in sizes):
        return ctx.by_tvm([data, *ctx.inputs[1:]])
    return relax.Tuple(split_by_sizes(ctx, data, axis, sizes))


def _split_sizes(ctx: ConverterContext, size: Any) -> list[Any]:
    """The sizes of the parts of an axis of `size` elements."""
    given = ctx.inputs[1]
    content = ctx.attrs.get("split") if given is None else ctx.known_elements(given)
    if content is not None:
        return [tirx.IntImm("int64", int(length)) for length in content]
    if given is not None:
        return sizes_of(ctx.bb, given)
    count = ctx.num_outputs
    if ctx.opset < _LAST_PART_MAY_BE_SMALLER:
        return [tirx.floordiv(size, count)] * count
    chunk = tirx.floordiv(size + (count - 1), count)
    return [*[chunk] * (count - 1), size - chunk * (count - 1)]


def split_by_sizes(
    ctx: ConverterContext, data: Value, axis: int, sizes: Sequence[Any]
) -> list[Value]:
    """Consecutive parts of a tensor along an axis."""
    parts, start = [], ZERO
    for size in sizes:
        part = ctx.call_te(range_along, data, start, size, axis, name="part")
        parts.append(ctx.bb.emit(part))
        start = start + size
    return parts


# --- Slice ---------------------------------------------------------------------------------------


@converts("Slice", accepts=Accepts.SYMBOLIC)
def slice_tensor(ctx: ConverterContext) -> Value:
    """Slice, see https://onnx.ai/onnx/operators/onnx__Slice.html: bounds are clamped to the axis.

    TVM's converter clamps "to the end" to `min(9223372036854775807, size)`, which no later shape is
    proven equal to. It assumes that symbolic bounds are inside the axis, makes some backward slices
    empty, fails at run time for an empty slice, and does not know the form with attributes.
    """
    bounds = map(_as_vector, ctx.inputs[1:])
    ctx = ctx.derive(inputs=InputList([ctx.inputs[0], *bounds]))
    ctx = ctx.derive(inputs=_with_known_length(ctx))
    sizes = read_symbolic([ctx.inputs[0]])
    dims = known_dims(ctx.tensor(0))
    if sizes:
        dims = [tirx.IntImm("int64", size) for size in sizes[0].shape]
    has_length = not has_unknown_length(ctx.inputs[1])
    slices = _slices(ctx, dims) if dims is not None and has_length else None
    if sizes and slices is not None and all(along.is_constant for along in slices):
        return rearranged_sizes(sizes[0], functools.partial(_sliced, slices=slices))
    data, steps = ctx.tensor(0), ctx.inputs[4]
    if steps is not None:
        require_steps(ctx.bb, steps)
    decided = all(isinstance(value, Constant | None) for value in (ctx.inputs[3], steps))
    if dims is not None and not (decided and has_length):
        return _slice_at_run_time(ctx, data, dims)
    if dims is None or slices is None or _is_static(ctx, slices, dims):
        return ctx.by_tvm([data, *ctx.inputs[1:]])
    slices = [replace(along, axis=along.axis % len(dims)) for along in slices]
    for along in slices:
        if along.step < 0:
            data = ctx.bb.normalize(relax.op.flip(data, along.axis))
    slices = [along for along in slices if not along.is_whole]
    return _slice_flipped(ctx.bb, data, dims, slices) if slices else data


def _slice_at_run_time(ctx: ConverterContext, data: Value, dims: Sequence[Any]) -> Value:
    """Slices whose axes, number, or steps of either sign the run computes."""
    bb, rank = ctx.bb, len(dims)
    starts, ends, given, steps = (ctx.inputs[slot] for slot in range(1, 5))
    if steps is None:
        steps = relax.op.ones_like(as_tensor(bb, starts))
    vectors = _of_one_length(bb, [starts, ends, steps, *([] if given is None else [given])])
    length = as_int(dims_of(vectors[0], "starts")[0])
    axes = ctx.known_elements(given) if given is not None else np.arange(length or 0)
    if length is None or axes is None:
        vectors, axes = _bounds_of_all_axes(ctx, rank, vectors), np.arange(rank)
    elif any(not -rank <= axis < rank for axis in axes):
        raise UnsupportedError(f"it slices an axis that data with {rank} axes does not have")
    places = {int(axis) % rank: k for k, axis in enumerate(axes)}
    if len(places) < len(axes):
        raise UnsupportedError("it slices one axis twice")
    sizes = as_tensor(bb, relax.ShapeExpr([dims[int(axis)] for axis in axes]))
    found = bb.emit(ctx.call_te(_firsts_and_counts, *vectors[:3], sizes, name="slice_bounds"))
    of_counts = bb.normalize(relax.op.take(found, relax.const(1, "int64"), axis=0))
    counts = sizes_of(bb, of_counts)

    def compute(data: Any, found: Any, steps: Any, *counts: Any) -> Any:
        def source(axis: int, position: Any) -> Any:
            place = places.get(axis)
            return position if place is None else found(0, place) + position * steps(place)

        shape = [counts[places[a]] if a in places else size for a, size in enumerate(data.shape)]
        return te.compute(shape, lambda *at: data(*map(source, range(len(at)), at)), name="slice")

    return ctx.call_te(compute, data, found, vectors[2], *counts, name="slice")


def _of_one_length(bb: Any, given: Sequence[Value]) -> list[Value]:
    """Vectors of int64; a run in which their lengths differ fails."""
    vectors = [bb.normalize(relax.op.astype(as_tensor(bb, each), "int64")) for each in given]
    lengths = [dims_of(vector, "bounds")[0] for vector in vectors]
    length = next((each for each in lengths if as_int(each) is not None), lengths[0])
    if any(as_int(each) not in (None, as_int(length)) for each in lengths):
        raise UnsupportedError("its starts, ends, axes and steps are not equally many")
    return [match(bb, vector, relax.TensorType([length], "int64")) for vector in vectors]


def _bounds_of_all_axes(ctx: ConverterContext, rank: int, vectors: Sequence[Value]) -> list[Value]:
    """The start, end and step along each axis, from those along some axes.

    A run fails in which an axis is given twice, or is one that the data does not have.
    """
    bb, length = ctx.bb, dims_of(vectors[0], "starts")[0]
    spread = bb.emit(ctx.call_te(_spread, rank, *vectors, name="bounds_of_all_axes"))
    rows = [
        bb.normalize(relax.op.take(spread, relax.const(row, "int64"), axis=0)) for row in range(4)
    ]
    often, total = (
        bb.normalize(relax.op.reshape(bb.normalize(value), [1]))
        for value in (relax.op.max(rows[3]), relax.op.sum(rows[3]))
    )
    largest = fresh_dim("largest")
    bb.match_cast(bb.normalize(relax.op.tensor_to_shape(often)), relax.ShapeType([largest]))
    bb.match_cast(
        bb.normalize(relax.op.tensor_to_shape(total)),
        relax.ShapeType([length + tirx.max(largest - 1, ZERO)]),
    )
    return rows[:3]


def _spread(rank: int, starts: Any, ends: Any, steps: Any, axes: Any = None) -> Any:
    """[4, rank]: the start, end and step along each axis, and how often it is given.

    Without `axes` the bounds are along the first axes.
    """
    k = te.reduce_axis((0, starts.shape[0]), name="k")
    axis = k.var if axes is None else tirx.Select(axes(k) < 0, axes(k) + rank, axes(k))

    def given(row: Any, along: Any) -> Any:
        bound = tirx.Select(row == 0, starts(k), tirx.Select(row == 1, ends(k), steps(k)))
        return te.sum(tirx.Select(axis == along, tirx.Select(row == 3, ONE, bound), ZERO), axis=k)

    sums = te.compute([4, rank], given, name="sums")
    end = tirx.IntImm("int64", END)

    def element(row: Any, along: Any) -> Any:
        whole = tirx.Select(row == 0, ZERO, tirx.Select(row == 1, end, ONE))
        is_whole = tirx.all(row < 3, sums(3, along) == 0)
        return tirx.Select(is_whole, whole, sums(row, along))

    return te.compute([4, rank], element, name="bounds_of_all_axes")


def _firsts_and_counts(starts: Any, ends: Any, steps: Any, sizes: Any) -> Any:
    """[2, axes]: the position of the first element of each slice, and the number of elements."""
    minus_one = tirx.IntImm("int64", -1)

    def element(row: Any, k: Any) -> Any:
        size, step, last = sizes(k), steps(k), sizes(k) - 1
        start, end = (tirx.Select(b < 0, b + size, b) for b in (starts(k), ends(k)))
        is_forward = step > 0
        is_to_first = tirx.any(
            *(ends(k) == tirx.IntImm("int64", number) for number in _BACKWARD_TO_FIRST)
        )
        first = tirx.max(tirx.min(start, tirx.Select(is_forward, size, last)), ZERO)
        after_last = tirx.max(tirx.min(end, size), ZERO)
        before_last = tirx.Select(is_to_first, minus_one, tirx.max(tirx.min(end, last), minus_one))
        distance = tirx.Select(is_forward, after_last - first, first - before_last)
        backward_step = -tirx.max(step, tirx.IntImm("int64", -(2**63 - 1)))
        stride = tirx.max(tirx.Select(is_forward, step, backward_step), ONE)
        count = tirx.floordiv(tirx.max(distance, ZERO) + stride - 1, stride)
        return tirx.Select(row == 0, first, tirx.Select(size == 0, ZERO, count))

    return te.compute([2, starts.shape[0]], element, name="slice_bounds")


def _sliced(array: npt.NDArray[np.int64], slices: Sequence[SymbolicSlice]) -> npt.NDArray[np.int64]:
    for along in slices:
        taken = along.apply(range(array.shape[along.axis]))
        array = array.take(list(taken), along.axis)
    return array


def _as_vector(bound: Value | None) -> Value | None:
    """A bound of rank 1; exporters write a constant one as a scalar."""
    if isinstance(bound, Constant) and bound.ty.ndim == 0:
        return relax.const(bound.value.numpy().reshape(1), str(bound.ty.dtype))
    return bound


@dataclass(frozen=True)
class SymbolicSlice:
    """A slice along one axis, as the model gives it."""

    axis: int
    start: Any
    end: Any
    step: int
    is_position: tuple[bool, bool]
    """Whether the start and the end were computed by the run, as positions; see `_positions`."""
    derived: DerivedSizes
    """The sizes of the tensors that the function has already."""

    @property
    def is_constant(self) -> bool:
        """Whether both bounds are numbers."""
        return None not in (as_int(self.start), as_int(self.end))

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole axis, forward or backward."""
        start, end = as_int(self.start), as_int(self.end)
        if start is None or end is None:
            return False
        if self.step == -1:
            return _starts_at_last(start) and _ends_at_first(end)
        return start == 0 and end >= END and self.step == 1

    def apply(self, items: Sequence[Any]) -> Sequence[Any]:
        """The elements that a constant slice takes of a vector.

        Unlike Python, ONNX clamps the start of a backward slice to the first element.
        """
        start, end = as_int(self.start) or 0, as_int(self.end)
        if self.step < 0:
            start = max(start, -len(items))
        return items[start : None if self.step < 0 and _ends_at_first(end) else end : self.step]

    def bounds(self, size: Any) -> tuple[Any, Any]:
        """The start and the end, clamped to an axis of `size` elements, with start <= end.

        The bounds of a backward slice are positions on the flipped axis.
        """
        analyzer = sym.Analyzer()
        position = self._position if self.step > 0 else self._flipped_position
        start, end = (
            bound if is_position else analyzer.simplify(position(bound, size, is_end=is_end))
            for bound, is_end, is_position in zip(
                (self.start, self.end), (False, True), self.is_position
            )
        )
        if as_int(start) == 0 or self._is_ordered(start, end, size):
            return start, end
        return start, analyzer.simplify(tirx.max(start, end))

    def _is_nonnegative(self, item: Any) -> bool:
        return self.derived.is_nonnegative(sym.Analyzer().simplify(item))

    def _is_ordered(self, start: Any, end: Any, size: Any) -> bool:
        """Whether the end is known not to be before the start."""
        if end is size:
            return True
        first, last = as_int(self.start), as_int(self.end)
        if first is not None and last is not None and self.step > 0:
            return last >= END or first <= last < 0 or 0 <= first <= last
        return not any(self.is_position) and self._is_nonnegative(end - start)

    def _position(self, bound: Any, size: Any, *, is_end: bool) -> Any:
        """A bound of a forward slice as a position from 0 to the size."""
        number = as_int(bound)
        if number is None:
            return self._symbolic_position(bound, size)
        if number >= END:
            return size
        if number == 0:
            return ZERO
        if number > 0:
            return tirx.min(bound, size)
        return size + bound if self._is_nonnegative(size + bound) else tirx.max(size + bound, ZERO)

    def _symbolic_position(self, bound: Any, size: Any) -> Any:
        if not self._is_nonnegative(bound):
            bound = tirx.max(tirx.Select(bound < 0, bound + size, bound), ZERO)
        elif self._is_nonnegative(size - bound):
            return bound
        return tirx.min(bound, size)

    def _flipped_position(self, bound: Any, size: Any, *, is_end: bool) -> Any:
        """A bound of a backward slice as a position on the flipped axis.

        The start is clamped to an existing element, the end also to the position after the last.
        """
        number = as_int(bound)
        if not is_end and _starts_at_last(number):
            return ZERO
        if is_end and _ends_at_first(number):
            return size
        if number is None:
            flipped = tirx.Select(bound < 0, -1 - bound, size - 1 - bound)
        else:
            flipped = -1 - bound if number < 0 else size - 1 - bound
        return tirx.max(tirx.min(flipped, size if is_end else size - 1), ZERO)


_BACKWARD_TO_FIRST = (2**31 - 1, 2**63 - 1)
"""The ends that onnxruntime reads as "to the first element" in a backward slice."""


def _starts_at_last(start: int | None) -> bool:
    """Whether a backward slice starts at the last element."""
    return start is not None and (start == -1 or start >= END)


def _ends_at_first(end: int | None) -> bool:
    """Whether a backward slice ends with the first element."""
    return end is not None and (end < -END or end in _BACKWARD_TO_FIRST)


def _is_static(ctx: ConverterContext, slices: Sequence[SymbolicSlice], dims: Sequence[Any]) -> bool:
    """Whether sizes and bounds are known and inputs, and the result is not empty.

    Then TVM's converter is right. It makes the size negative where the end is before the start.
    """
    sizes = [as_int(dims[along.axis]) for along in slices]
    if "starts" in ctx.attrs or not all(along.is_constant for along in slices):
        return False
    return all(
        size is not None and along.apply(range(size))
        for along, size in zip(slices, sizes, strict=True)
    )


def _slice_flipped(
    bb: Any, data: Value, dims: Sequence[Any], slices: Sequence[SymbolicSlice]
) -> Value:
    """The slices of a tensor that is flipped already along the axes of backward slices."""
    bounds = [along.bounds(dims[along.axis]) for along in slices]
    part = relax.op.strided_slice(
        data,
        [along.axis for along in slices],
        [relax.prim_value(start) for start, _ in bounds],
        [relax.prim_value(end) for _, end in bounds],
        [relax.prim_value(abs(along.step)) for along in slices],
        assume_inbound=True,
    )
    if not any(any(along.is_position) for along in slices):
        return part
    # New symbols replace the sizes, whose expressions would grow from slice to slice.
    part = bb.normalize(part)
    sizes = known_dims(part) or []
    for along in slices:
        if as_int(sizes[along.axis]) is None:
            sizes[along.axis] = fresh_dim("part")
    return match(bb, part, relax.TensorType(sizes, part.ty.dtype))


def _with_known_length(ctx: ConverterContext) -> Sequence[Value]:
    """The inputs, with bounds of unknown length matched with the length of the axes or steps."""
    given = [ctx.inputs[slot] for slot in range(5)]
    lengths = {value.ty.shape.values[0] for value in given[3:] if isinstance(value, Constant)}
    if not lengths:
        return list(ctx.inputs)
    length = next(iter(lengths))

    return [given[0], *(with_length(ctx.bb, bound, length) for bound in given[1:3]), *given[3:]]


def _slices(ctx: ConverterContext, dims: Sequence[Any]) -> list[SymbolicSlice] | None:
    """The slice along each axis; None if the axes or steps are not constant."""
    if "starts" in ctx.attrs:
        starts, ends = (
            [tirx.IntImm("int64", bound) for bound in ctx.attrs[name]]
            for name in ("starts", "ends")
        )
        axes, steps, is_position = ctx.attrs.get("axes"), None, (False, False)
    else:
        given = [ctx.inputs[slot] for slot in (3, 4)]
        if not all(isinstance(value, Constant | None) for value in given):
            return None
        axes, steps = (None if v is None else v.value.numpy().tolist() for v in given)
        starts, ends = ctx.inputs[1], ctx.inputs[2]
        is_position = (read_sizes(starts) is None, read_sizes(ends) is None)
        if is_position[0]:
            starts = _positions(ctx.bb, starts, dims, axes, steps, is_end=False)
        if is_position[1]:
            ends = _positions(ctx.bb, ends, dims, axes, steps, is_end=True)
        starts, ends = sizes_of(ctx.bb, starts), sizes_of(ctx.bb, ends)
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    rows = zip(axes, starts, ends, steps, strict=True)
    return [SymbolicSlice(*row, is_position, ctx.derived) for row in rows]


def _positions(
    bb: Any,
    bounds: Value,
    dims: Sequence[Any],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
    *,
    is_end: bool,
) -> Value:
    """Bounds that the run computes, as positions from 0 to the size of their axis.

    Those of a backward slice are positions on the flipped axis. A symbol stands for a size in TVM,
    which simplifies the test of its sign: the sign is gone before a position gets a symbol.
    """
    given = bb.normalize(relax.op.astype(as_tensor(bb, bounds), "int64"))
    length = as_int((known_dims(given) or [None])[0])
    if length is None:
        return bounds
    axes = range(length) if axes is None else axes
    steps = [1] * length if steps is None else steps
    size = as_tensor(bb, relax.ShapeExpr([dims[axis] for axis in axes]))
    zero, one = (relax.const(number, "int64") for number in (0, 1))
    op = relax.op
    wrapped = op.where(op.less(given, zero), op.add(given, size), given)
    forward = op.minimum(op.maximum(wrapped, zero), size)
    flipped = op.subtract(op.subtract(size, one), wrapped)
    backward = op.minimum(flipped, size if is_end else op.subtract(size, one))
    backward = op.maximum(backward, zero)
    if is_end:
        for largest in _BACKWARD_TO_FIRST:
            is_first = op.equal(given, relax.const(largest, "int64"))
            backward = op.where(is_first, size, backward)
    is_forward = [step > 0 for step in steps]
    if all(is_forward) or not any(is_forward):
        return bb.normalize(forward if all(is_forward) else backward)
    return bb.normalize(op.where(relax.const(np.array(is_forward)), forward, backward))
