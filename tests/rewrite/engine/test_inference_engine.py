"""Models for one inference engine: no rule adds a form that the engine does not support."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import parser

import looplift
from looplift.rewrite.engine.inference_engine import ENGINES
from looplift.rewrite.errors import LoopliftError
from looplift.rewrite.storage.iteration_numbers import reshape_iteration_numbers

from ...small_models import MASKED_RNN, parse, run

RNN = """g (float[T,B,2] x, float[B,3] h0) => (float[T,B,3] y)
    <float[2,3] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3}, float[3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
    h, y = Scan <num_scan_inputs=1, body = b (float[B,3] s, float[B,2] xt)
        => (float[B,3] so, float[B,3] row) {
        p = MatMul(xt, w) q = MatMul(s, r) a = Add(q, p) so = FUNCTION(a) row = Identity(so)
    }> (h0, x) }"""
COUNTED = """g (float[3] x) => (float[3] y) <int64 m = {100}> {
    y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }"""


def operators(engine: str | None, text: str) -> Counter[str]:
    model = parse(text)
    result = looplift.rewrite(model, engine=engine, verify=True)
    assert result.report.defects == []
    return result.report.after


@pytest.mark.parametrize(
    ("engine", "function", "kept"),
    [
        (None, "Tanh", "RNN"),
        ("onnxruntime", "Relu", "RNN"),
        ("openvino", "Tanh", "RNN"),
        ("openvino", "Relu", "Scan"),  # an activation other than the default
        ("tract", "Tanh", "Scan"),  # the batch is not known
    ],
)
def test_a_recurrence_takes_a_form_that_the_engine_has(
    engine: str | None, function: str, kept: str
) -> None:
    found = operators(engine, RNN.replace("FUNCTION", function))
    assert {op: found[op] for op in ("RNN", "Scan") if found[op]} == {kept: 1}


def test_the_reason_names_the_engine() -> None:
    result = looplift.rewrite(parse(RNN.replace("FUNCTION", "Tanh")), engine="tract")
    (scan,) = (node for node in result.engine.index.walk() if node.op == "Scan")
    (reason,) = (r for r in result.reasons(scan) if r.rule == "FuseRecurrence")
    assert reason.sentence == "tract does not support RNN with initial_h"


def test_what_the_engine_refuses_stays_the_reason() -> None:
    """Other rules then move the mask after the loop, so that the refused rule no longer matches."""
    assert operators(None, MASKED_RNN)["RNN"] == 1
    result = looplift.rewrite(parse(MASKED_RNN), engine="openvino")
    assert "VectorizeAfterLoop" in result.report.commits
    (loop,) = (node for node in result.engine.index.walk() if node.op == "Loop")
    (reason,) = (r for r in result.reasons(loop) if r.rule == "FuseRecurrence")
    assert reason.sentence == "openvino does not support RNN with sequence_lens"


def test_a_known_batch_lifts_the_limit() -> None:
    text = RNN.replace("FUNCTION", "Tanh").replace("B,", "4,")
    text = text.replace("float[4,3] h0", "float[4,3] h").replace("(h0, x)", "(zeros, x)")
    text = text.replace("(float[T,4,2] x, float[4,3] h)", "(float[T,4,2] x)")
    zeros = ", ".join(["0"] * 12)
    text = text.replace("<float[2,3] w", f"<float[4,3] zeros = {{{zeros}}}, float[2,3] w")
    assert operators("tract", text)["RNN"] == 1


def test_a_longer_loop_is_unrolled_for_an_engine_without_loops() -> None:
    assert operators(None, COUNTED)["Loop"] == 1
    assert operators("tract", COUNTED) == {"Sin": 100}
    x = np.ones(3, np.float32)
    result = looplift.rewrite(parse(COUNTED), engine="tract").model
    np.testing.assert_allclose(run(parse(COUNTED), x=x), run(result, x=x))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_form_that_the_file_has_may_stay(engine: str) -> None:
    """Rules still improve what is around it, and the model is as right as it was."""
    model = parse("""g (float[T,B,2] x, int32[B] l) => (float[T,1,B,3] y)
        <float[1,3,2] w = {0.1, 0.2, 0.3, -0.1, -0.2, -0.3},
         float[1,3,3] r = {1, 0, 0, 0, 1, 0, 0, 0, 1}> {
        same = Identity(x)
        y = RNN <hidden_size = 3> (same, w, r, , l) }""")
    result = looplift.rewrite(model, engine=engine, verify=True)
    assert [node.op_type for node in result.model.graph.node] == ["RNN"]
    assert result.model.graph.node[0].input[0] == "x"


@pytest.mark.parametrize("op", ["com.microsoft.BiasGelu", "SimplifiedLayerNormalization"])
def test_onnxruntime_keeps_its_own_operators(op: str) -> None:
    """What they are made of is slower there."""
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,4] x, float[4] b) => (float[N,4] y) {{ same = Identity(x) y = {op}(same, b) }}""")
    kept = looplift.rewrite(model, engine="onnxruntime", verify=True)
    assert [node.op_type for node in kept.model.graph.node] == [op.rsplit(".", 1)[-1]]
    (node,) = kept.engine.index.walk()
    sentences = {reason.sentence for reason in kept.reasons(node)}
    assert f"onnxruntime runs {node.op} as it is" in sentences
    for engine in (None, "openvino"):
        assert node.op not in looplift.rewrite(model, engine=engine, verify=True).report.after


def test_in_a_loop_they_are_decomposed() -> None:
    """The loop, which has nothing else, goes."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[T,4] x, float[4] b) => (float[T,4] y) <int64[1] zero = {0}, bool go = {1}> {
        t = Shape(x) m = Gather(t, zero) n = Squeeze(m)
        y = Loop(n, go) <body = g (int64 i, bool c) => (bool d, float[4] r) {
            d = Identity(c) s = Gather(x, i) r = com.microsoft.BiasGelu(s, b) }> }""")
    after = looplift.rewrite(model, engine="onnxruntime", verify=True).report.after
    assert not {"Loop", "BiasGelu"} & after.keys()


def test_experimental_operators_are_decomposed_for_onnxruntime() -> None:
    """It runs them before opset 10 only."""
    text = "g (float[N] x) => (float[N] y) { y = Scale<scale = 2.0>(x) }"
    model = parser.parse_model(f'<ir_version: 3, opset_import: ["" : 7]> {text}')
    assert looplift.rewrite(model, engine="onnxruntime", verify=True).report.after == {"Mul": 1}


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(
        LoopliftError, match="not an inference engine that looplift knows"
    ) as raised:
        looplift.rewrite(parse(COUNTED), engine="open-vino")
    assert "openvino" in raised.value.remedy


ITERATION = """g (float[3] x) => (float[3] y, float[20] z) <int64 m = {20}> {
    y, z = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, float row) {
        co = Identity(ci) row = Cast<to=1>(i) p = Sin(s) so = Add(p, row) }> }"""


def test_an_iteration_number_becomes_a_scalar_where_the_engine_has_a_vector() -> None:
    result = looplift.rewrite(parse(ITERATION), engine="opencv", verify=True).model
    (loop,) = (node for node in result.graph.node if node.op_type == "Loop")
    body = next(a.g for a in loop.attribute if a.name == "body")
    first, *others = body.node
    assert first.op_type == "Reshape"
    assert first.input[0] == body.input[0].name
    assert all(body.input[0].name not in node.input for node in others)
    x = np.ones(3, np.float32)
    for a, b in zip(run(parse(ITERATION), x=x), run(result, x=x)):
        np.testing.assert_allclose(a, b)


def test_a_body_that_does_not_read_its_iteration_number_gets_no_reshape() -> None:
    text = COUNTED.replace("co = Identity(ci)", "co = Identity(ci) e = Exp(s)").replace(
        "Sin(s)", "Sin(e)"
    )
    assert operators("opencv", text) == {"Loop": 1, "Sin": 1, "Exp": 1}


def test_an_inner_value_of_the_same_name_is_no_iteration_number() -> None:
    model = parse("""g (float[3] x, int64 m, bool c) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) f = Cast<to=1>(i)
        so = If (c) <then_branch = t () => (float[3] a) { i = Exp(s) a = Sin(i) },
          else_branch = e () => (float[3] d) { j = Cast<to=1>(i) k = Add(j, f) d = Add(s, k) }> }> }""")
    reshape_iteration_numbers(model)
    body = model.graph.node[0].attribute[0].g
    branch = {a.name: a.g.node for a in body.node[-1].attribute}
    assert list(branch["then_branch"][1].input) == ["i"]
    assert list(branch["else_branch"][0].input) == [body.node[0].output[0]] == ["i_scalar"]


@pytest.mark.parametrize(
    ("engine", "form", "refused"),
    [
        ("opencv", "y, , z = LSTM <hidden_size = 3> (x, w, r)", ["LSTM with Y_c but not Y_h"]),
        ("opencv", "y, h, z = LSTM <hidden_size = 3> (x, w, r)", []),
        ("mnn", "y, h, z = LSTM <hidden_size = 3> (x, w, r)", ["LSTM"]),
        ("mnn", "y, z = LSTM <hidden_size = 3> (x, w, r)", ["LSTM", "LSTM without Y_c"]),
        ("tract", "y, z = LSTM <hidden_size = 3, direction = 'reverse'> (x, w, r)",
         ["LSTM with direction reverse", "LSTM with a batch whose size is not known"]),
    ],
)  # fmt: skip
def test_the_forms_that_an_engine_refuses(engine: str, form: str, refused: list[str]) -> None:
    text = f"""g (float[T,B,2] x, float[1,12,2] w, float[1,12,3] r) => (float[T,1,B,3] y, float[1,B,3] z)
        {{ {form} }}""".replace("'", '"')
    engine_run = looplift.rewrite(parse(text)).engine
    (node,) = (n for n in engine_run.index.walk() if n.op == "LSTM")
    assert list(ENGINES[engine].refusals(node, engine_run.facts)) == refused
