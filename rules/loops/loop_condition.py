"""The canonical form of the condition and the trip count of a loop.

   Loop(m, Not(false), …) { … cond_in … ; return Identity(cond_in) }
-> Loop(m, , …) { … true … ; return true }

   Loop(m, c, …) { … ; return Identity(cond_in) }
-> Loop(Where(c, m, 0), , …) { … ; return true }
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.graph.views import NO_LIMIT, LoopView


class ConditionIsTrueInBody(Rule[LoopView]):
    """Replaces the condition input of a loop body by true, the only value that it has."""

    root = "Loop"
    fires = """g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    spares = {
        "does not read": """g (float[3] x, int64 m, bool c) => (float[3] y) <bool t = {1}> {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(c) so = Add(s, s) }> }"""
    }

    def match(self, m: Match) -> LoopView:
        view = m.loop()
        m.need(m.index.use_count(view.condition_in) > 0, "the body does not read its condition")
        return view

    def apply(self, patch: Patch, found: LoopView) -> None:
        condition = found.condition_in
        values = np.full(found.condition_shape, True)
        patch.replace(condition, patch.constant(values, like=condition, graph=found.body))
        patch.toward_normal_form()


class EliminateTrueCondition(Rule[Node]):
    """Removes the condition of the first iteration if it is true."""

    root = "Loop"
    fires = """g (float[3] x, int64 m) => (float[3] y) <bool f = {0}> {
      t = Not(f)
      y = Loop (m, t, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    spares = {
        "is not known": """g (float[3] x, int64 m, bool t) => (float[3] y) {
      y = Loop (m, t, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "no first condition": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> Node:
        view = m.loop()
        condition = m.need(view.condition, "there is no first condition")
        m.need(
            m.facts.scalar(condition) is True,
            "the first condition {} is not known to be true",
            condition,
            at=condition,
        )
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.loop(found).drop_condition()
        patch.toward_normal_form()


class EliminateUnreachableTripCount(Rule[Node]):
    """Removes a trip count that is too large to reach if a condition ends the loop."""

    root = "Loop"
    fires = """g (float[3] x) => (float[3] y) <int64 m = {9223372036854775807}, float[1] most = {9}> {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        one = Constant<value_floats=[1.0]>() q = ReduceMax<keepdims=0>(s) a = Add(s, one)
        so = Max(s, a) c = Less(q, most) ax = Constant<value_ints=[0]>() co = Squeeze(c, ax) }> }"""
    spares = {
        "can be reached": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        q = ReduceMax<keepdims=0>(s) n = IsNaN(q) co = Not(n) so = Add(s, s) }> }""",
        "has no trip count": """g (float[3] x) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so)
        <bool co = {0}> { so = Add(s, s) }> }""",
        "never ends": """g (float[3] x) => (float[3] y) <int64 m = {9223372036854775807}, bool c = {0}> {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so)
        <bool co = {1}> { so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> Node:
        view = m.loop()
        trip = m.need(view.trip, "it has no trip count")
        most = view.trips(m.facts)
        unreachable = isinstance(most, int) and most >= NO_LIMIT
        m.need(unreachable, "trip count {} can be reached", trip if most is None else most, at=trip)
        ends = m.facts.scalar(view.condition_out) is not True
        ends = ends and view.condition_out is not view.condition_in
        m.need(ends, "without its trip count it never ends")
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.loop(found).drop_trip_count()
        patch.toward_normal_form()


class ConditionToTripCount(Rule[Tensor]):
    """Makes a condition that no iteration changes part of the trip count."""

    root = "Loop"
    fires = """g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    spares = {
        "its conditions are true": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "is computed in each iteration": """g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        q = ReduceMax<keepdims=0>(s) n = IsNaN(q) co = Not(n) so = Add(s, s) }> }""",
        "has no trip count": """g (float[3] x) => (float[3] y) <bool c = {0}> {
      y = Loop (, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        so = Add(s, s) co = Identity(ci) }> }""",
    }

    def match(self, m: Match) -> Tensor:
        view = m.loop()
        out = m.index.original(view.condition_out)
        always = view.condition is None and view.never_stops_early(m.facts)
        m.need(not always, "its conditions are true")
        known = isinstance(m.facts.scalar(out), bool) or out is view.condition_in
        fixed = known or m.index.is_outside(out, view.body)
        m.need(fixed, "the condition {} is computed in each iteration", out, at=out)
        return m.need(view.trip, "it has no trip count")

    def apply(self, patch: Patch, found: Tensor) -> None:
        view, count = LoopView(patch.root), found
        first, later = view.condition, patch.index.original(view.condition_out)
        goes_on = True if later is view.condition_in else patch.facts.scalar(later)
        emit = patch.builder(count)
        # The condition after the first iteration says whether there are more.
        if goes_on is False:
            count = emit.min(count, emit.scalar(1))
        elif goes_on is None and later is not first:
            count = emit("Where", later, count, emit.min(count, emit.scalar(1)))
        if first is not None:
            count = emit("Where", first, count, emit.scalar(0))
        patch.loop(patch.root).count(count)
        patch.toward_normal_form()


@dataclass(frozen=True)
class NextCondition:
    """The condition for the next iteration, which is the same in every iteration."""

    value: bool


class FoldLoopCondition(Rule[NextCondition]):
    """Replaces a condition for the next iteration that is always the same by a constant."""

    root = "Loop"
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Shape(s) n = Size(k) one = Constant<value_int=1>() co = Equal(n, one) so = Add(s, s) }> }"""
    spares = {
        "is not known": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        four = Constant<value_int=4>() co = Less(i, four) so = Add(s, s) }> }""",
        "is already a constant": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so)
        <bool co = {1}> { so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> NextCondition:
        view = m.loop()
        out = view.condition_out
        own = isinstance(out, Constant) and m.index.home(out) is view.body
        m.need(not own, "it is already a constant of the body")
        value = m.facts.scalar(out)
        m.need(isinstance(value, bool), "the condition {} is not known", out, at=out)
        return NextCondition(bool(value))

    def apply(self, patch: Patch, found: NextCondition) -> None:
        patch.loop(patch.root).set_next_condition(found.value)
        patch.toward_normal_form()
