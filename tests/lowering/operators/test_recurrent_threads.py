"""LSTM, GRU and RNN on two threads: cores take directions and rows, or share hidden units."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tvm

from looplift.lowering.compile import as_target
from looplift.lowering.operators import recurrent_kernel
from looplift.lowering.operators.recurrent_attributes import Activation, Direction
from looplift.lowering.operators.recurrent_attributes import Layer as ParsedLayer
from looplift.lowering.operators.recurrent_layout import Recurrence, choose_layout
from looplift.lowering.scheduling.kernels.emission import ON_ONE_CORE

from ...samples import one_of
from ..compiled import Compiled
from .test_recurrent_operator import (
    Layer,
    assert_equal,
    build_feed,
    build_model,
    onnxruntime_session,
    use_small_chunks,
)

BIDIRECTIONAL = {"direction": "bidirectional"}
SEPARATE = {
    "lstm": Layer("LSTM", BIDIRECTIONAL, ("B", "initial_h", "initial_c"), hidden=131),
    "lengths": Layer("GRU", BIDIRECTIONAL, ("B", "sequence_lens"), hidden=155),
    "unlike directions": Layer(
        "LSTM",
        {
            **BIDIRECTIONAL,
            "activations": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Tanh", "Relu"],
        },
        hidden=131,
    ),
    "rows": Layer("RNN", {"direction": "reverse"}, hidden=365),
}
"""Layers whose directions and rows are enough for all cores."""
SHARED = {
    "one lstm": Layer("LSTM", {"direction": "reverse"}, ("B", "initial_h", "P"), hidden=365),
    "gru": Layer("GRU", {}, ("B", "sequence_lens", "initial_h"), hidden=421),
    "reset after": Layer("GRU", {"linear_before_reset": 1}, hidden=421),
    "rnn": Layer("RNN", {"clip": 0.5}, hidden=727),
    "directions": Layer("LSTM", BIDIRECTIONAL, ("B", "sequence_lens"), hidden=365),
}
"""Layers with enough work in a time step."""
SIZES = ((1, 1), (4, 1), (3, 2), (5, 7), (2, 39))
"""Sequence lengths and batches: of one register tile, of several, and of several blocks of rows."""


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, request.param)
    yield request.param
    configure(1, 0)


@pytest.mark.parametrize("name", [*one_of(2, SEPARATE), *one_of(2, SHARED)])
def test_any_number_of_threads(name: str, threads: int) -> None:
    layer = (SEPARATE | SHARED)[name]
    rng = np.random.default_rng(0)
    model = build_model([layer], [layer.weights(rng)])
    compiled, session = Compiled(model), onnxruntime_session(model)
    for steps, batch in SIZES:
        feed = build_feed([layer], rng, steps, batch)
        assert_equal(model, compiled(feed), session.run(None, feed))
    assert compiled(build_feed([layer], rng, 3, 0))[0].shape[2] == 0
    no_steps = build_feed([layer], rng, 0, 2)
    final = compiled(no_steps)[1]
    wanted = no_steps.get("initial_h_0", np.zeros_like(final))
    if "sequence_lens" not in layer.inputs:
        np.testing.assert_array_equal(final, wanted)


@pytest.mark.parametrize("batch", [1, 3, 39])
def test_a_fixed_batch(batch: int, threads: int) -> None:
    layer = Layer("GRU", BIDIRECTIONAL, ("B", "sequence_lens"), hidden=33)
    rng = np.random.default_rng(0)
    model = build_model([layer], [layer.weights(rng)])
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.dim_value = batch
    feed = build_feed([layer], rng, 5, batch)
    assert_equal(model, Compiled(model)(feed), onnxruntime_session(model).run(None, feed))


@pytest.mark.parametrize("name", ["lengths", "unlike directions", "one lstm", "gru"])
def test_several_chunks_on_several_threads(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_chunks(monkeypatch)
    monkeypatch.setattr(recurrent_kernel, "GRAIN", 1)  # The product of the inputs is in parallel.
    layer = (SEPARATE | SHARED)[name]
    rng = np.random.default_rng(0)
    model = build_model([layer], [layer.weights(rng)])
    compiled, session = Compiled(model), onnxruntime_session(model)
    for steps, batch in ((7, 39), (6, 1)):
        feed = build_feed([layer], rng, steps, batch)
        assert_equal(model, compiled(feed), session.run(None, feed))


def recurrence(directions: int, hidden: int, batch: int | None) -> Recurrence:
    sigmoid, tanh = Activation("sigmoid", 0, 0), Activation("tanh", 0, 0)
    both = tuple(Direction(reverse, (sigmoid, tanh, tanh)) for reverse in (False, True))
    layer = ParsedLayer("LSTM", hidden, both[:directions], None, False, False, False)
    layout = choose_layout(4, hidden, "float32")
    return Recurrence(layer, layout, 40, "float32", batch, peepholes=False, lengths=False)


@pytest.fixture
def parallel_loops(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recurrence], list[int]]:
    """How many loops are around each parallel loop of the recurrence."""
    monkeypatch.setattr(recurrent_kernel, "_emit_input_product", lambda *_: None)

    def around(recurrence: Recurrence) -> list[int]:
        script = recurrent_kernel.recurrence_kernel(recurrence).script()
        found, outer = [], list[int]()
        for line in script.splitlines():
            indent = len(line) - len(line.lstrip())
            outer = [other for other in outer if other < indent]
            if line.lstrip().startswith("for "):
                found += [len(outer)] if "T.parallel(" in line else []
                outer.append(indent)
        return found

    return around


def test_which_loop_runs_on_all_cores(parallel_loops: Callable[[Recurrence], list[int]]) -> None:
    with as_target("native"):
        assert parallel_loops(recurrence(1, 64, 1)) == []
        # Directions and rows: in the loop over chunks.
        assert set(parallel_loops(recurrence(2, 256, None))) == {1}
        assert set(parallel_loops(recurrence(1, 256, 8))) == {1}
        # Hidden units: in those over directions and blocks of rows, and over time steps, as well.
        assert parallel_loops(recurrence(1, 512, 1)) == [3]
        assert parallel_loops(recurrence(2, 512, 8)) == [3]


@pytest.mark.parametrize(("batch", "blocks"), [(8, 2), (64, 2), (65, 4)])
def test_two_cores_have_equally_many_blocks_of_rows(
    batch: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent_kernel, "_emit_input_product", lambda *_: None)
    with as_target("native"):
        script = recurrent_kernel.recurrence_kernel(recurrence(1, 256, batch)).script()
    assert f"T.parallel(T.int64({blocks}))" in script


def test_a_small_layer_stays_on_one_core(
    parallel_loops: Callable[[Recurrence], list[int]],
) -> None:
    """Whether the sequence is long enough is known at run time."""
    with as_target("native"):
        assert len(parallel_loops(recurrence(2, 32, None))) == 2
        script = recurrent_kernel.recurrence_kernel(recurrence(2, 32, None)).script()
    assert script.count(ON_ONE_CORE) == 1


def test_the_product_of_the_inputs_runs_on_all_cores_where_it_is_large() -> None:
    with as_target("native"):
        script = recurrent_kernel.recurrence_kernel(recurrence(1, 64, 1)).script()
    assert script.count("T.parallel(") == 1
