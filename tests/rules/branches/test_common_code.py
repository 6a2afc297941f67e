"""Code that both branches of an If contain moves before it."""

from __future__ import annotations

from looplift.rules.branches.common_code import HoistCommonBranchCode

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse


def _if(then: str, other: str, results: int = 1, kind: str = "float[3]") -> str:
    names = ", ".join(f"y{i}" for i in range(results))
    declared = ", ".join(f"{kind} r{i}" for i in range(results))
    outputs = ", ".join(f"{kind} y{i}" for i in range(results))
    return f"""g (float[3] x, bool c) => ({outputs}) {{ z = Cos(x)
        {names} = If (c) <then_branch = t () => ({declared}) {{ {then} }},
                          else_branch = e () => ({declared}) {{ {other} }}> }}"""


def test_a_chain_of_common_nodes() -> None:
    text = _if("a = Exp(x) b = Neg(a) r0 = Sin(b)", "q = Exp(x) p = Neg(q) r0 = Tan(p)")
    result = rewritten(parse(text, 21, 10), tolerance=1e-6)
    assert ops(result.model) == {"Exp": 1, "Neg": 1, "If": 1, "Sin": 1, "Tan": 1}


def test_equal_branches() -> None:
    text = _if("a = Exp(x) r0 = Neg(a)", "q = Exp(x) r0 = Neg(q)")
    assert ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model) == {"Exp": 1, "Neg": 1}


def test_with_constants_of_the_branches() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] r) <float[3] k = {1,2,3}> { a = Mul(x, k) r = Exp(a) },
                    else_branch = e () => (float[3] r) <float[3] w = {1,2,3}> { b = Mul(x, w) r = Sin(b) }> }"""
    result = rewritten(parse(text, 21, 10), tolerance=1e-6)
    assert ops(result.model)["Mul"] == 1


def test_constants_that_differ() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] r) <float[3] k = {1,2,3}> { r = Mul(x, k) },
                    else_branch = e () => (float[3] r) <float[3] k = {1,2,4}> { r = Mul(x, k) }> }"""
    result = rewritten(parse(text, 21, 10), tolerance=1e-6)
    assert ops(result.model)["Mul"] >= 1


def test_nodes_that_read_different_values_stay() -> None:
    text = _if("a = Exp(x) r0 = Neg(a)", "q = Log(x) r0 = Neg(q)")
    assert ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)["Neg"] == 2


def test_random_nodes_stay_in_their_branch() -> None:
    text = _if(
        "a = RandomNormalLike(x) b = Sub(a, a) r0 = Add(b, x)",
        "q = RandomNormalLike(x) p = Sub(q, q) r0 = Neg(p)",
    )
    result, trace, _ = run_rules(parse(text, 21, 10), [HoistCommonBranchCode])
    assert trace.commits() == []
    assert ops(result)["RandomNormalLike"] == 2


def test_nodes_that_may_fail_move_because_one_branch_always_runs() -> None:
    text = """g (float[N] x, float[M] z, bool c) => (float[K] y) {
        y = If (c) <then_branch = t () => (float[K] r) { a = Add(x, z) r = Exp(a) },
                    else_branch = e () => (float[K] r) { b = Add(x, z) r = Sin(b) }> }"""
    result = rewritten(parse(text, 21, 10), tolerance=1e-6)
    assert ops(result.model)["Add"] == 1


def test_common_loops_and_ifs() -> None:
    loop = """{0} = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {{
        co = Identity(ci) so = Sub(x, s) }}>"""
    text = f"""g (float[3] x, bool c, bool d, int64 m) => (float[3] y) {{
        y = If (c) <then_branch = t () => (float[3] r) {{ {loop.format("l")} r = Exp(l) }},
                    else_branch = e () => (float[3] r) {{ {loop.format("k")} r = Sin(k) }}> }}"""
    result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
    assert ops(result.model)["Loop"] == 1


def test_a_node_in_a_nested_branch_stays() -> None:
    """In the then branch the node runs only if d holds."""
    text = """g (float[3] x, bool c, bool d) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] r) {
                r = If (d) <then_branch = ti () => (float[3] p) { p = Exp(x) },
                            else_branch = ei () => (float[3] q) { q = Log(x) }> },
            else_branch = e () => (float[3] r) { b = Exp(x) r = Sin(b) }> }"""
    result = rewritten(parse(text, 21, 10), tolerance=1e-6)
    assert ops(result.model)["Exp"] == 2


def test_in_the_body_of_a_loop() -> None:
    text = """g (float[3] x, int64 m) => (float[3] y) <int64 two = {2}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) c = Less(i, two)
            so = If (c) <then_branch = t () => (float[3] r) { a = Tanh(s) r = Exp(a) },
                         else_branch = e () => (float[3] r) { b = Tanh(s) r = Sin(b) }> }> }"""
    result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 4]}), 1e-5)
    assert ops(result.model)["Tanh"] == 1


def test_constants_that_only_a_body_reads_move_along() -> None:
    branch = """z = Constant<value_ints = [0]>() n = Constant<value_int = 2>()
        a = Loop (n, ) <body = BODY (int64 i, bool g) => (bool h, float[1] r) {
            h = Identity(g) k = Unsqueeze(i, z) e = Gather(x, k) r = Exp(e) }>"""
    text = f"""g (float[3] x, bool c) => (float[2,1] y) {{ y = If (c) <
        then_branch = t () => (float[2,1] p) {{ {branch.replace("BODY", "b")} p = Neg(a) }},
        else_branch = e () => (float[2,1] q) {{ {branch.replace("BODY", "b2")} q = Abs(a) }}> }}"""
    after, trace, _ = run_rules(parse(text.replace("(n, )", '(n, "")')), [HoistCommonBranchCode])
    assert trace.defects() == []
    assert ops(after)["Loop"] == 1
