"""DecomposeFusedMatMul, DecomposeFusedConv and DecomposeFusedGemm."""

from __future__ import annotations

from typing import Any

import pytest

from looplift.rewrite.engine.rule import Rule, fixture
from looplift.rules.contrib.fused_operators import (
    DecomposeFusedConv,
    DecomposeFusedGemm,
    DecomposeFusedMatMul,
)

from ...equivalence import run_rules
from .contrib_models import assert_decomposed, assert_kept, floats, one_node

PRODUCTS = [
    ({}, (2, 3, 4), (2, 4, 5)),
    ({"alpha": 0.25}, (3, 4), (4, 5)),
    ({"transA": 1}, (2, 4, 3), (2, 4, 5)),
    ({"transB": 1}, (2, 3, 4), (5, 4)),
    ({"transA": 1, "transB": 1, "alpha": 2.0}, (2, 6, 4, 3), (2, 6, 5, 4)),
    ({"transBatchA": 1}, (3, 2, 4), (2, 4, 5)),
    ({"transBatchB": 1}, (2, 6, 3, 4), (4, 2, 6, 5)),
    ({"transBatchA": 1, "transA": 1}, (4, 2, 6, 3), (2, 6, 4, 5)),
    ({"transBatchA": 1, "transBatchB": 1, "transB": 1}, (3, 2, 4), (5, 2, 4)),
    ({"transB": 1}, (0, 4), (5, 4)),
    ({"transB": 1}, (1, 4), (1, 4)),
]


@pytest.mark.parametrize(("attributes", "a", "b"), PRODUCTS)
def test_products(attributes: dict[str, Any], a: tuple[int, ...], b: tuple[int, ...]) -> None:
    feed = {"a": floats(*a), "b": floats(*b)}
    assert_decomposed(one_node("FusedMatMul", feed, **attributes), feed)


ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("", []),
    ("Relu", []),
    ("Tanh", []),
    ("Sigmoid", []),
    ("LeakyRelu", [0.3]),
    ("Clip", [-0.5, 0.75]),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("activation", "parameters"), ACTIVATIONS)
def test_convolutions(activation: str, parameters: list[float], batch: int) -> None:
    attributes: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 0], "group": 1}
    if activation:
        attributes["activation"] = activation
    if parameters:
        attributes["activation_params"] = parameters
    feed = {"x": floats(batch, 3, 6, 5), "w": floats(4, 3, 3, 2), "b": floats(4)}
    assert_decomposed(one_node("FusedConv", feed, symbolic=False, **attributes), feed, 1e-4)


def test_convolution_of_a_sum() -> None:
    feed = {
        "x": floats(2, 3, 4, 4),
        "w": floats(4, 3, 1, 1),
        "b": floats(4),
        "z": floats(2, 4, 4, 4),
    }
    model = one_node("FusedConv", feed, symbolic=False, activation="Relu")
    assert_decomposed(model, feed, 1e-4)
    without = {**feed, "b": None}
    model = one_node("FusedConv", without, symbolic=False, activation="Relu")
    assert_decomposed(model, without, 1e-4)


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize(
    ("activation", "attributes"),
    [
        ("Relu", {}),
        ("Tanh", {}),
        ("Sigmoid", {}),
        ("LeakyRelu", {"activation_alpha": 0.2}),
        ("Elu", {"activation_alpha": 0.5}),
        ("ThresholdedRelu", {"activation_alpha": 0.5}),
        ("Softplus", {}),
        ("Softsign", {}),
    ],
)
def test_gemms(activation: str, attributes: dict[str, Any], rows: int) -> None:
    feed = {"a": floats(rows, 4), "b": floats(5, 4), "c": floats(5)}
    model = one_node(
        "FusedGemm", feed, transB=1, alpha=0.5, beta=2.0, activation=activation, **attributes
    )
    assert_decomposed(model, feed)


def test_an_unknown_activation_stays() -> None:
    feed = {"a": floats(3, 4), "b": floats(4, 5)}
    assert_kept(one_node("FusedGemm", feed, activation="Mish"))
    assert_kept(one_node("FusedGemm", feed, activation="LeakyRelu"))


@pytest.mark.parametrize("rule", [DecomposeFusedConv, DecomposeFusedGemm, DecomposeFusedMatMul])
def test_the_rule_alone(rule: type[Rule[Any]]) -> None:
    texts = [rule.fires] if isinstance(rule.fires, str) else list(rule.fires)
    for text in texts:
        _, trace, _ = run_rules(fixture(text), [rule])
        assert {commit.rule for commit in trace.commits()} == {rule.name()}


def test_an_addend_of_other_sizes_stays() -> None:
    """onnxruntime loads such a FusedConv, which fails, but not such an Add."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,3,6,6] x, float[4,3,3,3] w, float[4] b) => (float[N,4,4,4] y) {
        y = com.microsoft.FusedConv<activation = "Relu">(x, w, b, x) }"""
    result, trace, _ = run_rules(fixture(text), [DecomposeFusedConv])
    assert trace.defects() == []
    assert [node.op_type for node in result.graph.node] == ["FusedConv"]
