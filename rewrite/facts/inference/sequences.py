"""Sequence operators: element shape and length."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ... import symbolic
from ...symbolic import Dim
from ..fact import INT64, Fact, join
from ..splat import is_filled_with
from .registry import NodeContext, register


def _sequence(element: Fact, length: Dim | None) -> Fact:
    return Fact(element.dtype, element.shape, element.ranks, None, "sequence", length)


def _element(ctx: NodeContext, sequence: Fact) -> Fact:
    """One element; dims that vary between elements become fresh dims of this output."""
    shape = sequence.shape
    if shape is not None:
        shape = tuple(
            ctx.fresh(axis) if d == symbolic.VARYING else d for axis, d in enumerate(shape)
        )
    return Fact(sequence.dtype, shape, sequence.ranks)


def _all_elements(sequence: Fact) -> Fact:
    """What holds for every element, for `_joined`."""
    return Fact(sequence.dtype, sequence.shape, sequence.ranks, None, "sequence")


def _joined(left: Fact, right: Fact) -> Fact:
    """What holds for the elements of both sequences."""
    axes = dict.fromkeys(range(len(left.shape or ())), symbolic.VARYING)
    return join(left, right, axes)


@register("SequenceEmpty")
def empty(ctx: NodeContext) -> Sequence[Fact]:
    dtype = int(ctx.attr("dtype", onnx.TensorProto.FLOAT))
    return [Fact(dtype, None, None, None, "sequence", 0)]


@register("SequenceConstruct")
def construct(ctx: NodeContext) -> Sequence[Fact]:
    parts = ctx.inputs()
    elements = _all_elements(parts[0])
    for part in parts[1:]:
        elements = _joined(elements, _all_elements(part))
    return [_sequence(elements, len(parts))]


@register("SequenceInsert")
def insert(ctx: NodeContext) -> Sequence[Fact]:
    old, new = ctx.fact(0), ctx.fact(1)
    length = None if old.length is None else symbolic.add(old.length, 1)
    if old.length == 0:
        return [_sequence(new, 1)]
    return [_sequence(_joined(_all_elements(old), _all_elements(new)), length)]


@register("SequenceErase")
def erase(ctx: NodeContext) -> Sequence[Fact]:
    old = ctx.fact(0)
    return [
        _sequence(_all_elements(old), None if old.length is None else symbolic.sub(old.length, 1))
    ]


@register("SequenceAt")
def at(ctx: NodeContext) -> Sequence[Fact]:
    length, position = ctx.fact(0).length, ctx.fact(1).scalar()
    if length == 0:
        ctx.fail("the sequence is empty")
    if isinstance(length, int) and isinstance(position, int) and not -length <= position < length:
        ctx.fail(f"position {position} lies outside of a sequence of length {length}")
    return [_element(ctx, ctx.fact(0))]


@register("SequenceLength")
def length(ctx: NodeContext) -> Sequence[Fact]:
    known = ctx.fact(0).length
    return [Fact(INT64, (), None, (ctx.fresh(-1) if known is None else known,))]


@register("SplitToSequence")
def split_to_sequence(ctx: NodeContext) -> Sequence[Fact]:
    """Parts of length `split`; onnxruntime respects keepdims=0 also for parts of length 1."""
    x = ctx.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, None, None, "sequence")]
    axis = ctx.axis(ctx.attr("axis", 0), len(x.shape))
    rest = x.shape[:axis], x.shape[axis + 1 :]
    keep = bool(ctx.attr("keepdims", 1))
    if not ctx.present(1):
        middle: tuple[Dim, ...] = (1,) if keep else ()
        return [_sequence(Fact(x.dtype, rest[0] + middle + rest[1]), x.shape[axis])]
    if keep and len(ctx.shape(1) or ()) == 1 and is_filled_with(ctx.facts, ctx.node.inputs[1], 1):
        # The sum of the lengths is the length of the axis, or the run fails.
        return [_sequence(Fact(x.dtype, (*rest[0], 1, *rest[1])), x.shape[axis])]
    part = ctx.fact(1).scalar()
    if ctx.shape(1) == () and not isinstance(part, int) and not keep:
        return [Fact(x.dtype, None, None, None, "sequence")]
    if ctx.shape(1) != () or not isinstance(part, int) or part <= 0:
        unknown = symbolic.VARYING
        count = ctx.shape(1)
        number = count[0] if count else None
        return [_sequence(Fact(x.dtype, (*rest[0], unknown, *rest[1])), number)]
    number = symbolic.ceildiv(x.shape[axis], part)
    if part == 1:
        middle = (1,) if keep else ()
        return [_sequence(Fact(x.dtype, rest[0] + middle + rest[1]), number)]
    size: Dim = part if symbolic.mod(x.shape[axis], part) == 0 else symbolic.VARYING
    return [_sequence(Fact(x.dtype, (*rest[0], size, *rest[1])), number)]


@register("ConcatFromSequence")
def concat_from_sequence(ctx: NodeContext) -> Sequence[Fact]:
    parts = ctx.fact(0)
    if parts.shape is None:
        return [Fact(parts.dtype)]
    stack = bool(ctx.attr("new_axis", 0))
    rank = len(parts.shape) + stack
    axis = ctx.axis(int(ctx.attr("axis")), rank)
    count = ctx.fresh(axis) if parts.length is None else parts.length
    # Concatenated elements have the same size along all axes but one.
    shape = tuple(
        ctx.fresh(50 + place) if d == symbolic.VARYING else d for place, d in enumerate(parts.shape)
    )
    if stack:
        return [Fact(parts.dtype, (*shape[:axis], count, *shape[axis:]))]
    total = parts.shape[axis]
    total = symbolic.mul(total, count) if total != symbolic.VARYING else ctx.fresh(axis)
    return [Fact(parts.dtype, (*shape[:axis], total, *shape[axis + 1 :]))]
