"""Slices of a Concat that lie within one of its operands, in the body of a loop.

    c' = Concat(c, x_t)[-2:]   ->   c' = x_t[-2:]

where x_t has at least two elements. Streaming models append a chunk to a cache and cut the next cache
off the result. If the chunk is at least as long as the cache, no cache depends on an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.builder import Indices
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.reads import axis_slices
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.symbolic import Dim

_MOST_OPERANDS = 16
"""The most operands of the Concat: the rule compares the bounds of the Slice with each of them."""


@dataclass(frozen=True)
class OperandSlice:
    """A range of one operand of a Concat."""

    operand: Tensor
    axis: int
    indices: Indices


class SliceOperandOfConcat(Rule[OperandSlice]):
    """Slices one operand of a Concat instead of the result, where the slice is a part of that."""

    root = "Slice"
    fires = """g (float[N,B,4] x, float[B,2] c0, float[B] u0, int64 n) => (float[P,Q] c, float[B] u)
      <int64[1] one = {1}, int64[1] start = {-2}, int64[1] end = {9223372036854775807}> {
      c, u = Loop (n, , c0, u0) <body = b (int64 i, bool ci, float[P,Q] c, float[B] u) => (bool co, float[R,S] d, float[B] v) {
        co = Identity(ci) xt = Gather(x, i) w = Concat<axis=1>(c, xt) d = Slice(w, start, end, one)
        m = ReduceMax<keepdims=0>(w, one) p = Mul(u, m) v = Sin(p) }> }"""
    spares = {
        "it is not in the body": """g (float[B,2] x, float[B,2] c) => (float[B,2] y)
      <int64[1] one = {1}, int64[1] start = {-2}, int64[1] end = {9223372036854775807}> {
      w = Concat<axis=1>(c, x) d = Slice(w, start, end, one) y = Neg(d) }""",
        "is not within one operand": """g (float[N,B,1] x, float[B,2] c0, int64 n) => (float[B,2] c)
      <int64[1] one = {1}, int64[1] start = {-2}, int64[1] end = {9223372036854775807}> {
      c = Loop (n, , c0) <body = b (int64 i, bool ci, float[B,2] c) => (bool co, float[B,2] d) {
        co = Identity(ci) xt = Gather(x, i) w = Concat<axis=1>(c, xt) d = Slice(w, start, end, one) }> }""",
        "not the result of Concat": """g (float[N,B,4] x, float[B,2] c0, int64 n) => (float[B,2] c)
      <int64[1] one = {1}, int64[1] start = {-2}, int64[1] end = {9223372036854775807}> {
      c = Loop (n, , c0) <body = b (int64 i, bool ci, float[B,2] c) => (bool co, float[B,2] d) {
        co = Identity(ci) xt = Gather(x, i) w = Neg(xt) e = Slice(w, start, end, one) d = Max(c, e) }> }""",
    }

    def match(self, m: Match) -> OperandSlice:
        owner = m.index.owner(m.graph())
        inside = owner is not None and owner.op in ("Loop", "Scan")
        m.need(inside, "it is not in the body of a loop")
        joined = m.node.inputs[0]
        concat = m.need(m.producer(joined, "Concat"), "{} is not the result of Concat", joined)
        shapes = _need_shapes(m, concat)
        axis = int(concat.attrs["axis"]) % len(shapes[0])
        sizes = [shape[axis] for shape in shapes]
        length: Dim = 0
        for size in sizes:
            length = symbolic.add(length, size)
        first, last = _need_bounds(m, axis, length)
        before: Dim = 0
        for operand, size in zip(concat.inputs, sizes):
            after = symbolic.add(before, size)
            if symbolic.le(before, first) is True and symbolic.le(last, after) is True:
                start, end = symbolic.sub(first, before), symbolic.sub(last, before)
                return OperandSlice(operand, axis, _need_indices(start, end, size))
            before = after
        raise Miss("it is not within one operand of {}", concat, at=concat)

    def apply(self, patch: Patch, found: OperandSlice) -> None:
        emit = patch.builder(patch.root.outputs[0])
        patch.replace_node(patch.root, [emit.slice(found.operand, found.axis, found.indices)])
        patch.toward_normal_form()


def _need_shapes(m: Match, concat: Node) -> list[tuple[Dim, ...]]:
    """The shapes of the operands of a Concat, which are known to fit each other."""
    many = "{} has more than {} operands"
    m.need(len(concat.inputs) <= _MOST_OPERANDS, many, concat, _MOST_OPERANDS, at=concat)
    shapes = [m.need(m.facts.shape(t), "the rank of {} is not known", t) for t in concat.inputs]
    axis = int(concat.attrs["axis"]) % len(shapes[0])
    fits = all(
        len(shape) == len(shapes[0])
        and all(
            k == axis or symbolic.eq(*pair) is True for k, pair in enumerate(zip(shape, shapes[0]))
        )
        for shape in shapes
    )
    m.need(fits, "the operands of {} may differ in more than one axis", concat, at=concat)
    return shapes


def _need_bounds(m: Match, axis: int, length: Dim) -> tuple[Dim, Dim]:
    """The first position of the root, a Slice along one axis, and the one after its last.

    They count from the front. Raises Miss if the Slice does not have this form.
    """
    slices = m.need(axis_slices(m.facts, m.node), "its axes or steps are not known")
    single = len(slices) == 1 and slices[0].axis == axis and slices[0].step == 1
    m.need(single, "it does not slice the axis of the Concat, and only that, with step 1")
    (cut,) = slices
    first = m.need(_from_front(cut.start, length), "its start is not known to be on the axis")
    whole = cut.reaches_end(length)
    last = length if whole else _from_front(cut.end, length)
    last = m.need(last, "its end is not known to be on the axis")
    m.need(symbolic.le(first, last) is True, "it is not known to start before it ends")
    return first, last


def _from_front(bound: Dim | None, length: Dim) -> Dim | None:
    """A bound of a Slice counted from the front; None where it is not known to be at least 0."""
    if isinstance(bound, int) and bound < 0:
        bound = symbolic.add(length, bound)
    return bound if bound is not None and symbolic.nonnegative(bound) else None


def _need_indices(start: Dim, end: Dim, size: Dim) -> Indices:
    """A range of an axis as a Slice with fixed bounds. Raises Miss where they are not known."""
    first = _fixed(start, size)
    to_end = symbolic.eq(end, size) is True
    last = None if to_end else _fixed(end, size)
    if first is None or (last is None and not to_end):
        raise Miss("the range {} to {} of an operand of {} elements is not fixed", start, end, size)
    return slice(first, last, 1)


def _fixed(position: Dim, size: Dim) -> int | None:
    """A position from the front or from the end of an axis as a number; None if neither is known."""
    if isinstance(position, int):
        return position
    from_end = symbolic.sub(position, size)
    return from_end if isinstance(from_end, int) and from_end < 0 else None
