"""Dead nodes and nodes that copy an operand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from looplift import rewrite
from looplift.rewrite.graph.declarations import numpy_type
from looplift.rules.values.dead_nodes import EliminateDeadNode, EliminateIdentity

from ...equivalence import assert_equivalent, ops, rewritten, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of


class TestDeadNodes:
    def test_chains_and_nodes_with_bodies(self) -> None:
        text = """g (float[3] x, int64 m, bool c) => (float[3] y) {
            a = Exp(x) b = Neg(a) d = Add(b, a)
            l = Loop (m, , d) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                co = Identity(ci) so = Add(s, d) }>
            u = If (c) <then_branch = t () => (float[3] p) { p = Neg(l) },
                        else_branch = e () => (float[3] q) { q = Exp(l) }>
            y = Abs(x) }"""
        result, trace, _ = run_rules(parse(text, 21, 10), [EliminateDeadNode])
        assert ops(result) == {"Abs": 1}
        assert len(trace.commits()) == 5  # the bodies go with their owners

    def test_inside_a_body(self) -> None:
        text = """g (float[3] x, int64 m) => (float[3] y) {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                u = Exp(s) v = Neg(u) co = Identity(ci) so = Add(s, x) }> }"""
        result, _, _ = run_rules(parse(text, 21, 10), [EliminateDeadNode])
        assert "Exp" not in ops(result)
        assert_equivalent(parse(text, 21, 10), result, Feeds(values={"m": [0, 2]}))

    def test_one_read_output_keeps_a_node(self) -> None:
        text = "g (float[4] x) => (float[2] y) { y, z = Split<num_outputs = 2>(x) }"
        assert ops(rewritten(parse(text, 21, 10)).model) == {"Split": 1}

    def test_outputs_of_the_model_are_read(self) -> None:
        text = "g (float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Neg(y) }"
        assert ops(rewritten(parse(text, 21, 10)).model) == {"Exp": 1, "Neg": 1}


class TestIdentities:
    def test_chain(self) -> None:
        text = "g (float[2] x) => (float[2] y) { a = Identity(x) b = Identity(a) c = Identity(b) y = Neg(c) }"
        assert ops(rewritten(parse(text, 21, 10)).model) == {"Neg": 1}

    def test_the_source_takes_the_name_of_an_output(self) -> None:
        text = "g (float[2] x) => (float[2] y) { a = Neg(x) y = Identity(a) }"
        result = rewritten(parse(text, 21, 10))
        assert ops(result.model) == {"Neg": 1}
        assert result.model.graph.node[0].output[0] == "y"

    @pytest.mark.parametrize(
        "text",
        [
            "g (float[2] x) => (float[2] y) { y = Identity(x) }",
            "g () => (float[2] y) <float[2] k = {1, 2}> { y = Identity(k) }",
            "g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Identity(y) }",
            "g (float[2] x) => (float[2] y, float[2] z) { a = Neg(x) y = Identity(a) z = Identity(a) }",
        ],
    )
    def test_an_output_needs_a_node_of_its_own(self, text: str) -> None:
        assert ops(rewritten(parse(text, 21, 10)).model)["Identity"] == 1

    def test_read_by_an_output_and_in_a_body(self) -> None:
        text = """g (float[2] x, bool c) => (float[2] y, float[2] z) { a = Neg(x) y = Identity(a)
            z = If (c) <then_branch = t () => (float[2] p) { q = Identity(y) p = Exp(q) },
                        else_branch = e () => (float[2] r) { u = Exp(a) r = Log(u) }> }"""
        assert "Identity" not in ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)

    def test_sequence(self) -> None:
        text = """g (float[2] x) => (float[4] y) { s = SequenceConstruct(x, x) t = Identity(s)
            y = ConcatFromSequence<axis=0>(t) }"""
        assert "Identity" not in ops(rewritten(parse(text, 21, 10)).model)

    def test_a_body_that_returns_its_inputs(self) -> None:
        text = """g (float[2] x, int64 m, bool c) => (float[2] y, float[2] z, float[K,2] ys) {
            y, z, ys = Loop (m, c, x, x) <body = b (int64 i, bool ci, float[2] s, float[2] t)
            => (bool co, float[2] so, float[2] to, float[2] r) {
                co = Identity(ci) so = Identity(t) to = Neg(s) r = Identity(s) }> }"""
        rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}))

    def test_a_copy_without_a_declared_shape(self) -> None:
        """onnxruntime needs the shape, and cannot infer it from axes that are an input."""
        model = parse(
            """g (float[T,3] x, float[3] s0, int64[1] axes) => (float[3] s, float[T,1,3] y, float[T,1,3] z)
            <int64[1] axes = {0}> {
            s, y, z = Scan <num_scan_inputs=1, body = b (float[3] si, float[3] xt) => (float[3] so, float[1,3] o, float[1,3] p) {
                u = Add(si, xt) so = Tanh(u) o = Unsqueeze(so, axes) p = Identity(o) }> (s0, x) }""",
            21,
            10,
        )
        (body,) = (a.g for a in model.graph.node[0].attribute if a.name == "body")
        body.output[2].type.tensor_type.ClearField("shape")
        rewritten(model, Feeds(sizes=(1, 5)), tolerance=1e-6)

    def test_a_body_that_returns_an_outer_value(self) -> None:
        text = """g (float[2] x, int64 m) => (float[2] y, float[K,2] ys) { u = Exp(x)
            y, ys = Loop (m, , x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so, float[2] r) {
                co = Identity(ci) so = Add(s, u) r = Identity(u) }> }"""
        rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)

    def test_a_scan_body_that_returns_its_inputs(self) -> None:
        text = """g (float[T,2] xs, float[2] x) => (float[2] y, float[T,2] ys, float[T,2] zs) {
            y, ys, zs = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] t)
            => (float[2] so, float[2] r, float[2] q) { so = Identity(t) r = Identity(s) q = Identity(t) }> (x, xs) }"""
        rewritten(parse(text, 21, 10), Feeds(sizes=(1, 2, 5)))

    @pytest.mark.parametrize(
        "copy", ["Identity(x)", "Cast<to=9>(x)", "And(x, yes)", "And(yes, x)", "Or(x, no)"]
    )
    def test_the_rule_alone(self, copy: str) -> None:
        text = f"""g (bool[N] x) => (bool[N] y) <bool yes = {{1}}, bool[1] no = {{0}}> {{
            u = {copy} y = Not(u) }}"""
        result, trace, _ = run_rules(parse(text, 21, 10), [EliminateIdentity])
        assert trace.defects() == []
        assert [commit.rule for commit in trace.commits()] == ["EliminateIdentity"]
        assert ops(result) == {"Not": 1}
        assert_equivalent(parse(text, 21, 10), result, Feeds(sizes=(0, 1, 2, 7)))

    @pytest.mark.parametrize(
        ("node", "words"),
        [
            ("And(x, no)", "no operand is known to leave the other one as it is"),
            ("And(x, many)", "no operand is known to leave the other one as it is"),
            ("Cast<to=6>(x)", "has another type than it is cast to"),
        ],
    )
    def test_near_misses(self, node: str, words: str) -> None:
        """A neutral operand of more elements changes the shape."""
        text = f"""g (bool[1] x) => (y) <bool no = {{0}}, bool[2] many = {{1, 1}}> {{
            u = {node} y = Shape(u) }}"""
        model = parse(text, 21, 10)
        assert words in reason_of(EliminateIdentity, model)
        rewritten(model)


class TestDropouts:
    """Dropout at inference; onnxruntime refuses a ratio that is not from 0 to below 1."""

    @pytest.mark.parametrize(
        ("node", "opset"),
        [
            ("Dropout(x)", 21),
            ("Dropout(x, r)", 12),
            ("Dropout(x, r, off)", 21),
            ("Dropout(x, zero)", 17),
            ("Dropout(x, , off)", 17),
            ("Dropout<ratio = 0.5>(x)", 11),
            ("Dropout(x)", 7),
        ],
    )
    def test_removed(self, node: str, opset: int) -> None:
        text = f"""g (float[N] x) => (float[N] y) <float r = {{0.5}}, float zero = {{0}}, bool off = {{0}}> {{
            u = {node} y = Abs(u) }}"""
        model = parse(text, opset, 8)
        assert ops(rewritten(model, Feeds(sizes=(0, 1, 2, 7))).model) == {"Abs": 1}

    def test_in_a_body(self) -> None:
        text = """g (float[3] x, int64 m) => (float[3] y) <bool off = {0}> {
            y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
                co = Identity(ci) e = Sin(s) so, mask = Dropout(e, , off) }> }"""
        model = parse(text, 21, 10)
        assert "Dropout" not in ops(rewritten(model, Feeds(values={"m": [0, 1, 2, 7]}), 1e-6).model)

    @pytest.mark.parametrize(
        ("nodes", "words"),
        [
            ("u, m = Dropout(x) y = Where(m, u, s)", "the mask m is read"),
            ("u = Dropout(x, r, on) y = Abs(u)", "on is not known to be false"),
            ("u = Dropout(x, one) y = Abs(u)", "the ratio one is not known"),
            ("u = Dropout(x, less) y = Abs(u)", "the ratio less is not known"),
            ("u = Dropout(x, nan) y = Abs(u)", "the ratio nan is not known"),
            ("u = Dropout(x, s) y = Abs(u)", "the ratio s is not known"),
        ],
    )
    def test_near_misses(self, nodes: str, words: str) -> None:
        text = f"""g (float[2] x, float s) => (float[2] y) <float r = {{0.5}}, float one = {{1}},
            float less = {{-0.5}}, float nan = {{0}}, bool on = {{1}}> {{ {nodes} }}"""
        model = parse(text, 17, 8)
        for weight in model.graph.initializer:
            if weight.name == "nan":
                weight.CopyFrom(numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
        assert words in reason_of(EliminateIdentity, model).replace("`", "")
        assert ops(rewrite(model).model).get("Dropout", 0) == 1


class TestCasts:
    def test_to_the_same_type(self) -> None:
        text = "g (float[2] x) => (float[2] y) { a = Cast<to=1>(x) b = Exp(a) c = Cast<to=1>(b) y = Neg(c) }"
        assert "Cast" not in ops(rewritten(parse(text, 21, 10)).model)

    def test_of_a_shape(self) -> None:
        text = "g (float[N,M] x) => (float[M,N] y) { s = Shape(x) a = Cast<to=7>(s) b, c = Split<num_outputs=2>(a) t = Concat<axis=0>(c, b) y = Reshape(x, t) }"
        assert "Cast" not in ops(rewritten(parse(text, 21, 10)).model)

    @pytest.mark.parametrize("to", [6, 7, 9, 10, 11])
    def test_to_another_type(self, to: int) -> None:
        text = f"g (float[2] x) => (float[2] y) {{ a = Cast<to={to}>(x) y = Cast<to=1>(a) }}"
        assert ops(rewritten(parse(text, 21, 10)).model)["Cast"] == 2

    def test_of_an_unknown_type(self) -> None:
        text = """g (float[1] x, int64 z) => (float[1] y) { a = com.microsoft.Gelu(x) p = Pow(a, z)
            c = Cast<to=7>(p) y = Cast<to=1>(c) }"""
        model = parse(text, 21, 10)
        model.opset_import.add(domain="com.microsoft", version=1)
        assert ops(rewritten(model).model)["Cast"] == 2

    def test_where_the_branches_have_other_types_than_declared(self) -> None:
        text = """g (float[2] x, bool c) => (float[2] y) {
            v = If (c) <then_branch = t () => (float[2] a) { a = Exp(x) },
                        else_branch = e () => (float[2] b) { b = Log(x) }>
            y = Cast<to=1>(v) }"""
        assert "Cast" not in ops(rewritten(parse(text, 21, 10), tolerance=1e-6).model)


@pytest.mark.parametrize(
    ("kind", "wide"),
    [("int8", 6), ("uint8", 10), ("int32", 11), ("bool", 3), ("float16", 1), ("float", 11)],
)
def test_a_cast_back_from_a_type_that_holds_all_values(kind: str, wide: int) -> None:
    own = parse(f"g ({kind}[6] x) => ({kind}[6] y) {{ y = Identity(x) }}").graph.input[0]
    to = own.type.tensor_type.elem_type
    text = f"""g ({kind}[6] x, int64 n) => (seq({kind}[]) y) {{ e = SequenceEmpty<dtype = {to}>()
        u = Cast<to = {wide}>(x) v = Cast<to = {to}>(u)
        y = Loop (n, "", e) <body = b (int64 i, bool c, seq({kind}[]) s) => (bool d, seq({kind}[]) t) {{
            d = Identity(c) t = SequenceInsert(s, v) }}> }}"""
    result = rewrite(parse(text)).model
    assert "Cast" not in ops(result)
    x = np.arange(-3, 3).astype(numpy_type(to))
    (given,) = session(result).run(None, {"x": x, "n": np.array(2)})
    assert [each.tolist() for each in given] == [x.tolist()] * 2


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        ("int64", 11),
        ("int32", 1),
        ("int32", 3),
        ("float", 10),
        ("float", 7),
        ("uint8", 3),
        ("int8", 4),
        ("int8", 19),
        ("float8e5m2", 1),
    ],
)
def test_a_cast_back_from_a_type_that_does_not(kind: str, between: int) -> None:
    own = parse(f"g ({kind}[6] x) => ({kind}[6] y) {{ y = Identity(x) }}", 21, 10).graph.input[0]
    to = own.type.tensor_type.elem_type
    text = f"""g ({kind}[6] x) => ({kind}[6] y) {{
        u = Cast<to = {between}>(x) v = Cast<to = {to}>(u) y = Abs(v) }}"""
    result, _, _ = run_rules(parse(text, 21, 10), [EliminateIdentity])
    assert ops(result)["Cast"] == 2


def test_a_repeated_cast_after_a_wider_one() -> None:
    text = (
        """g (int8[6] x) => (int32[6] y) { a = Cast<to = 6>(x) b = Cast<to = 6>(a) y = Abs(b) }"""
    )
    result, _, _ = run_rules(parse(text), [EliminateIdentity])
    assert ops(result)["Cast"] == 1
