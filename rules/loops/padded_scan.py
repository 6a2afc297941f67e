"""Light loops that may not run: a Scan over one slice more, whose last step does not count.

    y, ys = Loop(n, , s0) { a = Gather(x, i)  b = Gather(z, i)  t = a * s + b  return true, t, t }
 -> _, ts, before = Scan(s0, Concat(x, 0), Concat(z, 0)) { t = a * s + b  return t, t, s }
    ys = ts[:-1]    y = before[-1]

onnxruntime runs no Scan over an empty axis, and takes half as long for a step of a Scan as for one
of a Loop. Where a step is nothing but a few light operators, a step in vain costs less than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.counted_loop import CountedLoop, SliceRead
from ...rewrite.facts.fact import FLOAT_OR_DOUBLE, INTEGERS
from ...rewrite.facts.facts import Facts
from ...rewrite.facts.purity import cannot_fail
from ...rewrite.graph.ir import Constant, Tensor
from ...rewrite.graph.views import ScanInput
from ..vectorization.independent_work import counted, known_elements

_PADDED = FLOAT_OR_DOUBLE | INTEGERS | {TensorProto.FLOAT16, TensorProto.BOOL}
_MOST_NODES = 6
_MOST_ELEMENTS = 1 << 12
"""More elements than these take longer to compute and to copy than a Loop's step costs."""


class LoopToPaddedScan(Rule):
    """A light Loop over slices that may not run is a Scan that runs once more."""

    root = "Loop"
    fires = """g (float[T,3] x, float[T,3] z, float[3] s0, int64 n) => (float[3] y, float[R,3] ys) {
      y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        a = Gather(x, i) b = Gather(z, i) p = Mul(a, s) so = Add(p, b) r = Identity(so) co = Identity(ci) }> }"""
    spares = {
        "surely runs": """g (float[7,3] x, float[3] s0) => (float[3] y) <int64 n = {7}> {
      y = Loop (n, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        a = Gather(x, i) p = Mul(a, s) so = Sin(p) co = Identity(ci) }> }""",
        "in vain": """g (float[T,3,3] x, float[3] s0, int64 n) => (float[3] y) {
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

    def match(self, m: Match) -> dict[str, Any]:
        steps = counted(m)
        m.need(not steps.runs_at_least_once, "it surely runs: it can be a Scan as it is")
        m.need(bool(steps.reads), "it reads no slices of outer values")
        uses = steps.iteration_uses(m.facts)
        m.need(not uses, "the iteration number is needed other than to read slices")
        results = len(steps.carried) + len(steps.scan_outputs)
        m.need(len(m.node.outputs) == results, "it does not list all its results")
        _need_light(m, steps)
        for state in steps.carried:
            shape, start = m.facts.shape(state.output), m.facts.shape(state.initial)
            kept = symbolic.equal_shapes(shape, start)
            m.need(kept, "the state {} changes its shape", state.input, at=state.output)
        return {"steps": steps, "facts": m.facts}

    def apply(self, patch: Patch, steps: CountedLoop, facts: Facts) -> None:
        node, index = steps.node, patch.index
        used = [t for t in node.outputs if t.name and index.use_count(t)]
        sequences = [_padded(patch.builder(r.slice), facts, steps, r) for r in steps.reads]
        kept: list[Tensor] = []
        for row in steps.scan_outputs:
            if row.stacked in used:
                emit = patch.builder_after(row.stacked, used)
                kept += patch.loop(node).add_scan_outputs([row.slice])
                patch.replace(row.stacked, emit.slice(kept[-1], 0, slice(0, -1, 1)))
        for state in steps.carried:
            if state.final in used:
                emit = patch.builder_after(state.final, used)
                kept += patch.loop(node).add_scan_outputs([state.input])
                patch.replace(state.final, emit("Gather", kept[-1], emit.scalar(-1), axis=0))
        patch.loop(node).drop_scan_outputs(range(len(steps.scan_outputs)))
        slices = [ScanInput(x, r.slice, 0, False) for x, r in zip(sequences, steps.reads)]
        patch.loop(steps.node).to_scan(steps, slices)
        patch.toward_normal_form()


def _need_light(m: Match, steps: CountedLoop) -> None:
    """Declines where a step in vain may fail, or costs more than a Scan saves."""
    reading = {read.gather for read in steps.reads}
    nodes = [n for n in m.index.nodes(steps.body) if n not in reading and n.op != "Identity"]
    m.need(
        len(nodes) <= _MOST_NODES,
        "a step takes {} operators, more than {}",
        len(nodes),
        _MOST_NODES,
    )
    for node in nodes:
        if not cannot_fail(node, m.facts):
            vain = "{} may fail, or be slow, in vain: an empty sequence gets a step, too"
            raise Miss(vain, node, at=node)
    values = [r.slice for r in steps.reads] + [s.initial for s in steps.carried]
    for value in values:
        kind = m.facts.dtype(value) in _PADDED and m.facts.of(value).kind == "tensor"
        m.need(kind, "{} cannot be padded", value, at=value)
    elements = sum(known_elements(m.facts, t) for t in values)
    m.need(elements <= _MOST_ELEMENTS, "a step works on {} elements", elements)


def _padded(emit: Builder, facts: Facts, steps: CountedLoop, read: SliceRead) -> Tensor:
    """What a read reads, stacked along axis 0, and one slice of zeros.

    Along axis 0, for onnxruntime 1.31 ends the process where a Scan over another axis is empty.
    """
    shape = facts.shape(read.sequence)
    assert shape is not None, "the view holds only reads of known rank"
    others = [dim for place, dim in enumerate(shape) if place != read.axis]
    slices = emit.all_slices(facts, steps, read)
    kind = onnx.helper.tensor_dtype_to_np_dtype(facts.dtype(read.sequence))
    return emit("Concat", slices, _zeros(emit, slices, others, kind), axis=0)


def _zeros(emit: Builder, slices: Tensor, shape: Sequence[symbolic.Dim], kind: np.dtype) -> Tensor:
    """One slice of zeros, stacked."""
    if all(isinstance(size, int) for size in shape):
        return emit.constant(np.zeros([1, *map(int, shape)], kind))  # type: ignore[arg-type]
    target = emit.concat([emit.vector(1), emit.shape(slices, 1, len(shape) + 1)])
    return emit("ConstantOfShape", target, value=Constant("value", np.zeros(1, kind)))
