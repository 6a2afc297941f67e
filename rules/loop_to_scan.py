"""Loops that read one slice per iteration and surely run are Scans.

y, ys = Loop(n, , s0) { … Gather(x, i) …; return s, r }    ->    y, ys = Scan(s0, x) { … x_t …; return s, r }
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rewrite import symbolic
from ..rewrite.ir import Node, Tensor, Variable
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.steps import Read, Steps, steps_of
from ..rewrite.symbolic import Dim
from ..rewrite.views import LoopView
from .scan_axes import ready_to_scan


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
        "not known to end": """g (float[7,3] x, float[3] s0) => (float[3] y) {
      y = Loop (, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        xt = Gather(x, i) so = Max(s, xt) q = ReduceSum<keepdims=0>(so)
        co = IsNaN(q) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.facts.opset >= 11, "before opset 11 Scan has another form")
        steps = m.need(
            steps_of(m.facts, m.node), "it is not known to end after a number of iterations"
        )
        m.need(bool(steps.reads), "it reads no slices of outer values")
        count = steps.count
        m.need(count is not None, "the number of iterations is not known", at=steps.trip)
        assert count is not None
        m.need(symbolic.positive(count), "it may not run at all: {} iterations", count)
        whole = [m.facts.of(t).kind == "tensor" for s in steps.states for t in (s.initial, s.input)]
        m.need(all(whole), "a state is no tensor")
        for state in steps.states:
            shape = m.facts.shape(state.initial)
            kept = shape is not None and m.facts.shape(state.output) == shape
            m.need(kept, "the state `{}` changes its shape", state.input.name, at=state.output)
        whole_axes = [_length(m, read, count) for read in steps.reads]
        shapes = [m.facts.shape(read.sequence) or () for read in steps.reads]
        counted = bool(steps.iteration_uses(m.facts))
        return {
            "node": m.node, "steps": steps, "whole": whole_axes, "shapes": shapes,
            "counted": counted,
        }  # fmt: skip

    def apply(
        self,
        patch: Patch,
        node: Node,
        steps: Steps,
        whole: list[bool],
        shapes: list[tuple[Dim, ...]],
        counted: bool,
    ) -> None:
        assert steps.trip is not None
        assert steps.iteration is not None
        slices: list[Tensor] = []
        sequences: list[Tensor] = []
        axes: list[int] = []
        for read, fits, shape in zip(steps.reads, whole, shapes):
            parameter = Variable(read.slice.name)
            slices.append(parameter)
            x = read.sequence
            x = x if fits else _first(patch, x, read.axis, steps.trip)
            x, axis = ready_to_scan(patch, x, read.axis, shape)
            sequences.append(x)
            axes.append(axis)
            patch.replace(read.slice, parameter)
            if read.gather is not None:
                patch.remove(read.gather)
        if counted:
            zero, one = (patch.constant(np.array(v, np.int64), like=steps.trip) for v in (0, 1))
            sequences += patch.node("Range", [zero, steps.trip, one], [steps.iteration])
            slices.append(Variable(steps.iteration.name))
            patch.replace(steps.iteration, slices[-1])
            axes.append(0)
        condition = LoopView(node).condition_in
        if patch.index.use_count(condition):
            holds = patch.constant(np.array(True), like=condition, graph=steps.body)
            patch.replace(condition, holds)
        results = steps.body.outputs[1:]  # as they are now: a row may be what was read
        attrs = {"num_scan_inputs": len(slices), "scan_input_axes": axes if any(axes) else None}
        inputs = [*(state.initial for state in steps.states), *sequences]
        parameters = [*(state.input for state in steps.states), *slices]
        patch.turn_into(node, "Scan", attrs, inputs, parameters, results)
        patch.toward_normal_form()


def _length(m: Match, read: Read, count: Dim) -> bool:
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


def _first(patch: Patch, x: Tensor, axis: int, trip: Tensor) -> Tensor:
    """The elements of an axis that a loop reads."""
    one = patch.constant(np.array([1], np.int64), like=trip)
    end = patch.node("Reshape", [trip, one], [trip])[0]
    start, along = (patch.constant(np.array([v], np.int64), like=x) for v in (0, axis))
    return patch.node("Slice", [x, start, end, along], [x])[0]
