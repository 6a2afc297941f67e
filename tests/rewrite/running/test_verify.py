from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from looplift.rewrite.errors import AssumptionError
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.running import verify as verifying
from looplift.rewrite.running.cases import Cases, Effort
from looplift.rewrite.running.compare import Difference, compare
from looplift.rewrite.running.nondeterminism import random_outputs
from looplift.rewrite.running.remarks import ENDED_EARLY, timeout_note
from looplift.rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    ProcessCrashed,
    RuntimeValue,
    SerializedModel,
    Session,
)
from looplift.rewrite.running.signature import input_signature
from looplift.rewrite.running.verify import Verification, verify

from ...small_models import ADD, model


class TestEqual:
    def test_a_model_equals_itself_at_several_sizes(self) -> None:
        result = verify(ADD, ADD)
        assert result.verified
        assert {sizes["T"] for sizes in result.sizes} == {0, 1, 2, 3, 7, 8}
        assert any(sizes["T"] != sizes["B"] for sizes in result.sizes)
        assert str(result).startswith("equal in 10 runs (T=0|1|2|3|7|8, B=0|1|2|3|7|8)")

    def test_one_dimension_is_empty_at_a_time(self) -> None:
        sizes = verify(ADD, ADD).sizes
        assert {"T": 0, "B": 3} in sizes
        assert {"T": 2, "B": 0} in sizes

    def test_dimensions_that_must_be_equal_are_empty_together(self) -> None:
        """onnxruntime would also accept an empty tensor beside one with another second axis."""
        text = "g (float[a, b] x, float[c, d] y) => (float[?, ?] z) { z = Concat<axis = 0>(x, y) }"
        result = verify(model(text), model(text))
        assert result.compared == 10
        assert all(sizes["b"] == sizes["d"] for sizes in result.sizes)

    def test_sums_in_another_order_are_equal(self) -> None:
        text = "g (float[T, 300] x) => (float[T, 1] y) { y = OP }"
        before = model(text.replace("OP", "ReduceSum(x, a)"), a=np.array([1]))
        ones = np.ones((300, 1), np.float32)
        assert verify(before, model(text.replace("OP", "MatMul(x, w)"), w=ones)).verified
        wrong = np.ones((300, 1), np.float32)
        wrong[0] = 1.01
        assert not verify(before, model(text.replace("OP", "MatMul(x, w)"), w=wrong)).verified

    def test_an_output_of_rounding_errors_only(self) -> None:
        """Other rounding errors are no difference, but say nothing either."""
        text = "g (float[T, 300] x) => (float[T, 1] y) { s = ReduceSum(x, a) r = OP y = Sub(s, r) }"
        ones, other = np.ones((300, 1), np.float32), np.ones((300, 1), np.float32)
        before = model(text.replace("OP", "MatMul(x, w)"), a=np.array([1]), w=ones)
        after = text.replace("OP", "MatMul(z, w)").replace("{", "{ z = Mul(x, third) ")
        third = np.array(1 / 3, np.float32)
        result = verify(before, model(after, a=np.array([1]), w=3 * ones, third=third))
        assert not result.differences
        assert "rounding errors in the inputs or weights" in str(result)
        other[0] = 1.01
        assert verify(before, model(after, a=np.array([1]), w=3 * other, third=third)).differences

    def test_inputs_of_every_kind(self) -> None:
        text = """g (float16[N] h, double[N] d, int8[N] i, uint64[N] u, bool[N] b, string[N] s,
            seq(float[N]) many, optional(float[N]) maybe, int64 n)
            => (float16[N] h1, double[N] d1, int8[N] i1, uint64[N] u1, bool[N] b1, string[N] s1,
                seq(float[N]) many1, bool has, int64 n1) {
            h1 = Identity(h)
            d1 = Identity(d)
            i1 = Identity(i)
            u1 = Identity(u)
            b1 = Identity(b)
            s1 = Identity(s)
            many1 = Identity(many)
            has = OptionalHasElement(maybe)
            n1 = Identity(n)
        }"""
        assert verify(model(text), model(text)).verified

    def test_bfloat16(self) -> None:
        text = (
            "g (bfloat16[N] x) => (bfloat16[N] y, float[N] z) { y = Identity(x) z = Cast<to=1>(x) }"
        )
        assert verify(model(text), model(text)).verified
        packed = SerializedModel(model(text))
        given = np.array([1.5, -2], ml_dtypes.bfloat16)
        same, wide = Session(packed).run({"x": given})
        assert isinstance(same, np.ndarray)
        assert same.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(same, given)
        np.testing.assert_array_equal(np.asarray(wide), np.array([1.5, -2], np.float32))

    def test_nan_and_infinity_are_equal_to_themselves(self) -> None:
        text = """g (float[N] x) => (float[N] y, float[N] z) {
            zero = Sub(x, x)
            y = Div(zero, zero)
            z = Div(x, zero)
        }"""
        assert verify(model(text), model(text)).verified

    def test_an_ir_version_that_onnxruntime_rejects(self) -> None:
        newest = model("g (float[N] x) => (float[N] y) { y = Relu(x) }", ir_version=14)
        assert verify(newest, newest).verified

    def test_a_path(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        onnx.save(ADD, path)
        assert verify(path, ADD).verified


class TestDifferent:
    def test_values(self) -> None:
        after = model("g (float[T, B] x, float[B] y) => (float[T, B] z) { z = Sub(x, y) }")
        result = verify(ADD, after)
        assert not result.verified
        first = result.differences[0]
        assert first.output == "z"
        assert first.index is not None
        assert len(first.index) == 2
        assert first.max_absolute == pytest.approx(abs(first.expected - first.actual))  # type: ignore[operator]
        assert "elements differ" in str(first)
        assert "T=" in str(first)

    @pytest.mark.parametrize("factor", [1e-3, 5e-10])
    def test_small_values(self, factor: float) -> None:
        text = "g (float[T] x) => (float[T] y) { r = Relu(x) y = Mul(r, c) }"
        wrong = text.replace("Relu", "Abs")
        c = np.array(factor, np.float32)
        assert verify(model(text, c=c), model(text, c=c)).verified
        assert not verify(model(text, c=c), model(wrong, c=c)).verified

    def test_one_branch_only(self) -> None:
        """Generated inputs reach both branches, whatever the condition depends on."""
        text = """g (int64 rate, bool flag, float[N] x) => (float[N] y) {{
            sixteen = Constant<value_int = 16000>()
            wide = Equal(rate, sixteen)
            both = And(wide, flag)
            y = If(both) <
                then_branch = a () => (float[N] p) {{ p = {then}(x) }},
                else_branch = b () => (float[N] q) {{ q = {other}(x) }}
            >
        }}"""
        before = model(text.format(then="Abs", other="Relu"))
        assert verify(before, before).verified
        assert not verify(before, model(text.format(then="Neg", other="Relu"))).verified
        assert not verify(before, model(text.format(then="Abs", other="Neg"))).verified

    def test_type_and_shape(self) -> None:
        before = model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
        wide = model("g (float[N] x) => (double[N] y) { r = Relu(x) y = Cast<to=11>(r) }")
        assert "float64" in str(verify(before, wide).differences[0])
        text = """g (float[N] x) => (float[M, N] y)
            <int64[1] a = {0}> { r = Relu(x) y = Unsqueeze(r, a) }"""
        assert "[1, " in str(verify(before, model(text)).differences[0])

    def test_empty_tensors_differ_in_shape(self) -> None:
        found = compare(["y"], [np.zeros((0, 3))], [np.zeros((0, 4))])
        assert found[0].what == "float64[0, 4] instead of float64[0, 3]"

    def test_a_size_that_the_original_accepts_must_be_accepted(self) -> None:
        before = model("g (float[N] x) => (float[N] y) { y = Relu(x) }")
        after = model("g (float[N] x) => (float[N] y) <int64[1] s = {2}> { y = Reshape(x, s) }")
        result = verify(before, after)
        assert any("the original runs" in str(found) for found in result.differences)

    def test_the_interface(self) -> None:
        before = model("g (float[N] x, float[N] y) => (float[N] z) { z = Add(x, y) }")
        lost = model("g (float[N] x) => (float[N] z) { z = Identity(x) }")
        more = model("g (float[N] x, float[N] y, float[N] w) => (float[N] z) { z = Sum(x, y, w) }")
        renamed = model("g (float[N] x, float[N] y) => (float[N] q) { q = Add(x, y) }")
        assert "lacks the inputs ['y'] of the original" in str(verify(before, lost))
        assert "['w']" in str(verify(before, more))
        assert "['q'] instead of ['z']" in str(verify(before, renamed))

    def test_a_model_that_onnxruntime_rejects(self) -> None:
        broken = model("g (float[T, B] x, float[B] y) => (float[T, B] z) { z = NoSuchOp(x, y) }")
        assert "rejects the rewritten model" in str(verify(ADD, broken))
        assert "rejects the original model" in verify(broken, ADD).reason

    def test_a_loop_that_does_not_end(self) -> None:
        text = """g (float[N] x) => (float[N] y) <bool go = {{1}}, int64 most = {{{count}}}> {{
            y = Loop(most, go, x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) {{
                d = Identity(c)
                t = Identity(s)
            }}>
        }}"""
        effort = Effort(cases=1, run_seconds=0.5)
        endless = model(text.format(count=2**62))
        result = verify(model(text.format(count=2)), endless, effort=effort)
        assert "terminate" in str(result.differences[0])
        assert "does not end" in verify(endless, endless, effort=Effort(2, 2, 5, 0.2)).reason

    def test_a_loop_that_ends_for_some_inputs(self) -> None:
        text = """g (float[N] x, bool go) => (float[N] y) <int64 most = {4611686018427387904}> {
            y = Loop(most, go, x) <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t) {
                d = Identity(c)
                t = Identity(s)
            }>
        }"""
        result = verify(model(text), model(text), effort=Effort(4, 8, 5, 0.2))
        assert result.verified
        (note,) = result.notes()
        assert "did not end within the time limit" in note
        assert note == timeout_note(result.timeouts)

    def test_how_many_runs_did_not_end(self) -> None:
        assert "for an input: give" in timeout_note(1)
        assert "for 2 inputs, so the search for more inputs stopped: give" in timeout_note(2)


DIVISIBLE = """g (float[B, T] x) => (float[B, T] y) <int64 n = {4}, int64 at = {1}, int64 none = {0}> {
    sizes = Shape(x)
    size = Gather(sizes, at)
    rest = Mod(size, n)
    fits = Equal(rest, none)
    y = If(fits) <
        then_branch = whole () => (float[B, T] a) { a = OP(x) },
        else_branch = part () => (float[B, T] b) { b = Neg(x) }
    >
}"""
"""Computes OP if n divides T, and Neg otherwise."""


class TestDifferentBranches:
    @pytest.mark.parametrize("divisor", [2, 4, 8])
    def test_sizes_that_a_small_power_of_two_divides(self, divisor: int) -> None:
        text = DIVISIBLE.replace("{4}", f"{{{divisor}}}")
        result = verify(model(text.replace("OP", "Abs")), model(text.replace("OP", "Relu")))
        assert result.differences
        assert result.compared + len(result.empty_reductions) <= Effort.cases

    def test_sizes_that_the_user_gives(self) -> None:
        text = DIVISIBLE.replace("{4}", "{5}")
        before, after = (model(text.replace("OP", op)) for op in ("Abs", "Relu"))
        given = Assertions.of(dims=["T>=1"])
        assert verify(before, after, assumptions=given).verified
        result = verify(before, after, assumptions=given, sizes={"T": [5]})
        assert result.differences[0].sizes["T"] == 5

    def test_a_size_at_which_the_original_does_not_run(self) -> None:
        text = """g (float[N] x) => (float[2, N1] y) <int64[2] shape = {2, -1}> {
            y = Reshape(x, shape)
        }"""
        result = verify(model(text), model(text), sizes={"N": [4, 5]})
        assert {sizes["N"] for sizes in result.sizes} == {4}
        (note,) = result.notes()
        assert note.startswith("N=5: the original does not run: ")

    def test_only_empty_inputs_run(self) -> None:
        """All others make a negative size."""
        proto = model("""g (float[N] x) => (float[M] y) <int64[1] less = {-5}> {
            size = Shape (x)
            negative = Mul (size, less)
            y = ConstantOfShape (negative)
        }""")
        result = verify(proto, proto)
        assert result.compared
        assert {sizes["N"] for sizes in result.sizes} == {0}
        assert "only inputs with a size of 0 were compared" in " ".join(result.notes())


class TestGivenInputs:
    def test_a_fixed_input_may_be_missing(self) -> None:
        before = model("g (float[N] x, float[N] y) => (float[N] z) { z = Mul(x, y) }")
        after = model("g (float[2] x) => (float[2] z) <float[2] y = {3, 4}> { z = Mul(x, y) }")
        result = verify(before, after, inputs={"y": [3, 4]})
        assert result.verified
        assert result.sizes == [{}] * 10
        assert not verify(before, after, inputs={"y": [3, 5]}).verified

    def test_an_input_that_is_not_there(self) -> None:
        with pytest.raises(AssumptionError, match="no input 'w'"):
            verify(ADD, ADD, inputs={"w": 1})

    def test_asserted_sizes_are_the_only_ones(self) -> None:
        assumptions = Assertions(dims={"B": 4}, minima={"T": 5})
        result = verify(ADD, ADD, assumptions=assumptions)
        assert result.verified
        assert len(result.sizes) > 1
        assert {sizes["T"] for sizes in result.sizes} >= {5, 6, 7, 8}
        assert min(sizes["T"] for sizes in result.sizes) == 5
        assert not any(sizes.get("B", 4) != 4 for sizes in result.sizes)

    def test_an_asserted_shape_names_dimensions(self) -> None:
        two = model("g (float[?, N] x, float[N, ?] y) => (float[?, ?] z) { z = MatMul(x, y) }")
        two.graph.input[0].type.tensor_type.shape.dim[0].Clear()
        given = input_signature(two, {"x": ("K", 16), "y": (None, "K")})
        assert given.open_dims() == ["K"]
        assert given.shape(given.tensors()["y"], {"K": 3}) == (16, 3)

    def test_sizes_to_choose_from(self) -> None:
        session = IsolatedSession(SerializedModel(ADD))
        cases = Cases(ADD, session, choices={"T": [1, 50], "B": [4]}, effort=Effort(1))
        assert [case.sizes for case in cases] == [{"T": 1, "B": 4}, {"T": 50, "B": 4}]

    def test_the_default_of_an_input(self) -> None:
        text = "g (float[N] x, float[1] k = {2}) => (float[N] y) { y = Mul(x, k) }"
        before = model(text)
        assert list(input_signature(before).inputs) == ["x"]
        after = model("g (float[N] x) => (float[N] y) <float[1] k = {5}> { y = Mul(x, k) }")
        assert verify(before, after, inputs={"k": [5]}).verified
        assert not verify(before, after).verified


class TestRandomModels:
    TEXT = """g (float[N] x) => (float[N] noisy, float[N] clean) {{
        noise = {op}(x)
        noisy = Add(x, noise)
        clean = Relu(x)
    }}"""

    @pytest.mark.parametrize(
        "op", ["RandomNormalLike", "RandomUniformLike<seed = 1.0>", "Bernoulli"]
    )
    def test_only_shapes_are_compared(self, op: str) -> None:
        drawn = model(self.TEXT.format(op=op))
        result = verify(drawn, drawn)
        assert result.random == ["noisy"]
        assert result.verified
        assert "`noisy`" in result.notes()[0]
        other = model(self.TEXT.format(op=op).replace("clean = Relu", "clean = Neg"))
        assert {found.output for found in verify(drawn, other).differences} == {"clean"}

    def test_training_and_bodies(self) -> None:
        text = "g (float[N] x) => (float[N] y) { y = Dropout(x, ratio, training) }"
        half = np.array(0.5, np.float32)
        assert random_outputs(model(text, ratio=half, training=np.array(True))) == ["y"]
        assert random_outputs(model(text, ratio=half, training=np.array(False))) == []
        body = """g (bool c, float[N] x) => (float[N] y, float[N] z) {
            y = If(c) <
                then_branch = a () => (float[N] p) { p = RandomNormalLike(x) },
                else_branch = b () => (float[N] q) { q = Identity(x) }
            >
            z = Neg(x)
        }"""
        assert random_outputs(model(body)) == ["y"]

    def test_functions(self) -> None:
        text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
            g (float[N] x) => (float[N] y) { y = own.outer(x) }
            <domain: "own", opset_import: ["" : 20, "own" : 1]>
            outer (x) => (y) { y = own.inner(x) }
            <domain: "own", opset_import: ["" : 20]>
            inner (x) => (y) { y = Bernoulli(x) }"""
        assert random_outputs(parser.parse_model(text)) == ["y"]


def test_final_states_of_an_empty_sequence_are_not_compared() -> None:
    """onnxruntime returns uninitialised memory."""
    text = """g (float[T,2,4] x) => (float[1,2,64] h, float[1,2,64] c, float[1,2,64] other) {
        y, h, c = LSTM <hidden_size = 64> (x, w, r) zero = ReduceSum <keepdims = 0> (x)
        other = Add(bias, zero) }"""
    weights: dict[str, Any] = {
        "w": np.ones((1, 256, 4), np.float32),
        "r": np.ones((1, 256, 64), np.float32),
        "bias": np.ones((1, 2, 64), np.float32),
    }
    result = verify(model(text, **weights), model(text, **weights))
    assert result.verified
    assert {"T": 0} in result.sizes
    changed = model(
        text.replace("c = LSTM", "d = LSTM").replace("other =", "c = Neg(h) other ="), **weights
    )
    assert {found.output for found in verify(model(text, **weights), changed).differences} == {"c"}


class _FragileToLoad(IsolatedSession):
    """Simulates an optimizer of onnxruntime that crashes on an Add."""

    def __init__(
        self,
        packed: SerializedModel,
        threads: int,
        *,
        optimizes: bool,
        seconds: float | None = None,
    ) -> None:
        if optimizes and b"Add" in packed.source:
            raise ProcessCrashed("its process was ended by SIGSEGV\nin the optimizer")
        super().__init__(packed, threads, optimizes=optimizes)


class _FragileToRun(IsolatedSession):
    """Simulates an optimized Add that crashes when it runs."""

    failure: type[ExecutionError] = ProcessCrashed

    def __init__(
        self,
        packed: SerializedModel,
        threads: int,
        *,
        optimizes: bool,
        seconds: float | None = None,
    ) -> None:
        super().__init__(packed, threads, optimizes=optimizes)
        self._ends = optimizes and b"Add" in packed.source

    def run(
        self, feed: Mapping[str, RuntimeValue], seconds: float | None = None
    ) -> list[RuntimeValue]:
        if self._ends:
            raise self.failure("its process was ended by SIGSEGV")
        return super().run(feed, seconds)


class _WrongToRun(_FragileToRun):
    """Simulates an optimized Add that fails when it runs."""

    failure = ExecutionError


@pytest.mark.parametrize("session", [_FragileToLoad, _FragileToRun, _WrongToRun])
class TestAnOptimizerThatFails:
    def test_on_the_original(
        self, session: type[IsolatedSession], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both models run without the optimizer, with a note, and a difference is still found."""
        monkeypatch.setattr(verifying, "IsolatedSession", session)
        text = "g (float[T] x) => (float[T] y) { y = OP(x, x) }"
        before, equal, wrong = (model(text.replace("OP", op)) for op in ("Add", "Sum", "Mul"))
        result = verify(before, equal)
        assert result.verified
        (note,) = result.notes()
        assert note.endswith("fails on the original: its process was ended by SIGSEGV")
        assert "graph optimizations off" in note
        assert verify(before, wrong).differences

    def test_on_the_result(
        self, session: type[IsolatedSession], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A result that fails with the optimizer is different: users run it that way."""
        monkeypatch.setattr(verifying, "IsolatedSession", session)
        text = "g (float[3] x) => (float[3] y) { y = OP(x, x) }"
        result = verify(*(model(text.replace("OP", op)) for op in ("Sum", "Add")))
        assert "SIGSEGV" in str(result.differences[0])
        assert not result.notes()


def test_a_failure_without_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(_FragileToLoad):
        def __init__(
            self,
            packed: SerializedModel,
            threads: int,
            *,
            optimizes: bool,
            seconds: float | None = None,
        ) -> None:
            super().__init__(packed, threads, optimizes=True)

    monkeypatch.setattr(verifying, "IsolatedSession", Broken)
    result = verify(ADD, ADD)
    assert "rejects the original model: its process was ended" in result.reason
    assert not result.notes()


def test_a_model_that_is_rejected_is_not_compared() -> None:
    """A result that does not load differs only if the original accepts some input."""
    fails = model("""g (float[2] x) => (float[K] y) {
        n = Shape(x) one = Constant<value_ints = [1]>() more = Add(n, one) y = Reshape(x, more) }""")
    unloadable = model("g (float[2] x) => (float[K] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")
    result = verify(fails, unloadable, effort=Effort(2, 4))
    assert not result.differences
    assert "fails for all of 4 generated inputs" in result.reason


def test_a_time_limit_is_named_where_it_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the search goes a second further with each look at it."""
    clock = iter(range(1_000_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    fails = model("""g (float[N] x) => (float[100003] y) <int64[1] s = {100003}> {
        y = Reshape(x, s) }""")
    result = verify(fails, fails, effort=Effort(seconds=20))
    assert "the time limit ended after the original model failed for" in result.reason
    assert not result.crash
    plain = model("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    few = verify(plain, plain, effort=Effort(seconds=3, cases=100))
    assert few.verified
    assert ENDED_EARLY in few.notes()
    assert not verify(plain, plain, effort=Effort(seconds=900)).ended_early


def test_runs_left_out_are_noted_where_others_differ() -> None:
    found = Difference("y", "1 of 2 elements differ", sizes={"n": 1})
    verification = Verification(ended=[{"n": 0}], differences=[found])
    assert any("onnxruntime crashes" in note and "n=0" in note for note in verification.notes())
