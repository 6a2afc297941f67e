"""Ifs whose branch is known become the branch."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from looplift import rewrite
from looplift.rules.branches.decided_if import InlineDecidedIf, InlineOnlyPossibleBranch

from ...equivalence import assert_equivalent, ops, rewritten, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

NO_IF = {
    "captures_branch_local_values": """g (float[3] x, float[3] z) => (float[3] y) <bool c = {1}, bool d = {0}> {
        y = If (c) <then_branch = t () => (float[3] a) { q = Add(x, z) r = Mul(q, q)
                a = If (d) <then_branch = ti () => (float[3] u) { u = Mul(q, x) },
                            else_branch = ei () => (float[3] v) { w = Sub(q, r) v = Neg(w) }> },
            else_branch = e () => (float[3] b) { b = Neg(x) }> }""",
    "branch_gives_its_initializer": """g (float[3] x) => (float[3] y, float[3] k) <bool c = {1}> {
        k = If (c) <then_branch = t () => (float[3] a) <float[3] a = {1,2,3}> { },
                    else_branch = e () => (float[3] b) { b = Neg(x) }>
        y = Add(k, x) }""",
    "branch_gives_outer_initializer": """g (float[3] x) => (float[3] y) <bool c = {1}, float[3] w = {1,2,3}> {
        k = If (c) <then_branch = t () => (float[3] a) { a = Identity(w) },
                    else_branch = e () => (float[3] b) { b = Neg(x) }>
        y = Add(k, x) }""",
    "branch_gives_outer_value": """g (float[3] x) => (float[3] y) <bool c = {0}> {
        u = Exp(x)
        k = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                    else_branch = e () => (float[3] b) { b = Identity(u) }>
        y = Add(k, u) }""",
    "branch_gives_an_input": """g (float[3] x) => (float[3] y) <bool c = {0}> {
        y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                    else_branch = e () => (float[3] b) { b = Identity(x) }> }""",
    "branch_gives_a_constant_node": """g (float[3] x) => (float[3] y, float[2] k) <bool c = {1}> {
        k = If (c) <then_branch = t () => (float[2] a) { a = Constant<value_floats = [1.0, 2.0]>() },
                    else_branch = e () => (float[2] b) { b = Constant<value_floats = [3.0, 4.0]>() }>
        y = Neg(x) }""",
    "branch_gives_one_value_twice": """g (float[3] x) => (float[3] y, float[3] z) <bool c = {1}> {
        y, z = If (c) <then_branch = t () => (float[3] a, float[3] d) { a = Neg(x) d = Identity(a) },
                       else_branch = e () => (float[3] b, float[3] f) { b = Exp(x) f = Abs(x) }> }""",
    "two_outputs_of_one_value": """g (float[3] x) => (float[3] y, float[3] z) <bool c = {1}> {
        u = Exp(x)
        y = If (c) <then_branch = t () => (float[3] a) { a = Identity(u) },
                    else_branch = e () => (float[3] b) { b = Neg(x) }>
        z = If (c) <then_branch = t2 () => (float[3] a) { a = Identity(u) },
                    else_branch = e2 () => (float[3] b) { b = Abs(x) }> }""",
    "ranks_differ": """g (float[1,3] x) => (float[3] y) <bool c = {1}, int64[1] zero = {0}> {
        y = If (c) <then_branch = t () => (float[3] a) { a = Squeeze(x, zero) },
                    else_branch = e () => (float[1,3] b) { b = Identity(x) }> }""",
    "names_repeat": """g (float[3] x, float[3] q) => (float[3] y, float[3] z) <bool c = {1}> {
        r = Add(x, q)
        y = If (c) <then_branch = t () => (float[3] a) { u = Add(x, r) v = Mul(u, q) a = Neg(v) },
                    else_branch = e () => (float[3] a) { u = Neg(x) a = Abs(u) }>
        z = If (c) <then_branch = t () => (float[3] a) { u = Mul(x, y) v = Sub(u, q) a = Exp(v) },
                    else_branch = e () => (float[3] a) { u = Exp(x) a = Neg(u) }> }""",
    "initializer_names_repeat": """g (float[3] x) => (float[3] y, float[3] z) <bool c = {1}> {
        y = If (c) <then_branch = t () => (float[3] a) <float[3] w = {1,2,3}> { a = Add(x, w) },
                    else_branch = e () => (float[3] a) <float[3] w = {4,5,6}> { a = Sub(x, w) }>
        z = If (c) <then_branch = t () => (float[3] a) <float[3] w = {7,8,9}> { a = Mul(x, w) },
                    else_branch = e () => (float[3] a) <float[3] w = {0,1,0}> { a = Sub(x, w) }> }""",
    "in_a_loop": """g (float[3] x, int64 m) => (float[3] y, float[K,3] ys) <bool c = {1}> {
        y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so, float[3] r) {
            co = Identity(ci)
            so = If (c) <then_branch = tb () => (float[3] a) { u = Add(s, x) a = Neg(u) },
                         else_branch = eb () => (float[3] bb) { bb = Sub(s, x) }>
            r = Exp(so) }> }""",
    "in_a_scan": """g (float[4,3] xs, float[3] x) => (float[3] y, float[4,3] ys) <bool c = {0}> {
        y, ys = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] t) => (float[3] so, float[3] r) {
            so = If (c) <then_branch = tb () => (float[3] a) { a = Add(s, x) },
                         else_branch = eb () => (float[3] bb) { u = Sub(s, t) bb = Abs(u) }>
            r = Neg(so) }> (x, xs) }""",
    "on_a_shape_in_a_loop": """g (float[3] x, int64 m) => (float[3] y) <int64[1] three = {3}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci) n = Shape(s) e = Equal(n, three) c = Squeeze(e)
            so = If (c) <then_branch = tb () => (float[3] a) { a = Add(s, x) },
                         else_branch = eb () => (float[6] bb) { bb = Concat<axis=0>(s, s) }> }> }""",
    "a_loop_in_the_branch": """g (float[3] x, int64 m) => (float[3] y) <bool c = {1}> {
        y = If (c) <then_branch = t () => (float[3] a) { u = Neg(x)
                a = Loop (m, , u) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                    co = Identity(ci) so = Add(s, u) }> },
            else_branch = e () => (float[3] bb) { bb = Exp(x) }> }""",
    "one_element_condition": """g (float[N] x) => (float[N] y) <bool[1] c = {1}> {
        y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                    else_branch = e () => (float[N] b) { b = Exp(x) }> }""",
    "condition_from_dims": """g (float[N,3] x) => (float[K] y) <int64 one = {1}, int64 three = {3}, int64[1] all = {-1}> {
        s = Shape(x) d = Gather(s, one) c = Equal(d, three)
        y = If (c) <then_branch = t () => (float[K] a) { a = Reshape(x, all) },
                    else_branch = e () => (float[K] b) { b = ReduceSum<keepdims=0>(x, all) }> }""",
    "condition_that_no_size_makes_true": """g (float[N] x) => (float[N] y) <int64 zero = {0}> {
        s = Size(x) c = Less(s, zero)
        y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                    else_branch = e () => (float[N] b) { b = Exp(x) }> }""",
    "condition_by_another_if": """g (float[3] x, bool d) => (float[3] y) <bool f = {0}, bool t = {1}> {
        p = If (d) <then_branch = p () => (bool a) { a = Identity(t) },
                    else_branch = q () => (bool b) { b = Not(f) }>
        y = If (p) <then_branch = t () => (float[3] a) { a = Neg(x) },
                    else_branch = e () => (float[3] b) { b = Exp(x) }> }""",
    "sequence_result": """g (float[N] x) => (float[N] y) <bool c = {1}, int64 zero = {0}> {
        s = If (c) <then_branch = t () => (seq(float[N]) a) { a = SequenceConstruct(x) },
                    else_branch = e () => (seq(float[N]) b) { b = SequenceConstruct(x, x) }>
        u = SequenceAt(s, zero) y = Neg(u) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_IF)
def test_no_if_is_left(name: str) -> None:
    result = rewritten(parse(NO_IF[name], 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
    assert "If" not in ops(result.model)


@pytest.mark.parametrize(("limit", "op"), [(-1, "Exp"), (3, "Neg")])
def test_the_rule_alone(limit: int, op: str) -> None:
    model = parse(f"""g (float[N] x) => (float[N] y) <int64 limit = {{{limit}}}> {{
        s = Shape(x) d = Size(s) c = Less(d, limit)
        y = If (c) <then_branch = t () => (float[N] a) {{ a = Neg(x) }},
                    else_branch = e () => (float[N] b) {{ b = Exp(x) }}> }}""")
    result, trace, _ = run_rules(model, [InlineDecidedIf])
    assert [commit.rule for commit in trace.commits()] == ["InlineDecidedIf"]
    assert op in ops(result)
    assert_equivalent(model, result, Feeds(sizes=(0, 1, 2, 7)), 1e-6)


def test_an_unknown_condition_is_named() -> None:
    model = parse(ONE_IF["condition_is_an_input"], 21, 10)
    assert "`c` is not known before the run" in reason_of(InlineDecidedIf, model)


ONE_IF = {
    "condition_is_an_input": """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                    else_branch = e () => (float[3] b) { b = Exp(x) }> }""",
    "inner_condition_is_an_input": """g (float[3] x, bool d) => (float[3] y) <bool c = {1}> {
        y = If (c) <then_branch = t () => (float[3] a) { q = Add(x, x)
                a = If (d) <then_branch = ti () => (float[3] u) { u = Exp(q) },
                            else_branch = ei () => (float[3] v) { w = Log(q) v = Sub(w, x) }> },
            else_branch = e () => (float[3] b) { b = Neg(x) }> }""",
    "size_is_open": """g (float[N] x) => (float[N] y) <int64 two = {2}> {
        s = Size(x) c = Less(s, two)
        y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                    else_branch = e () => (float[N] b) { b = Exp(x) }> }""",
    "condition_changes_in_the_loop": """g (float[3] x, int64 m) => (float[3] y) <int64 two = {2}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) c = Less(i, two)
            so = If (c) <then_branch = tb () => (float[3] a) { a = Add(s, x) },
                         else_branch = eb () => (float[3] bb) { bb = Sub(s, x) }> }> }""",
    "condition_is_a_state": """g (float[3] x, int64 m) => (float[3] y, bool f) <bool t = {1}> {
        y, f = Loop (m, , x, t) <body = b (int64 i, bool ci, float[3] s, bool d) => (bool co, float[3] so, bool e) {
            co = Identity(ci) e = Not(d)
            so = If (d) <then_branch = tb () => (float[3] a) { a = Add(s, x) },
                         else_branch = eb () => (float[3] bb) { bb = Sub(s, x) }> }> }""",
    "condition_is_a_scanned_value": """g (float[4,3] xs, bool[4] cs) => (float[4,3] ys) {
        ys = Scan <num_scan_inputs = 2, body = b (float[3] t, bool c) => (float[3] r) {
            r = If (c) <then_branch = tb () => (float[3] a) { a = Exp(t) },
                        else_branch = eb () => (float[3] bb) { bb = Neg(t) }> }> (xs, cs) }""",
    "size_of_a_growing_state": """g (float[3] x, int64 m) => (float[K] y) <int64 three = {3}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci) n = Size(s) c = Equal(n, three)
            r = If (c) <then_branch = tb () => (float[?] a) { a = Exp(s) },
                        else_branch = eb () => (float[?] bb) { bb = Neg(s) }>
            so = Concat<axis=0>(r, x) }> }""",
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_IF)
def test_an_if_whose_branch_is_not_known_stays(name: str) -> None:
    result = rewritten(parse(ONE_IF[name], 21, 10), Feeds(values={"m": [0, 1, 2]}), 1e-6)
    assert ops(result.model)["If"] == 1


def test_outputs_keep_name_and_declaration() -> None:
    model = parse(NO_IF["branch_gives_an_input"], 21, 10)
    model.graph.output[0].doc_string = "the result"
    (output,) = rewritten(model).model.graph.output
    assert output == model.graph.output[0]


def test_a_default_that_a_caller_may_replace_is_no_constant() -> None:
    model = parse(ONE_IF["condition_is_an_input"], 21, 10)
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    after = rewritten(model, Feeds()).model
    assert ops(after)["If"] == 1
    x = np.ones(3, np.float32)
    for given in ({}, {"c": np.array(False)}, {"c": np.array(True)}):
        for expected, actual in zip(
            session(model).run(None, {"x": x, **given}), session(after).run(None, {"x": x, **given})
        ):
            np.testing.assert_array_equal(expected, actual)


def test_in_an_old_file_an_initializer_among_the_inputs_is_a_constant() -> None:
    """Before IR version 4 every initializer had to be listed as an input."""
    model = parse(ONE_IF["condition_is_an_input"], 8, 3)
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    assert "If" not in ops(rewritten(model).model)


class TestOnlyPossibleBranch:
    GUARDED = """g (float[N,3] x, bool c) => (float[M] y) <float[2,3] k = {1,2,3,4,5,6},
        int64[1] zero = {0}, int64[1] all = {-1}> {
        p = Concat<axis=0>(x, k)
        y = If (c) <then_branch = t () => (float[3] a) { a = Squeeze(p, zero) },
                    else_branch = e () => (float[K] b) { b = Reshape(p, all) }> }"""

    def test_the_other_branch_is_taken_and_reported(self) -> None:
        result = rewritten(parse(self.GUARDED, 21, 10))
        assert "If" not in ops(result.model)
        (note,) = result.report.notes
        assert note.startswith(
            "If of `y` always takes `e`, because the other branch always fails ("
        )
        assert "axis 0 has size N + 2" in note
        assert note.endswith("; `c` is now ignored")

    def test_an_input_that_is_read_elsewhere_is_not_ignored(self) -> None:
        text = self.GUARDED.replace("(float[M] y)", "(float[M] y, bool d)").replace(
            "p = Concat", "d = Not(c) p = Concat"
        )
        (note,) = rewritten(parse(text, 21, 10)).report.notes
        assert "ignored" not in note

    def test_strict_keeps_runs_that_fail(self) -> None:
        result = rewritten(parse(self.GUARDED, 21, 10), strict=True)
        assert ops(result.model)["If"] == 1
        assert result.report.notes == []

    def test_a_branch_that_may_succeed_stays(self) -> None:
        model = parse(self.GUARDED.replace("p = Concat<axis=0>(x, k)", "p = Identity(x)"), 21, 10)
        assert ops(rewritten(model).model)["If"] == 1

    def test_both_branches_fail(self) -> None:
        """Every run fails, before and after, so there is nothing to compare."""
        text = self.GUARDED.replace("Reshape(p, all)", "Squeeze(k, zero)")
        model = parse(text.replace("float[K]", "float[3]"), 21, 10)
        assert reason_of(InlineOnlyPossibleBranch, model) == "both branches always fail"
        result = rewrite(model)
        assert result.report.defects == []
        assert ops(result.model)["If"] == 1

    def test_a_failure_that_may_not_be_reached_does_not_count(self) -> None:
        """The failing node stands in an inner branch that need not be taken."""
        text = self.GUARDED.replace(
            "a = Squeeze(p, zero)",
            """d = ReduceMax<keepdims=0>(x) z = CastLike(d, c)
            a = If (z) <then_branch = ti () => (float[3] u) { u = Squeeze(p, zero) },
                        else_branch = ei () => (float[3] v) { v = ReduceSum<keepdims=0>(p, zero) }>""",
        )
        rewritten(parse(text, 21, 10), Feeds(sizes=(1, 2)), 1e-6)


def test_a_failure_that_the_optimizer_removes_does_not_rule_a_branch_out() -> None:
    """Only the shape of the result is read, after another node, and that shape is known."""
    model = parse(
        """g (float[6] x, bool c) => (int64[1] y) <int64[1] seven = {7}, int64 at = {0}> {
        y = If(c) <then_branch = t () => (int64[1] k) {
            q = SequenceConstruct(x) p = SequenceAt(q, at) r = Reshape(p, seven) v = Neg(r)
            k = Shape(v) },
          else_branch = e () => (int64[1] u) { z = Shape(x) u = Neg(z) }> }""",
        17,
        8,
    )
    assert "may succeed" in reason_of(InlineOnlyPossibleBranch, model)
    rewritten(model)
