"""Single nodes computed on constants."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from looplift.rewrite.graph.ir import Node
from looplift.rewrite.running.evaluate import NotEvaluated, evaluate
from looplift.rewrite.storage.model import import_model

from ...small_models import parse

F: Any = np.float32


def _node(text: str, opset: int = 21) -> Node:
    """The last node of a graph."""
    node: Node = import_model(parse(text, opset, 10)).graph.nodes[-1]
    return node


def _evaluate(text: str, *operands: Any, opset: int = 21) -> list[np.ndarray]:
    arrays = [None if o is None else np.asarray(o) for o in operands]
    return evaluate(_node(text, opset), arrays, {"": opset})


def test_one_result() -> None:
    (result,) = _evaluate(
        "g (float[2] x, float[2] z) => (float[2] y) { y = Sub(x, z) }", F([3, 4]), F([1, 2])
    )
    np.testing.assert_array_equal(result, F([2, 2]))
    assert result.dtype == np.float32


def test_attributes_and_omitted_operands() -> None:
    (result,) = _evaluate(
        "g (float[2] x, float hi) => (float[2] y) { y = Clip(x, , hi) }", F([3, 4]), None, F(3.5)
    )
    np.testing.assert_array_equal(result, F([3, 3.5]))
    (result,) = _evaluate(
        "g (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [1, 0]>(x) }",
        np.zeros((2, 3), F),
    )
    assert result.shape == (3, 2)
    (result,) = _evaluate(
        'g (float[1,1,2] x) => (float[1,1,2] y) { y = MaxPool<auto_pad = "SAME_UPPER", kernel_shape = [2]>(x) }',
        F([[[1, 2]]]),
    )
    np.testing.assert_array_equal(result, F([[[2, 2]]]))


def test_several_results_some_omitted() -> None:
    _, second = _evaluate(
        "g (float[4] x) => (float[2] a, float[2] b) { a, b = Split<num_outputs = 2>(x) }",
        F([1, 2, 3, 4]),
    )
    np.testing.assert_array_equal(second, F([3, 4]))
    normalized, mean, deviation = _evaluate(
        "g (float[1,2] x, float[2] s) => (float[1,2] y, float[1,1] d) { y, , d = LayerNormalization(x, s) }",
        F([[1, 3]]),
        F([1, 1]),
    )
    np.testing.assert_allclose(normalized, F([[-1, 1]]), rtol=1e-4)
    np.testing.assert_allclose(deviation, F([[1]]), rtol=1e-4)
    assert mean.size == 0


@pytest.mark.parametrize("opset", [7, 13, 21])
def test_the_operator_is_that_of_the_models_opset(opset: int) -> None:
    """Softmax flattened its input until opset 12."""
    (result,) = _evaluate(
        "g (float[2,1,2] x) => (float[2,1,2] y) { y = Softmax(x) }",
        np.zeros((2, 1, 2), F),
        opset=opset,
    )
    np.testing.assert_allclose(result, np.full((2, 1, 2), 0.5))


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("g (int64[2] x, int64[2] z) => (int64[2] y) { y = Div(x, z) }", ([1, 2], [0, 1])),
        ("g (int64[2] x, int64[2] z) => (int64[2] y) { y = Mod(x, z) }", ([1, 2], [0, 1])),
        ("g (int64[1] x, int64[1] z) => (int64[1] y) { y = Div(x, z) }", ([-(2**63)], [-1])),
        ("g (float[2] x, int64 i) => (float y) { y = Gather(x, i) }", (F([1, 2]), 5)),
        ("g (float[2] x, float[3] z) => (float[3] y) { y = Add(x, z) }", (F([1, 2]), F([1, 2, 3]))),
        ("g (float[4] x, int64[1] s) => (float[3] y) { y = Reshape(x, s) }", (F([1, 2, 3, 4]), [3])),
        ("g (int16[2] x) => (int16[2] y) { y = Where(c, x, x) c = Constant<value = bool {1}>() }", (True, np.int16([1]), np.int16([1]))),  # type: ignore[arg-type]
        ("g (string[1] x) => (float[1] y) { y = Cast<to = 1>(x) }", (np.array(["a"], object),)),
        ("g (bfloat16[1] x) => (bfloat16[1] y) { y = Neg(x) }", (np.ones(1, ml_dtypes.bfloat16),)),
        ("g (float[0] x) => (float y) { y = ReduceMax<keepdims = 0>(x) }", (F([]),)),
        ("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }", (F([1, 2]),)),
    ],
)  # fmt: skip
def test_failing_nodes_and_results_other_than_arrays(text: str, operands: Any) -> None:
    with pytest.raises(NotEvaluated) as caught:
        _evaluate(text, *operands)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_unsafe_kernels_are_not_run() -> None:
    text = """g (float[5,0,3] x, float[1,8,3] w, float[1,8,2] r) => (float[5,1,0,2] y) {
        y = LSTM<hidden_size = 2>(x, w, r) }"""
    with pytest.raises(NotEvaluated):
        _evaluate(text, np.zeros((5, 0, 3), F), np.zeros((1, 8, 3), F), np.zeros((1, 8, 2), F))


def test_shapes_of_empty_arrays() -> None:
    (result,) = _evaluate("g (float[0,3] x) => (int64[2] y) { y = Shape(x) }", np.zeros((0, 3), F))
    assert result.tolist() == [0, 3]
    (result,) = _evaluate(
        "g (float[0,3] x) => (float[3,0] y) { y = Transpose<perm = [1, 0]>(x) }",
        np.zeros((0, 3), F),
    )
    assert result.shape == (3, 0)
