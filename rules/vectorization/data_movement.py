"""Batching rules of operators that move elements: every axis is one further back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from ...rewrite.symbolic import Dim
from .operator_table import Plan, Work, aligned, as_is, batching


@batching("Transpose")
def transpose(work: Work) -> Plan:
    order = work.attr("perm") or list(range(work.rank(0)))[::-1]
    return Plan(as_is(work, perm=[0, *(axis + 1 for axis in order)]))


@batching("Unsqueeze")
def unsqueeze(work: Work) -> Plan:
    work.only(0)
    rank = len(work.result_shape())
    axes = [work.axis(a, rank) + 1 for a in work.ints(1, "axes")]
    return Plan(lambda emit, operands: [emit.unsqueeze(operands[0], axes)])


@batching("Squeeze")
def squeeze(work: Work) -> Plan:
    work.only(0)
    shape = work.shape(0)
    axes = [work.axis(a, len(shape)) for a in work.ints(1, "axes")]
    if not axes:
        sure = all(d == 1 or symbolic.eq(d, 1) is False for d in shape)
        work.need(sure, "the axes of size 1 are not known")
        axes = [axis for axis, dim in enumerate(shape) if dim == 1]
    work.must_run(all(shape[a] == 1 for a in axes), "an axis may not have size 1")
    return Plan(lambda emit, operands: [emit.squeeze(operands[0], [a + 1 for a in axes])])


@batching("Flatten")
def flatten(work: Work) -> Plan:
    shape = work.shape(0)
    axis = int(work.attr("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    if axis == 1 and len(shape) == 2:
        return Plan(lambda emit, operands: [operands[0]])
    target = _static_target(work)
    if target is None:
        work.computes_shapes()

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        (x,) = operands
        if target is not None:
            return [emit("Reshape", x, emit.vector(*target))]
        halves = [
            _extent(emit, x, *ends) for ends in ((0, 1), (1, axis + 1), (axis + 1, len(shape) + 1))
        ]
        return [emit.reshape(x, emit.concat(halves))]

    return Plan(build)


def _extent(emit: Builder, x: Tensor, first: int, last: int) -> Tensor:
    """The product of the sizes of some axes, as a vector of one number."""
    if first == last:
        return emit.vector(1)
    return emit.reduce("ReduceProd", emit.shape(x, first, last), [0], 1)


@batching("Reshape")
def reshape(work: Work) -> Plan:
    """A 0 copies the size of the axis at its place, and all places move by one."""
    work.only(0)
    target = _static_target(work)
    if target is None:
        # Of nothing onnxruntime cannot tell how a size of -1 divides it.
        work.must_run(False, "the shape of the result is open")
    else:
        same = symbolic.eq(symbolic.product(work.shape(0)), symbolic.product(work.result_shape()))
        work.must_run(same, "the number of elements may differ")
    exact = bool(work.attr("allowzero", 0))

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, sizes = operands
        if target is not None:
            return [emit("Reshape", x, emit.vector(*target))]
        count = emit.shape(x, 0, 1) if exact else emit.vector(0)
        attrs = {"allowzero": 1} if exact else {}
        return [emit("Reshape", x, emit.concat([count, sizes]), **attrs)]

    return Plan(build)


def _static_target(work: Work) -> list[int] | None:
    """The shape of all slices in numbers, 0 for a size that the operand has at that place; None
    where a size is neither.
    """
    before, after = work.shape(0), work.result_shape()
    target = [0]
    for place, size in enumerate(after):
        same = place < len(before) and symbolic.eq(before[place], size) is True
        if same:
            target.append(0)
        elif isinstance(size, int) and size > 0:
            target.append(size)
        else:
            return None
    return target


@batching("Slice")
def slice_(work: Work) -> Plan:
    work.only(0)
    rank = work.rank(0)
    if "starts" in work.node.attrs:
        return _sliced_by_attributes(work, rank)
    if work.present(3):
        axes = [work.axis(a, rank) for a in work.ints(3)]
    else:
        starts = work.shape(1)
        work.need(len(starts) == 1 and isinstance(starts[0], int), "the axes are not known")
        axes = list(range(int(starts[0])))  # type: ignore[arg-type]

    positions = work.facts.dtype(work.operand(1))
    known = work.need(positions, "the type of {} is not known", work.operand(1))
    # Slice wants its bounds, int32 or int64, and its axes in one type.
    kind = helper.tensor_dtype_to_np_dtype(known)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, *bounds = operands
        moved = emit.constant(np.array([a + 1 for a in axes], kind))
        bounds = [*bounds[:2], moved, *bounds[3:]]
        return emit.outputs("Slice", [x, *bounds], work.node.outputs)

    return Plan(build)


def _sliced_by_attributes(work: Work, rank: int) -> Plan:
    """The form until opset 9."""
    axes = work.ints(3, "axes") or range(len(work.attr("starts")))
    return Plan(as_is(work, axes=[work.axis(axis, rank) + 1 for axis in axes]))


@batching("Concat")
def concat(work: Work) -> Plan:
    """What is the same in every iteration is repeated."""
    shapes = [work.shape(slot) for slot in range(len(work.node.inputs))]
    axis = work.axis(work.attr("axis"), len(shapes[0]))
    for shape in shapes:
        others = [
            symbolic.eq(a, b) is True
            for place, (a, b) in enumerate(zip(shape, shapes[0]))
            if place != axis
        ]
        work.must_run(all(others), "the operands may not fit each other")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        sample = operands[work.batched.index(True)]
        count = emit.shape(sample, 0, 1) if not all(work.batched) else None
        parts = [
            value if count is None or batched else emit.repeat(value, count)
            for value, batched in zip(operands, work.batched)
        ]
        return [emit("Concat", *parts, axis=axis + 1)]

    return Plan(build)


@batching("Split")
def split(work: Work) -> Plan:
    work.only(0)
    shape = work.shape(0)
    axis = work.axis(work.attr("axis", 0), len(shape))
    work.must_run(isinstance(shape[axis], int), "the size of the split axis is open")
    if work.present(1) and work.facts.constant(work.operand(1)) is None:
        work.must_run(False, "the pieces may not fit")
    else:
        sizes = work.ints(1, "split")
        work.must_run(not sizes or sum(sizes) == shape[axis], "the pieces may not fit")
    return Plan(as_is(work, axis=axis + 1))


@batching("Gather")
def gather(work: Work) -> Plan:
    rank = work.rank(0)
    axis = work.axis(work.attr("axis", 0), rank)
    if work.batched[0]:
        work.only(0)
        work.must_run(_are_inside(work, work.shape(0)[axis]), "a position may be outside")
        return Plan(as_is(work, axis=axis + 1))
    more = work.rank(1)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        found = emit("Gather", *operands, axis=axis)
        return [emit.move_axis(found, axis, 0, rank + more)]

    return Plan(build)


def _are_inside(work: Work, size: Dim) -> bool:
    """Whether the positions of a Gather, the same in every iteration, surely are on the axis."""
    known = work.facts.constant(work.operand(1))
    if known is None:
        return False
    ends = (int(known.min()), int(known.max())) if known.size else ()
    return all(
        symbolic.lt(end, size) is True and symbolic.le(symbolic.sub(0, size), end) is True
        for end in ends
    )


@batching("GatherElements")
def gather_elements(work: Work) -> Plan:
    work.need(all(work.batched), "data or positions are the same in every iteration")
    axis = work.axis(work.attr("axis", 0), work.rank(0))
    return Plan(as_is(work, axis=axis + 1))


@batching("Expand")
def expand(work: Work) -> Plan:
    work.only(0)
    before = work.rank(0)
    sizes = work.shape(1)
    work.need(len(sizes) == 1 and isinstance(sizes[0], int), "the rank of the result is not known")
    asked = int(sizes[0])  # type: ignore[arg-type]
    wanted = max(before, asked)
    work.must_broadcast(work.shape(0), work.result_shape())

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        ones = [1] * (1 + wanted - asked)
        target = emit.concat([emit.vector(*ones), operands[1]])
        return [emit("Expand", aligned(emit, operands[0], True, before, wanted), target)]

    return Plan(build)


@batching("Tile")
def tile(work: Work) -> Plan:
    work.only(0)
    times = work.facts.constant(work.operand(1))
    work.must_run(times is not None and bool((times >= 0).all()), "a number may be negative")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return [emit("Tile", operands[0], emit.concat([emit.vector(1), operands[1]]))]

    return Plan(build)


@batching("Pad")
def pad(work: Work) -> Plan:
    work.only(0)
    work.need(work.present(1), "before opset 11 its sizes are attributes")
    work.need(not work.present(3), "it pads chosen axes")
    pads = work.ints(1)
    sizes = all(isinstance(d, int) and d > 0 for d in work.shape(0))
    work.need(sizes, "a size is open: onnxruntime 1.31 may end the process where an axis is empty")
    half = len(pads) // 2
    wide = [0, *pads[:half], 0, *pads[half:]]
    constant = work.attr("mode", "constant") == "constant"
    work.must_run(constant and min(pads, default=0) >= 0, "what is padded may be too small")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return as_is(work)(emit, [operands[0], emit.vector(*wide), *operands[2:]])

    return Plan(build)


@batching("Trilu")
def trilu(work: Work) -> Plan:
    work.only(0)
    return Plan(as_is(work))


@batching("Shape")
def shape(work: Work) -> Plan:
    """The shape of one slice is that of all."""
    rank = work.rank(0)
    first = _clipped(work.attr("start", 0), rank)
    last = _clipped(work.attr("end", rank), rank)
    return Plan(
        lambda emit, operands: [emit.shape(operands[0], first + 1, max(last, first) + 1)], True
    )


def _clipped(value: int, rank: int) -> int:
    return min(max(value + rank if value < 0 else value, 0), rank)


@batching("Size")
def size(work: Work) -> Plan:
    rank = work.rank(0)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        if rank == 0:
            return [emit.scalar(1)]
        return [emit.reduce("ReduceProd", emit.shape(operands[0], 1, rank + 1), [0], 0)]

    return Plan(build, True)
