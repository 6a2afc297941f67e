# mypy: disable-error-code="comparison-overlap,arg-type,unused-ignore"
"""Facts of inputs and constants, their cache, and hypothetical facts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift.rewrite import symbolic
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.facts.fact import INT64, Fact

from ...small_models import parse
from ..fact_oracle import facts_of, value

N, M = symbolic.symbol("N"), symbolic.symbol("M")
FLOAT = onnx.TensorProto.FLOAT


class TestSources:
    def test_inputs(self) -> None:
        text = """g (float[N,3,?] x, float[] u, int64[2] k, bool b, int64[1000] long, string[N] t) => (float[N,3,?] y) {
            y = Neg(x) }"""
        facts = facts_of(parse(text, 21, 10))
        shape = facts.shape(value(facts, "x"))
        assert shape is not None
        assert shape[:2] == (N, 3)
        assert not isinstance(shape[2], int)
        assert facts.of(value(facts, "u")) == Fact(FLOAT)
        elements = facts.of(value(facts, "k")).values
        assert elements is not None
        assert symbolic.eq(elements[0], elements[1]) is None  # type: ignore[arg-type]
        assert symbolic.bounds(elements[0]) == (-(2**63), 2**63 - 1) or symbolic.bounds(
            elements[0]
        ) == (None, None)  # type: ignore[arg-type]
        assert facts.of(value(facts, "b")).values == (None,)
        assert facts.of(value(facts, "long")).values is None
        assert facts.dtype(value(facts, "t")) == onnx.TensorProto.STRING

    def test_assumptions(self) -> None:
        text = "g (float[N,M,K] x, float[K] z) => (float[N,M,K] y) { y = Add(x, z) }"
        given = Assertions(dims={"M": 4}, minima={"N": 2}, shapes={"z": (7,)})
        facts = facts_of(parse(text, 21, 10), given)
        shape = facts.shape(value(facts, "x"))
        assert shape is not None
        assert symbolic.bounds(shape[0]) == (2, None)
        assert shape[1] == 4
        assert facts.shape(value(facts, "z")) == (7,)

    def test_initializers(self) -> None:
        model = parse("g (float[2] x) => (float[2] y) <int64[2] k = {3, 4}> { y = Neg(x) }", 21, 10)
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(np.zeros((50, 50), np.int64), "w")
        )
        facts = facts_of(model)
        assert facts.of(value(facts, "k")) == Fact(INT64, (2,), None, (3, 4))
        assert facts.of(value(facts, "w")) == Fact(INT64, (50, 50))
        array = facts.constant(value(facts, "w"))
        assert array is not None
        assert array.shape == (50, 50)

    def test_declared_shapes_of_inner_values_are_ignored(self) -> None:
        model = parse("g (float[N] x) => (float[N] z) { y = Neg(x) z = Exp(y) }", 21, 10)
        wrong = onnx.helper.make_tensor_value_info("y", FLOAT, [17])
        model.graph.value_info.append(wrong)
        model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", FLOAT, [17]))
        facts = facts_of(model)
        assert facts.shape(value(facts, "z")) == (N,)


class TestConstants:
    def test_known_elements_of_any_node(self) -> None:
        text = """g (float[N,3] x) => (int64 y) <int64 one = {1}> { s = Shape(x) y = Gather(s, one)
            z = Cast<to=6>(y) b = Equal(y, one) }"""
        facts = facts_of(parse(text, 21, 10))
        for name, kind, number in (("y", np.int64, 3), ("z", np.int32, 3), ("b", np.bool_, False)):
            array = facts.constant(value(facts, name))
            assert array is not None
            assert array.dtype == kind
            assert array.shape == ()
            assert array == number
            assert facts.is_constant(value(facts, name))
        assert facts.constant(value(facts, "s")) is None
        assert not facts.is_constant(value(facts, "s"))

    def test_a_default_is_none(self) -> None:
        model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", 21, 10)
        model.graph.initializer.append(onnx.helper.make_tensor("w", FLOAT, [2], [1, 2]))
        facts = facts_of(model)
        assert facts.constant(value(facts, "w")) is None
        assert not facts.is_constant(value(facts, "w"))
        assert facts.shape(value(facts, "w")) == (2,)


class TestFailures:
    TEXT = """g (float[N,3] x) => (float[?] y) <float[2,3] k = {1,2,3,4,5,6}, int64[1] zero = {0}> {
        p = Concat<axis=0>(x, k) y = Squeeze(p, zero) z = Exp(y) }"""

    def test_only_the_failing_node_has_a_failure(self) -> None:
        facts = facts_of(parse(self.TEXT, 21, 10))
        nodes = {node.op: node for node in facts.index.root.nodes}
        reason = facts.failure(nodes["Squeeze"])
        assert reason is not None
        assert "N + 2" in reason
        assert facts.failure(nodes["Concat"]) is None
        assert facts.failure(nodes["Exp"]) is None
        assert facts.of(value(facts, "z")).shape is None

    def test_no_size_is_negative(self) -> None:
        text = """g (float[N] x) => (float[?,?] y) <int64[1] minus = {-1}> {
            s = Shape(x) t = Concat<axis = 0>(s, minus) y = ConstantOfShape(t) }"""
        facts = facts_of(parse(text, 21, 10))
        (node,) = (node for node in facts.index.root.nodes if node.op == "ConstantOfShape")
        assert "negative" in (facts.failure(node) or "")
        assert facts.of(value(facts, "y")) == Fact(FLOAT)

    def test_an_if_that_fails_keeps_the_kind_of_its_results(self) -> None:
        branch = """s = Shape(x) n = Gather(s, three) l = Identity(e)
            f = SequenceInsert(e, n)"""
        text = f"""g (float[N] x, bool c) => (seq(int64) y, seq(int64) z) <int64 three = {{3}}> {{
            e = SequenceEmpty<dtype = 7>()
            y, z = If(c) <then_branch = t () => (seq(int64) l, seq(int64) f) {{ {branch} }},
                else_branch = o () => (seq(int64) l, seq(int64) f) {{ {branch} }}> }}"""
        facts = facts_of(parse(text, 21, 10))
        assert facts.of(value(facts, "y")).kind == "sequence"


def test_deep_chains_need_no_recursion() -> None:
    count = 20_000
    nodes = [onnx.helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    ends = [onnx.helper.make_tensor_value_info(f"v{i}", FLOAT, ["N"]) for i in (0, count)]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    facts = facts_of(
        onnx.helper.make_model(
            graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)]
        )
    )
    assert facts.shape(facts.index.root.outputs[0]) == (N,)


def test_large_expressions_are_replaced() -> None:
    """Each node multiplies the size by another sum; the facts stay small and true."""
    steps = " ".join(
        f"s{i} = Shape(t{i}) a{i} = Add(s{i}, s) m{i} = Mul(a{i}, s{i}) t{i + 1} = ConstantOfShape(m{i})"
        for i in range(12)
    )
    text = f"g (float[N,M] x) => (float[?,?] t12) {{ s = Shape(x) t0 = Exp(x) {steps} }}"
    facts = facts_of(parse(text, 21, 10))
    shape = facts.shape(value(facts, "t12"))
    assert shape is not None
    assert all(symbolic.size(d) < 1000 for d in shape)


def test_an_open_dim_has_one_symbol() -> None:
    text = (
        "g (float[N] x, int64[1] k) => (float[?] y) <int64[1] zero = {0}> { y = Slice(x, zero, k) }"
    )
    facts = facts_of(parse(text, 21, 10))
    y = value(facts, "y")
    assert facts.shape(y) == facts.shape(y)
    assert facts.fresh(y, 0) == facts.fresh(y, 0)
    assert facts.fresh(y, 0) != facts.fresh(y, 1)


class TestAssuming:
    TEXT = """g (float[N,3] x, bool c) => (int64[?] y, float[?,?] w) <int64[1] zero = {0}> {
        v = If (c) <then_branch = t () => (float[?] a) { a = ReduceSum<keepdims=0>(x, zero) },
                    else_branch = e () => (float[?,?] b) { b = Identity(x) }>
        u = Exp(v) y = Shape(u) w = Neg(x) }"""

    def test_only_affected_values_are_derived_again(self) -> None:
        facts = facts_of(parse(self.TEXT, 21, 10))
        v, u, y, w = (value(facts, name) for name in "vuyw")
        assert facts.shape(u) is None
        before = {t: facts.of(t) for t in (v, u, y, w)}
        view = facts.assuming({v: Fact(FLOAT, (3,))}, [u, y])
        assert view.shape(u) == (3,)
        assert view.of(y).values == (3,)
        assert view.of(w) is before[w]
        assert {t: facts.of(t) for t in before} == before

    def test_failures_stay_in_the_view(self) -> None:
        text = self.TEXT.replace("y = Shape(u)", "g = Gemm(u, u) y = Shape(g)")
        facts = facts_of(parse(text, 21, 10))
        v, u = value(facts, "v"), value(facts, "u")
        gemm = facts.index.producer(value(facts, "g"))
        assert gemm is not None
        view = facts.assuming({v: Fact(FLOAT, (3, 3, 3))}, [u, *gemm.outputs])
        assert view.failure(gemm) is not None
        assert facts.failure(gemm) is None


@pytest.mark.parametrize("first", ["y", "h", "l", "s"])
def test_the_order_of_queries_does_not_matter(first: str) -> None:
    text = """g (float[2,3] x, int64 m) => (int64[2] y, float[?,?] l) {
        l = Loop (m, , x) <body = b (int64 i, bool ci, float[?,?] s) => (bool co, float[?,?] so) {
            co = Identity(ci) h = Shape(s) so = Concat<axis=0>(s, x) }>
        y = Shape(l) }"""
    model = parse(text, 21, 10)
    facts, other = facts_of(model), facts_of(model)
    facts.of(value(facts, first))
    for name in ("l", "y", "h", "s", "so"):
        one, two = facts.of(value(facts, name)), other.of(value(other, name))
        assert (one.dtype, one.rank) == (two.dtype, two.rank)
        assert [d for d in one.shape or () if isinstance(d, int)] == [
            d for d in two.shape or () if isinstance(d, int)
        ]
