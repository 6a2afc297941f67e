"""The normal form of a loop's condition and trip count.

   Loop(m, true, …) { … cond_in … ; return Identity(cond_in) }
-> Loop(m, , …) { … true … ; return true }
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rewrite.ir import Constant, Node, Tensor, Variable
from ..rewrite.patch import Patch
from ..rewrite.rule import Match, Rule
from ..rewrite.views import LoopView

_HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


class ConditionHoldsInside(Rule):
    """A loop body runs only while the condition is true: its condition input is that constant."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    )
    spares = {
        "does not read": _HEADER
        + """g (float[3] x, int64 m, bool c) => (float[3] y) <bool t = {1}> {
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


class DropTrueCondition(Rule):
    """A first condition that is true need not be given."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) <bool t = {1}> {
      y = Loop (m, t, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }"""
    )
    spares = {
        "is not known": _HEADER
        + """g (float[3] x, int64 m, bool t) => (float[3] y) {
      y = Loop (m, t, x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Add(s, s) }> }""",
        "no first condition": _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) {
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
        patch.replace_in(node, 1, Variable(""))
        patch.toward_normal_form()


class ConstantConditionOut(Rule):
    """A condition for the next iteration that is always the same is that constant."""

    root = "Loop"
    fires = (
        _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        k = Shape(s) n = Size(k) one = Constant<value_int=1>() co = Equal(n, one) so = Add(s, s) }> }"""
    )
    spares = {
        "is not known": _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        four = Constant<value_int=4>() co = Less(i, four) so = Add(s, s) }> }""",
        "already": _HEADER
        + """g (float[3] x, int64 m) => (float[3] y) {
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
        body = node.attrs["body"]
        constant = patch.constant(np.array(value), like=out, graph=body)
        patch.set_interface(
            node, node.inputs, body.inputs, [constant, *body.outputs[1:]], node.outputs
        )
        patch.toward_normal_form()
