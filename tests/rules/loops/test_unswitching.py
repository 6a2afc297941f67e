"""Ifs with loop-invariant conditions move before the loop."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rules.loops.unswitching import UnswitchLoop

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"n": [0, 1, 2, 7]})
BRANCHES = """<then_branch = t () => (float[3] p) <float k = {3}> { e = Exp(s) h = Mul(e, k) p = Tanh(h) },
    else_branch = e () => (float[3] q) { dd = Sin(s) q = Neg(dd) }>"""


def _text(work: str, condition: str = "c") -> str:
    return f"""g (float[3] x, float[T,3] xs, bool c, bool d, bool[1] e1, int64 n) => (float[3] y, float[R,3] ys) <float w = {{2}}> {{
        not = Not(c)
        y, ys = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r)
            <float half = {{0.5}}, int64 three = {{3}}> {{
            co = Identity(ci) u = If ({condition}) {BRANCHES} {work} }}> }}"""


def _ifs_in_loops(model: onnx.ModelProto) -> int:
    def count(graph: onnx.GraphProto, inside: bool) -> int:
        found = 0
        for node in graph.node:
            found += inside and node.op_type == "If"
            for a in node.attribute:
                if a.type == onnx.AttributeProto.GRAPH:
                    found += count(a.g, inside or node.op_type in ("Loop", "Scan"))
        return found

    return count(model.graph, False)


@pytest.mark.parametrize("condition", ["c", "not"])
def test_an_invariant_condition_moves_before_the_loop(condition: str) -> None:
    model = parse(_text("a = Mul(u, x) so = Mul(a, half) r = Tanh(u)", condition))
    result = rewritten(model, FEEDS, 1e-5)
    assert _ifs_in_loops(result.model) == 0
    assert Counter(ops(result.model))["Loop"] == 2


def test_all_ifs_on_one_condition_move_together() -> None:
    more = BRANCHES.replace("p", "pp").replace("q)", "qq)").replace("q =", "qq =")
    more = more.replace("e ()", "f ()").replace("s)", "u)").replace("ex", "e")
    work = f"v = If (c) {more} so = Mul(v, u) r = Add(u, v)".replace("Expp", "Exp")
    model = parse(_text(work))
    result, trace, _ = run_rules(model, [UnswitchLoop])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    assert _ifs_in_loops(result) == 0
    rewritten(model, FEEDS, 1e-5)


def test_two_conditions_make_four_loops() -> None:
    work = """v = If (d) <then_branch = t2 () => (float[3] a) { a1 = Cos(u) a2 = Sin(a1) a = Exp(a2) },
        else_branch = e2 () => (float[3] o) { o1 = Abs(u) o2 = Sqrt(o1) o = Tan(o2) }>
        so = Tanh(v) r = Sub(u, v)"""
    result = rewritten(parse(_text(work)), FEEDS, 1e-4)
    assert _ifs_in_loops(result.model) == 0
    assert Counter(ops(result.model))["Loop"] == 4


def test_a_condition_that_changes_stays() -> None:
    text = _text("so = Mul(u, x) r = Tanh(u)", "k").replace("co = Id", "k = Less(i, three) co = Id")
    assert "computed in the loop" in reason_of(UnswitchLoop, parse(text))
    rewritten(parse(text), FEEDS, 1e-5)


def test_a_condition_of_one_element_stays() -> None:
    text = _text("so = Mul(u, x) r = Tanh(u)", "e1")
    assert "is not a scalar" in reason_of(UnswitchLoop, parse(text))


def test_branches_may_return_sequences() -> None:
    text = """g (float[3] x, bool c, int64 n) => (float[R,3] ys) {
        e = SequenceEmpty<dtype=1>()
        y, l = Loop (n, , x, e) <body = b (int64 i, bool ci, float[3] s, seq(float[3]) q)
            => (bool co, float[3] so, seq(float[3]) qo) {
            co = Identity(ci) so = Sin(s)
            qo = If (c) <then_branch = t () => (seq(float[3]) p) { a = Exp(s) p = SequenceInsert(q, a) },
                         else_branch = f () => (seq(float[3]) o) { o = SequenceInsert(q, s) }> }>
        ys = ConcatFromSequence<axis=0, new_axis=1>(l) }"""
    model = parse(text)
    result, trace, _ = run_rules(model, [UnswitchLoop])
    assert trace.defects() == []
    assert _ifs_in_loops(result) == 0
    full = rewritten(model, Feeds(values={"n": [1, 2, 7]}), 1e-5).model
    assert _ifs_in_loops(full) == 0


def test_a_scan_is_unswitched() -> None:
    text = """g (float[T,3] xs, float[3] s0, bool c) => (float[3] y, float[T,3] ys) {
        y, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so, float[3] r) {
            u = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Mul(e, x) },
                        else_branch = e () => (float[3] q) { dd = Sin(x) q = Add(dd, s) }>
            so = Tanh(u) r = Neg(u) }> (s0, xs) }"""
    result = rewritten(parse(text), Feeds(sizes=(1, 2, 7)), 1e-5)
    assert _ifs_in_loops(result.model) == 0


def test_teacher_forcing_by_a_flag() -> None:
    """The network reads the target or its own output."""
    text = """g (float[T,B,4] xs, float[B,4] h0, float[B,4] y0, bool force) => (float[R,B,4] ys)
        <float[4,4] w = {0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.1,0.2,0.3,0.4,0.5,0.6,0.7}, int64 zero = {0}> {
        all = Shape(xs) n = Gather(all, zero)
        h, y, ys = Loop (n, , h0, y0) <body = b (int64 i, bool ci, float[B,4] h, float[B,4] y)
            => (bool co, float[B,4] ho, float[B,4] yo, float[B,4] r) {
            co = Identity(ci)
            x = If (force) <then_branch = t () => (float[B,4] p) { p = Gather(xs, i) },
                            else_branch = e () => (float[B,4] q) { q = Identity(y) }>
            a = MatMul(x, w) b2 = MatMul(h, w) c = Add(a, b2) ho = Tanh(c) yo = MatMul(ho, w) r = Identity(yo) }> }"""
    feeds = Feeds(sizes=(1, 2, 5))
    result = rewritten(parse(text), feeds, 1e-4)
    assert _ifs_in_loops(result.model) == 0


def test_large_constants_are_not_duplicated() -> None:
    weights = np.eye(200, dtype=np.float32)
    text = """g (float[200,200] x, bool c, int64 n) => (float[200,200] y) {
        y = Loop (n, , x) <body = b (int64 i, bool ci, float[200,200] s) => (bool co, float[200,200] so) {
            co = Identity(ci) m = MatMul(s, big)
            so = If (c) <then_branch = t () => (float[200,200] p) { e = Exp(m) p = Tanh(e) },
                         else_branch = e () => (float[200,200] q) { dd = Sin(m) q = Neg(dd) }> }> }"""
    model = parse(text.replace("big", "x"))
    body = next(a.g for a in model.graph.node[0].attribute if a.name == "body")
    body.initializer.append(onnx.numpy_helper.from_array(weights, "big"))
    next(n for n in body.node if n.op_type == "MatMul").input[1] = "big"
    result, trace, _ = run_rules(model, [UnswitchLoop])
    assert trace.defects() == []
    assert len(result.SerializeToString()) < 2 * weights.nbytes


def test_a_removed_node_of_a_branch_is_not_copied() -> None:
    """The copies of a body contain only nodes that are still in it."""
    text = """g (float[3] x, bool c, int64 n) => (float[3] y) {
        y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) m = ReduceMax<keepdims=0>(s) z = Constant<value_float=1.0>()
            d = Less(m, z)
            u = If (c) <then_branch = t () => (float[3] p) { e = Exp(s) p = Neg(e) },
                        else_branch = e () => (float[3] q) { q = Sin(s) }>
            v = If (d) <then_branch = t2 () => (float[3] p2) { dead = Abs(s) f = Cos(s) p2 = Neg(f) },
                        else_branch = e2 () => (float[3] q2) { q2 = Tan(s) }>
            so = Mul(u, v) }> }"""
    result = rewritten(parse(text, 21, 10), FEEDS, 1e-5)
    assert result.report.commits["UnswitchLoop"] == 1
    places = [c for c in result.trace.commits() if "`dead`" in c.node]
    assert len(places) == 1


def test_a_later_if_on_the_condition_merges_in_the_same_run() -> None:
    model = parse("""g (float[3] x, float[2,3] z, bool c, int64 n) => (float[3] y, float[K,3] v) {
        y = Loop (n, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci)
            u = If (c) <then_branch = t () => (float[3] p) { p = Neg(s) },
                        else_branch = e () => (float[3] q) { a = Sin(s) w = Cos(a) q = Tanh(w) }>
            so = Mul(u, s) }>
        v = If (c) <then_branch = t2 () => (float[2,3] p2) { p2 = Exp(z) },
                    else_branch = e2 () => (float[1,3] q2) <int64[1] zero = {0}> { q2 = Unsqueeze(x, zero) }> }""")
    result = rewritten(model, FEEDS, 1e-5)
    assert ops(result.model)["If"] == 1
    assert not rewrite(result.model).report.commits
