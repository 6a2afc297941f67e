"""Loops that are no loops: they never run, run once, or nobody needs them to be loops.

y, ys = Loop(1, , s) { r = f(s); return r, r }    ->   y = f(s)   ys = Unsqueeze(y, 0)
y     = Loop(0, , s) { … }                        ->   y = s
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from ...rewrite import symbolic
from ...rewrite.engine.miss import Miss
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Node, Tensor
from ...rewrite.graph.views import LoopView, ScanOutput, ScanView


class EliminateZeroTripLoop(Rule):
    """A loop that never runs is its initial states."""

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y, float[K,3] ys) <int64 m = {0}> {
      y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        co = Identity(ci) so = Add(s, s) r = Neg(s) }> }"""
    spares = {
        "may run": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "shape of the rows": """g (float[N] x) => (float[N] y, float[K,L] ys) <int64 m = {0}> {
      y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so, float[N] r) {
        co = Identity(ci) so = Add(s, s) r = Neg(s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        m.need(_never_runs(m, view), "the loop may run", at=view.trip)
        rows = []
        outputs = m.node.outputs[len(view.carried) :]
        for row, stacked in zip(view.scan_outputs, outputs):
            fact = m.facts.of(row)
            m.need(
                fact.dtype != 0
                and fact.shape is not None
                and all(isinstance(d, int) for d in fact.shape),
                "the shape of the rows `{}` of `{}` is not known",
                row.name,
                stacked.name,
                at=row,
            )
            dtype = onnx.helper.tensor_dtype_to_np_dtype(fact.dtype)
            rows.append(np.zeros([0, *map(int, fact.shape or ())], dtype))  # type: ignore[arg-type]
        return {"node": m.node, "initial": [s.initial for s in view.carried], "rows": rows}

    def apply(self, patch: Patch, node: Node, initial: list[Tensor], rows: list[Any]) -> None:
        stacked = [
            patch.constant(empty, like=output) if output.name else None
            for output, empty in zip(node.outputs[len(initial) :], rows)
        ]
        patch.replace_node(node, [*initial, *stacked])


def _never_runs(m: Match, view: LoopView) -> bool:
    if view.condition is not None and m.facts.scalar(view.condition) is False:
        return True
    most = view.trips(m.facts)
    return most is not None and symbolic.le(most, 0) is True


class InlineSingleTripLoop(Rule):
    """A Loop that runs exactly once is its body."""

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y, float[1,3] z) <int64 m = {1}> {
      y, z = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] sc) {
        co = Identity(ci) f = Cast<to=1>(i) so = Add(s, f) sc = Neg(s) }> }"""
    spares = {
        "not exactly once": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "may not run at all": """g (float[3] x, bool c) => (float[3] y) <int64 m = {1}> {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        starts = view.condition is None or m.facts.scalar(view.condition) is True
        unsure = "it may not run at all: its first condition {} is not known"
        m.need(starts, unsure, view.condition, at=view.condition)
        most = view.trips(m.facts)
        stops = m.facts.scalar(view.condition_out) is False
        if view.trip is not None:
            m.need(
                most is not None and (most == 1 or (stops and symbolic.positive(most))),
                "it runs {} times, not exactly once",
                "an unknown number of" if most is None else most,
                at=view.trip,
            )
        else:
            ends = view.condition_out
            m.need(stops, "it runs until {} is false, not exactly once", ends, at=ends)
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        view = LoopView(node)
        patch.replace(
            view.iteration,
            patch.constant(np.zeros(view.iteration_shape, np.int64), like=view.iteration),
        )
        patch.replace(
            view.condition_in,
            patch.constant(np.full(view.condition_shape, True), like=view.condition_in),
        )
        for state in view.carried:
            patch.replace(state.input, state.initial)
        results = patch.inline(view.body)[1:]
        count = len(view.carried)
        stacked = [
            patch.builder(output).unsqueeze(row, [0]) if output.name else None
            for output, row in zip(node.outputs[count:], results[count:])
        ]
        patch.replace_node(node, [*results[:count], *stacked])


class InlineSingleTripScan(Rule):
    """A Scan over sequences of length 1 is its body."""

    root = "Scan"
    fires = """g (float[1,3] xs, float[3] s0) => (float[3] y, float[1,3] ys) {
      y, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] yo) {
        so = Add(s, xt) yo = Identity(so) }> (s0, xs) }"""
    spares = {
        "length": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        so = Add(s, xt) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        m.need(m.facts.opset >= 9, "Scan before opset 9 has another form")
        view = m.scan()
        for scanned in view.scan_inputs:
            shape = m.facts.shape(scanned.sequence)
            axis = None if shape is None else scanned.axis % len(shape)
            if shape is not None and axis is not None and shape[axis] == 1:
                ranks = [m.facts.rank(s.sequence) for s in view.scan_inputs]
                rows = [m.facts.rank(o.slice) for o in view.scan_outputs]
                negative = any(s.axis < 0 for s in view.scan_inputs)
                m.need(not negative or None not in ranks, "the rank of a sequence is not known")
                behind = any(o.axis < 0 for o in view.scan_outputs)
                m.need(not behind or None not in rows, "the rank of a row is not known")
                return {"node": m.node, "ranks": ranks, "rows": rows}
        raise Miss("the length of the sequences is not known to be 1", at=m.node)

    def apply(
        self, patch: Patch, node: Node, ranks: list[int | None], rows: list[int | None]
    ) -> None:
        view = ScanView(node)
        for state in view.carried:
            patch.replace(state.input, state.initial)
        for scanned, rank in zip(view.scan_inputs, ranks):
            axis = scanned.axis % rank if rank is not None and scanned.axis < 0 else scanned.axis
            only = patch.builder(scanned.slice).squeeze(scanned.sequence, [axis])
            patch.replace(scanned.slice, only)
        results = patch.inline(view.body)
        stacked = [
            None if output.stacked is None else _as_only_row(patch, output, row, rank)
            for output, row, rank in zip(view.scan_outputs, results[len(view.carried) :], rows)
        ]
        patch.replace_node(node, [*results[: len(view.carried)], *stacked])


def _as_only_row(patch: Patch, output: ScanOutput, row: Tensor, rank: int | None) -> Tensor:
    """What a scan output of one iteration is: its row with the scanned axis."""
    axis = output.axis if rank is None or output.axis >= 0 else output.axis % (rank + 1)
    assert output.stacked is not None
    return patch.builder(output.stacked).unsqueeze(row, [axis])
