"""Operators composed by their definition in ONNX: those that omit inputs of known types, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .operators.inputs import check_reference, random

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
