"""Assertions of the user: parsed, checked against the model, written into it, and used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from looplift import AssumptionError, LoopliftError, rewrite
from looplift.rewrite.facts.apply_assertions import apply_assertions
from looplift.rewrite.facts.assertions import Assertions, PrefixMasks
from looplift.rewrite.storage.model import export_model, import_model

from ...equivalence import assert_equal, ops, outcome, session
from ...small_models import parse

TEXT = """g (float[N,3] x, float[N] z, int64 rate, bool[2] flags) => (float[N,3] y) <int64[1] one = {1}, int64 high = {16000}> {
    c = Equal(rate, high) w = Unsqueeze(z, one)
    y = If (c) <then_branch = t () => (float[N,3] a) { a = Mul(x, w) },
                else_branch = e () => (float[N,3] b) { b = Add(x, w) }> }"""


def _dims(proto: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        info.name: [d.dim_value if d.HasField("dim_value") else d.dim_param for d in info.type.tensor_type.shape.dim]
        for info in (*proto.graph.input, *proto.graph.output)
    }  # fmt: skip


class TestDims:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ((), Assertions()),
            ({"T": 16}, Assertions(dims={"T": 16})),
            (["T=16"], Assertions(dims={"T": 16})),
            ([" T = 16 "], Assertions(dims={"T": 16})),
            (["T>=2"], Assertions(minima={"T": 2})),
            (["T>=2", "T>=5", "T>=3"], Assertions(minima={"T": 5})),
            (["T=4", "T>=4"], Assertions(dims={"T": 4}, minima={"T": 4})),
            (["T=4", "T=4"], Assertions(dims={"T": 4})),
            (["a b/c.0=1"], Assertions(dims={"a b/c.0": 1})),
            (["T=0"], Assertions(dims={"T": 0})),
        ],
    )
    def test_parsed(self, given: Any, expected: Assertions) -> None:
        assert Assertions.of(dims=given) == expected

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["T"], "NAME=NUMBER"),
            (["T=x"], "NAME=NUMBER"),
            (["=3"], "NAME=NUMBER"),
            (["T=-1"], "NAME=NUMBER"),
            ({"T": -1}, "not a whole number"),
            (["T<=3"], "NAME=NUMBER"),
            (["T=1.5"], "NAME=NUMBER"),
            (["T=2", "T=3"], "cannot be both 2 and 3"),
            (["T=2", "T>=3"], "cannot be 2 and at least 3"),
            (["T>=3", "T=2"], "cannot be 2 and at least 3"),
        ],
    )
    def test_refused(self, given: Any, words: str) -> None:
        with pytest.raises(AssumptionError, match=words):
            Assertions.of(dims=given)

    def test_written_everywhere(self) -> None:
        result = rewrite(parse(TEXT, 21, 10), dims={"N": 4})
        assert _dims(result.model) == {"x": [4, 3], "z": [4], "rate": [], "flags": [2], "y": [4, 3]}
        assert result.report.notes == ["dim `N` is 4"]

    def test_a_minimum_is_used_but_not_written(self) -> None:
        text = """g (float[N] x) => (float[N] y) <int64 two = {2}> { s = Size(x) c = Less(s, two)
            y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                        else_branch = e () => (float[N] b) { b = Exp(x) }> }"""
        result = rewrite(parse(text, 21, 10), dims=["N>=2"])
        assert ops(result.model) == {"Exp": 1}
        assert _dims(result.model)["x"] == ["N"]
        assert result.report.notes == ["dim `N` is at least 2"]
        assert ops(rewrite(parse(text, 21, 10), dims=["N>=1"]).model)["If"] == 1


class TestInputs:
    @pytest.mark.parametrize("rate", [16000, np.int64(16000), np.array(16000), 16000.0, "array32"])
    def test_an_input_becomes_a_constant(self, rate: Any) -> None:
        given = np.array(16000, np.int32) if isinstance(rate, str) else rate
        result = rewrite(parse(TEXT, 21, 10), inputs={"rate": given})
        assert "If" not in ops(result.model)
        assert [i.name for i in result.model.graph.input] == ["x", "z", "flags"]
        assert result.report.notes[0].startswith("input `rate` is 16000")

    @pytest.mark.parametrize("rate", [16000, 8000])
    def test_the_outputs_are_those_of_the_value(self, rate: int) -> None:
        model = parse(TEXT, 21, 10)
        result = rewrite(model, inputs={"rate": rate})
        feed = {"x": np.ones((2, 3), np.float32), "z": np.array([2, 3], np.float32)}
        flags = np.array([True, False])
        expected = outcome(session(model), {**feed, "rate": np.array(rate), "flags": flags})
        assert_equal(expected, outcome(session(result.model), {**feed, "flags": flags}))

    def test_read_in_bodies_and_returned(self) -> None:
        text = """g (float[2] x, float[2] k, bool c) => (float[2] y, float[2] k2) {
            k2 = Identity(k)
            y = If (c) <then_branch = t () => (float[2] a) { a = Mul(x, k) },
                        else_branch = e () => (float[2] b) { b = Identity(k) }> }"""
        model = parse(text, 21, 10)
        result = rewrite(model, inputs={"k": [1.5, 2.5]})
        for c in (True, False):
            feed = {"x": np.array([1, 2], np.float32), "c": np.array(c)}
            full = {**feed, "k": np.array([1.5, 2.5], np.float32)}
            assert_equal(outcome(session(model), full), outcome(session(result.model), feed))
        onnx.checker.check_model(result.model, full_check=True)

    def test_a_default_is_replaced(self) -> None:
        model = parse(TEXT, 21, 10)
        model.graph.initializer.append(helper.make_tensor("rate", TensorProto.INT64, [], [8000]))
        result = rewrite(model, inputs={"rate": 16000})
        assert ops(result.model)["Mul"] == 1
        assert "If" not in ops(result.model)
        assert "rate" not in [i.name for i in result.model.graph.input]

    def test_the_size_of_a_value_says_what_its_named_dims_are(self) -> None:
        """z has N elements, and so has x rows."""
        result = rewrite(parse(TEXT, 21, 10), inputs={"z": np.zeros(4, np.float32)})
        assert _dims(result.model)["x"] == [4, 3]

    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ({"rat": 1}, "no input 'rat'.*inputs are: x, z, rate, flags"),
            ({"rate": 1.5}, "does not fit input 'rate'.*int64"),
            ({"rate": "fast"}, "does not fit input 'rate'.*int64"),
            ({"rate": 2**64}, "does not fit input 'rate'"),
            ({"rate": [1, 2]}, r"shape \[2\] does not fit input 'rate'"),
            ({"rate": None}, "does not fit input 'rate'"),
            ({"flags": [2, 0]}, "does not fit input 'flags'.*bool"),
            ({"flags": [True, False, True]}, r"shape \[3\] does not fit input 'flags'"),
            ({"x": np.zeros((2, 4))}, r"shape \[2, 4\] does not fit input 'x'.*\['N', 3\]"),
            ({"x": [[1, 2, 3], [4, 5]]}, "does not fit input 'x'"),
            ({"z": 1j}, "does not fit input 'z'"),
        ],
    )
    def test_refused(self, inputs: dict[str, Any], words: str) -> None:
        with pytest.raises(AssumptionError, match=words):
            rewrite(parse(TEXT, 21, 10), inputs=inputs)

    def test_two_values_that_contradict_each_other(self) -> None:
        with pytest.raises(AssumptionError, match="'N'"):
            rewrite(parse(TEXT, 21, 10), inputs={"x": np.zeros((2, 3)), "z": np.zeros(4)})

    def test_a_value_against_an_asserted_dim(self) -> None:
        with pytest.raises(AssumptionError, match="'z'"):
            rewrite(parse(TEXT, 21, 10), inputs={"z": np.zeros(4)}, dims={"N": 3})
        with pytest.raises(AssumptionError, match=r"'z'|'N'"):
            rewrite(parse(TEXT, 21, 10), inputs={"z": np.zeros(1)}, dims=["N>=3"])

    def test_a_sequence_cannot_be_fixed(self) -> None:
        text = "g (seq(float[N]) s) => (int64 n) { n = SequenceLength(s) }"
        with pytest.raises(AssumptionError, match="'s' is not a tensor"):
            rewrite(parse(text, 21, 10), inputs={"s": [1.0]})

    @pytest.mark.parametrize(
        ("kind", "given", "expected"),
        [
            ("float16", 0.5, np.float16(0.5)),
            ("double", 0.1, 0.1),
            ("int8", -3, np.int8(-3)),
            ("uint8", 200, np.uint8(200)),
            ("bool", 1, True),
            ("bool", True, True),
            ("string", "a", "a"),
        ],
    )
    def test_types(self, kind: str, given: Any, expected: Any) -> None:
        text = f"g ({kind} k) => ({kind} y) {{ y = Identity(k) }}"
        result = rewrite(parse(text, 21, 10), inputs={"k": given})
        (value,) = session(result.model).run(None, {})
        assert value == expected

    @pytest.mark.parametrize(("kind", "given"), [("uint8", 256), ("uint8", -1), ("int8", 200)])
    def test_values_outside_the_type(self, kind: str, given: int) -> None:
        text = f"g ({kind} k) => ({kind} y) {{ y = Identity(k) }}"
        with pytest.raises(AssumptionError, match="does not fit"):
            rewrite(parse(text, 21, 10), inputs={"k": given})


class TestShapes:
    def test_written_and_used(self) -> None:
        result = rewrite(parse(TEXT, 21, 10), shapes={"x": [4, 3]})
        assert _dims(result.model) == {"x": [4, 3], "z": [4], "rate": [], "flags": [2], "y": [4, 3]}

    def test_open_places(self) -> None:
        text = "g (float[A,B,?] x) => (float[K] y) { y = Flatten<axis=0>(x) }"
        result = rewrite(parse(text, 21, 10), shapes={"x": [2, None, "T"]})
        assert _dims(result.model)["x"] == [2, "B", "T"]
        result = rewrite(parse(text, 21, 10), shapes={"x": [None, None, 7]})
        assert _dims(result.model)["x"] == ["A", "B", 7]

    def test_of_an_input_without_rank(self) -> None:
        text = """g (float[] x) => (float[] y) <int64 two = {2}> { s = Shape(x) r = Size(s) c = Equal(r, two)
            y = If (c) <then_branch = t () => (float[] a) { a = Neg(x) },
                        else_branch = e () => (float[] b) { b = Exp(x) }> }"""
        result = rewrite(parse(text, 21, 10), shapes={"x": ["A", "B"]})
        assert ops(result.model) == {"Neg": 1}
        assert _dims(result.model)["x"] == ["A", "B"]

    def test_of_an_input_with_a_default(self) -> None:
        text = """g (float[N] x, float[M] k) => (float[?] y, int64[1] n) { n = Shape(x) y = Mul(x, k) }"""
        model = parse(text, 21, 10)
        model.graph.initializer.append(helper.make_tensor("k", TensorProto.FLOAT, [1], [2.0]))
        result = rewrite(model, shapes={"x": [5]})
        assert session(result.model).run(["n"], {"x": np.zeros(5, np.float32)})[0].tolist() == [5]

    @pytest.mark.parametrize(
        ("shapes", "options", "words"),
        [
            ({"q": [1]}, {}, "no input 'q'"),
            ({"x": [1]}, {}, r"rank 2, not 1.*\['N', 3\]"),
            ({"x": [2, 4]}, {}, "dim 3 that cannot be 4"),
            ({"x": [-2, 3]}, {}, "negative dim -2"),
            ({"x": [4, 3], "z": [5]}, {}, "dim 'N' cannot be 5"),
            ({"x": [4, 3]}, {"dims": {"N": 5}}, "dim 'N' cannot be 4"),
            ({"x": [4, 3]}, {"dims": ["N>=5"]}, "dim 'N' cannot be 4"),
            ({"x": [4, 3]}, {"inputs": {"z": np.zeros(5)}}, "'N'|'z'"),
            ({"z": [4]}, {"inputs": {"z": np.zeros(5)}}, "'z'"),
            ({"z": [True]}, {}, "dim True, which is no size"),
            ({"z": [4.0]}, {}, "dim 4.0, which is no size"),
            ({"z": [2**70]}, {}, "which is no size"),
            ({"z": [[4]]}, {}, r"dim \[4\], which is no size"),
            ({}, {"prefix_masks": 3}, "3 does not name prefix masks"),
            ({}, {"engine": ["tvm"]}, r"\['tvm'\] is not an inference engine"),
        ],
    )  # fmt: skip
    def test_refused(self, shapes: Any, options: dict[str, Any], words: str) -> None:
        with pytest.raises(LoopliftError, match=words):
            rewrite(parse(TEXT, 21, 10), shapes=shapes, **options)

    def test_a_name_does_not_replace_a_number(self) -> None:
        """The file declares 3; a name must not replace it."""
        result = rewrite(parse(TEXT, 21, 10), shapes={"x": [None, "C"]})
        assert _dims(result.model)["x"] == ["N", 3]

    def test_a_name_has_the_declared_number_everywhere(self) -> None:
        result = rewrite(parse(TEXT, 21, 10), shapes={"x": ["C", "C"], "z": ["C"]})
        assert (_dims(result.model)["x"], _dims(result.model)["z"]) == ([3, 3], [3])
        with pytest.raises(AssumptionError, match="'C' cannot be 3"):
            rewrite(parse(TEXT, 21, 10), shapes={"x": ["C", "C"], "z": [4]}, dims=["C>=4"])

    def test_a_name_has_the_size_of_a_value(self) -> None:
        text = """g (float[N] z, float[M,K] w, float[A,B] q) => (float[N] y, float[A,B] p) {
            s = ReduceSum<keepdims = 0>(w) y = Mul(z, s) p = Neg(q) }"""
        inputs = {"w": np.zeros((5, 2), np.float32)}
        shapes: Any = {"q": ["b", "B"], "w": ["b", "K"]}
        result = rewrite(parse(text, 21, 10), shapes=shapes, inputs=inputs)
        assert _dims(result.model)["q"] == [5, "B"]
        with pytest.raises(AssumptionError, match="'b' cannot be 5"):
            rewrite(parse(text, 21, 10), shapes=shapes, inputs=inputs, dims={"b": 4})


class TestDimNames:
    def test_unknown_name(self) -> None:
        with pytest.raises(AssumptionError, match=r"No input.*dim named 'K'.*N"):
            rewrite(parse(TEXT, 21, 10), dims={"K": 2})
        with pytest.raises(AssumptionError, match="'K'"):
            rewrite(parse(TEXT, 21, 10), dims=["K>=2"])

    def test_unnamed_dims_are_asserted_with_a_shape(self) -> None:
        text = "g (float[?,3] x) => (float[?,3] y) { y = Neg(x) }"
        for dims, shape in (({"x[0]": 1}, [1, 3]), (["x[0]>=2"], ["N", 3])):
            with pytest.raises(AssumptionError) as caught:
                rewrite(parse(text, 21, 10), dims=dims)
            assert f'shapes={{"x": {shape}}}'.replace("'", '"') in caught.value.remedy
        with pytest.raises(AssumptionError, match="one name with shapes"):
            rewrite(parse(text, 21, 10), dims=["a=b"])

    def test_none_at_all(self) -> None:
        with pytest.raises(AssumptionError, match="none"):
            rewrite(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }", 21, 10), dims={"K": 2})


def test_every_error_says_what_to_do() -> None:
    cases: list[dict[str, Any]] = [
        {"dims": ["T"]}, {"dims": {"K": 1}}, {"inputs": {"q": 1}}, {"inputs": {"rate": 0.5}},
        {"shapes": {"x": [1]}}, {"shapes": {"x": [2, 4]}}, {"shapes": {"x": [4, 3], "z": [5]}},
    ]  # fmt: skip
    for options in cases:
        with pytest.raises(AssumptionError) as caught:
            rewrite(parse(TEXT, 21, 10), **options)
        assert caught.value.remedy


def test_dims_that_an_asserted_shape_names() -> None:
    text = """g (float[?,3] x) => (float[?,3] y) <int64 zero = {0}, int64 one = {1}> {
        s = Shape(x) n = Gather(s, zero) c = Greater(n, one)
        y = If(c) <then_branch = t () => (float[?,3] a) { a = Neg(x) },
                   else_branch = e () => (float[?,3] b) { b = Exp(x) }> }"""
    shapes: dict[str, list[int | str | None]] = {"x": ["T", 3]}
    assert ops(rewrite(parse(text), shapes=shapes).model)["If"] == 1
    at_least_two = rewrite(parse(text), shapes=shapes, dims=["T>=2"]).model
    assert [node.op_type for node in at_least_two.graph.node] == ["Neg"]
    two = rewrite(parse(text), shapes=shapes, dims={"T": 1}).model
    assert [node.op_type for node in two.graph.node] == ["Exp"]
    assert two.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1


def test_nothing_asserted_changes_nothing() -> None:
    model = import_model(parse(TEXT, 21, 10))
    resolved = apply_assertions(model, Assertions())
    assert resolved == Assertions()
    assert resolved.notes() == []
    assert export_model(model) == parse(TEXT, 21, 10)


class TestPrefixMasks:
    TEXT = """g (bool[B,T] m, string[B] s, float[B,T] x) => (float[B,T] y) {
        e = Not(m) f = Cast<to=1>(e) y = Mul(x, f) }"""
    MORE = """g (bool[B,T] m, bool[T] one, bool nil, bool[] any, float[B,T,3] x,
            float[B,T,1] column) => (int64[3] y) {
        sizes = Shape(x) known = Constant<value = bool[2,2] {1, 1, 0, 1}>()
        texts = Constant<value_strings = ["a", "b"]>() all = SequenceConstruct(m)
        y = Identity(sizes) }"""

    def test_noted_and_kept(self) -> None:
        result = rewrite(parse(self.TEXT, 21, 10), prefix_masks=["m", "e", "m"])
        assert result.engine.assertions.prefix_masks == {"m": 1, "e": 1}
        assert [note.partition(":")[0] for note in result.report.notes] == [
            "`m` is a prefix mask along axis 1", "`e` is a prefix mask along axis 1"
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("m", {"m": 1}),
            (("one", "m"), {"one": 0, "m": 1}),
            ({"m": 0}, {"m": 0}),
            ({"m": -2, "one": -1}, {"m": 0, "one": 0}),
            ({"m": None}, {"m": 1}),
            ({"any": 1}, {"any": 1}),
            ({"m": np.int64(0)}, {"m": 0}),
            (["column"], {"column": 1}),
        ],
    )
    def test_axes(self, given: PrefixMasks, expected: dict[str, int]) -> None:
        result = rewrite(parse(self.MORE, 21, 10), prefix_masks=given)
        assert result.engine.assertions.prefix_masks == expected

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"m": 2}, "'m' has no axis 2"),
            ({"m": -3}, "'m' has no axis -3"),
            ({"one": 1}, "'one' has no axis 1"),
            ({"m": "time"}, "'time' is not an axis"),
            ({"m": 0.0}, "0.0 is not an axis"),
            (["nil"], "'nil' is a scalar"),
            (["any"], "The rank of 'any' is not known"),
            ({"any": -1}, "The rank of 'any' is not known"),
            (["sizes"], "'sizes' is known not to be a prefix mask along axis 0"),
            ({"known": 1}, "'known' is known not to be a prefix mask along axis 1"),
            (["texts"], "'texts' is a tensor of strings"),
            (["all"], "'all' is not a tensor"),
            (["x"], r"'x' is float\[B, T, 3\], of rank 3"),
            ({"x": 2}, r"'x' is float\[B, T, 3\], of rank 3"),
        ],
    )
    def test_no_mask(self, given: Any, words: str) -> None:
        with pytest.raises(AssumptionError, match=words) as caught:
            rewrite(parse(self.MORE, 21, 10), prefix_masks=given)
        assert caught.value.remedy

    def test_known_numbers_that_are_one(self) -> None:
        result = rewrite(parse(self.MORE, 21, 10), prefix_masks={"known": 0})
        assert result.engine.assertions.prefix_masks == {"known": 0}

    @pytest.mark.parametrize(
        ("name", "words"),
        [("q", "no value 'q'"), ("s", "is a tensor of strings"), ("", "no value ''")],
    )
    def test_refused(self, name: str, words: str) -> None:
        with pytest.raises(AssumptionError, match=words) as caught:
            rewrite(parse(self.TEXT, 21, 10), prefix_masks=[name])
        assert caught.value.remedy

    @pytest.mark.parametrize(
        "masks",
        [
            "p = Range(zero, n, one) u = Unsqueeze(lengths, at) c = Less(p, u) m = Cast<to=1>(c)",
            "f = Cast<to=1>(lengths) u = Unsqueeze(f, at) c = GreaterOrEqual(u, known) "
            "m = Cast<to=1>(c)",
            """m = Scan<num_scan_inputs=1, body = b (float[B] x) => (float[B] k) {
                k = Cast<to=1>(lengths) }>(xs)
            i = Loop(n, , lengths) <body = b2 (int64 t, bool a, int64[B] s) => (bool d, int64[B] z) {
                d = Identity(a) r = Cast<to=7>(t) k2 = LessOrEqual(r, lengths) z = CastLike(k2, s) }>
            """,
        ],
        ids=["range", "constant", "iteration number"],
    )
    def test_lengths_are_no_mask(self, masks: str) -> None:
        """They count up to the number that a mask would have of ones."""
        text = f"""g (int64[B] lengths, int64 n, float[T,B] xs) => (float[B,T] m)
            <int64 zero = {{0}}, int64 one = {{1}}, int64[1] at = {{1}},
             float[3] known = {{1, 2, 3}}> {{ {masks} }}"""
        with pytest.raises(AssumptionError, match="'lengths' is compared with positions"):
            rewrite(parse(text, 21, 10), prefix_masks=["lengths"])

    def test_integers_that_are_compared_with_a_number_may_be_a_mask(self) -> None:
        text = """g (int64[B,T] k, float[B,T] x, float[B,T] other) => (float[B,T] y, bool[B,T] z)
            <int64 zero = {0}> { c = Greater(k, zero) y = Where(c, x, other) f = Cast<to=1>(k)
            z = Less(x, f) }"""
        result = rewrite(parse(text, 21, 10), prefix_masks=["k"])
        assert result.engine.assertions.prefix_masks == {"k": 1}

    def test_of_an_input_that_has_a_value(self) -> None:
        with pytest.raises(AssumptionError, match="'m' is given a value"):
            rewrite(
                parse(self.TEXT, 21, 10), inputs={"m": np.ones((1, 2), bool)}, prefix_masks=["m"]
            )

    def test_a_value_of_a_body_is_none_of_the_main_graph(self) -> None:
        text = """g (bool c, bool[T] m) => (bool[T] y) {
            y = If (c) <then_branch = t () => (bool[T] a) { a = Not(m) },
                        else_branch = e () => (bool[T] b) { b = Identity(m) }> }"""
        with pytest.raises(AssumptionError, match="no value 'a'"):
            rewrite(parse(text, 21, 10), prefix_masks=["a"])

    def test_a_value_that_replaces_a_mask_is_one(self) -> None:
        """One of two equal nodes is removed; the assertion may name either of them."""
        text = """g (float[B,T] x, float zero) => (float[B,T] y, bool[B,T] z) {
            p = Greater(x, zero) q = Greater(x, zero) f = Cast<to=1>(q) y = Mul(x, f) z = Not(p) }"""
        for name in ("p", "q"):
            result = rewrite(parse(text, 21, 10), prefix_masks=[name])
            assert ops(result.model)["Greater"] == 1
            (left,) = (n.outputs[0] for n in result.engine.index.walk() if n.op == "Greater")
            assert left in result.engine.facts.prefix_masks
