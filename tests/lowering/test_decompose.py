"""Operators composed by their definition in ONNX: those that omit inputs of known types, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looplift import UnsupportedError
from looplift.lowering import emit

from .conftest import parse
from .operators.inputs import check_reference, output_dims, random

Load = Callable[..., Any]


def test_linear_attention_without_a_state(imported: Load) -> None:
    """The composition has a Scan, which becomes a loop."""
    model = imported(
        """
        <ir_version: 13, opset_import: ["" : 27]>
        g (float[b, t, 4] q, float[b, t, 4] k, float[b, t, 6] v, float[b, t, 2] beta) =>
          (float[?, ?, ?] y, float[?, ?, ?, ?] state) {
            y, state = LinearAttention <q_num_heads = 2, kv_num_heads = 2, update_rule = "delta">
                (q, k, v, "", "", beta)
        }"""
    )
    for batch, time in ((2, 3), (1, 1)):
        shapes = [(batch, time, size) for size in (4, 4, 6, 2)]
        check_reference(model, *(random(*shape) * 0.5 for shape in shapes), tolerance=1e-4)


def test_attention_and_causal_conv_with_omitted_inputs(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 13, opset_import: ["" : 27]>
        g (float[b, 2, n, 4] q, float[b, 1, m, 4] k, float[b, 1, m, 3] v, int64[b] lengths,
           float[b, 2, t] x, float[2, 1, 3] w, float[b, 2, 2] past) =>
          (float[?, ?, ?, ?] y, float[?, ?, ?] z, float[?, ?, ?] state) {
            y = Attention <is_causal = 1> (q, k, v, "", "", "", lengths)
            z, state = CausalConvWithState (x, w, "", past)
        }"""
    )
    for batch, queries, keys in ((2, 2, 5), (1, 1, 1)):
        check_reference(
            model,
            random(batch, 2, queries, 4),
            random(batch, 1, keys, 4),
            random(batch, 1, keys, 3),
            np.array([keys, 1][:batch]),
            random(batch, 2, 4),
            random(2, 1, 3),
            random(batch, 2, 2),
            tolerance=1e-4,
        )


def test_constants_as_operands(imported: Load) -> None:
    """A composition by types needs the types of initializers, which models do not declare."""
    angles = np.arange(32) / 10
    cos, sin = (", ".join(map(str, table(angles))) for table in (np.cos, np.sin))
    model = imported(
        f"""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[b, 2, 4, 8] x, int64[b, 4] p, float[b, 3] scores, int64[b] labels,
           float[3, 10, 10] image) =>
          (float[b, 2, 4, 8] y, float loss, float[3, 8, 12] crop)
          <float[8, 4] cos = {{{cos}}}, float[8, 4] sin = {{{sin}}},
           float[3] weight = {{1, 2, 3}}, int64[3] size = {{3, 8, 12}}> {{
            y = RotaryEmbedding (x, cos, sin, p)
            loss = NegativeLogLikelihoodLoss (scores, labels, weight)
            crop = CenterCropPad (image, size)
        }}"""
    )
    assert output_dims(model)[1:] == ["2", "4", "8"]
    for batch in (2, 1):
        positions = np.arange(4 * batch).reshape(batch, 4)
        scores, labels = random(batch, 3), np.array([2, 0][:batch])
        model.check(random(batch, 2, 4, 8), positions, scores, labels, random(3, 10, 10))


def test_constants_of_a_branch_and_of_the_graph_as_operands(imported: Load) -> None:
    """Both branches have a constant of one name, but of different types."""
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 22]>
        g (bool c, float[2, 3] x, double[2, 3] z, int64[2] t) => (float l) <float[3] w = {1, 2, 3}> {
            l = If (c) <
                then_branch = a () => (float l1) <float[3] v = {3, 1, 2}> {
                    m = NegativeLogLikelihoodLoss (x, t, v)
                    n = NegativeLogLikelihoodLoss (x, t, w)
                    l1 = Add (m, n)
                },
                else_branch = b () => (float l2) <double[3] v = {3, 1, 2}> {
                    m = NegativeLogLikelihoodLoss (z, t, v)
                    l2 = Cast <to = 1> (m)
                }
            >
        }"""
    )
    for condition in (True, False):
        x = random(2, 3)
        model.check(np.array(condition), x, 2 * x.astype(np.float64), np.array([2, 1]))


def test_values_of_a_branch_as_operands(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 10, opset_import: ["" : 22]>
        g (bool c, float[2, 3] x, int64[2] t) => (float l) {
            l = If (c) <
                then_branch = a () => (float l1) {
                    e = LogSoftmax (x) l1 = NegativeLogLikelihoodLoss (e, t)
                },
                else_branch = b () => (float l2) { l2 = SoftmaxCrossEntropyLoss (x, t) }
            >
        }"""
    )
    for condition in (True, False):
        model.check(np.array(condition), random(2, 3), np.array([2, 1]))


def test_an_operator_whose_composition_needs_a_rank_that_is_not_known() -> None:
    model = parse("""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[n] x, float[4, 4] c, int64[1, 4] p) => (float[m] y) {
            y = RotaryEmbedding (x, c, c, p)
        }""")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with (
        pytest.warns(UserWarning, match="'shape' of 'type' is required"),
        pytest.raises(UnsupportedError, match="RotaryEmbedding that gives"),
    ):
        emit(model)
