"""Constants are folded and merged, except large ones, random ones and those that may fail."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from looplift.rewrite.engine.rule import Options
from looplift.rules.values.constants import (
    ConstantToInitializer,
    DeduplicateConstants,
    FoldConstants,
)

from ...equivalence import assert_equivalent, ops, rewritten, run_rules, session
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse

FOLDED = {
    "chain": (
        """g (float[2] x) => (float[2] y) <float[2] a = {1, 2}> { b = Neg(a) c = Exp(b) d = Mul(c, a)
        y = Add(x, d) }""",
        {"Add": 1},
    ),
    "shape_of_known_dims": (
        "g (float[2,3] x) => (float[6] y) { s = Shape(x) n = ReduceProd(s) y = Reshape(x, n) }",
        {"Reshape": 1},
    ),
    "one_dim_of_an_open_shape": (
        """g (float[N,3] x) => (int64 y) <int64 one = {1}> { s = Shape(x) d = Gather(s, one)
        z = Mul(d, d) y = Identity(z) }""",
        {"Identity": 1},
    ),
    "in_a_body": (
        """g (float[3] x, int64 m) => (float[3] y) {
        y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            p = Constant<value_floats = [1.0, 2.0, 3.0]>() q = Constant<value_floats = [4.0, 5.0, 6.0]>()
            k = Add(p, q) co = Identity(ci) so = Sub(k, s) }> }""",
        {"Loop": 1, "Sub": 1},
    ),
    "of_captured_constants": (
        """g (float[3] x, bool c) => (float[3] y) <float[3] w = {1, 2, 3}> {
        y = If (c) <then_branch = t () => (float[3] a) { u = Neg(w) a = Exp(x) },
                    else_branch = e () => (float[3] b) { u = Neg(w) v = Exp(u) z = Log(x) b = Add(z, v) }> }""",
        {"If": 1, "Exp": 1, "Log": 1, "Add": 1},
    ),
    "several_results": (
        """g (float[2] x) => (float[2] y) <float[4] w = {1, 2, 3, 4}> { a, b = Split<num_outputs = 2>(w)
        c = Sub(a, b) y = Add(x, c) }""",
        {"Add": 1},
    ),
    "half_precision": (
        "g (float16[2] x) => (float16[2] y) <float16[2] w = {1, 2}> { a = Neg(w) y = Add(x, a) }",
        {"Add": 1},
    ),
    "bools": (
        """g (bool[2] x) => (bool[2] y) <bool[2] w = {1, 0}> { a = Not(w) y = And(x, a) }""",
        {"And": 1},
    ),
    "loop_over_constants": (
        """g (float[3] x) => (float[3] y) <int64 m = {3}, float[3] s0 = {1, 1, 1}> {
        k = Loop (m, , s0) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
            co = Identity(ci) so = Add(s, s) }>
        y = Add(k, x) }""",
        {"Add": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_folded(name: str) -> None:
    text, left = FOLDED[name]
    result = rewritten(parse(text, 21, 10), Feeds(values={"m": [0, 1, 3]}), 1e-6)
    assert ops(result.model) == left


KEPT = {
    "random": (
        "g (float[2] x) => (float[2] y) { a = RandomNormal<shape = [2], seed = 1.0>() y = Mul(x, a) }",
        "RandomNormal",
    ),
    "random_like_a_constant": (
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = RandomUniformLike(w) y = Mul(x, a) }",
        "RandomUniformLike",
    ),
    "coins": (
        "g (float[2] x) => (float[2] y) <float[2] w = {0, 1}> { a = Bernoulli(w) y = Mul(x, a) }",
        "Bernoulli",
    ),
    "division_by_zero": (
        """g (int64[2] x, bool c) => (int64[2] y) <int64[2] a = {4, 6}, int64[2] k = {1, 1}> {
        y = If (c) <then_branch = t () => (int64[2] p) { zero = RandomUniform<shape = [2], high = 0.5>()
                z = Cast<to = 7>(zero) d = Div(a, z) p = Mul(d, x) },
                    else_branch = e () => (int64[2] q) { q = Neg(x) }> }""",
        "Div",
    ),
    "gather_out_of_range": (
        """g (float x, bool c) => (float y) <float[2] w = {4, 6}, int64 five = {5}> {
        y = If (c) <then_branch = t () => (float p) { d = Gather(w, five) p = Mul(d, x) },
                    else_branch = e () => (float q) { q = Neg(x) }> }""",
        "Gather",
    ),
    "strings": (
        """g (string[2] x) => (string[2] y) <string[2] w = {"a", "b"}> {
        u = StringConcat(w, w) c = Equal(x, u) y = Where(c, x, u) }""",
        "StringConcat",
    ),
    "operand_known_at_run_time": ("g (float[2] x) => (float[2] y) { y = Neg(x) }", "Neg"),
    "other_domain": (
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = com.microsoft.Gelu(w) y = Add(x, a) }",
        "Gelu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    text, op = KEPT[name]
    model = parse(text, 21, 10)
    model.opset_import.add(domain="com.microsoft", version=1)
    result, trace, _ = run_rules(model, [FoldConstants, ConstantToInitializer])
    assert trace.defects() == []
    assert ops(result)[op] == 1
    if op not in ("RandomNormal", "RandomUniformLike", "Bernoulli"):
        assert_equivalent(model, result, Feeds(sizes=(2,)))


_ZERO = """g (int64[2] x, bool c) => (int64[2] y) <int64[2] a = {4, 6}> {
    y = If (c) <then_branch = t () => (int64[2] p) { zero = Sub(a, a) d = DIV p = Mul(d, x) },
                else_branch = e () => (int64[2] q) { q = Neg(x) }> }"""


@pytest.mark.parametrize("division", ["Div(x, zero)", "Mod(x, zero)", "Div(a, zero)"])
def test_a_divisor_of_zero_is_not_stored(division: str) -> None:
    """onnxruntime refuses a model that holds one, even in a branch that is never taken."""
    result = rewritten(parse(_ZERO.replace("DIV", division), 21, 10), Feeds())
    assert ops(result.model)["If"] == 1


def test_nothing_is_computed_on_constants_without_elements() -> None:
    text = """g (float[N] x) => (float[M] y) <float[0] w = {}> { a = Neg(w) y = Concat<axis=0>(x, a) }"""
    rewritten(parse(text, 21, 10))


class TestSize:
    MODEL = "g (float[4000000] x) => (float[4000000] y) <int64[1] n = {4000000}> { b = ConstantOfShape(n) y = Add(x, b) }"

    def test_a_large_result_is_not_stored(self) -> None:
        result, _, _ = run_rules(parse(self.MODEL, 21, 10), [FoldConstants])
        assert ops(result)["ConstantOfShape"] == 1

    def test_the_limit_is_an_option(self) -> None:
        result, _, _ = run_rules(
            parse(self.MODEL, 21, 10), [FoldConstants], options=Options(fold_bytes=1 << 26)
        )
        assert "ConstantOfShape" not in ops(result)

    def test_a_result_no_larger_than_its_operand_is_computed(self) -> None:
        """The transpose of a large weight is as large as the weight."""
        model = parse(
            "g (float[1000,600] x) => (float[1000,600] y) { t = Transpose(w) y = Add(x, t) }",
            21,
            10,
        )
        weight = np.random.default_rng(0).standard_normal((600, 1000)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        result = rewritten(model, Feeds())
        assert ops(result.model) == {"Add": 1}

    def test_a_large_weight_is_not_decoded(self) -> None:
        model = parse("g (float[600,1000] x) => (float[600,1000] y) { y = Add(x, w) }", 21, 10)
        weight = np.zeros((600, 1000), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        _, _, engine = run_rules(model, [FoldConstants, DeduplicateConstants])
        (stored,) = engine.index.root.initializers
        assert not isinstance(stored._values, np.ndarray)


class TestDefaults:
    """From IR version 4 on, an initializer that is also an input can be replaced by the caller."""

    TEXT = """g (float[2] x, float[2] w) => (float[2] y) <float[2] k = {1, 2}> { u = Neg(w) v = Neg(k)
        t = Add(u, v) y = Add(x, t) }"""

    def _model(self) -> onnx.ModelProto:
        model = parse(self.TEXT, 21, 10)
        model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2]))
        return model

    def test_not_folded_and_still_replaceable(self) -> None:
        model = self._model()
        after = rewritten(model).model
        assert [i.name for i in after.graph.input] == ["x", "w"]
        feed = {"x": np.array([1, 2], np.float32)}
        given = {**feed, "w": np.array([5, 7], np.float32)}
        before_run, after_run = session(model), session(after)
        for one in (feed, given):
            np.testing.assert_array_equal(before_run.run(None, one)[0], after_run.run(None, one)[0])
        assert not np.array_equal(after_run.run(None, feed)[0], after_run.run(None, given)[0])

    def test_not_merged_with_an_equal_constant(self) -> None:
        result, trace, _ = run_rules(self._model(), [DeduplicateConstants])
        assert trace.commits() == []
        assert len(result.graph.initializer) == 2


class TestDeduplication:
    def test_equal_constants_become_one(self) -> None:
        text = """g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {1, 2}, float[2] c = {1, 2}> {
            t = Mul(x, a) u = Add(t, b) y = Sub(u, c) }"""
        result = rewritten(parse(text, 21, 10))
        assert len(result.model.graph.initializer) == 1

    @pytest.mark.parametrize(
        "other", ["float[1,2] b = {1, 2}", "double[2] b = {1, 2}", "float[2] b = {1, 3}", "float[2] b = {-0.0, 2}"]
    )  # fmt: skip
    def test_constants_that_differ_in_type_shape_or_content_stay(self, other: str) -> None:
        first = "float[2] a = {0, 2}" if "-0.0" in other else "float[2] a = {1, 2}"
        text = f"""g (float[2] x) => (float[2] y, float[?] z) <{first}, {other}> {{ y = Mul(x, a)
            c = Identity(b) d = Cast<to=1>(c) z = Reciprocal(d) }}"""
        model = parse(text, 21, 10)
        result, _, _ = run_rules(model, [DeduplicateConstants])
        assert len(result.graph.initializer) == 2

    def test_a_body_keeps_its_own_constants(self) -> None:
        text = """g (float[2] x, bool c) => (float[2] y) <float[2] k = {1, 2}> { z = Mul(x, k)
            y = If (c) <then_branch = t () => (float[2] a) <float[2] w = {1, 2}> { u = Exp(z) a = Add(u, w) },
                        else_branch = e () => (float[2] b) <float[2] w = {1, 2}> { u = Log(z) b = Sub(w, u) }> }"""
        rewritten(parse(text, 21, 10), tolerance=1e-6)


class TestInitializers:
    @pytest.mark.parametrize(
        "constant",
        ["value_float = 1.5", "value_int = 3", "value_ints = [1, 2]", "value = float16[1] {1}", "value = bool {1}"],
    )  # fmt: skip
    def test_becomes_an_initializer(self, constant: str) -> None:
        text = f"g (float[2] x) => (float[2] y) {{ c = Constant<{constant}>() d = Cast<to=1>(c) y = Add(x, d) }}"
        result, _, _ = run_rules(parse(text, 21, 10), [ConstantToInitializer])
        assert "Constant" not in ops(result)
        assert_equivalent(parse(text, 21, 10), result)

    def test_sparse_constants_stay(self) -> None:
        values = helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0])
        indices = helper.make_tensor("i", TensorProto.INT64, [1], [1])
        sparse = helper.make_sparse_tensor(values, indices, [2])
        model = parse("g (float[2] x) => (float[2] y) { y = Add(x, c) }", 21, 10)
        model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=sparse))
        assert ops(rewritten(model).model)["Constant"] == 1

    def test_an_output_of_the_model_keeps_its_node(self) -> None:
        model = parse(
            "g (float[2] x) => (float[2] y, float[1] z) { y = Neg(x) z = Constant<value_floats = [1.0]>() }",
            21,
            10,
        )
        rewritten(model)

    def test_a_branch_may_return_it(self) -> None:
        text = """g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Constant<value_floats = [1.0, 2.0]>() },
                        else_branch = e () => (float[2] b) { u = Exp(x) b = Log(u) }> }"""
        rewritten(parse(text, 21, 10), tolerance=1e-6)


def test_initializers_that_the_file_does_not_use_stay() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) <float[2] unused = {1, 2}, float[2] k = {3, 4}> { u = Neg(k) y = Add(x, u) }",
        21,
        10,
    )
    assert "unused" in {i.name for i in rewritten(model).model.graph.initializer}
    assert "k" not in {i.name for i in rewritten(model).model.graph.initializer}


def test_optional_and_training_dropout() -> None:
    """Dropout draws only in training mode."""
    text = """g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}, float r = {0.5}, bool t = {1}> {
        a = Dropout(w) b = Dropout(w, r, t) y = Add(x, a) z = Add(x, b) }"""
    result, _, _ = run_rules(parse(text, 21, 10), [FoldConstants])
    assert ops(result)["Dropout"] == 1


def test_sizes_of_a_tensor_without_elements_may_be_open() -> None:
    """It has no unknown element, and is still not the same in every run."""
    text = """g (int32[N,M,K] b) => (int32[N,M,L] y) <int64[1] zero = {0}, int64[2] two = {0, 1}> {
        s = Shape(b) d = Gather(s, two) c = Concat<axis = 0>(d, zero)
        w = ConstantOfShape<value = int32[1] {0}>(c) y = Abs(w) }"""
    assert ops(rewritten(parse(text)).model)["ConstantOfShape"] == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_branch_that_always_fails_does_not_keep_the_model_from_loading(strict: bool) -> None:
    """Both branches fail; onnxruntime must not see it in the file."""
    text = """g (float[6] x, bool c, bool d) => (float[N] y, float[6] z)
        <int64[1] a = {3}, int64[1] b = {4}> { y = If (c) <
            then_branch = t () => (float[N] r) {
                s = If (d) < then_branch = tt () => (float[7] r3) {
                        n = Add(a, b) k = ConstantOfShape(n) r3 = Add(x, k) },
                    else_branch = te () => (float[16] r4) {
                        n4 = Mul(b, b) k4 = ConstantOfShape(n4) r4 = Add(x, k4) }>
                r = Neg(s) },
            else_branch = e () => (float[6] r2) { r2 = Neg(x) }> z = Abs(x) }"""
    model = parse(text)
    result = rewritten(model, strict=strict)
    session(result.model)
