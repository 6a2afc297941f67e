"""Decomposes an LSTM of one time step, so that the product with its known input can leave the loop.

    y, h, c = Loop(n, , h0, c0) { …  h', c' = LSTM(Concat(x_t, a(h)), W, R, B, , h, c)  … }
 -> y, h, c = Loop(n, , h0, c0) { …  g = Concat(x_t, a(h), h)·[W, R] + b  …  h' = o * tanh(c') }

A decoder with attention between its time steps cannot become one LSTM over the whole sequence. After
this rule, SplitProductOfConcat and VectorizeBeforeLoop move the product with x before the loop.
Measured on onnxruntime with 256 known features and a state of 256: 1.7 times as fast for one row,
1.2 times for 8 rows; with 64 and 64 there is no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.facts.axes import named_axes
from ...rewrite.graph.ir import Node, Tensor, optional
from ..loops.counted_loop_checks import need_counted_loop
from .independent_work import IndependentWork, need_independent_work

_MIN_FEATURES = 128
"""The fewest known features for which an LSTM is decomposed; they must also be half of its state."""
_DEFAULTS = {"activations": ["Sigmoid", "Tanh", "Tanh"], "input_forget": 0, "layout": 0}
"""The attributes that change what an LSTM computes, with their defaults (ONNX specification)."""

_WEIGHTS = ", ".join(["0.01"] * 4 * _MIN_FEATURES)
"""W of the fixture."""


@dataclass(frozen=True)
class OneStepLstm:
    """An LSTM of one time step with constant weights."""

    node: Node
    parts: list[Tensor]
    """The parts of its input, (batch, features) each."""
    matrix: np.ndarray
    """(features + hidden, 4 * hidden)"""
    bias: np.ndarray
    """(4 * hidden,)"""


class DecomposeOneStepLstm(Rule[list[OneStepLstm]]):
    """Decomposes an LSTM of one time step in a loop if much of its input is known beforehand."""

    root = ("Loop", "Scan")
    promise = Promise(
        rounds="the gates are computed by one product",
        nonfinite="saturated gates may hide an infinity or NaN",
        always_accepts="empty batches, on which onnxruntime's LSTM crashes",
    )
    fires = f"""g (float[T,1,128] x, float[1,1,1] h0, float[1,1,1] c0) => (float[1,1,1] h) <float[1,4,128] w = {{{_WEIGHTS}}},
      float[1,4,1] r = {{0.1, 0.2, 0.3, 0.4}}, int64[1] z = {{0}}> {{
      h, c = Scan <num_scan_inputs=1, body = b (float[1,1,1] hi, float[1,1,1] ci, float[1,128] xt) => (float[1,1,1] ho, float[1,1,1] co) {{
        xu = Unsqueeze(xt, z) hs = Sin(hi) y, ho, co = LSTM<hidden_size=1>(xu, w, r, , , hs, ci) }}> (h0, c0, x) }}"""
    spares = {
        "only 2 input features": """g (float[T,1,2] x, float[1,1,1] h0, float[1,1,1] c0) => (float[1,1,1] h) <float[1,4,2] w = {1, 2, 3, 4, 5, 6, 7, 8},
      float[1,4,1] r = {0.1, 0.2, 0.3, 0.4}, int64[1] z = {0}> {
      h, c = Scan <num_scan_inputs=1, body = b (float[1,1,1] hi, float[1,1,1] ci, float[1,2] xt) => (float[1,1,1] ho, float[1,1,1] co) {
        xu = Unsqueeze(xt, z) hs = Sin(hi) y, ho, co = LSTM<hidden_size=1>(xu, w, r, , , hs, ci) }> (h0, c0, x) }""",
        "no LSTM": """g (float[3] x, int64 m) => (float[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool ci, float[3] s) => (bool co, float[3] so) {
        co = Identity(ci) so = Sin(s) }> }""",
    }

    def match(self, m: Match) -> list[OneStepLstm]:
        loop = need_counted_loop(m)
        none = "there is no LSTM in its body"
        nodes = [n for n in m.index.nodes_in_order(loop.body) if n.op == "LSTM" and not n.domain]
        m.need(bool(nodes), none)
        work = need_independent_work(m)
        return m.every(lambda node: _one_step_lstm(m, work, node), nodes, none)

    def apply(self, patch: Patch, found: list[OneStepLstm]) -> None:
        # In reverse order, because a part of one input may be computed by another LSTM.
        for lstm in reversed(found):
            self._decompose(patch, lstm)
        patch.toward_normal_form()

    def _decompose(self, patch: Patch, found: OneStepLstm) -> None:
        node = found.node
        like = next(t for t in node.outputs if t.name)
        emit = patch.builder(like, node)
        h, c = (emit.squeeze(node.inputs[slot], [0]) for slot in (5, 6))
        joined = emit("Concat", *found.parts, h, axis=1)
        gates = emit("Gemm", joined, emit.constant(found.matrix), emit.constant(found.bias))
        h, c = _next_states(emit, gates, c, len(found.bias) // 4)
        results = [(h, [0, 1]), (h, [0]), (c, [0])]
        for output, (value, axes) in zip(list(node.outputs), results):
            if output.name:
                patch.replace(output, emit.unsqueeze(value, axes))
        patch.remove(node)


def _one_step_lstm(m: Match, work: IndependentWork, node: Node) -> OneStepLstm:
    """The parts and weights of an LSTM of one time step. Raises Miss if it must remain an LSTM."""
    for name, default in _DEFAULTS.items():
        given = node.attrs.get(name, default)
        m.need(given == default, "the attribute {} of {} is not the default", name, node)
    m.need("clip" not in node.attrs, "{} clips its gates", node)
    m.need(node.attrs.get("direction", "forward") != "bidirectional", "{} is bidirectional", node)
    bias_input, lengths, h, c, peepholes = (optional(node.inputs, slot) for slot in range(3, 8))
    m.need(h is not None and c is not None, "{} has no initial state", node)
    m.need(lengths is None and peepholes is None, "{} has sequence lengths or peepholes", node)
    parts = _parts(m, node)
    shape = m.facts.shape(node.inputs[0])
    m.need(shape is not None and shape[0] == 1, "{} is not known to have one time step", node)
    weights = [m.facts.constant(node.inputs[slot]) for slot in (1, 2)]
    w, r = (m.need(each, "the weights of {} are not constant", node)[0] for each in weights)
    bias = np.zeros(2 * len(w), w.dtype)
    if bias_input is not None:
        given = m.facts.constant(bias_input)
        bias = m.need(given, "the bias of {} is not constant", node)[0]
    known = 0
    for part in parts:
        width = (m.facts.shape(part) or (0,))[-1]
        is_known = work.is_independent(m.index, part)
        known += width if isinstance(width, int) and is_known else 0
    few = "only {} input features of {} are known before the loop, fewer than {}"
    least = max(_MIN_FEATURES, r.shape[1] // 2)
    m.need(known >= least, few, known, node, least)
    matrix = np.concatenate([w.T, r.T])
    return OneStepLstm(node, parts, np.ascontiguousarray(matrix), bias[: len(w)] + bias[len(w) :])


def _parts(m: Match, node: Node) -> list[Tensor]:
    """The values that are concatenated to the input of the LSTM; the input alone if there are none."""
    other = "the input of {} is not an Unsqueeze along the time axis"
    added = m.need(m.producer(node.inputs[0], "Unsqueeze"), other, node)
    m.need(named_axes(m.facts, added) == [0], other, node)
    value = added.inputs[0]
    concat = m.producer(value, "Concat")
    if concat is not None and concat.attrs["axis"] in (-1, 1):
        return list(concat.inputs)
    return [value]


def _next_states(emit: Builder, gates: Tensor, c: Tensor, hidden: int) -> tuple[Tensor, Tensor]:
    """The next h and c. The gates are i, o, f and c, in this order (ONNX specification, LSTM)."""
    parts = emit.split(gates, 1, [hidden] * 4, [emit.like] * 4)
    i, o, f = (emit("Sigmoid", part) for part in parts[:3])
    kept, new = emit("Mul", f, c), emit("Mul", i, emit("Tanh", parts[3]))
    c = emit("Add", kept, new)
    return emit("Mul", o, emit("Tanh", c)), c
