"""The exporters' squeeze-If becomes a branch only if later operators fail for the other one."""

from __future__ import annotations

import pytest

from looplift.rewrite.engine.rule import Options
from looplift.rules.branches.demanded_branch import InlineDemandedBranch

from ...equivalence import ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

SQUEEZE_IF = """s = Shape(x) d = Gather(s, at) c = Equal(d, one) q = Squeeze(c)
      v = If (q) <then_branch = t () => (float[N,C] a) { a = Squeeze(x, at) },
                  else_branch = e () => (float[N,C,L] b) { b = Identity(x) }>"""
CONSTANTS = "int64[1] at = {2}, int64[1] one = {1}, int64[1] zero = {0}"


def _model(outputs: str, after: str, extra: str = "", stored: str = "") -> str:
    inputs = "float[N,C,L] x" + (f", {extra}" if extra else "")
    constants = CONSTANTS + (f", {stored}" if stored else "")
    return f"g ({inputs}) => ({outputs}) <{constants}> {{ {SQUEEZE_IF} {after} }}"


_W2 = "float[2,8,3] w, float[2,8,2] r"
_ROW = "float[1,8,3] w, float[1,8,2] r"

DEMANDED = {
    "lstm": (
        _model("float[K,D,C,2] y", "y = LSTM<hidden_size=2>(v, w, r)", _ROW),
        "else",
    ),
    "lstm_after_unsqueeze": (
        _model("float[K,D,C,2] y", "u = Unsqueeze(v, zero) y = LSTM<hidden_size=2>(u, w, r)", _ROW),
        "then",
    ),
    "gru": (
        _model("float[K,D,C,2] y", "y = GRU<hidden_size=2>(v, w, r)", "float[1,6,3] w, float[1,6,2] r"),
        "else",
    ),
    "rnn_state": (
        _model(
            "float[T,D,B,2] y", "y = RNN<hidden_size=2>(xs, w, r, , , v)",
            "float[T,B,3] xs, float[1,2,3] w, float[1,2,2] r",
        ),
        "else",
    ),
    "bidirectional": (
        _model(
            "float[K,D,C,2] y", 'y = LSTM<hidden_size=2, direction="bidirectional">(v, w, r)', _W2
        ),
        "else",
    ),
    "conv": (_model("float[N,4,K] y", "y = Conv(v, w)", "float[4,C,1] w"), "else"),
    "conv_2d": (
        _model("float[M,4,H,K] y", "u = Unsqueeze(v, zero) y = Conv(u, w)", "float[4,N,1,1] w"), "else"
    ),
    "conv_after_unsqueeze": (
        _model("float[M,4,K] y", "u = Unsqueeze(v, zero) y = Conv(u, w)", "float[4,N,1] w"), "then"
    ),
    "pool": (_model("float[N,C,K] y", "y = MaxPool<kernel_shape=[1]>(v)"), "else"),
    "gemm": (_model("float[N,M] y", "y = Gemm(v, w)", "float[C,M] w"), "then"),
    "concat": (_model("float[K,C] y", "y = Concat<axis=0>(v, z)", "float[2,C] z"), "then"),
    "concat_of_three": (
        _model("float[K,C,L] y", "y = Concat<axis=0>(z, v, z)", "float[2,C,L] z"), "else"
    ),
    "transpose": (_model("float[C,N] y", "y = Transpose<perm=[1,0]>(v)"), "then"),
    "much_later": (
        _model(
            "float[N,M] y",
            "e = Exp(v) f = Neg(e) g = Relu(f) h = Add(g, f) y = Gemm(h, w)",
            "float[C,M] w",
        ),
        "then",
    ),
    "before_a_conv_of_unknown_sizes": (
        _model("float[N,4,K] y", "u = Mul(v, m) y = Conv(u, w)", "float[4,C,1] w, float m"), "else"
    ),
    "used_in_an_if_and_demanded_outside": (
        _model(
            "float[N,M] y, float[A,B] z",
            """y = Gemm(v, w) z = If (f) <then_branch = t2 () => (float[A,B] p) { p = Neg(v) },
            else_branch = e2 () => (float[A,B] k) { k = Exp(v) }>""",
            "float[C,M] w, bool f",
        ),
        "then",
    ),
    "demanded_by_both_branches_of_a_later_if": (
        _model(
            "float[N,M] y",
            """y = If (f) <then_branch = t2 () => (float[N,M] p) { p = Gemm(v, w) },
            else_branch = e2 () => (float[N,M] k) { j = Gemm(v, w) k = Exp(j) }>""",
            "float[C,M] w, bool f",
        ),
        "then",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEMANDED)
def test_demanded(name: str) -> None:
    text, branch = DEMANDED[name]
    result = rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2, 3), most=200), 1e-5)
    left = ops(result.model)
    assert left.get("If", 0) == text.count("If (") - 1
    assert ("Squeeze" in left) == (branch == "then")
    (note,) = result.report.notes
    assert "otherwise every run fails" in note


@pytest.mark.parametrize("name", DEMANDED)
def test_strict_keeps_the_if(name: str) -> None:
    text, _ = DEMANDED[name]
    result = rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2, 3)), 1e-5, strict=True)
    assert ops(result.model)["If"] == text.count("If (")
    assert result.report.notes == []


UNDECIDED = {
    "nothing_later": _model("float[K] y", "y = Flatten<axis=0>(v)"),
    "any_rank": _model("float[K] y", "z = Exp(v) y = ReduceSum<keepdims=0>(z, zero)"),
    "matmul_takes_both": _model("float[A,B] y", "y = MatMul(v, w)", "float[C,M] w"),
    "matrix_product_of_batches": _model("float[A,B] y", "y = MatMul(v, w)", "float[L,M] w"),
    "broadcast_takes_both": _model("float[A,B,D] y", "y = Add(v, z)", "float[N,1,1] z"),
    "in_a_branch_that_may_not_run": _model(
        "float[A,B] y",
        """y = If (f) <then_branch = t2 () => (float[A,B] p) { p = Gemm(v, w) },
        else_branch = e2 () => (float[A,B] k) { k = Identity(v) }>""",
        "float[C,M] w, bool f",
    ),
    "in_a_loop_that_may_not_run": _model(
        "float[A,B] y",
        """y = Loop (m, , z) <body = b (int64 i, bool ci, float[?,?] s) => (bool co, float[?,?] so) {
            co = Identity(ci) so = Gemm(v, s) }>""",
        "float[C,M] z, int64 m",
    ),
    "in_a_scan": _model(
        "float[T,A,B] y",
        """y = Scan <num_scan_inputs = 1, body = b (float[?,?] s) => (float[?,?] r) { r = Gemm(v, s) }> (zs)""",
        "float[T,C,M] zs",
    ),
    "state_of_a_loop": _model(
        "float[A,B] y",
        """y = Loop (m, , v) <body = b (int64 i, bool ci, float[] s) => (bool co, float[] so) {
            co = Identity(ci) so = Gemm(s, z) }>""",
        "float[C,C] z, int64 m",
    ),
    "only_one_of_two_results": f"""g (float[N,C,L] x, float[C,M] w, bool f) => (float[A,B] y) <{CONSTANTS}> {{
        {SQUEEZE_IF}
        u = If (f) <then_branch = t2 () => (float[A,B] p) {{ p = Identity(v) }},
                    else_branch = e2 () => (float[A,B] k) {{ k = Transpose(w) }}>
        y = Gemm(u, w) }}""",
}  # fmt: skip


@pytest.mark.parametrize("name", UNDECIDED)
def test_not_demanded(name: str) -> None:
    feeds = Feeds(sizes=(1, 2, 3), values={"m": [0, 1]}, most=200)
    result = rewritten(parse(UNDECIDED[name], 17, 8), feeds, 1e-5)
    assert result.report.commits["InlineDemandedBranch"] == 0
    assert ops(result.model)["If"] == UNDECIDED[name].count("If (")


def test_an_empty_operand_of_a_concat_has_any_dims() -> None:
    """onnxruntime compares only the dims of operands that have elements."""
    text = """g (float[A,2] x, float[B,3] y, bool c) => (float[Z,K] z) {
        v = If (c) <then_branch = t () => (float[P,Q] a) { a = Identity(x) },
                    else_branch = e () => (float[P,Q] b) { b = Identity(y) }>
        z = Concat<axis=0>(v, y) }"""
    rewritten(parse(text, 17, 8))


def test_inside_a_loop_body() -> None:
    """If and consumer stand in one body: they run equally often."""
    text = f"""g (float[T,N,C,L] xs, float[N,C] h, float[C,C] w) => (float[N,C] y) <{CONSTANTS}> {{
        y = Scan <num_scan_inputs = 1, body = b (float[?,?] state, float[?,?,?] x) => (float[?,?] so) {{
            {SQUEEZE_IF} g = Gemm(v, w) so = Add(state, g) }}> (h, xs) }}"""
    result = rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2), most=200), 1e-5)
    assert "If" not in ops(result.model)


def test_an_if_in_a_branch_and_a_reader_after_the_outer_if() -> None:
    """The reader also takes the result of the other branch, so it demands nothing of this one."""
    text = f"""g (float[N,C,L] x, float[C,M] w, bool f) => (float[A,B] y) <{CONSTANTS}> {{
        u = If (f) <then_branch = t2 () => (float[A,B] p) {{ {SQUEEZE_IF} p = Exp(v) }},
                    else_branch = e2 () => (float[A,B,D] k) {{ k = Neg(x) }}>
        y = Flatten(u) }}"""
    result = rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2)), 1e-5)
    assert ops(result.model)["If"] == 2


def test_an_if_in_a_branch_and_a_reader_that_takes_one_rank() -> None:
    """The other branch has rank 2 and a Gemm follows, so this branch must have rank 2, too."""
    text = f"""g (float[N,C,L] x, float[C,M] w, bool f) => (float[A,B] y) <{CONSTANTS}> {{
        u = If (f) <then_branch = t2 () => (float[A,B] p) {{ {SQUEEZE_IF} p = Exp(v) }},
                    else_branch = e2 () => (float[A,B] k) {{ k = Transpose(w) }}>
        y = Gemm(u, w) }}"""
    rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2, 3), most=200), 1e-5)


def test_a_dead_reader_demands_nothing() -> None:
    """onnxruntime does not run such nodes."""
    model = parse(_model("float[A,B,D] y", "y = Exp(v) u = Gemm(v, w)", "float[C,M] w"), 17, 8)
    _, trace, _ = run_rules(model, [InlineDemandedBranch], options=Options())
    assert trace.commits() == []


def test_two_squeezes_in_a_row() -> None:
    """The Gemm decides the second If, which then decides the first."""
    text = """g (float[N,C,K,L] x, float[C,M] w) => (float[N,M] y) <int64[1] at = {3},
        int64[1] two = {2}, int64[1] one = {1}> {
        s = Shape(x) d = Gather(s, at) c = Equal(d, one) q = Squeeze(c)
        v = If (q) <then_branch = t () => (float[N,C,K] a) { a = Squeeze(x, at) },
                    else_branch = e () => (float[N,C,K,L] b) { b = Identity(x) }>
        s2 = Shape(v) d2 = Gather(s2, two) c2 = Equal(d2, one) q2 = Squeeze(c2)
        u = If (q2) <then_branch = t2 () => (float[N,C] a2) { a2 = Squeeze(v, two) },
                     else_branch = e2 () => (float[N,C,K] b2) { b2 = Identity(v) }>
        y = Gemm(u, w) }"""
    result = rewritten(parse(text, 17, 8), Feeds(sizes=(1, 2), most=200), 1e-5)
    assert "If" not in ops(result.model)
