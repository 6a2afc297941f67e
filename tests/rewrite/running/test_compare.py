from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from looplift.rewrite.running.compare import Tolerances, compare, working_precision
from looplift.rewrite.running.runtime import Array


def model(text: str, opset: int = 20, ir: int = 10, **weights: Array) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')
    for name, values in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


class TestTolerances:
    def test_the_coarsest_type_inside_decides(self) -> None:
        text = "g (float[N] x) => (float[N] y) {{ h = Cast<to={to}>(x) y = Cast<to=1>(h) }}"
        assert working_precision(model(text.format(to=10))) == "float16"
        assert working_precision(model(text.format(to=16))) == "bfloat16"
        assert working_precision(model(text.format(to=11))) == "float32"
        assert working_precision(model("g (double[N] x) => (double[N] y) { y = Abs(x) }")) == (
            "float64"
        )

    @pytest.mark.parametrize(
        ("dtype", "close", "far"),
        [("float64", 1e-12, 1e-6), ("float32", 1e-6, 1e-3), ("float16", 1e-3, 0.2)],
    )
    def test_by_type(self, dtype: str, close: float, far: float) -> None:
        exact = np.linspace(1, 2, 50).astype(dtype)
        tolerances = Tolerances()
        assert not compare(["y"], [exact], [(exact * (1 + close)).astype(dtype)], tolerances)
        assert compare(["y"], [exact], [(exact * (1 + far)).astype(dtype)], tolerances)

    def test_no_relative_difference_to_zero(self) -> None:
        expected = np.array([0, 1], np.float32)
        (beside,) = compare(["y"], [expected], [np.array([0, 2], np.float32)], Tolerances())
        (from_zero,) = compare(["y"], [expected], [np.array([1, 2], np.float32)], Tolerances())
        assert "by up to 1 (relative 1)" in beside.what
        assert from_zero.what.endswith("by up to 1")

    def test_given_tolerances(self) -> None:
        ones = np.ones(3, np.float32)
        assert not compare(["y"], [ones], [ones * 1.5], Tolerances(relative=0.6))
        assert compare(["y"], [ones], [ones * 1.5], Tolerances(relative=0.4))

    def test_scale(self) -> None:
        """Noise of the size of the summands is rounding; one huge element hides nothing."""
        large = np.array([0.001, 100, 200, 300], np.float32)
        noisy = large + np.array([5e-4, 0, 0, 0], np.float32)
        assert not compare(["y"], [large], [noisy])
        masked = np.array([1, 2, 3, -1e9], np.float32)
        assert compare(["y"], [masked], [masked + np.array([0.1, 0, 0, 0], np.float32)])

    @pytest.mark.parametrize("size", [1e-3, 5e-10, 1e-20])
    def test_small_numbers_are_compared(self, size: float) -> None:
        small = np.linspace(size, 2 * size, 50, dtype=np.float32)
        assert not compare(["y"], [small], [small * np.float32(1 + 1e-6)])
        for factor in (0.0, 1.01, 500.0):
            assert compare(["y"], [small], [small * np.float32(factor)])

    def test_denormal_numbers_may_become_zero(self) -> None:
        denormal = np.full(3, 1e-40, np.float32)
        assert not compare(["y"], [denormal], [np.zeros(3, np.float32)])

    def test_nan_and_infinity_excuse_nothing(self) -> None:
        special = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
        assert not compare(["y"], [special], [special.copy()])
        for place in range(3):
            changed = special.copy()
            changed[place] = 0
            found = compare(["y"], [special], [changed])
            assert found[0].index == (place,)
            assert found[0].max_absolute == np.inf
        for value in (np.nan, np.inf):
            changed = special.copy()
            changed[3] = value
            assert compare(["y"], [special], [changed])[0].index == (3,)

    def test_integers_texts_sequences_and_optionals_are_exact(self) -> None:
        whole = np.array([2**60, 7])
        found = compare(["n"], [whole], [whole + np.array([1, 0])])[0]
        assert str(2**60) in found.what
        assert str(2**60 + 1) in found.what
        words, others = np.array(["a", "b"], object), np.array(["a", "c"], object)
        assert "'c' instead of 'b' at [1]" in compare(["s"], [words], [others])[0].what
        lists: list[Array] = [np.zeros(2), np.ones(2)]
        assert compare(["q"], [lists], [lists[:1]])[0].what == "1 elements instead of 2"
        assert compare(["q"], [lists], [[lists[0], lists[0]]])[0].output == "q[1]"
        assert (
            compare(["o"], [None], [np.zeros(2)])[0].what
            == "float64[2] instead of an empty optional"
        )
        assert not compare(["o"], [None], [None])
        assert compare(["m"], [{1: 0.5}], [{1: 0.7}])
        assert "keys" in compare(["m"], [{1: 0.5}], [{2: 0.5}])[0].what
        (difference,) = compare(["a", "b"], [None, None], [None])
        assert str(difference) == "1 output instead of 2"
