"""Facts across If, Loop and Scan hold on onnxruntime, in every branch and iteration."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ...fact_cases import Case, cases
from ...fact_oracle import check, facts_of, value


def _loop(
    inputs: str, initial: str, body: str, outputs: str, constants: str = "", after: str = ""
) -> str:
    stored = f"<{constants}>" if constants else ""
    names = outputs.split(" | ")
    return f"""g ({inputs}) => ({", ".join(names)}) {stored} {{
        {names[0]} = Loop ({initial}) <body = b {body}> {after} }}"""


_TRIPS = {"m": [0, 1, 3]}

LOOP = {
    "iteration_number_is_below_the_trip_count": Case(
        """g (float[N] x) => (y) <int64 six = {6}, int64 five = {5}, int64 four = {4}> {
        y = Loop (six, , x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] so) {
        co = Identity(ci) a = LessOrEqual(i, five) c = LessOrEqual(i, four) so = Neg(s) }> }""",
        {"a=": "(True,)", "c=": "(None,)"},
    ),
    "state_keeps_shape": Case(
        """g (float[N] x, int64 m) => (y) { y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s)
        => (bool co, float[?] so) { co = Identity(ci) so = Add(s, x) }> }""",
        {"s": "(N,)"},
        values=_TRIPS,
    ),
    "state_grows": Case(
        """g (float[2] x, int64 m) => (y) { y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s)
        => (bool co, float[?] so) { co = Identity(ci) n = Shape(s) so = Concat<axis=0>(s, x) }> }""",
        {"s": "(None,)"},
        values=_TRIPS,
    ),
    "state_shrinks": Case(
        """g (float[7] x, int64 m) => (y, d) <int64[1] one = {1}, int64[1] far = {99}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci) so = Slice(s, one, far) n = Shape(so) }>
        d = Shape(y) }""",
        values=_TRIPS,
    ),
    "slice_of_growing_state": Case(
        """g (float[5] x, int64 m, int64[1] k) => (y) <int64[1] zero = {0}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci) t = Slice(s, zero, k) so = Concat<axis=0>(s, t) }> }""",
        values={"m": [0, 1, 3], "k": [[20], [3], [-1]]},
    ),
    "if_on_growing_state": Case(
        """g (float[5] x, int64 m, bool c) => (y) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            t = If (c) <then_branch = p () => (a) { a = Concat<axis=0>(s, x) },
                        else_branch = q () => (o) { o = Concat<axis=0>(x, s, x) }>
            n = Shape(t) so = Neg(t) }> }""",
        values=_TRIPS,
    ),
    "if_on_shrinking_state": Case(
        """g (float[9] x, int64 m, bool c) => (y) <int64[1] one = {1}, int64[1] two = {2}, int64[1] far = {99}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            t = If (c) <then_branch = p () => (a) { a = Slice(s, one, far) },
                        else_branch = q () => (o) { o = Slice(s, two, far) }>
            n = Shape(t) so = Neg(t) }> }""",
        values={"m": [0, 1, 4]},
    ),
    "states_exchange": Case(
        """g (float[N] x, float[M] z, int64 m) => (y, w) {
        y, w = Loop (m, , x, z) <body = b (int64 i, bool ci, float[?] s, float[?] t)
        => (bool co, float[?] so, float[?] to) { co = Identity(ci) so = Identity(t) to = Neg(s) }> }""",
        values=_TRIPS,
    ),
    "states_exchange_equals": Case(
        """g (float[N] x, float[N] z, int64 m) => (y, w) {
        y, w = Loop (m, , x, z) <body = b (int64 i, bool ci, float[?] s, float[?] t)
        => (bool co, float[?] so, float[?] to) { co = Identity(ci) so = Identity(t) to = Neg(s) }> }""",
        {"y": "(N,)", "w": "(N,)"},
        values=_TRIPS,
    ),
    "one_axis_grows": Case(
        """g (float[N,3] x, int64 m) => (y) { y = Loop (m, , x) <body = b (int64 i, bool ci, float[?,?] s)
        => (bool co, float[?,?] so) { co = Identity(ci) so = Concat<axis=0>(s, x) }> }""",
        {"y": "(None, 3)"},
        values=_TRIPS,
    ),
    "rank_changes": Case(
        """g (float[1] x, int64 m) => (y) <int64[1] zero = {0}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[] s) => (bool co, float[] so) {
            co = Identity(ci) so = Unsqueeze(s, zero) n = Shape(so) }> }""",
        {"y": "None"},
        values={"m": [0, 1, 3]},
    ),
    "counter": Case(
        """g (float[N] x, int64 m) => (k, y) <int64 zero = {0}, int64 two = {2}> {
        k, y = Loop (m, , zero, x) <body = b (int64 i, bool ci, int64 j, float[?] s)
        => (bool co, int64 jo, float[?] so) { co = Identity(ci) jo = Add(j, two) d = Less(j, two)
            e = Equal(i, j) so = Identity(s) }> }""",
        {"j=": "(None,)", "y": "(N,)"},
        values=_TRIPS,
    ),
    "invariant_number": Case(
        """g (float[N] x, int64 m) => (k) { n = Shape(x)
        k = Loop (m, , n) <body = b (int64 i, bool ci, int64[1] j) => (bool co, int64[1] jo) {
            co = Identity(ci) jo = Identity(j) d = Less(j, n) }> }""",
        {"j=": "(N,)", "k=": "(N,)", "d=": "(False,)"},
        values=_TRIPS,
    ),
    "flag": Case(
        """g (float[N] x, int64 m) => (k) <bool t = {1}> {
        k = Loop (m, , t) <body = b (int64 i, bool ci, bool j) => (bool co, bool jo) {
            co = Identity(ci) jo = Not(j) }> }""",
        {"j=": "(None,)"},
        values=_TRIPS,
    ),
    "flag_stays": Case(
        """g (bool d, int64 m) => (k) <bool t = {1}> {
        k = Loop (m, , t) <body = b (int64 i, bool ci, bool j) => (bool co, bool jo) {
            co = Identity(ci) jo = Or(j, d) }> }""",
        {"j=": "(True,)", "k=": "(True,)"},
        values=_TRIPS,
    ),
    "iteration_number": Case(
        """g (float[N] x, int64 m) => (y) <int64 zero = {0}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci) d = Less(i, zero) f = Equal(i, zero) so = Identity(s) }> }""",
        {"d=": "(False,)", "f=": "(None,)"},
        values=_TRIPS,
    ),
    "condition_and_no_count": Case(
        """g (float[N] x) => (k, y) <int64 zero = {0}, int64 one = {1}, int64 three = {3}, bool t = {1}> {
        k, y = Loop (, t, zero, x) <body = b (int64 i, bool ci, int64 j, float[?] s)
        => (bool co, int64 jo, float[?] so) { jo = Add(j, one) co = Less(jo, three) so = Neg(s) }> }""",
        {"y": "(N,)"},
    ),
    "first_condition": Case(
        """g (float[N] x, int64 m, bool c) => (y, ys) {
        y, ys = Loop (m, c, x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so, float[?] r) {
            co = Identity(ci) so = Neg(s) r = Exp(s) }> }""",
        {"y": "(N,)"},
        values=_TRIPS,
    ),
    "rows": Case(
        """g (float[N] x, int64 m) => (ys, s) {
        ys = Loop (m, t) <body = b (int64 i, bool ci) => (bool co, float[?] r) { co = Identity(ci) r = Exp(x) }>
        s = Shape(ys) t = Constant<value = bool {1}>() }""",
        values=_TRIPS,
    ),
    "rows_of_a_dim": Case(
        """g (float[T,3] x, float[N] z) => (ys) <bool t = {1}> { sh = Shape<end=1>(x) m = Squeeze(sh)
        ys = Loop (m, t) <body = b (int64 i, bool ci) => (bool co, float[?,?] r) { co = Identity(ci)
            a = Constant<value_ints = [1]>() g = Gather(x, i) u = Unsqueeze(z, a) r = Mul(u, g) }> }""",
        {"ys": "(T, None, None)", "r": "(N, 3)"},
    ),
    "rows_of_three": Case(
        """g (float[N] x) => (ys) <int64 m = {3}, bool t = {1}> {
        ys = Loop (m, t) <body = b (int64 i, bool ci) => (bool co, float[?] r) { co = Identity(ci) r = Exp(x) }> }""",
        {"ys": "(3, N)"},
    ),
    "rows_that_stop_early": Case(
        """g (float[N] x) => (ys) <int64 m = {3}, bool t = {1}, int64 one = {1}> {
        ys = Loop (m, t) <body = b (int64 i, bool ci) => (bool co, float[?] r) { co = Less(i, one) r = Exp(x) }> }"""
    ),
    "rows_of_scalars": Case(
        """g (float[T] x) => (ys) <bool t = {1}> { m = Size(x)
        ys = Loop (m, t) <body = b (int64 i, bool ci) => (bool co, float r) { co = Identity(ci) r = Gather(x, i) }> }""",
        {"ys": "(T,)"},
    ),
    "negative_count": Case(
        """g (float[T] x) => (y, ys) <int64 k = {2}> { n = Size(x) m = Sub(n, k)
        y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so, int64 r) {
            co = Identity(ci) so = Identity(s) r = Identity(i) }> }""",
        {"y": "(T,)", "ys": "(max(T - 2, 0),)"},
    ),
    "nested": Case(
        """g (float[N] x, int64 m) => (y) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            u = Loop (m, , s) <body = b2 (int64 i2, bool ci2, float[?] s2) => (bool co2, float[?] so2) {
                co2 = Identity(ci2) so2 = Add(s2, x) }>
            so = Neg(u) }> }""",
        {"y": "(N,)", "u": "(N,)"},
        values=_TRIPS,
    ),
    "nested_grows": Case(
        """g (float[2] x, int64 m) => (y) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            u = Loop (m, , s) <body = b2 (int64 i2, bool ci2, float[?] s2) => (bool co2, float[?] so2) {
                co2 = Identity(ci2) so2 = Concat<axis=0>(s2, x) }>
            n = Shape(u) k = Shape(s) e = Equal(n, k) so = Neg(u) }> }""",
        {"e=": "(None,)"},
        values=_TRIPS,
    ),
    "nested_rows": Case(
        """g (float[N] x, int64 m) => (y) <int64 two = {2}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            u, v = Loop (two, , s) <body = b2 (int64 i2, bool ci2, float[?] s2)
            => (bool co2, float[?] so2, float[?] r) { co2 = Identity(ci2) so2 = Neg(s2) r = Exp(s2) }>
            z = Constant<value_ints = [0]>() so = ReduceSum<keepdims=0>(v, z) }> }""",
        {"y": "(N,)", "v": "(2, N)"},
        values=_TRIPS,
    ),
    "decided_if_in_body": Case(
        """g (float[N] x, int64 m) => (y) <int64[1] zero = {0}, bool t = {1}> {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[?] s) => (bool co, float[?] so) {
            co = Identity(ci)
            so = If (t) <then_branch = p () => (a) { a = Neg(s) },
                         else_branch = q () => (o) { o = Concat<axis=0>(s, s) }> }> }""",
        {"y": "(N,)"},
        values=_TRIPS,
    ),
    "sequence_state": Case(
        """g (float[N] x, int64 m) => (q, n) { e = SequenceEmpty()
        q = Loop (m, , e) <body = b (int64 i, bool ci, seq(float[?]) s) => (bool co, seq(float[?]) so) {
            co = Identity(ci) so = SequenceInsert(s, x) }>
        n = SequenceLength(q) }""",
        values=_TRIPS,
    ),
    "sequence_of_growing_elements": Case(
        """g (float[2] x, int64 m) => (a, b, z) <int64 zero = {0}, int64 last = {-1}> { e = SequenceConstruct(x)
        q, y = Loop (m, , e, x) <body = b (int64 i, bool ci, seq(float[?]) s, float[?] t)
        => (bool co, seq(float[?]) so, float[?] to) {
            co = Identity(ci) to = Concat<axis=0>(t, x) so = SequenceInsert(s, to) }>
        a = SequenceAt(q, zero) b = SequenceAt(q, last) p = Shape(a) r = Shape(b) z = Equal(p, r) }""",
        {"z=": "(None,)"},
        values=_TRIPS,
    ),
    "many_states_in_a_ring": Case(
        """g (float[1] x0, float[2] x1, float[3] x2, float[4] x3, float[5] x4, float[6] x5, int64 m)
        => (y0, y1, y2, y3, y4, y5) {
        y0, y1, y2, y3, y4, y5 = Loop (m, , x0, x1, x2, x3, x4, x5) <body = b (int64 i, bool ci,
            float[?] s0, float[?] s1, float[?] s2, float[?] s3, float[?] s4, float[?] s5)
        => (bool co, float[?] o0, float[?] o1, float[?] o2, float[?] o3, float[?] o4, float[?] o5) {
            co = Identity(ci) o0 = Identity(s1) o1 = Identity(s2) o2 = Identity(s3) o3 = Identity(s4)
            o4 = Identity(s5) o5 = Identity(s0) }> }""",
        values={"m": [0, 1, 4, 7]},
    ),
    "rank_reaches_a_state_late": Case(
        """g (float[2] x, float[2] z, float[1,2] w, int64 m) => (y0, y1, y2) {
        y0, y1, y2 = Loop (m, , x, z, w) <body = b (int64 i, bool ci, float[?] s0, float[?] s1, float[?,?] s2)
        => (bool co, float[?] o0, float[?] o1, float[?,?] o2) {
            co = Identity(ci) o0 = Identity(s1) o1 = Flatten<axis=0>(s2) o2 = Identity(s2) }> }""",
        values={"m": [0, 1]},
    ),
}  # fmt: skip


@cases(LOOP)
def test_loop(case: Case) -> None:
    case.check()


SCAN = {
    "states_and_rows": Case(
        """g (float[T,3] xs, float[3] x) => (y, ys) {
        y, ys = Scan <num_scan_inputs = 1, body = b (float[?] s, float[?] t) => (float[?] so, float[?] r) {
            so = Add(s, t) r = Exp(so) }> (x, xs) }""",
        {"y": "(3,)", "ys": "(T, None)", "t": "(3,)", "r": "(3,)"},
        sizes=(1, 2, 7),
    ),
    "number_of_rows": Case(
        """g (float[4,N] xs, float[N] x) => (y, ys) {
        y, ys = Scan <num_scan_inputs = 1, body = b (float[?] s, float[?] t) => (float[?] so, float[?] r) {
            so = Add(s, t) r = Exp(so) }> (x, xs) }""",
        {"ys": "(4, N)"},
        sizes=(1, 2, 7),
    ),
    "axes_and_directions": Case(
        """g (float[N,4,2] xs, float[3,4] zs) => (ys, zz) {
        ys, zz = Scan <num_scan_inputs = 2, scan_input_axes = [1, -1], scan_input_directions = [1, 0],
            scan_output_axes = [1, -1], scan_output_directions = [0, 1],
            body = b (float[?,?] t, float[?] u) => (float[?,?] r, float[?] q) { r = Exp(t) q = Neg(u) }> (xs, zs) }""",
        {"t": "(N, 2)", "u": "(3,)", "ys": "(N, 4, 2)", "zz": "(3, 4)"},
        sizes=(1, 2, 7),
    ),
    "two_sequences": Case(
        """g (float[T,3] xs, float[T] zs) => (ys) {
        ys = Scan <num_scan_inputs = 2, body = b (float[?] t, float u) => (float[?] r) { r = Mul(t, u) }> (xs, zs) }""",
        {"ys": "(T, None)"},
        sizes=(1, 2, 7),
    ),
    "counter": Case(
        """g (float[T,3] xs) => (k, ys) <int64 zero = {0}, int64 one = {1}> {
        k, ys = Scan <num_scan_inputs = 1, body = b (int64 j, float[?] t) => (int64 jo, float[?] r) {
            jo = Add(j, one) d = Equal(j, zero) r = Exp(t) }> (zero, xs) }""",
        {"d=": "(None,)", "j=": "(None,)"},
        sizes=(1, 2, 7),
    ),
    "captured": Case(
        """g (float[T,3] xs, float[N,3] w) => (ys) {
        ys = Scan <num_scan_inputs = 1, body = b (float[?] t) => (float[?,?] r) { r = Mul(w, t) n = Shape(w) }> (xs) }""",
        {"r": "(N, 3)"},
        sizes=(1, 2, 7),
    ),
    "if_in_body": Case(
        """g (float[T,3] xs, bool c) => (ys) {
        ys = Scan <num_scan_inputs = 1, body = b (float[?] t) => (float[?] r) {
            r = If (c) <then_branch = p () => (a) { a = Neg(t) }, else_branch = q () => (o) { o = Exp(t) }> }> (xs) }""",
        {"ys": "(T, None)", "r": "(3,)"},
        sizes=(1, 2, 7),
    ),
}  # fmt: skip


@cases(SCAN)
def test_scan(case: Case) -> None:
    case.check()


def test_declared_shapes_of_a_body_are_ignored() -> None:
    """Exporters declare a growing cache as `[1, 0, 16]`."""
    case = Case(
        """g (float[1,0,2] x, float[1,1,2] z, int64 m) => (y) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[1,0,2] s) => (bool co, float[1,0,2] so) {
            co = Identity(ci) so = Concat<axis=1>(s, z) }> }"""
    )
    facts = facts_of(case.model())
    state, final = facts.shape(value(facts, "s")), facts.shape(value(facts, "y"))
    assert state is not None
    assert final is not None
    assert (state[0], state[2]) == (final[0], final[2]) == (1, 2)
    assert not isinstance(state[1], int)
    assert not isinstance(final[1], int)


def test_scan_before_opset_9_has_another_form() -> None:
    """Its first operand is the lengths, and all others have a batch axis."""
    case = Case(
        """g (float[B,T,3] xs, float[B,3] s0) => (y, ys) {
        y, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so, float[3] r) {
            so = Add(s, x) r = Neg(so) }> (, s0, xs) }""",
        opset=8,
    )
    facts = facts_of(case.model())
    assert facts.shape(value(facts, "y")) is None


@pytest.mark.parametrize("name", ["loop_gather_to_scan", "lstm_as_loop", "scan_hoist_matmul"])
def test_matrix(name: str, matrix_dir: Path) -> None:
    check(onnx.load(matrix_dir / f"{name}.onnx"))


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
