"""MergeRecurrentChunks: recurrent operators over chunks of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift.rewrite.engine.rule import fixture
from looplift.rules.recurrence import MergeRecurrentChunks

from ...equivalence import ops, rewritten
from ...rewrite.fact_oracle import Feeds
from ...small_models import model
from ..reasons import reason_of

RNG = np.random.default_rng(4)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FEEDS = Feeds(sizes=(1, 2, 5))


def _weights(op: str) -> dict[str, Any]:
    gates = GATES[op]
    shapes = {"w": (1, 3 * gates, 2), "r": (1, 3 * gates, 3), "b": (1, 6 * gates)}
    return {name: RNG.normal(size=s).astype(np.float32) * 0.5 for name, s in shapes.items()}


def _model(
    op: str, attributes: str = "", results: str = "u", x: str = "N, 5, B, 2"
) -> onnx.ModelProto:
    """`results`: what an iteration returns besides the states."""
    cell = op == "LSTM"
    state, end = ("h, c", "ho, d") if cell else ("h", "ho")
    text = f"""g (float[{x}] x, float[1, B, 3] h0, float[1, B, 3] c0)
        => (float[1, B, 3] hn, {"float[1, B, 3] cn, " if cell else ""}float[K, L, 1, B, 3] ys)
        <int64 zero = {{0}}> {{
      all = Shape(x) n = Gather(all, zero)
      hn, {"cn, " if cell else ""}ys = Loop (n, , h0{", c0" if cell else ""}) <
        body = s (int64 i, bool ci, float[1, B, 3] h{", float[1, B, 3] c" if cell else ""})
          => (bool co, float[1, B, 3] ho{", float[1, B, 3] d" if cell else ""}, float[5, 1, B, 3] y)
        {{ co = Identity(ci) chunk = Gather(x, i)
          u, {end} = {op}<hidden_size = 3 {attributes}>(chunk, w, r, b, , {state})
          y = {"Identity" if results == "u" else "Sin"}(u) }}> }}"""
    return model(text, 17, 8, **_weights(op))


@pytest.mark.parametrize("results", ["u", "sin"])
@pytest.mark.parametrize("op", GATES)
def test_chunks_of_five_time_steps(op: str, results: str) -> None:
    result = rewritten(_model(op, results=results), FEEDS, 1e-5)
    assert not ops(result.model).keys() & {"Loop", "Scan"}
    assert ops(result.model)[op] == 1


@pytest.mark.parametrize("op", ["RNN", "LSTM"])
def test_attributes_are_kept(op: str) -> None:
    functions = ", ".join(f'"{f}"' for f in ["Sigmoid", "Tanh", "Relu"][-GATES[op] :][:3])
    functions = '"Relu"' if op == "RNN" else functions
    result = rewritten(_model(op, f", clip = 0.3, activations = [{functions}]"), FEEDS, 1e-5)
    assert "Loop" not in ops(result.model)


@pytest.mark.parametrize("op", ["RNN", "LSTM"])
def test_no_chunk_leaves_the_states(op: str) -> None:
    text = f"""g (float[N, 5, B, 2] x, float[1, B, 3] h0) => (float[1, B, 3] hn)
        <int64 zero = {{0}}> {{
      all = Shape(x) n = Gather(all, zero)
      hn{", cn" if op == "LSTM" else ""} = Loop (n, , h0{", h0" if op == "LSTM" else ""}) <
        body = s (int64 i, bool ci, float[1, B, 3] h{", float[1, B, 3] c" if op == "LSTM" else ""})
          => (bool co, float[1, B, 3] ho{", float[1, B, 3] d" if op == "LSTM" else ""})
        {{ co = Identity(ci) chunk = Gather(x, i)
          u, ho{", d" if op == "LSTM" else ""} = {op}<hidden_size = 3>
            (chunk, w, r, b, , h{", c" if op == "LSTM" else ""}) }}> }}"""
    feeds = Feeds(sizes=(0, 1, 2, 5), fixed={"B": 2})
    result = rewritten(model(text, 17, 8, **_weights(op)), feeds, 1e-5)
    assert "Loop" not in ops(result.model)


def test_a_sequence_that_is_sliced_into_chunks() -> None:
    """The last time steps belong to no chunk."""
    text = """g (float[T, B, 2] x, float[1, B, 3] h0) => (float[1, B, 3] hn, float[1, B, 3] cn)
        <int64 zero = {0}, int64 four = {4}, int64[1] axis = {0}> {
      all = Shape(x) t = Gather(all, zero) n = Div(t, four)
      hn, cn = Loop (n, , h0, h0) <
        body = s (int64 i, bool ci, float[1, B, 3] h, float[1, B, 3] c)
          => (bool co, float[1, B, 3] ho, float[1, B, 3] d) {
          co = Identity(ci) start = Mul(i, four) end = Add(start, four)
          from = Unsqueeze(start, axis) to = Unsqueeze(end, axis) chunk = Slice(x, from, to, axis)
          u, ho, d = LSTM<hidden_size = 3>(chunk, w, r, b, , h, c) }> }"""
    feeds = Feeds(sizes=(1, 3, 4, 7, 12), fixed={"B": 2})
    result = rewritten(model(text, 17, 8, **_weights("LSTM")), feeds, 1e-5)
    assert "Loop" not in ops(result.model)


def test_a_backward_operator_stays() -> None:
    backward = _model("LSTM", ', direction = "reverse"')
    assert "is not forward" in reason_of(MergeRecurrentChunks, backward)
    assert "Loop" in ops(rewritten(backward, FEEDS, 1e-5).model)


def test_a_chunk_from_another_state_stays() -> None:
    """Both states start from what was the other one."""
    text = """g (float[N, 5, B, 2] x, float[1, B, 3] h0, float[1, B, 3] c0)
        => (float[1, B, 3] hn, float[1, B, 3] cn) <int64 zero = {0}> {
      all = Shape(x) n = Gather(all, zero)
      hn, cn = Loop (n, , h0, c0) <body = s (int64 i, bool ci, float[1, B, 3] h, float[1, B, 3] c)
        => (bool co, float[1, B, 3] ho, float[1, B, 3] d) {
          co = Identity(ci) chunk = Gather(x, i)
          u, d, ho = LSTM<hidden_size = 3>(chunk, w, r, b, , h, c) }> }"""
    swapped = model(text, 17, 8, **_weights("LSTM"))
    assert "does not update its state" in reason_of(MergeRecurrentChunks, swapped)
    assert "Loop" in ops(rewritten(swapped, FEEDS, 1e-5).model)


def test_operands_that_do_not_fit_the_operator() -> None:
    """The original runs if the loop has no iteration."""
    for old, new in (
        ("hidden_size = 3", "hidden_size = 0"),
        ("float[1,3,3] r", "float[1,T,3] r"),
        ("float[1,3,2] w", "float[1,3,T] w"),
        ("float[T,5,B,2] x", "float[T,5,2,2] x"),
    ):
        text = MergeRecurrentChunks.fires.replace(old, new)
        reason = reason_of(MergeRecurrentChunks, fixture(text))
        assert "are not known to have sizes that fit each other" in reason
