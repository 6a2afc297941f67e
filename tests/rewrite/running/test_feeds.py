from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.facts.prefix_masks import is_prefix_mask
from looplift.rewrite.running.cases import Cases, Effort
from looplift.rewrite.running.feeds import Sampling, comparisons, make_feed
from looplift.rewrite.running.runtime import ExecutionError, IsolatedSession, SerializedModel
from looplift.rewrite.running.signature import CannotGenerateInputs, evaluate_dim, input_signature
from looplift.rewrite.running.verify import verify

from ...small_models import ADD, model


class TestInputs:
    def test_the_same_seed_gives_the_same_values(self) -> None:
        given, sizes = input_signature(ADD), {"T": 2, "B": 3}
        feeds = [make_feed(given, sizes, Sampling(1, seed), {}) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(np.asarray(feeds[0]["x"]), np.asarray(feeds[1]["x"]))
        assert not np.array_equal(np.asarray(feeds[0]["x"]), np.asarray(feeds[2]["x"]))

    def test_names_that_are_formulas(self) -> None:
        text = "g (float[n] x, float[m] y, float[k] z) => (float[p] q) { q = Identity(x) }"
        arithmetic = model(text)
        for place, name in enumerate(["n", "2*n + 1", "batch-size"]):
            arithmetic.graph.input[place].type.tensor_type.shape.dim[0].dim_param = name
        given = input_signature(arithmetic)
        assert given.open_dims() == ["n", "batch-size"]
        assert given.shape(given.tensors()["y"], {"n": 3, "batch-size": 1}) == (7,)
        assert evaluate_dim("n//2 - 3", {"n": 4}) == 0

    def test_a_rank_that_is_not_declared(self) -> None:
        text = "g (float x) => (float y) { y = MaxPool<kernel_shape = [1]>(x) }"
        unranked = model(text)
        unranked.graph.input[0].type.tensor_type.ClearField("shape")
        unranked.graph.output[0].type.tensor_type.ClearField("shape")
        result = verify(unranked, unranked)
        assert result.verified
        assert set(result.sizes[0]) == {"x[0]", "x[1]", "x[2]"}

    def test_indices_and_lengths(self) -> None:
        text = """g (float[T, B, 3] x, int32[B] lengths, int64[K] rows)
            => (float[T, D, B, 4] y, float[K, B, 3] picked) {
            y = LSTM<hidden_size = 4>(x, w, r, , lengths)
            picked = Gather(x, rows)
        }"""
        w, r = np.ones((1, 16, 3), np.float32), np.ones((1, 16, 4), np.float32)
        recurrent = model(text, w=w, r=r)
        assert verify(recurrent, recurrent).compared == 10

    def test_a_size_that_is_long_enough(self) -> None:
        """No dimension has a name; two must be equal, and the third large."""
        text = """g (float[?, ?] x, float[?, 1, 1] s) => (float[?, ?, ?] y) {
            rows = Unsqueeze(x, axis)
            filtered = Conv(rows, weight)
            y = Einsum<equation = "bct,bct->bct">(filtered, s)
        }"""
        weight = np.ones((1, 1, 100), np.float32)
        conv = model(text, axis=np.array([1]), weight=weight)
        result = verify(conv, conv)
        assert result.verified
        assert result.refused > 0
        assert all(sizes["x[1]"] >= 100 for sizes in result.sizes)
        assert {sizes["x[0]"] for sizes in result.sizes} >= {1, 2, 3}

    def test_constants_an_input_is_compared_with(self) -> None:
        text = """g (int64[1] k, string s) => (bool[1] a, bool b)
            <int64[1] five = {5}, string word = {"yes"}> {
            same = Cast<to = 6>(k)
            again = Identity(k)
            a = Less(five, again)
            b = Equal(s, word)
        }"""
        found = comparisons(model(text))
        assert found == {"k": [5], "s": ["yes"]}

    def test_types_without_values(self) -> None:
        with pytest.raises(CannotGenerateInputs, match="'x' \\(float8e4m3fn tensor\\)"):
            input_signature(
                model("g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { y = Identity(x) }")
            )
        text = "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { y = Identity(x) }"
        result = verify(model(text), model(text))
        assert not result.verified
        assert "no values can be generated" in str(result)

    def test_nothing_ran(self) -> None:
        text = "g (float[N] x) => (float[100003] y) <int64[1] s = {100003}> { y = Reshape(x, s) }"
        result = verify(model(text), model(text), effort=Effort(attempts=10))
        assert not result.verified
        assert not result.differences
        assert "fails for all of 10 generated inputs" in str(result)
        once = verify(model(text), model(text), effort=Effort(attempts=1))
        assert "fails for the generated input with: " in str(once)

    @pytest.mark.parametrize(
        ("rows", "indices"),
        [("3, 2", "2, 2"), ("3, 2", ""), ("1, 1", "2, 2"), ("1", "5")],
        ids=["several", "one", "into a single row", "into a single element"],
    )
    def test_indices_into_fixed_sizes(self, rows: str, indices: str) -> None:
        text = f"g (float[{rows}] x, int64[{indices}] i) => (y) {{ y = Gather(x, i) }}"
        result = verify(model(text), model(text))
        assert result.verified
        assert result.compared > 1

    def test_indices_into_asserted_sizes(self) -> None:
        text = "g (float[N] x, int64[5] i) => (y) { y = Gather(x, i) }"
        result = verify(model(text), model(text), assumptions=Assertions(dims={"N": 1}))
        assert result.verified
        text = "g (float[N] x, int64 i) => (y) { y = Gather(x, i) }"
        result = verify(model(text), model(text), assumptions=Assertions(dims={"N": 3}))
        assert result.verified

    def test_published_models(self, models_dir: Path) -> None:
        """The search finds sizes and the constant that selects one of two rates."""
        path = models_dir / "silero_vad.onnx"
        cases = list(Cases(onnx.load(path), IsolatedSession(SerializedModel(path))))
        assert len(cases) >= 8
        assert {1, 2, 3} <= {case.sizes["state[1]"] for case in cases}
        rates = [np.asarray(case.feed["sr"]).item() for case in cases]
        assert 16000 in rates
        assert any(rate != 16000 for rate in rates)

    @pytest.mark.parametrize("first", [0, pytest.param(10, marks=pytest.mark.soak)])
    def test_models_of_many_exporters(self, corpus: Path, first: int) -> None:
        for path in sorted(corpus.glob("*.onnx"))[first::20]:
            result = verify(path, path)
            assert result.compared == 10, f"{path}: {result}"
            assert not result.differences, path


class TestPrefixMasks:
    TEXT = "g (bool[B, T] m, float[T, B, 1] k, bool[T] c) => (bool[B, T] y) { y = Not(m) }"

    def test_inputs(self) -> None:
        """Rows of all possible lengths, in any order."""
        given = input_signature(model(self.TEXT))
        axes = {"m": 1, "k": 0, "c": 0}
        seen = []
        for number in range(24):
            feed = make_feed(given, {"B": 3, "T": 5}, Sampling(number, prefix_masks=axes), {})
            for name, axis in axes.items():
                assert is_prefix_mask(feed[name], axis)
            seen.append(np.asarray(feed["m"]).sum(1).tolist())
            assert np.asarray(feed["k"]).dtype == np.float32
        assert {length for lengths in seen for length in lengths} == {*range(6)}
        assert [0, 0, 0] in seen
        assert [5, 5, 5] in seen
        assert any(lengths != sorted(lengths) for lengths in seen)
        assert any(lengths != sorted(lengths, reverse=True) for lengths in seen)

    def test_without_the_axis(self) -> None:
        draw = Sampling(0, prefix_masks={"c": 1})
        with pytest.raises(ExecutionError, match="`c` has no axis 1 at these sizes"):
            make_feed(input_signature(model(self.TEXT)), {"B": 1, "T": 1}, draw, {})

    def test_of_one_element(self) -> None:
        draws = [Sampling(number, prefix_masks={"k": 0}) for number in range(4)]
        feeds = [
            make_feed(input_signature(model(self.TEXT)), {"B": 1, "T": 1}, d, {}) for d in draws
        ]
        assert {np.asarray(feed["k"]).item() for feed in feeds} == {0.0, 1.0}

    def test_what_the_model_computes(self) -> None:
        """Inputs for which it is no prefix mask do not count."""
        text = """g (float[B, T] x) => (bool[B, T] y) <float zero = {0}> {
            k = Greater(x, zero) y = Not(k) }"""
        packed = SerializedModel(model(text))
        cases = Cases(
            model(text),
            IsolatedSession(packed),
            assertions=Assertions(prefix_masks={"k": 1}),
            effort=Effort(cases=8),
        )
        found = list(cases)
        assert found
        assert all(is_prefix_mask(np.asarray(case.feed["x"]) > 0, 1) for case in found)
        assert cases.refused > 0
        assert "asserted to be a prefix mask" in str(cases.last_refusal)

    def test_never_one(self) -> None:
        text = "g (float[3] x) => (float[3] k, float[3] y) { k = Exp(x) y = Neg(k) }"
        result = verify(
            model(text), model(text), assumptions=Assertions(prefix_masks={"k": 0}),
            effort=Effort(cases=2, attempts=4),
        )  # fmt: skip
        assert not result.verified
        assert (
            "`k` is asserted to be a prefix mask along axis 0, but is not one for these inputs"
            in result.reason
        )

    @pytest.mark.parametrize(
        ("value", "axis", "expected"),
        [
            ([[1, 1, 0], [1, 0, 0]], 1, True),
            ([[1, 1, 0], [1, 0, 0]], 0, True),
            ([[1, 0, 1]], 1, False),
            ([[1, 0], [1, 1]], 0, False),
            ([[1, 0], [1, 1]], 1, True),
            ([0.5, 0.0], 0, False),
            ([float("nan")], 0, False),
            ([], 0, True),
            ([1], 1, False),
            (True, 0, False),
        ],
    )
    def test_is_prefix_mask(self, value: object, axis: int, expected: bool) -> None:
        assert is_prefix_mask(np.array(value), axis) == expected
