"""Batching rules of operators that move elements: every axis moves back by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.graph.ir import Tensor
from ...rewrite.symbolic import Dim
from .batching import BatchedNode, Plan, align_rank, batching_rule, same_operator

# --- axes and shapes ---


@batching_rule("Transpose")
def transpose(op: BatchedNode) -> Plan:
    """The axis of the iterations stays first."""
    perm = op.attribute("perm") or list(range(op.rank(0)))[::-1]
    return Plan(same_operator(op, perm=[0, *(axis + 1 for axis in perm)]))


@batching_rule("Unsqueeze")
def unsqueeze(op: BatchedNode) -> Plan:
    """The axes count in the result."""
    op.need_only_first_batched()
    rank = len(op.result_shape())
    axes = [op.need_axis(a, rank) + 1 for a in op.integers(1, "axes")]
    return Plan(lambda emit, operands: [emit.unsqueeze(operands[0], axes)])


@batching_rule("Squeeze")
def squeeze(op: BatchedNode) -> Plan:
    """Removes all axes of size 1 where no axes are given."""
    op.need_only_first_batched()
    shape = op.shape(0)
    axes = [op.need_axis(a, len(shape)) for a in op.integers(1, "axes")]
    if not axes:
        known = all(d == 1 or symbolic.eq(d, 1) is False for d in shape)
        op.need(known, "it is not known which axes have size 1")
        axes = [axis for axis, dim in enumerate(shape) if dim == 1]
    op.need_speculatable(all(shape[a] == 1 for a in axes), "an axis may not have size 1")
    return Plan(lambda emit, operands: [emit.squeeze(operands[0], [a + 1 for a in axes])])


@batching_rule("Flatten")
def flatten(op: BatchedNode) -> Plan:
    """A Reshape, because Flatten itself makes two axes."""
    shape = op.shape(0)
    axis = int(op.attribute("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    if axis == 1 and len(shape) == 2:
        return Plan(lambda emit, operands: [operands[0]])
    target = _static_target(op)
    if target is None:
        op.need_empty_reshapes()

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        (x,) = operands
        if target is not None:
            return [emit("Reshape", x, emit.vector(*target))]
        bounds = ((0, 1), (1, axis + 1), (axis + 1, len(shape) + 1))
        sizes = [_product_of_sizes(emit, x, first, last) for first, last in bounds]
        return [emit.reshape(x, emit.concat(sizes))]

    return Plan(build)


def _product_of_sizes(emit: Builder, x: Tensor, first: int, last: int) -> Tensor:
    """The product of the sizes of axes first … last - 1, an int64 vector of one element."""
    if first == last:
        return emit.vector(1)
    return emit.reduce("ReduceProd", emit.shape(x, first, last), [0], 1)


@batching_rule("Reshape")
def reshape(op: BatchedNode) -> Plan:
    """A 0 in the target copies the size of the axis at its place, and all places move by one."""
    op.need_only_first_batched()
    target = _static_target(op)
    if target is None:
        # onnxruntime cannot infer a size of -1 where there are no elements.
        op.need_speculatable(False, "the shape of the result is not known")
    else:
        before, after = symbolic.product(op.shape(0)), symbolic.product(op.result_shape())
        op.need_speculatable(symbolic.eq(before, after), "the number of elements may differ")
    allowzero = bool(op.attribute("allowzero", 0))

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, sizes = operands
        if target is not None:
            return [emit("Reshape", x, emit.vector(*target))]
        count = emit.shape(x, 0, 1) if allowzero else emit.vector(0)
        attributes = {"allowzero": 1} if allowzero else {}
        return [emit("Reshape", x, emit.concat([count, sizes]), **attributes)]

    return Plan(build)


def _static_target(op: BatchedNode) -> list[int] | None:
    """The shape of the stacked result as a target of Reshape, or None.

    0 stands for a size that the operand has at the same place. None where another size is not a
    known number.
    """
    before, after = op.shape(0), op.result_shape()
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


@batching_rule("Expand")
def expand(op: BatchedNode) -> Plan:
    """Keeps the number of iterations by a 1 at the start of the target."""
    op.need_only_first_batched()
    rank = op.rank(0)
    target_rank = _vector_length(op, 1, "the rank of the result is not known")
    result_rank = max(rank, target_rank)
    op.need_broadcast(op.shape(0), op.result_shape())

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        ones = [1] * (1 + result_rank - target_rank)
        target = emit.concat([emit.vector(*ones), operands[1]])
        return [emit("Expand", align_rank(emit, operands[0], True, rank, result_rank), target)]

    return Plan(build)


def _vector_length(op: BatchedNode, slot: int, unknown: str) -> int:
    """The number of elements of a vector operand; raises Miss if it is not known."""
    shape = op.shape(slot)
    length = shape[0] if len(shape) == 1 else None
    return op.need(length if isinstance(length, int) else None, unknown)


@batching_rule("Tile")
def tile(op: BatchedNode) -> Plan:
    """Repeats the iterations once."""
    op.need_only_first_batched()
    repeats = op.facts.constant(op.operand(1))
    valid = repeats is not None and bool((repeats >= 0).all())
    op.need_speculatable(valid, "a number of repeats may be negative")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return [emit("Tile", operands[0], emit.concat([emit.vector(1), operands[1]]))]

    return Plan(build)


@batching_rule("Pad")
def pad(op: BatchedNode) -> Plan:
    """Pads the iterations by nothing."""
    op.need_only_first_batched()
    op.need(op.has_operand(1), "before opset 11 its sizes are attributes")
    op.need(not op.has_operand(3), "it pads chosen axes")
    pads = op.integers(1)
    positive = all(isinstance(d, int) and d > 0 for d in op.shape(0))
    sizes = "a size is not known: onnxruntime 1.31 may crash where an axis is empty"
    op.need(positive, sizes)
    half = len(pads) // 2
    stacked_pads = [0, *pads[:half], 0, *pads[half:]]
    constant = op.attribute("mode", "constant") == "constant"
    fits = constant and min(pads, default=0) >= 0
    op.need_speculatable(fits, "the operand may be too small for the padding")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        return same_operator(op)(emit, [operands[0], emit.vector(*stacked_pads), *operands[2:]])

    return Plan(build)


# --- elements ---


@batching_rule("Slice")
def slice_(op: BatchedNode) -> Plan:
    """Bounds, axes and steps are operands since opset 10, and attributes before."""
    op.need_only_first_batched()
    rank = op.rank(0)
    if "starts" in op.node.attrs:
        axes = op.integers(3, "axes") or range(len(op.attribute("starts")))
        return Plan(same_operator(op, axes=[op.need_axis(axis, rank) + 1 for axis in axes]))
    if op.has_operand(3):
        axes = [op.need_axis(a, rank) for a in op.integers(3)]
    else:
        axes = list(range(_vector_length(op, 1, "the axes are not known")))
    dtype = op.need(op.facts.dtype(op.operand(1)), "the type of {} is not known", op.operand(1))
    # Slice takes its bounds and axes in one type, int32 or int64.
    kind = helper.tensor_dtype_to_np_dtype(dtype)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        x, starts, ends, *others = operands
        stacked_axes = emit.constant(np.array([a + 1 for a in axes], kind))
        return emit.outputs("Slice", [x, starts, ends, stacked_axes, *others[1:]], op.node.outputs)

    return Plan(build)


@batching_rule("Concat")
def concat(op: BatchedNode) -> Plan:
    """Repeats invariant operands for each iteration."""
    shapes = [op.shape(slot) for slot in range(len(op.node.inputs))]
    axis = op.need_axis(op.attribute("axis"), len(shapes[0]))
    for shape in shapes:
        agree = [
            symbolic.eq(a, b) is True
            for place, (a, b) in enumerate(zip(shape, shapes[0]))
            if place != axis
        ]
        op.need_speculatable(all(agree), "the operands may differ along another axis")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        parts = list(operands)
        if not all(op.batched):
            count = emit.shape(operands[op.batched.index(True)], 0, 1)
            parts = [
                value if batched else emit.repeat(value, count)
                for value, batched in zip(operands, op.batched)
            ]
        return [emit("Concat", *parts, axis=axis + 1)]

    return Plan(build)


@batching_rule("Split")
def split(op: BatchedNode) -> Plan:
    """The sizes are an operand since opset 13, and an attribute before."""
    op.need_only_first_batched()
    shape = op.shape(0)
    axis = op.need_axis(op.attribute("axis", 0), len(shape))
    length = shape[axis]
    op.need_speculatable(isinstance(length, int), "the size of the split axis is not known")
    fits = False
    if not op.has_operand(1) or op.facts.constant(op.operand(1)) is not None:
        sizes = op.integers(1, "split")
        fits = not sizes or sum(sizes) == length
    op.need_speculatable(fits, "the sizes may not add up to the size of the axis")
    return Plan(same_operator(op, axis=axis + 1))


@batching_rule("Gather")
def gather(op: BatchedNode) -> Plan:
    """Batched data, batched indices, or both, as GatherND with batches takes them."""
    rank = op.rank(0)
    axis = op.need_axis(op.attribute("axis", 0), rank)
    if all(op.batched):
        return _gather_from_slices(op, axis, rank, op.rank(1))
    if op.batched[0]:
        op.need_speculatable(
            _are_indices_in_range(op, op.shape(0)[axis]), "an index may be out of range"
        )
        return Plan(same_operator(op, axis=axis + 1))
    index_rank = op.rank(1)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        elements = emit("Gather", *operands, axis=axis)
        return [emit.move_axis(elements, axis, 0, rank + index_rank)]

    return Plan(build)


def _gather_from_slices(op: BatchedNode, axis: int, rank: int, index_rank: int) -> Plan:
    """Elements of each slice at positions of its own, along an axis of `rank` axes."""
    op.need(op.facts.opset >= _GATHER_ND_WITH_BATCHES, "GatherND has batches since opset 12")

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        data, positions = operands
        if axis:
            data = emit.move_axis(data, axis + 1, 1, rank + 1)
        if op.facts.dtype(op.operand(1)) != TensorProto.INT64:
            positions = emit("Cast", positions, to=TensorProto.INT64)
        positions = emit.unsqueeze(positions, [index_rank + 1])
        elements = emit("GatherND", data, positions, batch_dims=1)
        if axis and index_rank:
            # The axes of the positions come after those before the axis.
            kept = range(index_rank + 1, index_rank + rank)
            own = range(1, index_rank + 1)
            elements = emit.transpose(elements, [0, *kept[:axis], *own, *kept[axis:]])
        return [elements]

    return Plan(build)


_GATHER_ND_WITH_BATCHES = 12


def _are_indices_in_range(op: BatchedNode, size: Dim) -> bool:
    """Whether the invariant indices of a Gather are known and in range of an axis of this size."""
    known = op.facts.constant(op.operand(1))
    if known is None:
        return False
    extremes = (int(known.min()), int(known.max())) if known.size else ()
    return all(
        symbolic.lt(index, size) is True and symbolic.le(symbolic.sub(0, size), index) is True
        for index in extremes
    )


@batching_rule("GatherElements")
def gather_elements(op: BatchedNode) -> Plan:
    """Data and indices must be batched: neither broadcasts."""
    op.need(all(op.batched), "data or indices are the same in every iteration")
    axis = op.need_axis(op.attribute("axis", 0), op.rank(0))
    return Plan(same_operator(op, axis=axis + 1))


@batching_rule("Trilu")
def trilu(op: BatchedNode) -> Plan:
    """Works on the last two axes of any stack of matrices."""
    op.need_only_first_batched()
    return Plan(same_operator(op))


# --- sizes ---


@batching_rule("Shape")
def shape(op: BatchedNode) -> Plan:
    """All slices have the same shape."""
    rank = op.rank(0)
    first = _clamp_axis(op.attribute("start", 0), rank)
    last = max(_clamp_axis(op.attribute("end", rank), rank), first)
    return Plan(lambda emit, operands: [emit.shape(operands[0], first + 1, last + 1)], True)


def _clamp_axis(value: int, rank: int) -> int:
    """An axis bound of Shape as a number from 0 to the rank."""
    return min(max(value + rank if value < 0 else value, 0), rank)


@batching_rule("Size")
def size(op: BatchedNode) -> Plan:
    """All slices have the same size."""
    rank = op.rank(0)

    def build(emit: Builder, operands: Sequence[Tensor]) -> list[Tensor]:
        if rank == 0:
            return [emit.scalar(1)]
        return [emit.reduce("ReduceProd", emit.shape(operands[0], 1, rank + 1), [0], 0)]

    return Plan(build, True)
