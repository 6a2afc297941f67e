"""The normal form of a loop's condition and trip count.

   Loop(m, true, …) { … cond_in … ; return Identity(cond_in) }
-> Loop(m, , …) { … true … ; return true }
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Constant, Node, Tensor
from ...rewrite.graph.views import NO_LIMIT, LoopView


class ConditionIsTrueInBody(Rule):
    """A loop body runs only while the condition is true: its condition input is that constant."""

    root = "Loop"
    fires = """g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    spares = {
        "does not read": """g (float[3] x, int64 m, bool c) => (float[3] y) <bool t = {1}> {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(c) so = Add(s, s) }> }"""
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        m.need(m.index.use_count(view.condition_in) > 0, "the body does not read its condition")
        return {"view": view}

    def apply(self, patch: Patch, view: LoopView) -> None:
        holds = np.full(view.condition_shape, True)
        constant = patch.constant(holds, like=view.condition_in, graph=view.body)
        patch.replace(view.condition_in, constant)
        patch.toward_normal_form()


class EliminateTrueCondition(Rule):
    """A first condition that is true need not be given."""

    root = "Loop"
    fires = """g (float[3] x, int64 m) => (float[3] y) <bool t = {1}> {
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

    def match(self, m: Match) -> dict[str, Any]:
        condition = m.loop().condition
        m.need(condition is not None, "there is no first condition")
        assert condition is not None
        m.need(
            m.facts.scalar(condition) is True,
            "the first condition `{}` is not known to be true",
            condition.name,
            at=condition,
        )
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.loop(node).drop_condition()
        patch.toward_normal_form()


class EliminateUnreachableTripCount(Rule):
    """A trip count that no run can reach need not be given: the condition ends the loop."""

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

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        m.need(view.trip is not None, "it has no trip count")
        assert view.trip is not None
        most = view.trips(m.facts)
        endless = isinstance(most, int) and most >= NO_LIMIT
        m.need(endless, "trip count {} can be reached", most, at=view.trip)
        ends = m.facts.scalar(view.condition_out) is not True
        m.need(ends and view.condition_out is not view.condition_in, "it never ends otherwise")
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.loop(node).drop_trip_count()
        patch.toward_normal_form()


class FoldLoopCondition(Rule):
    """A condition for the next iteration that is always the same is that constant."""

    root = "Loop"
    fires = """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Shape(s) n = Size(k) one = Constant<value_int=1>() co = Equal(n, one) so = Add(s, s) }> }"""
    spares = {
        "is not known": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        four = Constant<value_int=4>() co = Less(i, four) so = Add(s, s) }> }""",
        "already": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so)
        <bool co = {1}> { so = Add(s, s) }> }""",
    }

    def match(self, m: Match) -> dict[str, Any]:
        view = m.loop()
        out = view.condition_out
        own = isinstance(out, Constant) and m.index.home(out) is view.body
        m.need(not own, "it is a constant of the body already")
        value = m.facts.scalar(out)
        m.need(isinstance(value, bool), "the condition `{}` is not known", out.name, at=out)
        return {"node": m.node, "out": out, "value": value}

    def apply(self, patch: Patch, node: Node, out: Tensor, value: bool) -> None:
        patch.loop(node).set_next_condition(value)
        patch.toward_normal_form()
