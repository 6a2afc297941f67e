"""Reads of one slice per iteration, in their canonical form `Gather(x, iteration)`.

x_t = Gather(x, n - 1 - i)                   ->   r = x[::-1]    x_t = Gather(r, i)
x_t = Slice(x, i, i + 1)                     ->   x_t = Unsqueeze(Gather(x, i))
y = Squeeze(Slice(x, [k], [e], [0]), [0])    ->   y = Gather(x, k)
"""

from __future__ import annotations

from dataclasses import dataclass

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.facts.elements import element
from ...rewrite.facts.fact import INT64
from ...rewrite.facts.iteration_bounds import nonnegative_in_iteration
from ...rewrite.facts.reads import axis_slices
from ...rewrite.facts.slices import AxisSlice
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView
from ...rewrite.symbolic import Dim
from .affine_positions import (
    Progression,
    need_enclosing_loop,
    need_in_range,
    need_outer,
    need_progression,
)

_BOUNDS_ARE_ATTRIBUTES = "before opset 10 the bounds of a Slice are attributes"


@dataclass(frozen=True)
class OrderedRead:
    """A Gather that reads elements one after the other, in an order that a Slice can produce."""

    loop: Node
    axis: int
    first: int
    """The position in iteration 0; -1 - k means k elements before the last."""
    step: int
    position_rank: int
    """The number of axes that the position has, all of size 1."""


class GatherAtIteration(Rule[OrderedRead]):
    """Replaces a Gather at an affine position by one at the iteration number.

    What it reads is sliced or reversed before the loop.
    """

    root = "Gather"
    fires = """g (float[T,3] x, float[3] s0) => (float[3] y) {
      zero = Constant<value_int=0>() one = Constant<value_int=1>() all = Shape(x)
      n = Gather(all, zero) last = Sub(n, one)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Sub(last, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "already": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) co = Identity(ci) so = Max(s, xt) }> }""",
        "is not known to stay": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      zero = Constant<value_int=0>() one = Constant<value_int=1>() all = Shape(x)
      t = Gather(all, zero) last = Sub(t, one)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Sub(last, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""",
        "does not change by a fixed step": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Mul(i, i) xt = Gather(x, k) co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> OrderedRead:
        loop = need_enclosing_loop(m)
        x, position = m.node.inputs
        m.need(position is not loop.iteration, "it already reads at the iteration number")
        need_outer(m, loop, x)
        shape = m.need(m.facts.shape(position), "the rank of {} is not known", position)
        single = all(size == 1 for size in shape)
        m.need(single, "position {} is not a single number", position, at=position)
        number = element(m.facts, position, (0,) * len(shape))
        number = m.need(number, "position {} is not known", position, at=position)
        found = need_progression(m, loop, number, position)
        sizes = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        axis = m.node.attrs.get("axis", 0) % len(sizes)
        first = _need_first(m, loop, found, sizes[axis], x)
        return OrderedRead(loop.node, axis, first, found.step, len(shape))

    def apply(self, patch: Patch, found: OrderedRead) -> None:
        node, x = patch.root, patch.root.inputs[0]
        if (found.first, found.step) != (0, 1):
            before = patch.builder(x, found.loop)
            x = before.slice(x, found.axis, slice(found.first, None, found.step))
        emit = patch.builder(node.outputs[0])
        read = emit("Gather", x, LoopView(found.loop).iteration, axis=found.axis)
        axes = range(found.axis, found.axis + found.position_rank)
        patch.replace_node(node, [emit.unsqueeze(read, axes)])
        patch.toward_normal_form()


def _need_first(m: Match, loop: LoopView, found: Progression, length: Dim, x: Tensor) -> int:
    """The start of the Slice of `x` that puts the elements in the order in which they are read.

    A run fails if a position is outside the axis, and must still fail: declines where a Slice would
    move such a position inside. Positions below zero count from the end (ONNX operator
    specification, Gather).
    """
    first, step = found.first, found.step
    if step > 0:
        if not isinstance(first, int):
            raise Miss("the first position {} is not a known number", first, at=m.node)
        m.need(first >= 0, "the first position {} counts from the end", first)
        return first
    if isinstance(first, int) and first < 0:
        # A Slice whose start is before the first element starts at the first element.
        inside = first == -1 or symbolic.le(-first, length) is True
        m.need(inside, "the first position {} may be outside {} of length {}", first, x, length)
        return first
    last = symbolic.sub(length, 1)
    m.need(
        symbolic.eq(first, last) is True,
        "the first position {} is not the last of {}, which is {}",
        first,
        x,
        last,
    )
    trips = loop.trips(m.facts)
    reached = None if trips is None else symbolic.mul(step, symbolic.sub(trips, 1))
    m.need(
        reached is not None and symbolic.nonnegative(symbolic.add(first, reached)),
        "the position is not known to stay within {}: it starts at {} and changes by {} in each of "
        "{} iterations",
        x,
        first,
        step,
        "an unknown number of" if trips is None else trips,
    )
    return -1


@dataclass(frozen=True)
class SlicedElement:
    """One element along an axis that a Slice takes."""

    axis: int
    number: int
    """The number of the axis among the operands of the Slice."""


class SliceToGather(Rule[SlicedElement]):
    """Turns a Slice of one element, at a position that depends on the iteration, into a Gather."""

    root = "Slice"
    fires = """g (float[T,3] x, float[1,3] s0) => (float[1,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      all = Shape(x) t = Gather(all, zero) n = Squeeze(t)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[1,3] s) => (bool co, float[1,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }"""
    spares = {
        "may be outside": """g (float[T,3] x, float[1,3] s0, int64 n) => (float[P,3] y) {
      zero = Constant<value_ints=[0]>() one = Constant<value_ints=[1]>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P,3] s) => (bool co, float[P,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, one) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Concat<axis=0>(s, xt) }> }""",
        "more than one": """g (float[9,3] x, float[2,3] s0) => (float[2,3] y) {
      zero = Constant<value_ints=[0]>() two = Constant<value_ints=[2]>() n = Constant<value_int=4>()
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[2,3] s) => (bool co, float[2,3] so) {
        k = Unsqueeze(i, zero) e = Add(k, two) xt = Slice(x, k, e, zero)
        co = Identity(ci) so = Max(s, xt) }> }""",
    }

    def match(self, m: Match) -> SlicedElement:
        loop, x = need_enclosing_loop(m), m.node.inputs[0]
        m.need(len(m.node.inputs) > 2, _BOUNDS_ARE_ATTRIBUTES)
        need_outer(m, loop, x)
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x, at=x)
        found, start, extent = need_moving_slice(m, shape)
        axis = found.axis
        m.need(extent == 1, "it takes more than one element: {}", extent)
        position = need_progression(m, loop, start, m.node.inputs[1])
        need_in_range(m, loop, position, 1, shape[axis])
        result = m.facts.shape(m.node.outputs[0])
        takes_one = result is not None and symbolic.eq(result[axis], 1) is not False
        m.need(takes_one, "there is nothing to read: axis {} of {} is empty", axis, x, at=x)
        return SlicedElement(axis, found.number)

    def apply(self, patch: Patch, found: SlicedElement) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        position = emit("Gather", node.inputs[1], emit.scalar(found.number), axis=0)
        read = emit("Gather", node.inputs[0], position, axis=found.axis)
        patch.replace_node(node, [emit.unsqueeze(read, [found.axis])])
        patch.toward_normal_form()


def need_moving_slice(m: Match, shape: tuple[Dim, ...]) -> tuple[AxisSlice, Dim, Dim]:
    """The only slice of the root, a Slice, that is not of a whole axis; its start and extent.

    Raises Miss if there is none or more than one, or if a step is not 1 or a bound not known.
    """
    slices = m.need(axis_slices(m.facts, m.node), "its axes or steps are not known")
    m.need(all(each.step == 1 for each in slices), "its steps are not 1")
    moving = [each for each in slices if not takes_whole_axis(m, each, shape[each.axis])]
    m.need(len(moving) == 1, "it slices {} axes, not one", len(moving))
    (found,) = moving
    start = m.need(found.start, "its start is not known")
    return found, start, m.need(found.extent, "its end is not known")


def takes_whole_axis(m: Match, found: AxisSlice, length: Dim) -> bool:
    """Whether a slice takes all elements of an axis, in their order.

    Without --strict no axis is longer than any in practice.
    """
    return found.is_whole(length) if m.options.strict else found.is_whole_in_practice(length)


@dataclass(frozen=True)
class SqueezedSlice:
    """A Slice of one element along an axis that a Squeeze removes."""

    slice: Node
    axis: int
    number: int
    """The number of the axis among the operands of the Slice."""
    never_clamped: bool
    """Whether the start is a position of the axis wherever one element is left."""


class SqueezedSliceToGather(Rule[SqueezedSlice]):
    """Turns a Slice along an axis that a Squeeze removes into a Gather.

    A Squeeze fails unless one element is left, and that element is the first one, whatever end and
    step are. TensorFlow slices in this way, with an end and a step beyond all sizes.
    """

    root = "Squeeze"
    promise = Promise(
        accepts="those that squeeze more than one element, or none",
    )
    fires = """g (float[N,3] x, int64[1] k, int64[1] e) => (float[3] y) <int64[1] zero = {0}, int64[1] big = {99999}> {
      s = Slice(x, k, e, zero, big) y = Squeeze(s, zero) }"""
    spares = {
        "not the result of Slice": """g (float[1,3] x) => (float[3] y) <int64[1] zero = {0}> { s = Neg(x) y = Squeeze(s, zero) }""",
        "is sliced as well": """g (float[4,3] x, int64[2] k, int64[2] e) => (float[M] y) <int64[1] zero = {0}, int64[2] axes = {0, 1}> {
      s = Slice(x, k, e, axes) y = Squeeze(s, zero) }""",
        "backwards": """g (float[4,3] x, int64[1] k) => (float[3] y) <int64[1] zero = {0}, int64[1] e = {-9}, int64[1] back = {-5}> {
      s = Slice(x, k, e, zero, back) y = Squeeze(s, zero) }""",
        "is not sliced": """g (float[1,3] x, int64[1] k, int64[1] e) => (float[M] y) <int64[1] zero = {0}, int64[1] one = {1}> {
      s = Slice(x, k, e, one) y = Squeeze(s, zero) }""",
    }

    def match(self, m: Match) -> SqueezedSlice:
        m.need(not m.options.strict, "--strict: a Squeeze of several elements must still fail")
        operand = m.node.inputs[0]
        sentence = "{} is not the result of Slice"
        node = m.need(m.producer(operand, "Slice"), sentence, operand, at=operand)
        m.need(len(node.inputs) > 2, _BOUNDS_ARE_ATTRIBUTES, at=node)
        x = node.inputs[0]
        shape = m.need(m.facts.shape(x), "the rank of {} is not known", x)
        axes = named_axes(m.facts, m.node) or []
        m.need(len(axes) == 1, "it is not known to remove one axis")
        axis = axes[0]
        slices = m.need(axis_slices(m.facts, node), "its axes or steps are not known", at=node)
        own = next((each for each in slices if each.axis == axis), None)
        own = m.need(own, "axis {} is not sliced", axis)
        m.need(own.step > 0, "axis {} is sliced backwards", axis)
        for other in slices:
            whole = other is own or takes_whole_axis(m, other, shape[other.axis])
            m.need(whole, "axis {} is sliced as well", other.axis)
        # The last element starts at -1 in an axis of any length.
        inside = own.start is not None and (
            own.start == -1 or nonnegative_in_iteration(m.facts, own.start)
        )
        return SqueezedSlice(node, axis, own.number, inside)

    def apply(self, patch: Patch, found: SqueezedSlice) -> None:
        x, starts = found.slice.inputs[:2]
        emit = patch.builder(patch.root.outputs[0])
        position = emit("Gather", starts, emit.scalar(found.number), axis=0)
        if not found.never_clamped:
            # A Slice that starts before the axis starts with its first element.
            size = emit("Gather", emit("Shape", x), emit.scalar(found.axis), axis=0)
            if patch.facts.dtype(starts) != INT64:
                position = emit("Cast", position, to=INT64)
            position = emit.max(position, emit("Neg", size))
        patch.replace_node(patch.root, [emit("Gather", x, position, axis=found.axis)])
        patch.toward_normal_form()
