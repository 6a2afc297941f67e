"""Loop-invariant code moves before the loop, unless it may fail where the loop does not run."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from looplift.rules.loops.loop_invariant_code_motion import HoistLoopInvariantCode

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7], "k": [[0], [2], [50]], "c": [True, False]})


def _text(work: str, trip: str = "m", first: str = "") -> str:
    return f"""g (float[3] x, float[N,3] a, int64[1] k, int64 m, bool c) => (float[3] y)
        <int64 two = {{2}}, int64[1] zero = {{0}}> {{
        y = Loop ({trip}, {first}, x) <body = b (int64 i, bool ci, float[3] s)
            => (bool co, float[3] so) {{ co = Identity(ci) {work} }}> }}"""


FAILS = "g = Gather(a, k) e = Squeeze(g, zero) so = Add(s, e)"


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def test_a_node_that_cannot_fail_leaves_a_loop_that_may_not_run() -> None:
    model = parse(_text("e = Exp(x) f = Neg(e) so = Add(s, f)"))
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    assert _operators(result) == ["Exp", "Neg", "Loop"]
    assert_equivalent(model, result, FEEDS)


def test_a_node_that_may_fail_leaves_a_loop_that_surely_runs() -> None:
    model = parse(_text(FAILS, trip="two"))
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    assert _operators(result) == ["Gather", "Squeeze", "Loop"]
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(("trip", "first"), [("m", ""), ("two", "c"), ("m", "c")])
def test_a_node_that_may_fail_stays_in_a_loop_that_may_not_run(trip: str, first: str) -> None:
    model = parse(_text(FAILS, trip, first))
    assert "may fail, and the loop may not run" in reason_of(HoistLoopInvariantCode, model)
    rewritten(model, FEEDS)


@pytest.mark.parametrize(
    "work",
    [
        "e = Exp(s) so = Add(s, e)",
        "f = Cast<to=1>(i) so = Add(s, f)",
        "e = RandomNormalLike(x) so = Add(s, e)",
        "o = Constant<value_float=1.0>() e = Exp(o) so = Add(s, e)",
    ],
    ids=["state", "iteration", "random", "constant"],
)
def test_a_node_that_is_not_invariant_or_is_constant_stays(work: str) -> None:
    words = "no node of the body computes on outer values alone"
    assert words in reason_of(HoistLoopInvariantCode, parse(_text(work)))


def _nested(read: str, trip: str) -> onnx.ModelProto:
    """A read that is invariant in the inner loop, which may not run."""
    return parse(f"""g (float[B,4] x, float s0, int64 m, int64 n) => (float y)
        <int64 zero = {{0}}, int64 three = {{3}}, int64 four = {{4}}, int64 first = {{-4}},
         int64 before = {{-5}}> {{
        all = Shape(x) b = Gather(all, zero)
        y = Loop ({trip}, , s0) <body = outer (int64 i, bool ci, float r) => (bool co, float q) {{
            co = Identity(ci)
            q = Loop (m, , r) <body = inner (int64 j, bool cj, float s)
                => (bool dj, float so) {{
                dj = Identity(cj) k = Neg(s) e = {read} t = ReduceSum<keepdims=0>(e) so = Add(k, t)
            }}> }}> }}""")


def _body(graph: onnx.GraphProto) -> onnx.GraphProto:
    loop = next(node for node in graph.node if node.op_type == "Loop")
    body: onnx.GraphProto = next(a.g for a in loop.attribute if a.name == "body")
    return body


@pytest.mark.parametrize(
    ("read", "trip"),
    [
        ("Gather(x, i)", "b"),
        ("Gather<axis=1>(x, i)", "four"),
        ("Gather<axis=1>(x, three)", "n"),
        ("Gather<axis=-1>(x, first)", "n"),
    ],
)
def test_a_read_within_its_axis_cannot_fail(read: str, trip: str) -> None:
    model = _nested(read, trip)
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    inner = _body(_body(result.graph))
    assert "Gather" not in [node.op_type for node in inner.node]
    feeds = Feeds(sizes=(0, 1, 3), values={"m": [0, 1, 3], "n": [0, 2]})
    assert_equivalent(model, result, feeds)


@pytest.mark.parametrize(
    ("read", "trip"),
    [
        ("Gather(x, i)", "n"),
        ("Gather<axis=1>(x, i)", "b"),
        ("Gather(x, three)", "b"),
        ("Gather<axis=1>(x, four)", "n"),
        ("Gather<axis=-1>(x, before)", "n"),
    ],
)
def test_a_read_that_may_be_beyond_its_axis_stays(read: str, trip: str) -> None:
    model = _nested(read, trip)
    _, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.commits() == []
    rewritten(model, Feeds(sizes=(0, 1, 3), values={"m": [0, 1, 3], "n": [0, 2]}))


RANGE = """g (float[T,3] x, int64 k, int64 m) => (float[P] y)
    <int64 zero = {0}, int64 one = {1}, int64 back = {-1}, int64[1] at0 = {0}> {
    all = Shape(x) n = Gather(all, zero) most = Mul(n, n)
    y = Loop (m, , at0) <body = b (int64 i, bool ci, int64[Q] s) => (bool co, int64[R] so) {
        co = Identity(ci) r = Range(RANGE) t = ReduceSum<keepdims=0>(r) so = Add(s, t) }> }"""


@pytest.mark.parametrize(
    ("bounds", "hoisted"),
    [
        ("zero, n, one", True),
        ("one, n, one", True),
        ("zero, k, one", False),  # k may be any number
        ("zero, most, one", False),
        ("k, n, one", False),
        ("n, zero, back", False),
    ],
)
def test_a_range_over_an_axis_cannot_fail(bounds: str, hoisted: bool) -> None:
    text = RANGE.replace("RANGE", bounds).replace("float[P] y", "int64[P] y")
    result, trace, _ = run_rules(parse(text), [HoistLoopInvariantCode])
    assert trace.defects() == []
    loop = next(n for n in result.graph.node if n.op_type == "Loop")
    body = [n.op_type for n in loop.attribute[0].g.node]
    assert ("Range" not in body) == hoisted
    feeds = Feeds(sizes=(0, 1, 5), values={"k": [0, 2, -1], "m": [0, 1, 3]})
    assert_equivalent(parse(text), result, feeds)


@pytest.mark.parametrize(
    ("shape", "hoisted"),
    [
        ("Concat<axis=0>(all, at0)", True),
        ("Concat<axis=-1>(at0, all, at0)", True),
        ("Concat<axis=0>(x, x)", False),  # it has other axes
        ("Concat<axis=0>(ks, all)", False),  # of any length
        ("Unsqueeze(m, at0)", True),
        ("Unsqueeze(x, two)", True),
        ("Unsqueeze(all, axes)", False),  # any axis
    ],
)
def test_shapes_that_are_put_together_cannot_fail(shape: str, hoisted: bool) -> None:
    text = f"""g (int64[T,3] x, int64[K] ks, int64[1] axes, int64 m) => (int64[P] y)
        <int64[1] at0 = {{0}}, int64[2] two = {{0, -1}}, int64[1] zero = {{0}}> {{
        all = Shape(x)
        y = Loop (m, , zero) <body = b (int64 i, bool ci, int64[Q] s) => (bool co, int64[R] so) {{
            co = Identity(ci) c = {shape} t = ReduceSum<keepdims=0>(c) so = Add(s, t) }}> }}"""
    model = parse(text)
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    inner = [node.op_type for node in _body(result.graph).node]
    assert (re.split(r"\W", shape)[0] not in inner) == hoisted
    axes = [np.array([axis]) for axis in (0, 1, 5)]
    feeds = Feeds(sizes=(0, 1, 5), values={"axes": axes, "m": [0, 1, 3]})
    assert_equivalent(model, result, feeds)


@pytest.mark.parametrize(
    ("work", "hoisted"),
    [
        ("Transpose<perm=[1, 0]>(x)", True),
        ("Transpose(x)", True),
        ("Squeeze(u, at1)", True),
        ("Squeeze(u)", True),
        ("Squeeze(x, at0)", False),  # T may be 2
        ("Squeeze(u, axes)", False),  # any axis
    ],
)
def test_changes_of_layout_cannot_fail(work: str, hoisted: bool) -> None:
    model = parse(f"""g (float[T,3] x, float[T,1,3] u, int64[1] axes, int64 m) => (float y)
        <int64[1] at0 = {{0}}, int64[1] at1 = {{1}}, float zero = {{0}}> {{
        y = Loop (m, , zero) <body = b (int64 i, bool ci, float s) => (bool co, float so) {{
            co = Identity(ci) c = {work} t = ReduceSum<keepdims=0>(c) so = Add(s, t) }}> }}""")
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    assert (re.split(r"\W", work)[0] in _operators(result)) == hoisted
    axes = [np.array([axis]) for axis in (0, 1, 5)]
    assert_equivalent(model, result, Feeds(sizes=(0, 1, 2), values={"axes": axes, "m": [0, 1, 3]}))


@pytest.mark.parametrize(
    ("division", "hoisted"),
    [
        ("Div(x, three)", True),
        ("Mod(x, three)", True),
        ("Div(x, zero)", False),
        ("Div(x, minus)", False),
        ("Mod(x, k)", False),
    ],
)
def test_a_division_by_a_known_integer_cannot_fail(division: str, hoisted: bool) -> None:
    model = parse(f"""g (int64[3] x, int64[1] k, int64 m) => (int64[3] y)
        <int64 three = {{3}}, int64 zero = {{0}}, int64 minus = {{-1}}> {{
        y = Loop (m, , x) <body = b (int64 i, bool ci, int64[3] s) => (bool co, int64[3] so) {{
            co = Identity(ci) d = {division} so = Add(s, d) }}> }}""")
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    assert (division[:3] in _operators(result)) == hoisted
    if hoisted:
        assert_equivalent(model, result, Feeds(values={"m": [0, 1, 3], "k": [[2], [-5]]}))


def _dequantised(read: str, work: str) -> onnx.ModelProto:
    return parse(f"""g (float[2] x, float[2] scales, int64 m) => (float[2] y) <int64[1] at0 = {{0}},
        int8[2,2] w = {{1, -2, 3, 4}}, float scale = {{0.5}}, float[2] two = {{0.5, 2}}, int8 zero = {{1}}> {{
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so) {{
            co = Identity(ci) d = {read} {work} }}> }}""")


@pytest.mark.parametrize(
    ("read", "work", "hoisted"),
    [
        ("DequantizeLinear(w, scale)", "so = MatMul(s, d)", True),
        ("DequantizeLinear(w, scale, zero)", "t = Tanh(s) so = MatMul(t, d)", True),
        ("DequantizeLinear<axis=0>(w, two)", "so = MatMul(s, d)", True),
        ("DequantizeLinear(w, scales)", "so = MatMul(s, d)", True),
        ("DequantizeLinear<axis=2>(w, two)", "so = MatMul(s, d)", False),
        (
            "DequantizeLinear(w, scale)",
            "q = QuantizeLinear(s, scale, zero) e0 = DequantizeLinear(q, scale, zero) f = Transpose(d) "
            "e = Unsqueeze(e0, at0) o = MatMul(e, f) so = Squeeze(o, at0)",
            False,
        ),
        ("DequantizeLinear<axis=0>(w, two, zero)", "so = MatMul(s, d)", False),
        (
            "DequantizeLinear(w, scale)",
            "q = QuantizeLinear(s, scale, zero) e = DequantizeLinear(q, scale, zero) so = MatMul(e, d)",
            False,
        ),
    ],
    ids=[
        "one scale",
        "zero point",
        "axis",
        "computed scales",
        "no such axis",
        "transposed for a quantised product",
        "of another shape than its zero point",
        "quantised product",
    ],
)
def test_a_dequantised_weight_leaves_the_loop(read: str, work: str, hoisted: bool) -> None:
    """Runtimes do not fold it; one that belongs to a quantised operator stays with it."""
    model = _dequantised(read, work)
    result, trace, _ = run_rules(model, [HoistLoopInvariantCode])
    assert trace.defects() == []
    assert ("DequantizeLinear" in _operators(result)) == hoisted
    assert_equivalent(model, result, Feeds(values={"m": [0, 1, 3]}))


def test_a_result_of_a_scan_body_keeps_its_declared_rank() -> None:
    """onnxruntime does not run a Scan with an output whose rank the body does not declare."""
    model = parse("""g (float[T,2] xs, int32 j, bool c) => (bool y) <int32 one = {1}> {
        y = Scan <num_scan_inputs = 1, body = b (bool s, float[?] x) => (bool so) {
            so = GreaterOrEqual(j, one) }> (c, xs) }""")
    result = rewritten(model, Feeds(sizes=(1, 2, 7), values={"j": [0, 1]}))
    (scan,) = (node for node in result.model.graph.node if node.op_type == "Scan")
    (output,) = next(a.g for a in scan.attribute if a.name == "body").output
    assert output.type.tensor_type.HasField("shape")
