from __future__ import annotations

import re
from pathlib import Path

import onnx
from onnx import parser
from rich.console import Console

from looplift.debug.control_flow import ControlNode
from looplift.debug.inspect import Inspection, inspect, render
from looplift.request import Request
from looplift.rewrite.engine.rule import fixture
from looplift.rewrite.facts.assertions import Assertions
from looplift.rules.reductions.linear_attention import ChunkLinearAttention

from ..small_models import MASKED_RNN


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')


def shown(inspection: Inspection, *, why: bool = True) -> str:
    console = Console(width=500, no_color=True)
    with console.capture() as captured:
        console.print(*render(inspection, "model", why), sep="\n")
    return captured.get()


LOOP = """g (int64 n, float[T, B] x, float[B] s) => (float[B] last, float[N, B] rows) {
    go = Constant<value = bool {1}>()
    last, rows = Loop(n, go, s) <
        body = step (int64 i, bool c, float[B] h) => (bool d, float[B] k, float[B] row) {
            d = Identity(c)
            now = Gather(x, i)
            k = Add(h, now)
            row = Relu(k)
        }
    >
}"""

SCAN = """g (float[B] s, float[B, T] x) => (float[B] last, float[B, U] rows) {
    last, rows = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        scan_input_directions = [1],
        body = step (float[B] h, float[B] now) => (float[B] k, float[B] row) {
            k = Add(h, now)
            row = Relu(k)
        }
    >(s, x)
}"""

NESTED = """g (bool a, bool b, float[N] x) => (float[N] y) {
    y = If(a) <
        then_branch = t () => (float[N] p) {
            p = If(b) <
                then_branch = u () => (float[N] q) { q = Exp(x) },
                else_branch = v () => (float[N] r) { r = Tanh(x) }
            >
        },
        else_branch = e () => (float[N] w) { w = Sin(x) }
    >
}"""


def test_a_loop_by_role() -> None:
    (loop,) = inspect(Request.of(model(LOOP))).control
    assert (loop.op, loop.position) == ("Loop", 1)
    assert loop.trip_count == "`n`"
    assert loop.condition == ""
    (carried,) = loop.carried
    assert (carried.name, carried.type, carried.initial) == ("h", "float32[B]", "`s`")
    (rows,) = loop.scan_outputs
    assert rows.name == "rows"
    assert loop.captures == ["x"]
    assert loop.bodies["body"].nodes == 4


def test_a_trip_count_that_is_asserted() -> None:
    (loop,) = inspect(Request.of(model(LOOP), Assertions(inputs={"n": 5}))).control
    assert loop.trip_count == "5"


def test_a_condition() -> None:
    text = LOOP.replace("d = Identity(c)", "most = ReduceMax(h) one = Size(h) d = Less(one, n)")
    (loop,) = inspect(Request.of(model(text))).control
    assert loop.condition == "Less(Size(`h`), `n`)"


def test_both_sizes_that_decide_a_condition() -> None:
    """For a Squeeze, a batch of 1 is as likely a wish as a larger one."""
    text = """g (float[B,T] x) => (float[K] y) <int64 one = {1}, int64 zero = {0}, int64[1] axes = {0}> {
        sizes = Shape(x)
        size = Gather<axis=0>(sizes, zero)
        c = Equal(size, one)
        z = If (c) <
            then_branch = t () => (float[T] a) { a = Squeeze(x, axes) },
            else_branch = e () => (float[B,T] b) { b = Identity(x) }
        >
        y = Exp(z)
    }"""
    assert 'try --dim "B>=2" or --dim B=1' in shown(inspect(Request.of(model(text))), why=False)


def test_a_scan_by_role() -> None:
    (scan,) = inspect(Request.of(model(SCAN))).control
    assert scan.trip_count == "T"
    (read,) = scan.scan_inputs
    assert (read.name, read.type, read.axis, read.reverse) == ("x", "float32[B, T]", 1, True)
    (written,) = scan.scan_outputs
    assert (written.name, written.axis, written.reverse) == ("rows", 1, False)
    text = shown(inspect(Request.of(model(SCAN))))
    assert "scan input x: float32[B, T], axis 1, reversed" in text
    assert "trip count: T" in text


def test_what_remains_says_why_and_what_is_removed_says_how() -> None:
    inspection = inspect(Request.of(model(NESTED), Assertions(inputs={"b": True})))
    outer, inner = inspection.all()
    assert not outer.removed_by
    assert any("`a` is not known" in reason for reason in outer.reasons), outer.reasons
    assert inner.removed_by == "InlineDecidedIf"
    assert inner.reasons == []
    assert inspection.notes == ["input `b` is True"]
    text = shown(inspection)
    assert "2 Ifs: 1 removed, 1 remains" in text
    assert "remains" in text
    assert "removed: InlineDecidedIf" in text


def test_nodes_without_a_name_are_told_apart() -> None:
    outer, inner = inspect(Request.of(model(NESTED))).all()
    assert outer.name == inner.name == ""
    assert "`y`" in outer.label
    assert "`p`" in inner.label
    assert "If of 'p', node 0" in shown(inspect(Request.of(model(NESTED))))


def test_no_control_flow() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Relu(x) }"
    assert "no control flow" in shown(inspect(Request.of(model(text))))


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    proto = model(NESTED)
    before = proto.SerializeToString()
    inspect(Request.of(proto, Assertions(inputs={"a": True, "b": True})))
    assert proto.SerializeToString() == before


def depth(nodes: list[ControlNode]) -> int:
    inner = [body.control for node in nodes for body in node.bodies.values()]
    return 1 + max(map(depth, inner), default=0) if nodes else 0


def test_a_published_model(models_dir: Path) -> None:
    """25 Ifs, up to four deep; with nothing given the one on the sample rate remains."""
    inspection = inspect(Request.of(models_dir / "silero_vad.onnx"))
    assert len(inspection.all()) == 25
    assert depth(inspection.control) == 4
    (rate,) = [node for node in inspection.all() if not node.removed_by]
    assert rate.condition == "Equal(`sr`, 16000)"
    given = Assertions(inputs={"sr": 16000}, shapes={"input": (1, 576)})
    request = Request.of(models_dir / "silero_vad.onnx", given)
    assert all(node.removed_by for node in inspect(request).all())


def test_the_corpus(corpus: Path) -> None:
    for path in sorted(corpus.glob("*.onnx"))[::6]:
        inspection = inspect(Request.of(path))
        counts = sum(inspection.model.operators.get(op, 0) for op in ("If", "Loop", "Scan"))
        assert len(inspection.all()) == counts, path
        assert all(node.removed_by or node.reasons for node in inspection.all()), path
        shown(inspection)


def test_one_screen(models_dir: Path) -> None:
    """The summary of a model with 25 Ifs has fewer lines than a terminal."""
    inspection = inspect(Request.of(models_dir / "silero_vad.onnx"))
    console = Console(width=100, no_color=True)
    with console.capture() as captured:
        console.print(*render(inspection, "silero_vad.onnx"), sep="\n")
    text = captured.get()
    assert re.match(r"silero_vad.onnx: 2.3 MB, opset 16, \d+ nodes", text)
    assert "25 Ifs: 24 removed, 1 remains" in text
    assert "If `If_0`: the condition Equal(`sr`, 16000) is not known" in text
    assert "try --input sr=16000" in text
    assert text.count("\n") < 16


def test_new_control_flow_is_counted() -> None:
    """Chunks of linear attention are computed by Scans."""
    text = shown(inspect(Request.of(fixture(ChunkLinearAttention.fires))))
    assert re.search(r"1 Scan: removed, \d Scans? (is|are) new", text)


def test_an_assertion_that_does_not_remove_a_loop_says_so() -> None:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        inspection = inspect(Request.of(model(MASKED_RNN), engine="openvino"))
        console.print(*render(inspection, "model"), sep="\n")
    assert (
        'openvino does not support RNN with sequence_lens; try --dim "T>=1", which makes it a Scan'
        in captured.get()
    )


NEGATED = """g (bool a, float[N] x) => (float[N] y) {
    n = Not(a)
    y = If (n) <then_branch = t () => (float[N] p) { q = Exp(x) r = Sin(q) p = Neg(r) },
                else_branch = e () => (float[N] s) { s = Identity(x) }> }"""


def test_what_remains_is_described_as_its_reasons_are() -> None:
    """A rule removes the Not and exchanges the branches: so do the condition and the branches."""
    (left,) = inspect(Request.of(model(NEGATED))).control
    assert any("the condition `a` is not the result of Not" in each for each in left.reasons)
    assert left.condition == "`a`"
    assert left.bodies["then_branch"].nodes < left.bodies["else_branch"].nodes


WHILE = """g (float[N] x, bool yes, float limit) => (float[N] y) {
    y = Loop(, yes, x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] next) {
        next = Sin(s) m = ReduceMax<keepdims = 0>(next) d = Less(limit, m) }> }"""


def test_a_loop_without_a_trip_count() -> None:
    text = shown(inspect(Request.of(model(WHILE))))
    assert "no trip limit" in text
    assert "trip count:" not in text
