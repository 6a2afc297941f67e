"""Body outputs in the form of rules and in the form of files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from looplift import rewrite
from looplift.rewrite.engine.engine import Engine
from looplift.rewrite.graph.ir import Constant
from looplift.rewrite.storage.model import export_model, import_model
from looplift.rules.loops.carried_values import MergeEqualCarriedValues
from looplift.rules.values.common_subexpressions import EliminateCommonSubexpression

from ...equivalence import assert_equivalent, rewritten, run_rules
from ...small_models import parse
from ..fact_oracle import Feeds

LOOP = """g (float[3] x, int64 m) => (float[3] y, int64[K] rows, float[L,3] more) {
    y, rows, more = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s)
        => (bool co, float[3] so, int64 row, float[3] again) {
        co = Identity(ci) so = Neg(s) row = Identity(i) again = Identity(so) }> }"""
LISTS = """g (float[3] x, int64 m) => (seq(float[3]) a, seq(float[3]) b) {
    e = SequenceEmpty()
    a, b = Loop (m, , e, e) <body = f (int64 i, bool ci, seq(float[3]) s, seq(float[3]) t)
        => (bool co, seq(float[3]) s1, seq(float[3]) t1) {
        co = Identity(ci) s1 = SequenceInsert(s, x) t1 = SequenceInsert(t, x) }> }"""


def test_copies_are_removed_and_added_again() -> None:
    model = import_model(parse(LOOP, 21, 10))
    before = export_model(model).SerializeToString()
    engine = Engine(model, ())
    body = model.graph.nodes[0].attrs["body"]
    # The copy for cond_out is not needed: removing it is up to the rules.
    assert [node.op for node in engine.index.nodes(body)] == ["Identity", "Neg"]
    assert body.outputs[2] is body.inputs[0]
    assert body.outputs[3] is body.outputs[1]
    engine.run()
    assert export_model(model).SerializeToString() == before


def test_a_copy_that_a_node_reads_stays() -> None:
    text = LOOP.replace("again = Identity(so)", "again = Abs(row_f) row_f = Cast<to=1>(row)")
    model = import_model(parse(text.replace("float[3] again", "float again"), 21, 10))
    engine = Engine(model, ())
    body = model.graph.nodes[0].attrs["body"]
    assert body.outputs[2] is not body.inputs[0]
    assert len(engine.index.nodes(body)) == 5


@pytest.mark.parametrize(("opset", "merged"), [(13, 0), (14, 1)])
def test_sequences_are_copied_where_the_opset_can(opset: int, merged: int) -> None:
    """Two outputs with the same value need an Identity, which takes sequences since opset 14."""
    model = parse(LISTS, opset, 8)
    result, trace, _ = run_rules(model, [EliminateCommonSubexpression, MergeEqualCarriedValues])
    assert trace.defects() == []
    assert sum(commit.rule == "MergeEqualCarriedValues" for commit in trace.commits()) == merged
    assert_equivalent(model, result, Feeds(values={"m": [0, 1, 3]}))


FEEDS = Feeds(values={"n": [0, 1, 3], "c": [True, False]})


def _text(condition: str, first: str = "c", kind: str = "bool") -> str:
    """A loop with this condition, which no rule removes."""
    return f"""g (float[3] x, int64 n, bool c) => (float[3] y) <bool true = {{1}}, int64 five = {{5}}> {{
        y = Loop (n, {first}, x) <body = b (int64 i, {kind} ci, float[3] s) => ({kind} co, float[3] so) {{
            {condition} a = Sin(s) b = MatMul(a, s) so = Add(s, b) }}> }}"""


@pytest.mark.parametrize("first", ["c", "true", ""])
@pytest.mark.parametrize(
    "condition", ["co = Identity(ci)", "co = Identity(true)", "co = Or(ci, true)"]
)
def test_a_file_returns_a_constant_condition(condition: str, first: str) -> None:
    result = rewritten(parse(_text(condition, first)), FEEDS, 1e-6)
    loop = next(node for node in result.model.graph.node if node.op_type == "Loop")
    body = loop.attribute[0].g
    _check_constant_condition(body)
    again = rewrite(result.model)
    assert again.report.commits == {}
    assert again.model.SerializeToString() == result.model.SerializeToString()


def _check_constant_condition(body: onnx.GraphProto) -> None:
    (condition,) = (tensor for tensor in body.initializer if tensor.name == body.output[0].name)
    assert list(condition.dims) == [d.dim_value for d in body.input[1].type.tensor_type.shape.dim]
    assert numpy_helper.to_array(condition).all()


def test_rules_see_the_constant() -> None:
    text = _text("").replace("bool co,", "bool ci,")
    model = import_model(parse(text))
    before = export_model(model).SerializeToString()
    engine = Engine(model, ())
    out = model.graph.nodes[0].attrs["body"].outputs[0]
    assert isinstance(out, Constant)
    assert np.all(out.values)
    engine.run()
    assert export_model(model).SerializeToString() == before


@pytest.mark.parametrize(
    "text",
    [
        _text("co = Less(i, five)"),
        _text("").replace("float[3] so)", "float[3] so) <bool co = {1}>"),
        _text("").replace("float[3] so)", "float[3] so) <bool co = {0}>"),
    ],
    ids=["may end", "the file's own", "ends"],
)
def test_other_conditions_stay(text: str) -> None:
    model = import_model(parse(text))
    before = export_model(model).SerializeToString()
    Engine(model, ()).run()
    assert export_model(model).SerializeToString() == before


def test_shapes_stay() -> None:
    """A body may take its condition as a vector of one element."""
    model = parse(_text("co = Identity(ci)", "", "bool[1]"))
    result = rewritten(model, FEEDS, 1e-6)
    _check_constant_condition(result.model.graph.node[0].attribute[0].g)


class TestFirstConditions:
    """A file gives the first condition of a Loop; for rules, one that is true is omitted."""

    @pytest.mark.parametrize("first", ["", "true"])
    def test_one_that_no_rule_touches_is_written_as_it_was(self, first: str) -> None:
        model = import_model(parse(_text("co = Less(i, five)", first)))
        before = export_model(model).SerializeToString()
        engine = Engine(model, ())
        assert model.graph.nodes[0].inputs[1].name == ""
        engine.run()
        assert export_model(model).SerializeToString() == before

    def test_one_that_may_be_replaced_at_run_time_stays(self) -> None:
        model = parse(_text("co = Less(i, five)", "true"))
        model.graph.input.add().CopyFrom(
            onnx.helper.make_tensor_value_info("true", onnx.TensorProto.BOOL, ())
        )
        engine = Engine(import_model(model), ())
        assert engine.model.graph.nodes[0].inputs[1].name == "true"

    def test_a_computed_one_becomes_a_constant(self) -> None:
        text = _text("co = Less(i, five)", "known").replace(
            "y = Loop", "known = Not(false) y = Loop"
        )
        text = text.replace("<bool true = {1}", "<bool true = {1}, bool false = {0}")
        result = rewritten(parse(text), FEEDS, 1e-6)
        _check_first_condition(result.model, ())
        again = rewrite(result.model)
        assert again.report.commits == {}
        assert again.model.SerializeToString() == result.model.SerializeToString()

    def test_its_shape_is_that_of_the_body(self) -> None:
        text = _text("co = Less(i, vector)", "known", "bool[1]").replace(
            "y = Loop", "known = Not(false) y = Loop"
        )
        text = text.replace("<bool true = {1}", "<bool[1] false = {0}, int64[1] vector = {5}")
        result = rewritten(parse(text), FEEDS, 1e-6)
        _check_first_condition(result.model, (1,))

    def test_a_loop_in_a_body_gets_one(self) -> None:
        model = parse("""g (float[3] x, int64 n, bool c) => (float[3] y)
            <bool false = {0}, int64 five = {5}> {
            y = Loop (n, , x) <body = outer (int64 i, bool ci, float[3] s)
                => (bool co, float[3] so) {
                co = Less(i, five)
                known = Not(false)
                so = Loop (n, known, s) <body = b (int64 j, bool di, float[3] t)
                    => (bool do, float[3] to) {
                    do = Less(j, i) a = Sin(t) b = MatMul(a, t) to = Add(t, b) }> }> }""")
        result = rewritten(model, FEEDS, 1e-6)
        (outer,) = (n for n in result.model.graph.node if n.op_type == "Loop")
        (inner,) = (n for n in outer.attribute[0].g.node if n.op_type == "Loop")
        assert outer.input[1] == ""  # as in the file
        constants = {tensor.name for tensor in result.model.graph.initializer}
        assert inner.input[1] in constants


def _check_first_condition(model: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (condition,) = (tensor for tensor in model.graph.initializer if tensor.name == loop.input[1])
    assert tuple(condition.dims) == shape
    assert numpy_helper.to_array(condition).all()
