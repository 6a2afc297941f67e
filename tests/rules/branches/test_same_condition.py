"""Ifs on the same condition: negated, nested, or one after the other."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.branches.same_condition import (
    AbsorbNegatedCondition,
    CollapseNestedIf,
    MergeSiblingIfs,
)

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse


def _if(output: str, condition: str, then: str, other: str, kind: str = "float[3]") -> str:
    """An If; each branch computes its result under the name `r`."""
    return f"""{output} = If ({condition})
        <then_branch = then_{output} () => ({kind} r) {{ {then} }},
         else_branch = else_{output} () => ({kind} r) {{ {other} }}>"""


def _graph(body: str, inputs: str = "float[3] x, bool c", outputs: str = "float[3] y") -> str:
    return f"g ({inputs}) => ({outputs}) {{ {body} }}"


class TestNegatedConditions:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_chains(self, count: int) -> None:
        nots = " ".join(f"n{i + 1} = Not({'n' + str(i) if i else 'c'})" for i in range(count))
        text = _graph(nots + _if("y", f"n{count}", "r = Exp(x)", "r = Log(x)"))
        assert ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model) == {
            "If": 1,
            "Exp": 1,
            "Log": 1,
        }

    def test_a_negation_read_elsewhere_stays(self) -> None:
        text = _graph(
            "n = Not(c)" + _if("y", "n", "r = Exp(x)", "r = Log(x)"), outputs="float[3] y, bool n"
        )
        result, trace, _ = run_rules(parse(text, 21, 10), [AbsorbNegatedCondition])
        assert len(trace.commits()) == 1
        assert ops(result)["Not"] == 1
        assert_equivalent(parse(text, 21, 10), result, tolerance=1e-6)

    def test_inside_a_branch(self) -> None:
        inner = "n = Not(d)" + _if("u", "n", "r = Exp(x)", "r = Log(x)") + "r = Neg(u)"
        text = _graph(_if("y", "c", inner, "r = Sin(x)"), "float[3] x, bool c, bool d")
        assert "Not" not in ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)


class TestNestedIfs:
    @pytest.mark.parametrize("side", ["then", "else"])
    @pytest.mark.parametrize("condition", ["c", "n", "nn"])
    def test_collapses(self, side: str, condition: str) -> None:
        inner = _if("u", condition, "r = Exp(x)", "r = Log(x)") + "r = Neg(u)"
        branches = (inner, "r = Sin(x)") if side == "then" else ("r = Sin(x)", inner)
        text = _graph("n = Not(c) nn = Not(n)" + _if("y", "c", *branches))
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_two_levels_apart(self) -> None:
        innermost = _if("w", "c", "r = Exp(x)", "r = Log(x)") + "r = Neg(w)"
        inner = _if("u", "d", innermost, "r = Cos(x)") + "r = Abs(u)"
        text = _graph(_if("y", "c", inner, "r = Sin(x)"), "float[3] x, bool c, bool d")
        result, trace, _ = run_rules(parse(text, 21, 10), [CollapseNestedIf])
        assert len(trace.commits()) == 1
        assert ops(result)["If"] == 2
        assert_equivalent(parse(text, 21, 10), result, tolerance=1e-6)

    def test_through_a_loop(self) -> None:
        """The condition stands outside the loop: it is the same in every iteration."""
        body = """u = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) w = If (c) <then_branch = ti () => (float[3] p) { p = Exp(s) },
                                          else_branch = ei () => (float[3] q) { q = Log(s) }>
            so = Neg(w) }> r = Abs(u)"""
        text = _graph(_if("y", "c", body, "r = Sin(x)"), "float[3] x, bool c, int64 m")
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
        assert ops(result.model)["If"] == 1

    def test_a_condition_that_is_carried_may_change(self) -> None:
        body = """co = Identity(ci) e = Not(d)
            so = If (d) <then_branch = p () => (float[3] a) { a = Exp(s) },
                         else_branch = q () => (float[3] b) {
                b = If (e) <then_branch = pp () => (float[3] aa) { aa = Sin(s) },
                            else_branch = qq () => (float[3] bb) { bb = Cos(s) }> }>"""
        text = f"""g (float[3] x, bool c, int64 m) => (float[3] y, bool z) {{
            y, z = Loop (m, , x, c) <body = b (int64 i, bool ci, float[3] s, bool d)
            => (bool co, float[3] so, bool e) {{ {body} }}> }}"""
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
        assert ops(result.model)["If"] == 1


class TestEqualComparisons:
    """The sizes of x are compared twice, as numbers and as vectors of one element."""

    @staticmethod
    def model(inner: str, outer: str) -> onnx.ModelProto:
        return parse(
            f"""g (float[N,M] x) => (float[N,M] y)
            <int64 zero = {{0}}, int64 one = {{1}}, int64[1] zeros = {{0}}, int64[1] ones = {{1}}> {{
            s = Shape(x) {outer}
            y = If (c) <
                then_branch = t () => (float[N,M] r) {{
                    {inner} {_if("u", "d", "r = Exp(x)", "r = Sin(x)", "float[N,M]")} r = Neg(u) }},
                else_branch = e () => (float[N,M] r) {{ r = Cos(x) }}
            > }}""",
            21,
            10,
        )

    @pytest.mark.parametrize(
        ("outer", "inner"),
        [
            ("n = Gather(s, zero) c = Equal(n, one)", "m = Gather(s, zeros) d = Equal(m, ones)"),
            ("n = Gather(s, zeros) c = Less(n, ones)", "m = Gather(s, zero) d = Less(m, one)"),
            ("n = Gather(s, zero) c = Equal(n, one)", "d = Unsqueeze(c, zeros)"),
            ("n = Gather(s, zero) c = Equal(n, one)", "d = Reshape(c, ones)"),
            (
                "n = Gather(s, zero) b = Equal(n, one) c = Not(b)",
                "m = Gather(s, zeros) b1 = Equal(m, ones) b2 = Squeeze(b1) d = Not(b2)",
            ),
        ],
        ids=["equal", "less", "unsqueeze", "reshape", "negated"],
    )
    def test_collapses(self, outer: str, inner: str) -> None:
        result, trace, _ = run_rules(self.model(inner, outer), [CollapseNestedIf])
        assert [commit.rule for commit in trace.commits()] == ["CollapseNestedIf"]
        assert ops(result)["If"] == 1
        assert "Sin" not in ops(result)
        assert_equivalent(self.model(inner, outer), result, tolerance=1e-6)

    @pytest.mark.parametrize(
        "inner",
        [
            "m = Gather(s, ones) d = Equal(m, ones)",
            "m = Gather(s, zeros) d = Less(m, ones)",
            "m = Gather(s, zeros) m2 = Add(m, ones) d = Equal(m2, ones)",
        ],
        ids=["another_size", "another_comparison", "another_number"],
    )
    def test_another_comparison_stays(self, inner: str) -> None:
        model = self.model(inner, "n = Gather(s, zero) c = Equal(n, one)")
        _, trace, _ = run_rules(model, [CollapseNestedIf])
        assert trace.commits() == []

    def test_floats_may_be_nan(self) -> None:
        """Float facts hold sizes, but a comparison of floats is left alone."""
        model = self.model(
            "m = Gather(s, zeros) f = Cast<to=1>(m) d = Equal(f, f)",
            "n = Gather(s, zero) g = Cast<to=1>(n) c = Equal(g, g)",
        )
        _, trace, _ = run_rules(model, [CollapseNestedIf])
        assert trace.commits() == []


class TestSiblingIfs:
    def test_with_nothing_between(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + _if("v", "c", "r = Neg(u)", "r = Abs(u)")
        result = rewritten(parse(_graph(body + "y = Add(u, v)"), 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_with_independent_nodes_between(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + "z = Sin(x)"
        body += _if("v", "c", "r = Neg(z)", "r = Abs(z)") + "w = Cos(x) s = Add(u, v) y = Add(s, w)"
        result = rewritten(parse(_graph(body), 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_with_a_reader_between(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + "z = Sin(u)"
        body += _if("y", "c", "r = Neg(z)", "r = Abs(z)")
        result = rewritten(parse(_graph(body), 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 2

    def test_three_in_a_row(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + _if("v", "c", "r = Neg(u)", "r = Abs(u)")
        body += _if("w", "c", "p = Sin(u) r = Add(p, v)", "r = Mul(u, v)") + "y = Add(w, u)"
        result = rewritten(parse(_graph(body), 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_negated(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + "n = Not(c)"
        body += _if("v", "n", "r = Neg(u)", "r = Abs(u)") + "y = Add(u, v)"
        result = rewritten(parse(_graph(body), 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_results_that_are_outputs_of_the_model(self) -> None:
        body = _if("y", "c", "r = Exp(x)", "r = Log(x)") + _if("z", "c", "r = Neg(y)", "r = Abs(y)")
        text = _graph(body, outputs="float[3] y, float[3] z")
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_a_result_read_in_a_body_of_the_later_if(self) -> None:
        inner = _if("k", "d", "r = Neg(u)", "r = Abs(u)") + "r = Add(k, u)"
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + _if("y", "c", inner, "r = Sin(u)")
        text = _graph(body, "float[3] x, bool c, bool d")
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 2

    def test_a_result_read_by_a_loop_between(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)")
        body += """z = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) so = Add(s, u) }>"""
        body += _if("v", "c", "r = Neg(x)", "r = Abs(x)") + "w = Add(u, v) y = Add(w, z)"
        text = _graph(body, "float[3] x, bool c, int64 m")
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 2]}), 1e-6)
        assert ops(result.model)["If"] == 2

    def test_initializers_and_names_of_both(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y) {
            u = If (c) <then_branch = t () => (float[3] r) <float[3] k = {1,2,3}> { v = Mul(x, k) r = Exp(v) },
                        else_branch = e () => (float[3] r) <float[3] k = {4,5,6}> { v = Add(x, k) r = Log(v) }>
            w = If (c) <then_branch = t () => (float[3] r) <float[3] k = {7,8,9}> { v = Mul(u, k) r = Neg(v) },
                        else_branch = e () => (float[3] r) <float[3] k = {1,0,1}> { v = Add(u, k) r = Abs(v) }>
            y = Sub(u, w) }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-5)
        assert ops(result.model)["If"] == 1

    def test_branches_that_return_outer_values_and_initializers(self) -> None:
        text = """g (float[3] x, float[N] z, bool c) => (float[?] y) {
            u = If (c) <then_branch = t () => (float[3] a) <float[3] a = {1,2,3}> { },
                        else_branch = e () => (float[N] b) { b = Identity(z) }>
            w = If (c) <then_branch = t2 () => (float[3] a) { a = Neg(x) },
                        else_branch = e2 () => (float[N] b) { b = Exp(u) }>
            y = Concat<axis=0>(u, w) }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["If"] == 1

    def test_several_results_some_unread(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y) {
            u, dead = If (c) <then_branch = t () => (float[3] a, float[3] d) { a = Exp(x) d = Cos(x) },
                              else_branch = e () => (float[3] b, float[3] f) { b = Log(x) f = Sin(x) }>
            w, v = If (c) <then_branch = t2 () => (float[3] a, float[3] d) { a = Neg(u) d = Tan(u) },
                           else_branch = e2 () => (float[3] b, float[3] f) { b = Abs(u) f = Tanh(u) }>
            s = Add(w, v) y = Add(u, s) }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-5)
        assert ops(result.model)["If"] == 1
        assert "Cos" not in ops(result.model)

    def test_in_a_loop_body(self) -> None:
        body = """co = Identity(ci) d = Less(i, two)
            u = If (d) <then_branch = p () => (float[3] a) { a = Exp(s) }, else_branch = q () => (float[3] b) { b = Sin(s) }>
            v = If (d) <then_branch = pp () => (float[3] a) { a = Neg(u) }, else_branch = qq () => (float[3] b) { b = Cos(u) }>
            w = Add(u, v) so = Tanh(w)"""
        text = f"""g (float[3] x, int64 m) => (float[3] y) <int64 two = {{2}}> {{
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{ {body} }}> }}"""
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 4]}), 1e-5)
        assert ops(result.model)["If"] == 1

    def test_the_rule_alone(self) -> None:
        body = _if("u", "c", "r = Exp(x)", "r = Log(x)") + _if("v", "c", "r = Neg(u)", "r = Abs(u)")
        text = _graph(body + "y = Add(u, v)")
        result, trace, _ = run_rules(parse(text, 21, 10), [MergeSiblingIfs])
        assert trace.defects() == []
        (commit,) = trace.commits()
        assert commit.rule == "MergeSiblingIfs"
        assert_equivalent(parse(text, 21, 10), result, tolerance=1e-6)


def test_an_if_whose_condition_turns_out_to_be_that_of_one_inside() -> None:
    """The loop returns its initial value, which is known only after the Ifs were visited."""
    model = parse("""g (float[3] x, float[3] y, int64 m, bool c) => (float[3] z)
        <int64 three = {3}, int64 zero = {0}> {
        going = Equal(m, zero)
        same = Loop(three, going, c) <body = b (int64 i, bool g, bool s) => (bool h, bool s) {
            k = Equal(m, zero) h = Identity(k) }>
        z = If(same) <
            then_branch = t () => (float[3] p) {
                p = If(c) <then_branch = u () => (float[3] q) { q = Neg(x) },
                           else_branch = v () => (float[3] r) { r = Exp(y) }> },
            else_branch = e () => (float[3] o) { o = Sin(y) }> }""")
    result = rewritten(model, Feeds(sizes=(3,), values={"m": [0, 1]}), 1e-6)
    assert ops(result.model)["If"] <= 1
