"""Loops that read one slice per iteration and surely run are Scans.

y, ys = Loop(n, , s0) { … Gather(x, i) …; return s, r }    ->    y, ys = Scan(s0, x) { … x_t …; return s, r }
"""

from __future__ import annotations

from typing import Any

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead, counted_loop
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import ScanInput
from ...rewrite.symbolic import Dim
from .counted_loop_checks import need_trip_count


class LoopToScan(Rule):
    """A Loop over the slices of tensors, one per iteration, is a Scan.

    Only where there surely is a first iteration: onnxruntime runs no Scan over an empty axis. The
    states must keep their shape (ONNX operator specification, Scan).
    """

    root = "Loop"
    fires = """g (float[7,3] x, float[3] s0) => (float[3] y, float[7,3] ys) <int64 n = {7}> {
      y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s)
          => (bool co, float[3] so, float[3] r) {
        xt = Gather(x, i) co = Identity(ci) m = MatMul(s, xt) so = Add(xt, m) r = Exp(so) }> }"""
    spares = {
        "may not run": """g (float[T,3] x, float[3] s0) => (float[3] y) {
      zero = Constant<value_int=0>() all = Shape(x) n = Gather(all, zero)
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) co = Identity(ci) so = Max(s, xt) }> }""",
        "reads no slices": """g (float[3] s0) => (float[3] y) <int64 n = {99}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
        "changes its shape": """g (float[7,1] x, float[N] s0) => (float[M] y) <int64 n = {7}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[Q] so) {
        xt = Gather(x, i) co = Identity(ci) so = Concat<axis=0>(s, xt) }> }""",
        "may end early": """g (float[7,3] x, float[3] s0) => (float[3] y) {
      y = Loop (, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) so = Max(s, xt) q = ReduceSum<keepdims=0>(so)
        co = IsNaN(q) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.facts.opset >= 11, "before opset 11 Scan has another form")
        need_trip_count(m)
        steps = m.need(counted_loop(m.facts, m.node), "the rank of what it reads is not known")
        m.need(bool(steps.reads), "it reads no slices of outer values")
        count = steps.count
        m.need(count is not None, "the number of iterations is not known", at=steps.trip)
        assert count is not None
        empty = "it may not run at all: {} iterations"
        m.need(symbolic.positive(count), empty, count, at=steps.trip)
        whole = [
            m.facts.of(t).kind == "tensor" for s in steps.carried for t in (s.initial, s.input)
        ]
        m.need(all(whole), "a state is no tensor")
        for state in steps.carried:
            shape = m.facts.shape(state.initial)
            kept = shape is not None and m.facts.shape(state.output) == shape
            m.need(kept, "the state `{}` changes its shape", state.input.name, at=state.output)
        whole_axes = [_length(m, read, count) for read in steps.reads]
        shapes = [m.facts.shape(read.sequence) or () for read in steps.reads]
        counted = bool(steps.iteration_uses(m.facts))
        return {
            "steps": steps, "whole": whole_axes, "shapes": shapes, "counted": counted,
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        steps: CountedLoop,
        whole: list[bool],
        shapes: list[tuple[Dim, ...]],
        counted: bool,
    ) -> None:
        assert steps.trip is not None
        assert steps.iteration is not None
        slices: list[ScanInput] = []
        for read, fits, shape in zip(steps.reads, whole, shapes):
            x = read.sequence if fits else _first(patch, read, steps.trip)
            x, axis = _ready_to_scan(patch, x, read.axis, shape)
            slices.append(ScanInput(x, read.slice, axis, False))
        if counted:
            emit = patch.builder(steps.iteration)
            numbers = emit("Range", emit.scalar(0), steps.trip, emit.scalar(1))
            slices.append(ScanInput(numbers, steps.iteration, 0, False))
        patch.loop(steps.node).to_scan(steps, slices)
        patch.toward_normal_form()


def _length(m: Match, read: SliceRead, count: Dim) -> bool:
    """Whether the axis that is read has as many elements as there are iterations; declines where
    it may have fewer.
    """
    shape = m.facts.shape(read.sequence)
    assert shape is not None
    length = shape[read.axis]
    enough = symbolic.le(count, length) is True
    m.need(
        enough,
        "`{}` may be read beyond its end: {} iterations, {} elements",
        read.sequence.name,
        count,
        length,
        at=read.sequence,
    )
    return symbolic.eq(count, length) is True


def _first(patch: Patch, read: SliceRead, trip: Tensor) -> Tensor:
    """The elements of an axis that a loop reads."""
    emit = patch.builder(read.sequence)
    end = emit("Reshape", trip, emit.vector(1))
    return emit("Slice", read.sequence, emit.vector(0), end, emit.vector(read.axis))


def _ready_to_scan(
    patch: Patch, x: Tensor, axis: int, shape: tuple[Dim, ...]
) -> tuple[Tensor, int]:
    """The tensor that a Scan reads instead of `x`, of this shape, and the axis it reads along.

    onnxruntime transposes a scan input along any axis but the first, and its process dies of a
    division by zero where the tensor has no elements (version 1.31). A Transpose node takes as long
    and does not.
    """
    others = [size for place, size in enumerate(shape) if place != axis]
    if axis == 0 or all(symbolic.positive(size) for size in others):
        return x, axis
    perm = [axis, *(place for place in range(len(shape)) if place != axis)]
    return patch.node("Transpose", [x], [x], {"perm": perm})[0], 0
