"""VectorizeAfterLoop moves what only scan outputs need after the loop."""

from __future__ import annotations

import numpy as np
import pytest

from looplift import rewrite
from looplift.rules.vectorization.after_loop import VectorizeAfterLoop

from ...equivalence import (
    assert_equal,
    assert_equivalent,
    ops,
    outcome,
    rewritten,
    run_rules,
    session,
)
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..bodies import body_ops
from ..reasons import reason_of

LENGTHS = Feeds(sizes=(1, 2, 7))
COUNTS = Feeds(sizes=(7, 1), values={"n": [1, 2, 7]})
WEIGHTS = "float[3,2] w = {1, -2, 3, 0.5, 0.25, -1}, float[2] v = {3, -4}, int64[1] last = {1}"


def _scan(work: str, more: str = "") -> str:
    """A carried value s' = sin(s * x); `work` makes the slice r of the scan output."""
    return f"""g (float[T,B,3] xs, float[B,3] s0) => (float[B,3] y, ys) <{WEIGHTS}> {{
        y, ys = Scan <num_scan_inputs=1 {more}, body = b (float[B,3] s, float[B,3] x) => (float[B,3] so, r) {{
            p = Mul(s, x) so = Sin(p) {work} }}> (s0, xs) }}"""


WORK = {
    "a product": "a = MatMul(so, w) r = Add(a, v)",
    "of the value at the start": "r = MatMul(s, w)",
    "with what is read": "a = MatMul(so, w) c = MatMul(x, w) d = Mul(a, c) r = Softmax(d)",
    "of two values": "a = Add(so, p) r = Tanh(a)",
    "a smaller slice": "a = Mul(so, x) r = ReduceSum<keepdims=0>(a, last)",
    "with an outer value": "a = Mul(so, s0) r = Exp(a)",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_work_moves_after_the_loop(work: str) -> None:
    result = rewritten(parse(_scan(work)), LENGTHS, 1e-5)
    assert body_ops(result.model) == {"Mul": 1, "Sin": 1}


@pytest.mark.parametrize(("axis", "way"), [(1, 0), (-1, 1), (0, 1)])
def test_axis_and_direction_of_the_scan_output(axis: int, way: int) -> None:
    more = f", scan_output_axes=[{axis}], scan_output_directions=[{way}]"
    result = rewritten(parse(_scan(WORK["a product"], more=more)), LENGTHS, 1e-5)
    assert body_ops(result.model) == {"Mul": 1, "Sin": 1}


def test_the_rule_alone() -> None:
    model = parse(_scan(WORK["a product"]))
    result, trace, _ = run_rules(model, [VectorizeAfterLoop])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == ["VectorizeAfterLoop"]
    assert_equivalent(model, result, LENGTHS, 1e-5)


def _loop(work: str) -> str:
    return f"""g (float[T,B,3] xs, float[B,3] s0, int64 n) => (float[B,3] y, ys) <{WEIGHTS}> {{
        y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s) => (bool co, float[B,3] so, r) {{
            co = Identity(ci) x = Gather(xs, i) p = Mul(s, x) so = Sin(p) {work} }}> }}"""


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("batch", [0, 1, 4])
def test_an_empty_scan_output_has_the_other_sizes(work: str, batch: int) -> None:
    model = parse(_loop(work))
    result = rewritten(model, COUNTS, 1e-5)
    assert body_ops(result.model, "Gather").keys() <= {"Mul", "Sin"}
    rng = np.random.default_rng(0)
    feed = {
        "xs": rng.standard_normal((5, batch, 3), np.float32),
        "s0": rng.standard_normal((batch, 3), np.float32),
    }
    shapes = []
    for count in (5, 0):
        actual = outcome(session(result.model), {**feed, "n": np.array(count)})
        assert actual is not None
        shapes.append(actual[1].shape[1:])
        if count:
            expected = outcome(session(model), {**feed, "n": np.array(count)})
            assert_equal(expected, actual, 1e-5)
    assert shapes[0] == shapes[1]


def test_work_that_the_carried_value_needs_as_well_stays() -> None:
    text = """g (float[T,3] xs, float[3] s0) => (float[3] y, float[T,3] ys) {
        y, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] x) => (float[3] so, float[3] r) {
            p = Mul(s, x) a = Exp(p) so = Sin(a) r = Identity(a) }> (s0, xs) }"""
    assert "no node that only scan outputs need" in reason_of(VectorizeAfterLoop, parse(text))
    rewritten(parse(text), LENGTHS, 1e-5)


def test_work_on_a_growing_carried_value_stays() -> None:
    text = """g (float[T,1] xs, float[1] s0, int64 n) => (float[P] y, float[R] ys) <int64[1] zero = {0}> {
        y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[P] s) => (bool co, float[Q] so, float r) {
            co = Identity(ci) x = Gather(xs, i) e = Exp(s) so = Concat<axis=0>(e, x) k = Sin(so) r = ReduceSum<keepdims=0>(k, zero) }> }"""
    model = parse(text)
    _, trace, _ = run_rules(model, [VectorizeAfterLoop])
    assert trace.defects() == []
    assert trace.commits() == []
    rewritten(model, COUNTS, 1e-4)


def test_many_values_are_not_collected_for_one() -> None:
    """A sum of nine values would take nine scan outputs instead of one."""
    names = [f"v{k}" for k in range(9)]
    inner = " ".join(f"v{k} = Sin({'so' if k == 0 else f'v{k - 1}'})" for k in range(9))
    text = f"""g (float[T,3] xs, float[3] s0, float[3] u0) => (float[3] y, float[3] z, float[T,3] ys) {{
        y, z, ys = Scan <num_scan_inputs=1, body = b (float[3] s, float[3] u, float[3] x) => (float[3] so, float[3] uo, float[3] r) {{
            p = Mul(s, x) so = Sin(p) {inner} a = Mul(v8, u) uo = Sin(a) r = Sum({", ".join(names)}) }}> (s0, u0, xs) }}"""
    model = parse(text)
    assert "collecting the operands would cost more" in reason_of(VectorizeAfterLoop, model)
    assert "Sum" in ops(rewritten(model, LENGTHS, 1e-5).model)


def test_sizes_are_not_read_from_the_shape_of_a_sequence() -> None:
    """The elements of the initial sequence have the shape of a slice; Shape takes tensors only."""
    model = parse(
        """g (int64 n, uint8[A,B,C] x) => (uint8[?,?,?] y, uint8[?,?] z)
            <int64[1] first = {0}, int64[1] third = {2}, int64[1] middle = {1}> {
        all = Shape(x) a = Gather(all, first) c = Gather(all, third)
        sizes = Concat<axis = 0>(a, c) zeros = ConstantOfShape<value = uint8[1] {0}>(sizes)
        start = SequenceConstruct(zeros)
        rows, y = Loop(n, "", start) <body = b (int64 i, bool k, seq(uint8[]) s)
            => (bool d, seq(uint8[]) t, uint8[?,?] r) {
            d = Identity(k) wide = Cast<to = 6>(x) sum = ReduceSum<keepdims = 0>(wide, middle)
            u = Cast<to = 2>(sum) t = SequenceInsert(s, u) shape = Shape(u)
            v = ConstantOfShape<value = uint8[1] {0}>(shape) w = Cast<to = 6>(v)
            r = Cast<to = 2>(w) }>
        z = ConcatFromSequence<axis = -1, new_axis = 0>(rows) }""",
        14,
    )
    rewritten(model, Feeds(sizes=(1, 2), values={"n": [0, 2]}))


def test_a_declared_size_that_is_false_does_not_count() -> None:
    """The end of the rewrite corrects it, so that a second rewrite would find no difference."""
    model = parse("""g (float[B,5] x, int64 n) => (float[?,?,?] y)
        <int64 zero = {0}, int64[1] axis = {0}> {
        y = Loop(n, "") <body = b (int64 i, bool c) => (bool d, float[?,2] r) {
            d = Identity(c) row = Gather(x, zero) r = Unsqueeze(row, axis) }> }""")
    first = rewrite(model)
    assert first.report.commits["VectorizeAfterLoop"] == 1
    assert not rewrite(first.model).report.commits
