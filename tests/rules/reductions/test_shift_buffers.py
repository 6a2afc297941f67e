"""Shift buffers become windows of everything that was appended to them."""

from __future__ import annotations

import onnx
import pytest

from looplift.rules.reductions.shift_buffers import ShiftBufferToWindows

from ...equivalence import assert_equivalent, ops, rewritten, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

COUNTS = Feeds(sizes=(7, 1, 0), values={"n": [0, 1, 2, 7]})
"""Also fewer iterations than slices, none, and an empty batch."""
NOT_EMPTY = Feeds(sizes=(7, 1), values={"n": [1, 2, 7]})
"""At least one iteration: in an empty scan output, onnxruntime sets the size of the batch to 0."""


def _shape(axis: int, size: int) -> str:
    """The shape [B, 3] with one more axis."""
    sizes = ["B", "3"]
    sizes.insert(axis, str(size))
    return ",".join(sizes)


def _model(
    body: str, axis: int = 1, width: int = 3, step: int = 1, *, opset: int = 17, final: bool = False
) -> onnx.ModelProto:
    """A buffer s of `width` elements and `step` new ones x; `body` makes the next buffer so and r."""
    outputs = f"float[{_shape(axis, width)}] y" + ("" if final else ", ys")
    results = "y" if final else "y, ys"
    collected = "" if final else ", r"
    body = body.replace("AXIS", str(axis))
    return parse(
        f"""g (float[T,{_shape(axis, step)}] xs, float[{_shape(axis, width)}] s0, int64 n) => ({outputs})
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] ax = {{{axis}}}, int64 last = {{-1}},
         int64[1] end = {{9223372036854775807}}, int64[1] width = {{{width}}}, int64[1] step = {{{step}}},
         int64[1] back = {{{-width}}}, int64[1] kept = {{{width - step}}}, int64[2] parts = {{{step}, {width}}}> {{
        {results} = Loop (n, , s0) <body = b (int64 i, bool ci, float[{_shape(axis, width)}] s)
            => (bool co, float[{_shape(axis, width)}] so{collected}) {{
            co = Identity(ci) x = Gather(xs, i) {body} }}> }}""",
        opset,
    )


SLICE_OF_CONCAT = "w = Concat<axis=AXIS>(s, x) so = Slice(w, step, end, ax)"
SPELLINGS = {
    "a Slice of a Concat": SLICE_OF_CONCAT,
    "a Slice from the end": "w = Concat<axis=AXIS>(s, x) so = Slice(w, back, end, ax)",
    "a Concat of a Slice": "h = Slice(s, step, end, ax) so = Concat<axis=AXIS>(h, x)",
    "a Split": "w = Concat<axis=AXIS>(s, x) h, so = Split<axis=AXIS>(w, parts)",
    "copies": "v = Identity(s) w = Concat<axis=AXIS>(v, x) u = Identity(w) so = Slice(u, step, end, ax)",
    "computed elements": "e = Exp(x) f = Neg(e) w = Concat<axis=AXIS>(s, f) so = Slice(w, step, end, ax)",
    "new elements first": "w = Concat<axis=AXIS>(x, s) so = Slice(w, zero, width, ax)",
    "new elements before a Slice": "h = Slice(s, zero, kept, ax) so = Concat<axis=AXIS>(x, h)",
}
SHAPES = [(0, 3, 1), (1, 3, 1), (2, 3, 1), (1, 5, 2), (0, 2, 1), (2, 4, 3)]
"""The axis, the width of the buffer, and the number of new elements."""
READS = {
    "the buffer": "r = Sin(s)",
    "the next buffer": "r = Sin(so)",
    "both": "a = Mul(s, so) r = Sub(a, s)",
    "an element": "g = Gather<axis=AXIS>(s, last) r = Sin(g)",
    "a part": "p = Slice(so, zero, one, ax) r = Sin(p)",
    "a part without the axis": "p = Slice(so, zero, one, ax) q = Squeeze(p, ax) r = Sin(q)",
}


@pytest.mark.parametrize(("axis", "width", "step"), SHAPES)
@pytest.mark.parametrize("update", SPELLINGS.values(), ids=SPELLINGS)
def test_spellings(update: str, axis: int, width: int, step: int) -> None:
    model = _model(f"{update} a = Mul(s, so) r = Sub(a, s)", axis, width, step)
    result, trace, _ = run_rules(model, [ShiftBufferToWindows])
    assert trace.defects() == []
    assert [c.rule for c in trace.commits()] == ["ShiftBufferToWindows"]
    assert_equivalent(model, result, NOT_EMPTY)
    final = _model(update, axis, width, step, final=True)
    assert "Loop" not in ops(rewritten(final, COUNTS).model)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("update", ["a Slice of a Concat", "new elements first"])
def test_reads(update: str, read: str) -> None:
    for axis, width, step in SHAPES[:4]:
        model = _model(f"{SPELLINGS[update]} {read}", axis, width, step)
        assert "Loop" not in ops(rewritten(model, NOT_EMPTY, 1e-6).model)


def test_the_concat_is_one_window() -> None:
    """Its elements are gathered, not concatenated again for each iteration."""
    model = _model(f"{SLICE_OF_CONCAT} r = Sin(w)")
    counts = ops(rewritten(model, NOT_EMPTY, 1e-6).model)
    assert (counts["Concat"], counts["Gather"]) == (1, 1)


def test_elements_of_a_long_buffer() -> None:
    """Single elements are read without the rest of the buffer, so its length is no limit."""
    model = _model(f"{SLICE_OF_CONCAT} g = Gather<axis=AXIS>(s, last) r = Sin(g)", width=99)
    assert "Loop" not in ops(rewritten(model, NOT_EMPTY, 1e-6).model)


def test_invariant_elements() -> None:
    text = """g (float[B,1] x, float[B,3] s0, int64 n) => (float[B,3] y, ys)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
        y, ys = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s) => (bool co, float[B,3] so, r) {
            co = Identity(ci) w = Concat<axis=1>(s, x) so = Slice(w, one, end, one) r = Sin(w) }> }"""
    assert "Loop" not in ops(rewritten(parse(text), NOT_EMPTY, 1e-6).model)


def test_the_body_of_a_branch_reads_the_buffer() -> None:
    body = """m = ReduceMax(x) c = Greater(m, m0) r = If(c) <
        then_branch = t () => (p) { p = Sin(so) }, else_branch = e () => (q) { q = Cos(s) }>"""
    model = _model(
        f"m0 = Constant<value_float=1.0>() {SLICE_OF_CONCAT} {body}".replace(
            "ReduceMax(x)", "ReduceMax<keepdims=0>(x)"
        )
    )
    result, trace, _ = run_rules(model, [ShiftBufferToWindows])
    assert len(trace.commits()) == 1
    assert_equivalent(model, result, Feeds(sizes=(7, 1), values={"n": [1, 2, 7]}))


def test_a_scan_over_another_axis() -> None:
    text = """g (float[B,T,3] xs, float[B,4,3] s0) => (float[B,4,3] y, ys)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
        y, ys = Scan <num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1], body = b
            (float[B,4,3] s, float[B,3] xt) => (float[B,4,3] so, r) {
            x = Unsqueeze(xt, one) w = Concat<axis=1>(s, x) so = Slice(w, one, end, one)
            r = Softmax<axis=1>(w) }> (s0, xs) }"""
    feeds = Feeds(sizes=(7, 1, 2))
    assert "Scan" not in ops(rewritten(parse(text), feeds, 1e-6).model)


def test_buffers_of_several_layers() -> None:
    """The second buffer is fed by windows of the first one."""
    text = """g (float[T,B,1] xs, float[B,3] s0, float[B,2] u0, int64 n) => (float[B,3] y, float[B,2] z, ys)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
        y, z, ys = Loop (n, , s0, u0) <body = b (int64 i, bool ci, float[B,3] s, float[B,2] u)
            => (bool co, float[B,3] so, float[B,2] uo, r) {
            co = Identity(ci) x = Gather(xs, i) w = Concat<axis=1>(s, x) so = Slice(w, one, end, one)
            m = ReduceMax<axes=[1], keepdims=1>(w) t = Tanh(m)
            v = Concat<axis=1>(u, t) uo = Slice(v, one, end, one) r = ReduceMin<axes=[1]>(v) }> }"""
    result = rewritten(parse(text), NOT_EMPTY, 1e-6)
    assert "Loop" not in ops(result.model)
    assert result.report.commits["ShiftBufferToWindows"] == 2


COLLECTED = {
    "a slice of what the loop carries": "u = Unsqueeze(hn, one)",
    "computed from it": "v = Neg(hn) u = Unsqueeze(v, one)",
    "several elements": "v = Unsqueeze(hn, one) u = Concat<axis=1>(v, v)",
}


@pytest.mark.parametrize("op", ["Loop", "Scan"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("new", COLLECTED.values(), ids=COLLECTED)
def test_new_elements_that_the_loop_computes(new: str, first: bool, op: str) -> None:
    """They depend on another carried value, so the loop remains, but does not carry the buffer."""
    kept = "Slice(w, zero, three, one)" if first else "Slice(w, back, end, one)"
    older = "u, c" if first else "c, u"
    work = f"""a = Mul(h, xt) hn = Sin(a) {new} w = Concat<axis=1>({older}) cn = {kept}
        e = Exp(w) r = ReduceSum<keepdims=0>(e, one) z = Identity(c)"""
    outputs = "(float[B,2] hn, float[B,3,2] cn, float[B,2] r, float[B,3,2] z)"
    if op == "Loop":
        loop = f"""Loop (n, , h0, c0) <body = b (int64 i, bool ci, float[B,2] h, float[B,3,2] c)
            => (bool co, {outputs[1:]} {{ co = Identity(ci) xt = Gather(x, i) {work} }}>"""
    else:
        loop = f"""Scan <num_scan_inputs=1, body = b (float[B,2] h, float[B,3,2] c, float[B,2] xt)
            => {outputs} {{ {work} }}> (h0, c0, x)"""
    model = parse(f"""g (float[T,B,2] x, float[B,2] h0, float[B,3,2] c0, int64 n)
        => (float[B,2] hl, float[B,3,2] cl, rs, zs)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] back = {{-3}},
         int64[1] end = {{9223372036854775807}}> {{
        hl, cl, rs, zs = {loop} }}""")
    result = rewritten(model, NOT_EMPTY, 1e-6)
    assert result.report.commits["ShiftBufferToWindows"] == 1
    (node,) = (n for n in result.model.graph.node if n.op_type in ("Loop", "Scan"))
    assert "h0" in node.input
    assert "c0" not in node.input
    bare, trace, _ = run_rules(model, [ShiftBufferToWindows])
    assert trace.defects() == []
    assert trace.commits() == []  # an iteration computes on the window until that leaves the loop
    assert_equivalent(model, bare, NOT_EMPTY)


def test_collected_elements_of_a_loop_that_does_not_run() -> None:
    text = """g (float[T,B,2] x, float[B,2] h0, float[B,3,2] c0, int64 n) => (float[B,2] hl, float[B,3,2] cl)
        <int64[1] one = {1}, int64[1] back = {-3}, int64[1] end = {9223372036854775807}> {
        hl, cl = Loop (n, , h0, c0) <body = b (int64 i, bool ci, float[B,2] h, float[B,3,2] c)
            => (bool co, float[B,2] hn, float[B,3,2] cn) {
            co = Identity(ci) xt = Gather(x, i) a = Mul(h, xt) hn = Sin(a) u = Unsqueeze(hn, one)
            w = Concat<axis=1>(c, u) cn = Slice(w, back, end, one) }> }"""
    model = parse(text)
    result, trace, _ = run_rules(model, [ShiftBufferToWindows])
    assert [c.rule for c in trace.commits()] == ["ShiftBufferToWindows"]
    assert_equivalent(model, result, COUNTS)
    rewritten(model, COUNTS, 1e-6)
    unread = parse(text.replace("=> (float[B,2] hl, float[B,3,2] cl)", "=> (float[B,2] hl)"))
    result, trace, _ = run_rules(unread, [ShiftBufferToWindows])
    assert trace.defects() == []
    assert_equivalent(unread, result, COUNTS)


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_old_opsets(opset: int) -> None:
    model = _model(f"{SLICE_OF_CONCAT} r = Sin(w)", opset=opset)
    result, trace, _ = run_rules(model, [ShiftBufferToWindows])
    assert len(trace.commits()) == (1 if opset > 10 else 0)
    assert_equivalent(model, result, NOT_EMPTY)
    several = _model(f"{SLICE_OF_CONCAT} r = Sin(w)", 1, 5, 2, opset=opset)
    assert "before opset 14" in reason_of(ShiftBufferToWindows, several)


DECLINED = {
    "older elements are kept": ("w = Concat<axis=AXIS>(s, x) so = Slice(w, zero, width, ax)", "does not keep"),
    "a buffer that is changed": ("m = Neg(s) w = Concat<axis=AXIS>(m, x) so = Slice(w, one, end, ax)", "no carried value is a buffer"),
    "a buffer that is reversed": ("w = Concat<axis=AXIS>(s, x) so = Slice(w, minus, before, ax, minus)", "no carried value is a buffer"),
    "elements of the buffer": ("h = Slice(s, zero, one, ax) w = Concat<axis=AXIS>(s, h) so = Slice(w, one, end, ax)", "no carried value is a buffer"),
    "elements that depend on it": ("h = Slice(s, zero, one, ax) t = Tanh(h) w = Concat<axis=AXIS>(s, t) so = Slice(w, one, end, ax)", "depends on a carried value"),
}  # fmt: skip


@pytest.mark.parametrize(("update", "words"), DECLINED.values(), ids=DECLINED)
def test_other_carried_values_stay(update: str, words: str) -> None:
    constants = "minus = Constant<value_ints=[-1]>() before = Constant<value_ints=[-4]>()"
    model = _model(f"{constants} {update} r = Sin(s)")
    assert words in reason_of(ShiftBufferToWindows, model)
    rewritten(model, NOT_EMPTY, 1e-6)


def test_a_buffer_that_grows_with_the_batch_stays() -> None:
    """The new elements have one row, the buffer may have more, and then the Concat fails."""
    text = """g (float[T,1,1] xs, float[B,3] s0, int64 n) => (float[P,3] y)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,3] s) => (bool co, float[B,3] so) {
            co = Identity(ci) x = Gather(xs, i) w = Concat<axis=1>(s, x) so = Slice(w, one, end, one) }> }"""
    assert "may change in the loop" in reason_of(ShiftBufferToWindows, parse(text))
    rewritten(parse(text), Feeds(sizes=(1, 2), values={"n": [0, 1, 2]}))


def test_a_buffer_of_open_length_stays() -> None:
    text = """g (float[T,B,1] xs, float[B,K] s0, int64 n) => (float[B,K] y)
        <int64[1] one = {1}, int64[1] end = {9223372036854775807}> {
        y = Loop (n, , s0) <body = b (int64 i, bool ci, float[B,K] s) => (bool co, float[B,K] so) {
            co = Identity(ci) x = Gather(xs, i) w = Concat<axis=1>(s, x) so = Slice(w, one, end, one) }> }"""
    _, trace, _ = run_rules(parse(text), [ShiftBufferToWindows])
    assert trace.commits() == []
    rewritten(parse(text), Feeds(sizes=(1, 2, 3), values={"n": [0, 1, 2]}))
