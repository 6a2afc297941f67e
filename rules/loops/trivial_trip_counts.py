"""Loops that have no iteration, or exactly one.

y     = Loop(0, , s) { … }                        ->   y = s
y, ys = Loop(1, , s) { r = f(s); return r, r }    ->   y = f(s)   ys = Unsqueeze(y, 0)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from ...rewrite import symbolic
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.views import LoopView, ScanView


@dataclass(frozen=True)
class EmptyResults:
    """The results of a loop without iterations."""

    initial: list[Tensor]
    stacked: list[np.ndarray]
    """The empty scan outputs."""


class EliminateZeroTripLoop(Rule[EmptyResults]):
    """Replaces a loop that never runs by its initial values."""

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y, float[K,3] ys) <int64 m = {0}> {
      y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
        co = Identity(ci) so = Add(s, s) r = Neg(s) }> }"""
    spares = {
        "may run": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "type and shape of `r` are not known": """g (float[N] x) => (float[N] y, float[K,L] ys) <int64 m = {0}> {
      y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so, float[N] r) {
        co = Identity(ci) so = Add(s, s) r = Neg(s) }> }""",
    }

    def match(self, m: Match) -> EmptyResults:
        view = m.loop()
        m.need(_never_runs(m.facts, view), "the loop may run", at=view.trip)
        initial = [carried.initial for carried in view.carried]
        outputs = m.node.outputs[len(initial) :]
        stacked = [_need_empty(m, inner) for inner, _ in zip(view.scan_outputs, outputs)]
        return EmptyResults(initial, stacked)

    def apply(self, patch: Patch, found: EmptyResults) -> None:
        outputs = patch.root.outputs[len(found.initial) :]
        stacked = [
            patch.constant(empty, like=output) if output.name else None
            for output, empty in zip(outputs, found.stacked)
        ]
        patch.replace_node(patch.root, [*found.initial, *stacked])


def _never_runs(facts: Facts, view: LoopView) -> bool:
    if view.condition is not None and facts.scalar(view.condition) is False:
        return True
    most = view.trips(facts)
    return most is not None and symbolic.le(most, 0) is True


def _need_empty(m: Match, inner: Tensor) -> np.ndarray:
    """An empty scan output. Raises Miss if the type or shape of a slice is not known."""
    fact = m.facts.of(inner)
    sizes = [dim for dim in fact.shape or () if isinstance(dim, int)]
    known = fact.dtype != 0 and fact.shape is not None and len(sizes) == len(fact.shape)
    m.need(known, "the type and shape of {} are not known", inner, at=inner)
    return np.zeros([0, *sizes], onnx.helper.tensor_dtype_to_np_dtype(fact.dtype))


class InlineSingleTripLoop(Rule[LoopView]):
    """Replaces a Loop that runs exactly once by its body."""

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

    def match(self, m: Match) -> LoopView:
        view = m.loop()
        starts = view.condition is None or m.facts.scalar(view.condition) is True
        unsure = "it may not run at all: its first condition {} is not known"
        m.need(starts, unsure, view.condition, at=view.condition)
        stops = m.facts.scalar(view.condition_out) is False
        if view.trip is None:
            ends = view.condition_out
            m.need(stops, "it runs until {} is false, not exactly once", ends, at=ends)
            return view
        most = view.trips(m.facts)
        m.need(
            most is not None and (most == 1 or (stops and symbolic.positive(most))),
            "it runs {} times, not exactly once",
            "an unknown number of" if most is None else most,
            at=view.trip,
        )
        return view

    def apply(self, patch: Patch, found: LoopView) -> None:
        iteration, condition = found.iteration, found.condition_in
        zero = np.zeros(found.iteration_shape, np.int64)
        true = np.full(found.condition_shape, True)
        patch.replace(iteration, patch.constant(zero, like=iteration))
        patch.replace(condition, patch.constant(true, like=condition))
        for carried in found.carried:
            patch.replace(carried.input, carried.initial)
        count = len(found.carried)
        results = patch.inline(found.body)[1:]
        stacked = [
            patch.builder(output).unsqueeze(value, [0]) if output.name else None
            for output, value in zip(patch.root.outputs[count:], results[count:])
        ]
        patch.replace_node(patch.root, [*results[:count], *stacked])


@dataclass(frozen=True)
class SingleTripScan:
    """A Scan with one iteration; its axes are not negative."""

    input_axes: list[int]
    output_axes: list[int]


class InlineSingleTripScan(Rule[SingleTripScan]):
    """Replaces a Scan over sequences of length 1 by its body."""

    root = "Scan"
    fires = """g (float[1,3] xs, float[3] s0) => (float[3] y, float[1,3] ys) {
      y, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so, float[3] yo) {
        so = Add(s, xt) yo = Identity(so) }> (s0, xs) }"""
    spares = {
        "length": """g (float[T,3] xs, float[3] s0) => (float[3] y) {
      y = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] xt) => (float[3] so) {
        so = Add(s, xt) }> (s0, xs) }""",
    }

    def match(self, m: Match) -> SingleTripScan:
        view = m.scan()
        inputs = [(s.axis, m.facts.shape(s.sequence)) for s in view.scan_inputs]
        single = any(shape is not None and shape[axis] == 1 for axis, shape in inputs)
        m.need(single, "the length of the sequences is not known to be 1")
        input_axes = [
            _need_axis(m, s.axis, m.facts.rank(s.sequence), s.sequence) for s in view.scan_inputs
        ]
        output_axes = []
        for output in view.scan_outputs:
            rank = m.facts.rank(output.slice)
            stacked_rank = None if rank is None else rank + 1
            output_axes.append(_need_axis(m, output.axis, stacked_rank, output.slice))
        return SingleTripScan(input_axes, output_axes)

    def apply(self, patch: Patch, found: SingleTripScan) -> None:
        view = ScanView(patch.root)
        for carried in view.carried:
            patch.replace(carried.input, carried.initial)
        for scan_input, axis in zip(view.scan_inputs, found.input_axes):
            inner = scan_input.slice
            patch.replace(inner, patch.builder(inner).squeeze(scan_input.sequence, [axis]))
        results = patch.inline(view.body)
        count = len(view.carried)
        stacked = [
            None
            if output.stacked is None
            else patch.builder(output.stacked).unsqueeze(value, [axis])
            for output, value, axis in zip(view.scan_outputs, results[count:], found.output_axes)
        ]
        patch.replace_node(patch.root, [*results[:count], *stacked])


def _need_axis(m: Match, axis: int, rank: int | None, tensor: Tensor) -> int:
    """An axis counted from the front. Raises Miss if that takes a rank that is not known."""
    if axis >= 0:
        return axis
    return axis % m.need(rank, "the rank of {} is not known", tensor, at=tensor)
