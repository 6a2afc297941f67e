"""What both branches of an If compute, and results that need no If."""

from __future__ import annotations

from looplift.rules.branches.common_code import ForwardEqualBranchOutputs, HoistCommonBranchCode
from looplift.rules.values.dead_nodes import EliminateIdentity

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse


def _if(then: str, other: str, results: int = 1, kind: str = "float[3]") -> str:
    names = ", ".join(f"y{i}" for i in range(results))
    declared = ", ".join(f"{kind} r{i}" for i in range(results))
    outputs = ", ".join(f"{kind} y{i}" for i in range(results))
    return f"""g (float[3] x, bool c) => ({outputs}) {{ z = Cos(x)
        {names} = If (c) <then_branch = t () => ({declared}) {{ {then} }},
                          else_branch = e () => ({declared}) {{ {other} }}> }}"""


class TestHoist:
    def test_a_chain_of_common_work(self) -> None:
        text = _if("a = Exp(x) b = Neg(a) r0 = Sin(b)", "q = Exp(x) p = Neg(q) r0 = Tan(p)")
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model) == {"Exp": 1, "Neg": 1, "If": 1, "Sin": 1, "Tan": 1}

    def test_all_of_it(self) -> None:
        text = _if("a = Exp(x) r0 = Neg(a)", "q = Exp(x) r0 = Neg(q)")
        assert ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model) == {"Exp": 1, "Neg": 1}

    def test_with_constants_of_the_branches(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] r) <float[3] k = {1,2,3}> { a = Mul(x, k) r = Exp(a) },
                        else_branch = e () => (float[3] r) <float[3] w = {1,2,3}> { b = Mul(x, w) r = Sin(b) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["Mul"] == 1

    def test_constants_that_differ(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] r) <float[3] k = {1,2,3}> { r = Mul(x, k) },
                        else_branch = e () => (float[3] r) <float[3] k = {1,2,4}> { r = Mul(x, k) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["Mul"] >= 1

    def test_work_on_one_value_of_each_branch_stays(self) -> None:
        text = _if("a = Exp(x) r0 = Neg(a)", "q = Log(x) r0 = Neg(q)")
        assert ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)["Neg"] == 2

    def test_drawn_numbers_stay_in_their_branch(self) -> None:
        text = _if(
            "a = RandomNormalLike(x) b = Sub(a, a) r0 = Add(b, x)",
            "q = RandomNormalLike(x) p = Sub(q, q) r0 = Neg(p)",
        )
        result, trace, _ = run_rules(parse(text, 21, 10), [HoistCommonBranchCode])
        assert trace.commits() == []
        assert ops(result)["RandomNormalLike"] == 2

    def test_work_that_may_fail_fails_as_before(self) -> None:
        text = """g (float[N] x, float[M] z, bool c) => (float[K] y) {
            y = If (c) <then_branch = t () => (float[K] r) { a = Add(x, z) r = Exp(a) },
                        else_branch = e () => (float[K] r) { b = Add(x, z) r = Sin(b) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["Add"] == 1

    def test_common_loops_and_ifs(self) -> None:
        loop = """{0} = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
            co = Identity(ci) so = Sub(x, s) }}>"""
        text = f"""g (float[3] x, bool c, bool d, int64 m) => (float[3] y) {{
            y = If (c) <then_branch = t () => (float[3] r) {{ {loop.format("l")} r = Exp(l) }},
                        else_branch = e () => (float[3] r) {{ {loop.format("k")} r = Sin(k) }}> }}"""
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
        assert ops(result.model)["Loop"] == 1

    def test_common_work_deep_inside_stays(self) -> None:
        """In the then branch the node runs only if d holds."""
        text = """g (float[3] x, bool c, bool d) => (float[3] y) {
            y = If (c) <then_branch = t () => (float[3] r) {
                    r = If (d) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                                else_branch = ei () => (float[3] q) { q = Log(x) }> },
                else_branch = e () => (float[3] r) { b = Exp(x) r = Sin(b) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert ops(result.model)["Exp"] == 2

    def test_in_the_body_of_a_loop(self) -> None:
        text = """g (float[3] x, int64 m) => (float[3] y) <int64 two = {2}> {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                co = Identity(ci) c = Less(i, two)
                so = If (c) <then_branch = t () => (float[3] r) { a = Tanh(s) r = Exp(a) },
                             else_branch = e () => (float[3] r) { b = Tanh(s) r = Sin(b) }> }> }"""
        result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 4]}), 1e-5)
        assert ops(result.model)["Tanh"] == 1


class TestForward:
    def test_one_of_two_results(self) -> None:
        text = _if("r0 = Identity(z) r1 = Exp(x)", "r0 = Identity(z) r1 = Log(x)", 2)
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        (node,) = [n for n in result.model.graph.node if n.op_type == "If"]
        assert list(node.output) == ["y1"]

    def test_all_results(self) -> None:
        text = _if("r0 = Identity(z) r1 = Identity(x)", "r0 = Identity(z) r1 = Identity(x)", 2)
        assert "If" not in ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)

    def test_equal_constants(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w) {
            w, k = If (c) <then_branch = t () => (float[3] a, float[3] r) <float[3] r = {1,2,3}> { a = Exp(x) },
                           else_branch = e () => (float[3] b, float[3] q) <float[3] q = {1,2,3}> { b = Log(x) }>
            y = Add(x, k) }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        (node,) = [n for n in result.model.graph.node if n.op_type == "If"]
        assert len(node.output) == 1

    def test_values_of_different_name_stay(self) -> None:
        text = _if("r0 = Identity(z) r1 = Exp(x)", "r0 = Identity(x) r1 = Log(x)", 2)
        result, trace, _ = run_rules(
            parse(text, 21, 10), [EliminateIdentity, ForwardEqualBranchOutputs]
        )
        assert not [c for c in trace.commits() if c.rule == "ForwardEqualBranchOutputs"]
        assert_equivalent(parse(text, 21, 10), result, tolerance=1e-6)

    def test_outputs_of_the_model_that_are_an_input(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w) {
            y, w = If (c) <then_branch = t () => (float[3] a, float[3] r) { a = Identity(x) r = Exp(x) },
                           else_branch = e () => (float[3] b, float[3] q) { b = Identity(x) q = Log(x) }> }"""
        rewritten(parse(text, 21, 10), tolerance=1e-6)

    def test_two_outputs_of_the_model_that_are_one_value(self) -> None:
        text = """g (float[3] x, bool c) => (float[3] y, float[3] w, float[3] v) {
            u = Neg(x)
            y, w, v = If (c) <then_branch = t () => (float[3] a, float[3] r, float[3] p) {
                                  a = Identity(u) r = Identity(u) p = Exp(x) },
                              else_branch = e () => (float[3] b, float[3] q, float[3] o) {
                                  b = Identity(u) q = Identity(u) o = Log(x) }> }"""
        result = rewritten(parse(text, 21, 10), tolerance=1e-6)
        assert result.report.commits["ForwardEqualBranchOutputs"] == 1
