"""Facts across If hold on onnxruntime, in every branch."""

from __future__ import annotations

from .fact_cases import Case, cases

IF = {
    "equal_shapes": Case(
        """g (float[N] x, bool c) => (y) {
        y = If (c) <then_branch = t () => (a) { a = Neg(x) }, else_branch = e () => (b) { b = Exp(x) }> }""",
        {"y": "(N,)"},
    ),
    "dims_differ": Case(
        """g (float[N,3] x, float[M,3] z, bool c) => (y, s) {
        y = If (c) <then_branch = t () => (a) { a = Neg(x) }, else_branch = e () => (b) { b = Exp(z) }>
        s = Shape(y) }""",
        {"y": "(None, 3)", "s=": "(None, 3)"},
    ),
    "least_of_both": Case(
        """g (float[N,3] x, bool c) => (y, d) <float[2,3] k = {1,2,3,4,5,6}, int64[1] two = {2},
        int64[1] one = {1}> {
        p = Concat<axis=0>(x, k) q = Concat<axis=0>(k, x, k)
        y = If (c) <then_branch = t () => (a) { a = Neg(p) }, else_branch = e () => (b) { b = Exp(q) }>
        s = Shape<end=1>(y) d = GreaterOrEqual(s, two) }""",
        {"d=": "(True,)"},
    ),
    "ranks_differ": Case(
        """g (float[1,N] x, bool c) => (y, z, w) <int64[1] zero = {0}> {
        y = If (c) <then_branch = t () => (a) { a = Squeeze(x, zero) },
                    else_branch = e () => (b) { b = Identity(x) }>
        z = Exp(y) w = Unsqueeze(z, zero) }""",
        {"y": "None"},
    ),
    "numbers_agree": Case(
        """g (float[N] x, bool c) => (y) {
        y = If (c) <then_branch = t () => (a) { a = Shape(x) },
                    else_branch = e () => (b) { u = Exp(x) b = Shape(u) }> }""",
        {"y=": "(N,)"},
    ),
    "numbers_differ": Case(
        """g (float[N] x, bool c) => (y, z) <int64[1] k = {5}> {
        y = If (c) <then_branch = t () => (a) { a = Shape(x) }, else_branch = e () => (b) { b = Identity(k) }>
        z = ConstantOfShape(y) }"""
    ),
    "bools": Case(
        """g (bool c, bool d) => (y, z) <bool t = {1}> {
        y = If (c) <then_branch = p () => (a) { a = Or(d, t) }, else_branch = e () => (b) { b = Identity(t) }>
        z = If (c) <then_branch = p () => (a) { a = Or(d, t) }, else_branch = e () => (b) { b = Not(t) }> }""",
        {"y=": "(True,)", "z=": "(None,)"},
    ),
    "types_differ_from_declaration": Case(
        """g (float[N] x, bool c) => (y) {
        y = If (c) <then_branch = t () => (float[1] a) { a = Neg(x) },
                    else_branch = e () => (float[1] b) { b = Exp(x) }> }""",
        {"y": "(N,)"},
    ),
    "decided": Case(
        """g (float[2,N] x) => (y) <int64 two = {2}, int64 zero = {0}> {
        s = Shape(x) d = Gather(s, zero) c = Equal(d, two)
        y = If (c) <then_branch = t () => (a) { a = Identity(x) }, else_branch = e () => (b) { b = Flatten<axis=0>(x) }> }""",
        {"y": "(2, N)"},
    ),
    "nested": Case(
        """g (float[N] x, bool c, bool d) => (y) <float[1] k = {1}> {
        y = If (c) <then_branch = t () => (a) { p = Concat<axis=0>(x, k)
                a = If (d) <then_branch = ti () => (u) { u = Neg(p) },
                            else_branch = ei () => (v) { v = Concat<axis=0>(k, x) }> },
            else_branch = e () => (b) { b = Concat<axis=0>(k, x) }> }""",
        {"y": "(N + 1,)"},
    ),
    "one_branch_fails": Case(
        """g (float[K,N] x, bool c) => (y) <int64[1] zero = {0}> {
        y = If (c) <then_branch = t () => (a) { a = Squeeze(x, zero) },
                    else_branch = e () => (b) { b = Identity(x) }> }""",
        dims={"K": 2},
    ),
    "failing_node_that_is_not_read": Case(
        """g (float[K,N] x, bool c) => (y) <int64[1] zero = {0}> {
        y = If (c) <then_branch = t () => (a) { a = Neg(x) }, else_branch = e () => (b) { b = Identity(x) }>
        }""",
        {"y": "(2, N)"},
        dims={"K": 2},
    ),
    "branch_gives_outer_value_and_constant": Case(
        """g (float[N] x, bool c) => (y, z) <float[2] k = {1, 2}> {
        y, z = If (c) <then_branch = t () => (a, p) <float[2] p = {3, 4}> { a = Identity(x) },
                       else_branch = e () => (b, q) { b = Identity(k) q = Constant<value_floats = [1.0, 2.0]>() }> }""",
        {"z": "(2,)"},
    ),
}  # fmt: skip


@cases(IF)
def test_if(case: Case) -> None:
    case.check()
