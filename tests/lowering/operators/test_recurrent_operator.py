"""The attributes, inputs and types of LSTM, GRU and RNN, against onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from looplift.lowering.operators import recurrent_layout

from ...samples import one_of
from ..compiled import Array, Compiled

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ACTIVATIONS_PER_DIRECTION = {"LSTM": 3, "GRU": 2, "RNN": 1}
DIRECTIONS = ("forward", "reverse", "bidirectional")
INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
COLUMNS = 6
SIZES = ((1, 1), (6, 1), (3, 2), (5, 4), (9, 5))
"""Sequence lengths and batches."""


@dataclass(frozen=True)
class Layer:
    """A node of a test model."""

    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ("B",)
    """The optional inputs of the node."""
    hidden: int = 5

    @property
    def directions(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1

    @property
    def batch_first(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(n for n in INPUTS if n in ("X", "W", "R", *self.optional))

    def weights(self, rng: np.random.Generator) -> dict[str, Array]:
        rows = GATES[self.op] * self.hidden
        shapes = {
            "W": (self.directions, rows, COLUMNS),
            "R": (self.directions, rows, self.hidden),
            "B": (self.directions, 2 * rows),
            "P": (self.directions, 3 * self.hidden),
        }
        names = [n for n in self.inputs if n in shapes]
        # Small enough that rounding does not grow from step to step.
        scale = 0.8 / np.sqrt(max(self.hidden, COLUMNS))
        return {n: (rng.standard_normal(shapes[n]) * scale).astype("float32") for n in names}

    def feed(self, rng: np.random.Generator, steps: int, batch: int) -> dict[str, Array]:
        """Random values for everything but the weights."""
        state = (self.directions, batch, self.hidden)
        shapes = {"X": (steps, batch, COLUMNS), "initial_h": state, "initial_c": state}
        feed = {
            name: rng.standard_normal(shapes[name]).astype("float32")
            for name in self.inputs
            if name in shapes
        }
        if self.batch_first:
            feed = {n: np.ascontiguousarray(v.swapaxes(0, 1)) for n, v in feed.items()}
        if "sequence_lens" in self.inputs:
            feed["sequence_lens"] = rng.integers(0, steps + 1, batch).astype("int32")
        return feed

    def input_shape(self, name: str) -> list[Any]:
        if name == "sequence_lens":
            return ["batch"]
        outer = ["steps" if name == "X" else self.directions, "batch"]
        last = COLUMNS if name == "X" else self.hidden
        return [*(outer[::-1] if self.batch_first else outer), last]


def build_model(
    layers: Sequence[Layer],
    weights: Sequence[Mapping[str, Array]],
    *,
    opset: int = 14,
    dtype: npt.DTypeLike = "float32",
    weights_are_inputs: bool = False,
) -> onnx.ModelProto:
    """The layers side by side in one model; tensors of layer k have names that end in _k."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, inputs, outputs, initializers = [], [], [], []
    for k, (layer, arrays) in enumerate(zip(layers, weights, strict=True)):
        names = [f"{n}_{k}" if n in layer.inputs else "" for n in INPUTS]
        while not names[-1]:
            names.pop()
        results = [f"{n}_{k}" for n in OUTPUTS[layer.op]]
        attributes = {"hidden_size": layer.hidden, **layer.attributes}
        nodes.append(helper.make_node(layer.op, names, results, **attributes))
        outputs += [
            helper.make_tensor_value_info(name, element, [None] * (3 if i else 4))
            for i, name in enumerate(results)
        ]
        for name in layer.inputs:
            kind = TensorProto.INT32 if name == "sequence_lens" else element
            if name not in arrays:
                shape = layer.input_shape(name)
                inputs.append(helper.make_tensor_value_info(f"{name}_{k}", kind, shape))
            elif weights_are_inputs:
                shape = list(arrays[name].shape)
                inputs.append(helper.make_tensor_value_info(f"{name}_{k}", kind, shape))
            else:
                array = arrays[name].astype(dtype)
                initializers.append(numpy_helper.from_array(array, f"{name}_{k}"))
    graph = helper.make_graph(nodes, "layers", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def build_feed(
    layers: Sequence[Layer], rng: np.random.Generator, steps: int, batch: int
) -> dict[str, Array]:
    return {
        f"{name}_{k}": value
        for k, layer in enumerate(layers)
        for name, value in layer.feed(rng, steps, batch).items()
    }


def onnxruntime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def assert_equal(
    model: onnx.ModelProto,
    actual: Sequence[Array],
    expected: Sequence[Array],
    tolerance: float = 1e-5,
) -> None:
    for output, a, e in zip(model.graph.output, actual, expected, strict=True):
        assert a.shape == e.shape, output.name
        assert a.dtype == e.dtype, output.name
        np.testing.assert_allclose(
            a.astype("float64"),
            e.astype("float64"),
            rtol=tolerance,
            atol=tolerance,
            err_msg=output.name,
        )


def check_against_onnxruntime(
    layers: Sequence[Layer], seed: int = 0, *, weights_are_inputs: bool = False
) -> None:
    """All layers in one module, every size in SIZES."""
    rng = np.random.default_rng(seed)
    weights = [layer.weights(rng) for layer in layers]
    model = build_model(layers, weights, weights_are_inputs=weights_are_inputs)
    compiled, session = Compiled(model), onnxruntime_session(model)
    given_weights = {f"{n}_{k}": a for k, arrays in enumerate(weights) for n, a in arrays.items()}
    for steps, batch in SIZES:
        feed = build_feed(layers, rng, steps, batch)
        if weights_are_inputs:
            feed |= given_weights
        assert_equal(model, compiled(feed), session.run(None, feed))


def grid(op: str, every: bool = False) -> Iterator[Layer]:
    """Every two of direction, lengths and all other inputs together; every size at least once.

    All three together with `every`.
    """
    states = ("initial_h", "initial_c")[: 2 if op == "LSTM" else 1]
    peepholes = ("P",) if op == "LSTM" else ()
    hidden = itertools.cycle((5, 1, 16, 70))
    for (i, direction), (j, lengths) in itertools.product(
        enumerate(DIRECTIONS), enumerate(((), ("sequence_lens",)))
    ):
        where: dict[str, Any] = {"direction": direction}
        if every or (i + j) % 2 == 0:
            yield Layer(op, where, lengths, hidden=next(hidden))
        if every or (i + j) % 2 == 1:
            optional = ("B", *lengths, *states, *peepholes)
            yield Layer(op, {**where, "clip": 0.5}, optional, hidden=19)
    if op == "LSTM":
        yield Layer(op, {"input_forget": 1, "clip": 0.7}, ("B", "P", "initial_c"), hidden=70)
    if op == "GRU":
        for direction, clip in zip(DIRECTIONS, (0.4, 0.6, 5.0), strict=True):
            attributes = {"direction": direction, "linear_before_reset": 1, "clip": clip}
            yield Layer(op, attributes, ("B", "sequence_lens", "initial_h"))
        yield Layer(op, {"linear_before_reset": 1}, ("initial_h",), hidden=70)


@pytest.mark.parametrize("op", one_of(3, ("GRU", "RNN", "LSTM")))
def test_every_direction_input_and_flag(op: str) -> None:
    check_against_onnxruntime(list(grid(op)))


@pytest.mark.soak
@pytest.mark.parametrize("op", GATES)
def test_every_combination_of_direction_lengths_and_inputs(op: str) -> None:
    check_against_onnxruntime(list(grid(op, every=True)))


def use_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_CHUNK_ELEMENTS", "_LEAST_ROWS"):
        monkeypatch.setattr(recurrent_layout, limit, 1)
    monkeypatch.setattr(recurrent_layout, "_LEAST_STEPS", 3)  # Odd: h changes places in between.


@pytest.mark.parametrize("op", one_of(3, GATES))
def test_a_sequence_of_several_chunks(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch)
    states = ("initial_h", "initial_c", "P") if op == "LSTM" else ("initial_h",)
    layers = [Layer(op, {"direction": direction}, ("B",)) for direction in DIRECTIONS]
    layers += [
        Layer(op, {"direction": direction}, ("sequence_lens", *states), hidden=19)
        for direction in DIRECTIONS
    ]
    check_against_onnxruntime(layers)


@pytest.mark.parametrize("op", one_of(2, GATES))
def test_weights_given_at_run_time(op: str) -> None:
    peepholes = ("P",) if op == "LSTM" else ()
    layers = [
        Layer(op, {"direction": "bidirectional"}, ("B", "initial_h", *peepholes)),
        Layer(op, {"direction": "reverse"}, ("sequence_lens",), hidden=33),
    ]
    check_against_onnxruntime(layers, weights_are_inputs=True)


WITH_PARAMETERS = ("Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu")
ACTIVATIONS = (*WITH_PARAMETERS, "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")


def test_every_activation_with_default_and_given_parameters() -> None:
    given = {"activation_alpha": [0.3], "activation_beta": [0.4]}
    layers = [
        *(Layer("RNN", {"activations": [name], **given}) for name in ACTIVATIONS),
        *(Layer("RNN", {"activations": [name]}) for name in WITH_PARAMETERS),
    ]
    check_against_onnxruntime(layers)


@pytest.mark.soak
def test_every_activation_in_float64() -> None:
    layers = [Layer("RNN", {"activations": [name]}, ("B",)) for name in ACTIVATIONS]
    rng = np.random.default_rng(0)
    weights = [layer.weights(rng) for layer in layers]
    wide = [{name: a.astype("float64") for name, a in arrays.items()} for arrays in weights]
    session = onnxruntime_session(build_model(layers, weights))
    model = build_model(layers, wide, dtype="float64")
    feed = build_feed(layers, rng, 5, 3)
    outputs = Compiled(model)({name: value.astype("float64") for name, value in feed.items()})
    assert_equal(model, outputs, [w.astype("float64") for w in session.run(None, feed)], 1e-4)


def test_parameters_go_in_order_to_the_activations_that_take_them() -> None:
    functions = ["Tanh", "hardsigmoid", "LEAKYRELU", "Sigmoid", "ScaledTanh", "Elu"]
    two_way = {"direction": "bidirectional", "activations": functions}
    layers = [
        Layer("LSTM", {**two_way, "activation_alpha": [0.3, 0.2], "activation_beta": [0.4]}),
        Layer("LSTM", {**two_way, "activation_alpha": [0.3, 0.2, 0.7, 0.6, 0.9]}),
        Layer("GRU", {**two_way, "activations": functions[1:5], "activation_alpha": [0.1, 0.8]}),
    ]
    check_against_onnxruntime(layers)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    op = draw(st.sampled_from(list(GATES)))
    direction = draw(st.sampled_from(DIRECTIONS))
    count = ACTIVATIONS_PER_DIRECTION[op] * (2 if direction == "bidirectional" else 1)
    attributes: dict[str, Any] = {"direction": direction}
    bounded = ("HardSigmoid", "Sigmoid", "Softsign", "Tanh")
    names = draw(st.none() | st.lists(st.sampled_from(bounded), min_size=count, max_size=count))
    if names:
        attributes["activations"] = names
        numbers = st.lists(st.floats(0.125, 0.5, width=32), min_size=1, max_size=count)
        attributes["activation_alpha"] = draw(numbers)
        attributes["activation_beta"] = draw(numbers)
    if draw(st.booleans()):
        attributes["clip"] = draw(st.floats(0.125, 2, width=32))
    flag = {"LSTM": "input_forget", "GRU": "linear_before_reset"}.get(op)
    if flag:
        attributes[flag] = draw(st.integers(0, 1))
    optional = ["B", "sequence_lens", "initial_h", *(["initial_c", "P"] if op == "LSTM" else [])]
    chosen = draw(st.sets(st.sampled_from(optional)))
    return Layer(op, attributes, tuple(sorted(chosen)), draw(st.integers(1, 40)))


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers())
def test_any_combination(layer: Layer) -> None:
    check_against_onnxruntime([layer])


@pytest.mark.soak
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers())
def test_many_combinations(layer: Layer) -> None:
    check_against_onnxruntime([layer])


def swap_outputs(outputs: Sequence[Array]) -> list[Array]:
    """Outputs of layout 1 from those of layout 0."""
    sequence, *states = outputs
    return [sequence.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in states)]


@pytest.mark.parametrize("op", GATES)
def test_batch_first_equals_the_transposed_other_layout(op: str) -> None:
    """onnxruntime does not support layout 1."""
    rng = np.random.default_rng(0)
    optional = ("B", "sequence_lens", "initial_h", *(("initial_c",) if op == "LSTM" else ()))
    plain = Layer(op, {"direction": "bidirectional"}, optional)
    swapped = Layer(op, {**plain.attributes, "layout": 1}, optional)
    weights = plain.weights(rng)
    session = onnxruntime_session(build_model([plain], [weights]))
    model = build_model([swapped], [weights])
    compiled = Compiled(model)
    for steps, batch in SIZES:
        feed = build_feed([swapped], rng, steps, batch)
        same = {n: v if v.ndim == 1 else v.swapaxes(0, 1) for n, v in feed.items()}
        assert_equal(model, compiled(feed), swap_outputs(session.run(None, same)))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), one_of(2, [("float64", 1e-12), ("float16", 1e-3), ("bfloat16", 1e-2)])
)
def test_other_floating_point_types(dtype: str, tolerance: float) -> None:
    """ONNX's reference, in float64, stands in for onnxruntime, which has float32 only."""
    import ml_dtypes

    numpy_type = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(0)
    models = [Layer(op, {"direction": "reverse"}, ("B", "initial_h")) for op in GATES]
    weights = [
        {n: a.astype(numpy_type).astype("float64") for n, a in layer.weights(rng).items()}
        for layer in models
    ]
    exact = build_model(models, weights, dtype="float64")
    model = build_model(models, weights, opset=22, dtype=numpy_type)
    feed = {n: v.astype(numpy_type) for n, v in build_feed(models, rng, 5, 3).items()}
    reference = ReferenceEvaluator(exact)
    exact_feed = {n: v.astype("float64") for n, v in feed.items()}
    expected = reference.run(None, exact_feed)
    assert isinstance(expected, list)
    actual = Compiled(model)(feed)
    assert_equal(model, actual, [e.astype(numpy_type) for e in expected], tolerance)


@pytest.mark.parametrize("op", GATES)
def test_no_steps_leave_the_initial_state_and_no_rows_nothing(op: str) -> None:
    """onnxruntime leaves the state of an empty sequence undefined, or aborts."""
    rng = np.random.default_rng(0)
    states = ("initial_h", "initial_c")[: 2 if op == "LSTM" else 1]
    layer = Layer(op, {"direction": "bidirectional"}, states)
    model = build_model([layer], [layer.weights(rng)])
    compiled = Compiled(model)
    feed = build_feed([layer], rng, 0, 3)
    sequence, *final = compiled(feed)
    assert sequence.shape == (0, 2, 3, 5)
    for state, value in zip(states, final, strict=True):
        np.testing.assert_array_equal(value, feed[f"{state}_0"])
    assert compiled(build_feed([layer], rng, 4, 0))[0].shape == (4, 2, 0, 5)


def test_not_a_number_stays_one() -> None:
    rng = np.random.default_rng(0)
    layer = Layer("LSTM")
    compiled = Compiled(build_model([layer], [layer.weights(rng)]))
    feed = build_feed([layer], rng, 3, 2)
    feed["X_0"][1, 0, 0] = np.nan
    sequence = compiled(feed)[0]
    assert np.isnan(sequence[1:, 0, 0]).all()
    assert np.isfinite(sequence[0]).all()
    assert np.isfinite(sequence[:, 0, 1]).all()


def test_large_values_saturate() -> None:
    layer = Layer("RNN", {}, ())
    weights = {"W": np.ones((1, 5, COLUMNS), "f"), "R": np.zeros((1, 5, 5), "f")}
    compiled = Compiled(build_model([layer], [weights]))
    feed = {"X_0": np.full((1, 1, COLUMNS), np.float32("inf"))}
    np.testing.assert_allclose(compiled(feed)[0], 1, atol=1e-6)
    feed = {"X_0": np.full((1, 1, COLUMNS), np.float32(-3e38) / COLUMNS)}
    np.testing.assert_allclose(compiled(feed)[0], -1, atol=1e-6)
