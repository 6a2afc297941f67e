"""DecomposeAffine and DecomposeCrop: operators that ONNX dropped, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite
from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.experimental import DecomposeAffine, DecomposeCrop

from ...equivalence import ops, run_rules
from .contrib_models import assert_decomposed, floats, one_node

SHAPES = [(2, 3, 5, 6), (1, 1, 4, 4), (0, 3, 5, 6)]
ELEMENTWISE: dict[str, dict[str, Any]] = {
    "Affine": {"alpha": 0.5, "beta": -2.0},
    "Scale": {"scale": 3.0},
    "ScaledTanh": {"alpha": 1.5, "beta": 0.7},
    "ParametricSoftplus": {"alpha": 1.5, "beta": 0.7},
}


def _model(op: str, feed: Any, opset: int = 7, **attributes: Any) -> onnx.ModelProto:
    model = one_node(op, feed, opset=opset, domain="", **attributes)
    del model.opset_import[1:]
    return model


@pytest.mark.parametrize("opset", [7, 9])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op: str, shape: tuple[int, ...], opset: int) -> None:
    feed = {"x": floats(*shape)}
    assert_decomposed(_model(op, feed, opset, **ELEMENTWISE[op]), feed)


@pytest.mark.parametrize("op", ["Affine", "Scale"])
def test_defaults(op: str) -> None:
    feed = {"x": floats(2, 3)}
    assert_decomposed(_model(op, feed), feed)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_constants_have_the_type_of_the_operand(dtype: Any) -> None:
    model = _model("Affine", {"x": floats(2, 3).astype(dtype)}, alpha=0.5)
    result = rewrite(model).model
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert {tensor.data_type for tensor in result.graph.initializer} == {kind}


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_bias_for_each_channel(batch: int) -> None:
    feed = {"x": floats(batch, 3, 5, 6)}
    assert_decomposed(_model("ImageScaler", feed, scale=2.0, bias=[1.0, -2.0, 0.5]), feed)


@pytest.mark.parametrize("shape", [(2, 3, 9, 8), (1, 1, 6, 5), (0, 3, 7, 7)])
@pytest.mark.parametrize("border", [[1, 2, 2, 3], [0, 0, 0, 0], [1, 0, 0, 2]])
@pytest.mark.parametrize("scale", [None, [3, 2]])
def test_crops(shape: tuple[int, ...], border: list[int], scale: list[int] | None) -> None:
    feed = {"x": floats(*shape)}
    attributes: dict[str, Any] = {"border": border} | ({"scale": scale} if scale else {})
    assert_decomposed(_model("Crop", feed, **attributes), feed)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("ImageScaler", {"scale": 2.0}),
        ("ScaledTanh", {"beta": 2.0}),
        ("ParametricSoftplus", {"alpha": 2.0}),
        ("Crop", {"border": [1, 2, 3]}),
        ("Crop", {"border": [1, -2, 3, 4]}),
        ("Crop", {"border": [1, 2, 3, 4], "scale": [1]}),
        ("Crop", {"border": [1, 2, 3, 4], "scale": [-1, 2]}),
    ],
)
def test_attributes_that_are_missing_or_wrong(op: str, attributes: dict[str, Any]) -> None:
    model = _model(op, {"x": floats(1, 3, 9, 9)}, **attributes)
    assert ops(rewrite(model).model) == {op: 1}


@pytest.mark.parametrize("rule", [DecomposeAffine, DecomposeCrop])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    assert isinstance(rule.fires, str)
    _, trace, _ = run_rules(fixture(rule.fires), [rule])
    assert {commit.rule for commit in trace.commits()} == {rule.name()}
