"""Sequence operators: element shape and length."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ... import symbolic
from ...symbolic import Dim
from ..facts import INT64, Fact, join
from .registry import Site, shape_of


def _sequence(element: Fact, length: Dim | None) -> Fact:
    return Fact(element.dtype, element.shape, element.ranks, None, "sequence", length)


def _element(site: Site, sequence: Fact) -> Fact:
    """One element: what varies between elements is a fresh dim of this output."""
    shape = sequence.shape
    if shape is not None:
        shape = tuple(
            site.fresh(axis) if d == symbolic.VARYING else d for axis, d in enumerate(shape)
        )
    return Fact(sequence.dtype, shape, sequence.ranks)


def _all_elements(sequence: Fact) -> Fact:
    """What holds for every element, to be joined with others."""
    return Fact(sequence.dtype, sequence.shape, sequence.ranks, None, "sequence")


def _joined(left: Fact, right: Fact) -> Fact:
    """The elements of two sequences together."""
    axes = dict.fromkeys(range(len(left.shape or ())), symbolic.VARYING)
    return join(left, right, axes)


@shape_of("SequenceEmpty")
def empty(site: Site) -> Sequence[Fact]:
    dtype = int(site.attr("dtype", onnx.TensorProto.FLOAT))
    return [Fact(dtype, None, None, None, "sequence", 0)]


@shape_of("SequenceConstruct")
def construct(site: Site) -> Sequence[Fact]:
    parts = site.inputs()
    elements = _all_elements(parts[0])
    for part in parts[1:]:
        elements = _joined(elements, _all_elements(part))
    return [_sequence(elements, len(parts))]


@shape_of("SequenceInsert")
def insert(site: Site) -> Sequence[Fact]:
    old, new = site.fact(0), site.fact(1)
    length = None if old.length is None else symbolic.add(old.length, 1)
    if old.length == 0:
        return [_sequence(new, 1)]
    return [_sequence(_joined(_all_elements(old), _all_elements(new)), length)]


@shape_of("SequenceErase")
def erase(site: Site) -> Sequence[Fact]:
    old = site.fact(0)
    return [
        _sequence(_all_elements(old), None if old.length is None else symbolic.sub(old.length, 1))
    ]


@shape_of("SequenceAt")
def at(site: Site) -> Sequence[Fact]:
    return [_element(site, site.fact(0))]


@shape_of("SequenceLength")
def length(site: Site) -> Sequence[Fact]:
    known = site.fact(0).length
    return [Fact(INT64, (), None, (site.fresh(-1) if known is None else known,))]


@shape_of("SplitToSequence")
def split_to_sequence(site: Site) -> Sequence[Fact]:
    """Parts of `split` rows each; onnxruntime honours keepdims=0 for parts of one row."""
    x = site.fact(0)
    if x.shape is None:
        return [Fact(x.dtype, None, None, None, "sequence")]
    axis = site.axis(site.attr("axis", 0), len(x.shape))
    rest = x.shape[:axis], x.shape[axis + 1 :]
    keep = bool(site.attr("keepdims", 1))
    if not site.present(1):
        middle: tuple[Dim, ...] = (1,) if keep else ()
        return [_sequence(Fact(x.dtype, rest[0] + middle + rest[1]), x.shape[axis])]
    part = site.fact(1).scalar()
    if site.shape(1) == () and not isinstance(part, int) and not keep:
        return [Fact(x.dtype, None, None, None, "sequence")]
    if site.shape(1) != () or not isinstance(part, int) or part <= 0:
        unknown = symbolic.VARYING
        count = site.shape(1)
        number = count[0] if count else None
        return [_sequence(Fact(x.dtype, (*rest[0], unknown, *rest[1])), number)]
    number = symbolic.ceildiv(x.shape[axis], part)
    if part == 1:
        middle = (1,) if keep else ()
        return [_sequence(Fact(x.dtype, rest[0] + middle + rest[1]), number)]
    size: Dim = part if symbolic.mod(x.shape[axis], part) == 0 else symbolic.VARYING
    return [_sequence(Fact(x.dtype, (*rest[0], size, *rest[1])), number)]


@shape_of("ConcatFromSequence")
def concat_from_sequence(site: Site) -> Sequence[Fact]:
    parts = site.fact(0)
    if parts.shape is None:
        return [Fact(parts.dtype)]
    stack = bool(site.attr("new_axis", 0))
    rank = len(parts.shape) + stack
    axis = site.axis(int(site.attr("axis")), rank)
    count = site.fresh(axis) if parts.length is None else parts.length
    # Elements that are put together agree in all axes but the one they are joined along.
    shape = tuple(
        site.fresh(50 + place) if d == symbolic.VARYING else d
        for place, d in enumerate(parts.shape)
    )
    if stack:
        return [Fact(parts.dtype, (*shape[:axis], count, *shape[axis:]))]
    total = parts.shape[axis]
    total = symbolic.mul(total, count) if total != symbolic.VARYING else site.fresh(axis)
    return [Fact(parts.dtype, (*shape[:axis], total, *shape[axis + 1 :]))]
