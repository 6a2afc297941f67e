"""Loops that read one slice per iteration become Scans.

y, ys = Loop(n, , s0) { … Gather(x, i) …; return s, r }    ->    y, ys = Scan(s0, x) { … x_t …; return s, r }

onnxruntime runs no Scan over an empty axis, and takes half as long for an iteration of a Scan as for
one of a Loop. A light loop that may not run therefore becomes a Scan over one more slice,
whose last iteration does not count:

    y, ys = Loop(n, , s0) { a = Gather(x, i)  b = Gather(z, i)  t = a * s + b  return true, t, t }
 -> _, ts, before = Scan(s0, Concat(x, 0), Concat(z, 0)) { t = a * s + b  return t, t, s }
    ys = ts[:-1]    y = before[-1]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead, counted_loop
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INTEGERS
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import ScanInput
from ...rewrite.symbolic import Dim
from ..vectorization.independent_work import static_size
from .counted_loop_checks import need_counted_loop, need_trip_count

_CAN_BE_PADDED = FLOAT_OR_DOUBLE | INTEGERS | {TensorProto.FLOAT16, TensorProto.BOOL}
_MOST_NODES = 6
"""The most nodes of a light loop."""
_MOST_ELEMENTS = 1 << 12
"""More elements than these take longer to compute and to copy than an iteration of a Loop costs."""


@dataclass(frozen=True)
class ScannableLoop:
    """A counted loop that can be a Scan."""

    loop: CountedLoop
    trip: Tensor
    """The trip count."""
    iteration: Tensor | None
    """The iteration number; None if the body needs it only to read slices."""
    whole: list[bool]
    """For each slice read, whether the iterations read the whole axis."""


class LoopToScan(Rule[ScannableLoop]):
    """Turns a Loop over slices with at least one iteration into a Scan.

    The carried values must keep their shape (ONNX operator specification, Scan).
    """

    root = "Loop"
    promise = Promise(
        rounds="onnxruntime may add up a product of two slices in another order",
        accepts="those that read past the end of the sequence",
    )
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

    def match(self, m: Match) -> ScannableLoop:
        m.need(m.facts.opset >= 11, "before opset 11 Scan has another form")
        need_trip_count(m)
        loop = m.need(counted_loop(m.facts, m.node), "the rank of what it reads is not known")
        m.need(bool(loop.reads), "it reads no slices of outer values")
        trip = m.need(loop.trip, "it has no trip count")
        count = m.need(loop.count, "the trip count is not known", at=trip)
        runs = symbolic.positive(count)
        m.need(runs, "it may not run: its trip count is {}", count, at=trip)
        kinds = [m.facts.of(t).kind for c in loop.carried for t in (c.initial, c.input)]
        m.need(set(kinds) <= {"tensor"}, "a carried value is not a tensor")
        for carried in loop.carried:
            shape = m.facts.shape(carried.initial)
            kept = shape is not None and m.facts.shape(carried.output) == shape
            m.need(kept, "{} changes its shape", carried.input, at=carried.output)
        whole = [_need_enough_slices(m, read, count) for read in loop.reads]
        iteration = loop.iteration if loop.iteration_uses(m.facts) else None
        return ScannableLoop(loop, trip, iteration, whole)

    def apply(self, patch: Patch, found: ScannableLoop) -> None:
        scan_inputs: list[ScanInput] = []
        for read, whole in zip(found.loop.reads, found.whole):
            x = read.sequence if whole else _first_slices(patch, read, found.trip)
            shape = patch.facts.known_shape(read.sequence)
            x, axis = _scannable(patch, x, read.axis, shape)
            scan_inputs.append(ScanInput(x, read.slice, axis, False))
        if found.iteration is not None:
            emit = patch.builder(found.iteration)
            numbers = emit("Range", emit.scalar(0), found.trip, emit.scalar(1))
            scan_inputs.append(ScanInput(numbers, found.iteration, 0, False))
        patch.loop(patch.root).to_scan(found.loop, scan_inputs)
        patch.toward_normal_form()


def _need_enough_slices(m: Match, read: SliceRead, count: Dim) -> bool:
    """Whether the iterations read all slices of an axis.

    Raises Miss if there may be fewer slices than iterations.
    """
    length = m.facts.known_shape(read.sequence)[read.axis]
    m.need(
        symbolic.le(count, length) is True,
        "the loop may read past the end of {}: {} iterations, {} slices",
        read.sequence,
        count,
        length,
        at=read.sequence,
    )
    return symbolic.eq(count, length) is True


def _first_slices(patch: Patch, read: SliceRead, trip: Tensor) -> Tensor:
    """The slices that a loop reads, where these are not all."""
    emit = patch.builder(read.sequence)
    end = emit("Reshape", trip, emit.vector(1))
    return emit("Slice", read.sequence, emit.vector(0), end, emit.vector(read.axis))


def _scannable(patch: Patch, x: Tensor, axis: int, shape: tuple[Dim, ...]) -> tuple[Tensor, int]:
    """What a Scan reads in place of `x`, which has this shape, and the axis that it reads along.

    onnxruntime transposes a scan input along any axis but the first, and its process ends with a
    division by zero if the tensor has no elements (version 1.31). A Transpose node takes as long,
    but does not fail.
    """
    others = [size for place, size in enumerate(shape) if place != axis]
    if axis == 0 or all(symbolic.positive(size) for size in others):
        return x, axis
    return patch.builder(x).move_axis(x, axis, 0, len(shape)), 0


class LoopToPaddedScan(Rule[CountedLoop]):
    """Turns a light Loop over slices that may not run into a Scan with an additional iteration."""

    root = "Loop"
    promise = Promise(
        accepts="those that read past the end of the sequence",
    )
    fires = """g (float[T,3] x, float[T,3] z, float[3] s0, int64 n) => (float[3] y, float[R,3] ys) {
      y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        a = Gather(x, i) b = Gather(z, i) p = Mul(a, s) so = Add(p, b) r = Identity(so) co = Identity(ci) }> }"""
    spares = {
        "at least one iteration": """g (float[7,3] x, float[3] s0) => (float[3] y) <int64 n = {7}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        a = Gather(x, i) p = Mul(a, s) so = Sin(p) co = Identity(ci) }> }""",
        "in the additional iteration": """g (float[T,3,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        a = Gather(x, i) p = MatMul(a, s) so = Sin(p) co = Identity(ci) }> }""",
        "reads no slices": """g (float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        p = Cos(s) so = Sin(p) co = Identity(ci) }> }""",
        "other than to read": """g (float[T,3] x, float[3] s0, int64 n) => (float[3] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        a = Gather(x, i) f = Cast<to=1>(i) p = Mul(a, s) so = Add(p, f) co = Identity(ci) }> }""",
        "elements": """g (float[T,9999] x, float[9999] s0, int64 n) => (float[9999] y) {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[9999] s) => (bool co, float[9999] so) {
        a = Gather(x, i) p = Mul(a, s) so = Sin(p) co = Identity(ci) }> }""",
    }

    def match(self, m: Match) -> CountedLoop:
        loop = need_counted_loop(m)
        m.need(
            not loop.runs_at_least_once,
            "it has at least one iteration, so it can be a Scan without an additional one",
        )
        m.need(bool(loop.reads), "it reads no slices of outer values")
        uses = loop.iteration_uses(m.facts)
        m.need(not uses, "the iteration number is needed other than to read slices")
        results = len(loop.carried) + len(loop.scan_outputs)
        m.need(len(m.node.outputs) == results, "it does not return all its results")
        _need_light(m, loop)
        for carried in loop.carried:
            shape, start = m.facts.shape(carried.output), m.facts.shape(carried.initial)
            kept = symbolic.equal_shapes(shape, start)
            m.need(kept, "{} changes its shape", carried.input, at=carried.output)
        return loop

    def apply(self, patch: Patch, found: CountedLoop) -> None:
        edit, index = patch.loop(patch.root), patch.index
        used = [t for t in patch.root.outputs if t.name and index.use_count(t)]
        padded = [_padded(patch.builder(read.slice), found, read) for read in found.reads]
        for output in found.scan_outputs:
            if output.stacked in used:
                emit = patch.builder_after(output.stacked, used)
                (stacked,) = edit.add_scan_outputs([output.slice])
                patch.replace(output.stacked, emit.slice(stacked, 0, slice(0, -1, 1)))
        for carried in found.carried:
            if carried.final in used:
                emit = patch.builder_after(carried.final, used)
                (before,) = edit.add_scan_outputs([carried.input])
                patch.replace(carried.final, emit("Gather", before, emit.scalar(-1), axis=0))
        edit.drop_scan_outputs(range(len(found.scan_outputs)))
        scan_inputs = [ScanInput(x, r.slice, 0, False) for x, r in zip(padded, found.reads)]
        edit.to_scan(found, scan_inputs)
        patch.toward_normal_form()


def _need_light(m: Match, loop: CountedLoop) -> None:
    """Declines where an additional iteration may fail, or costs more than a Scan saves."""
    reading = {read.gather for read in loop.reads}
    nodes = [n for n in m.index.nodes(loop.body) if n not in reading and n.op != "Identity"]
    m.need(
        len(nodes) <= _MOST_NODES,
        "an iteration takes {} nodes, more than {}",
        len(nodes),
        _MOST_NODES,
    )
    for node in nodes:
        if not cannot_fail(node, m.facts):
            raise Miss("{} may fail, or be slow, in the additional iteration", node, at=node)
    values = [r.slice for r in loop.reads] + [c.initial for c in loop.carried]
    for value in values:
        kind = m.facts.dtype(value) in _CAN_BE_PADDED and m.facts.of(value).kind == "tensor"
        m.need(kind, "{} cannot be padded", value, at=value)
    elements = sum(static_size(m.facts, t) for t in values)
    m.need(
        elements <= _MOST_ELEMENTS,
        "an iteration works on {} elements, more than {}",
        elements,
        _MOST_ELEMENTS,
    )


def _padded(emit: Builder, loop: CountedLoop, read: SliceRead) -> Tensor:
    """The slices that the iterations read, stacked along axis 0, and one slice of zeros.

    Always axis 0: onnxruntime 1.31 crashes on a Scan along another axis if that is empty.
    """
    facts = emit.patch.facts
    shape = facts.known_shape(read.sequence)
    others = [dim for place, dim in enumerate(shape) if place != read.axis]
    slices = emit.all_slices(facts, loop, read)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(facts.dtype(read.sequence))
    return emit("Concat", slices, _slice_of_zeros(emit, slices, others, dtype), axis=0)


def _slice_of_zeros(emit: Builder, slices: Tensor, shape: Sequence[Dim], dtype: np.dtype) -> Tensor:
    """One slice of zeros, with axis 0."""
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) == len(shape):
        return emit.constant(np.zeros([1, *sizes], dtype))
    target = emit.concat([emit.vector(1), emit.shape(slices, 1, len(shape) + 1)])
    return emit("ConstantOfShape", target, value=Constant("value", np.zeros(1, dtype)))
