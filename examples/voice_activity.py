"""A small voice-activity detector, written as exporters write it.

    python examples/voice_activity.py detector.onnx

The network computes a short-time Fourier transform as a convolution, four convolutions that reduce
time to one position, one LSTM over one time step whose state the caller keeps, and a probability.
The weights are random, so the probability means nothing. The structure of the file is what matters:

- The branches of an If on the sample rate `sr` contain one network each.
- Sizes are read from tensors, so each `x.squeeze(d)` of the source is an If between Squeeze and
  Identity, and each check for a batch is an If on the rank. The 25 Ifs are nested up to four deep,
  although the sample rate is the only real decision.
- The weights of the LSTM are sliced and concatenated to turn the gate order of the source framework
  into the order of ONNX.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

CHANNELS = (32, 16, 16, 32)
"""Output channels of the four encoder convolutions."""
STRIDES = (1, 2, 2, 1)
HIDDEN = CHANNELS[-1]
"""Width of the LSTM."""


class Rate(NamedTuple):
    """What differs between the sample rates. Lengths are in samples."""

    sr: int
    window: int
    chunk: int
    """New samples per call."""
    context: int
    """Samples of the previous chunk before the new ones."""

    @property
    def samples(self) -> int:
        """Length of the input at this rate."""
        return self.context + self.chunk


RATES = (Rate(16000, 256, 512, 64), Rate(8000, 128, 256, 32))


class Body:
    """A graph under construction: the main graph or a branch of an If."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        """Prefix of every name made here."""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.counts: Counter[str] = Counter()

    def ops(self, op_type: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Appends a node; returns the names of its outputs."""
        count = self.counts[op_type]
        self.counts[op_type] += 1
        name = f"{self.scope}/{op_type}" + (f"_{count}" if count else "")
        names = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=name, **attributes))
        return names

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node with one output; returns its name."""
        return self.ops(op_type, *inputs, outputs=1, **attributes)[0]

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """Appends a Constant, as exporters do for every index, axis and size."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def weight(self, name: str, values: Array) -> str:
        """Adds an initializer."""
        self.initializers.append(
            numpy_helper.from_array(values.astype(np.float32), f"{self.scope}.{name}")
        )
        return self.initializers[-1].name

    def inner(self, name: str) -> Body:
        """A graph for a branch, with a name scope of its own."""
        return Body(f"{self.scope}/{name}")

    def close(self, outputs: list[str]) -> onnx.GraphProto:
        """The branch as a graph. Its outputs are floats of unknown shape."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        return helper.make_graph(
            self.nodes, self.scope.strip("/").replace("/", "."), [], infos, self.initializers
        )

    def branch(self, condition: str, then: onnx.GraphProto, other: onnx.GraphProto) -> list[str]:
        """Appends an If."""
        return self.ops(
            "If", condition, outputs=len(then.output), then_branch=then, else_branch=other
        )


def squeeze(body: Body, value: str, axis: int) -> str:
    """`value.squeeze(axis)` of a tensor of unknown sizes: removes the axis if its size is 1."""
    size = body.op("Gather", body.op("Shape", value), body.constant([axis]), axis=0)
    is_one = body.op("Equal", size, body.constant([1]))
    then, other = body.inner("squeeze"), body.inner("keep")
    squeezed = then.op("Squeeze", value, then.constant([axis]))
    return body.branch(is_one, then.close([squeezed]), other.close([other.op("Identity", value)]))[
        0
    ]


def spectrum(body: Body, samples: str, rate: Rate) -> str:
    """Magnitudes [batch, window/2+1, frames] of the short-time Fourier transform."""
    bins, hop = rate.window // 2 + 1, rate.window // 2
    # Turns the pads of the last axis from the order of the source framework into that of ONNX.
    given = body.constant([0, rate.window // 4])
    rest = body.op("ConstantOfShape", body.constant([2]), value=int64_tensor(0))
    pairs = body.op("Reshape", body.op("Concat", given, rest, axis=0), body.constant([-1, 2]))
    pairs = body.op(
        "Slice", pairs, body.constant([-1]), body.constant([-(2**63) + 1]), body.constant([0]),
        body.constant([-1]),
    )  # fmt: skip
    pads = body.op("Reshape", body.op("Transpose", pairs, perm=[1, 0]), body.constant([-1]))
    padded = body.op("Pad", samples, body.op("Cast", pads, to=TensorProto.INT64), mode="reflect")

    basis = body.weight("stft.forward_basis_buffer", fourier_basis(rate.window))
    signal = body.op("Unsqueeze", padded, body.constant([1]))
    transform = body.op("Conv", signal, basis, strides=[hop], kernel_shape=[rate.window])
    axes, end = body.constant([1]), body.constant([2**63 - 1])
    real = body.op("Slice", transform, body.constant([0]), body.constant([bins]), axes)
    imaginary = body.op("Slice", transform, body.constant([bins]), end, axes)
    squares = [body.op("Pow", part, body.constant(2.0, np.float32)) for part in (real, imaginary)]
    return body.op("Sqrt", body.op("Add", *squares))


def fourier_basis(window: int) -> Array:
    """Hann-windowed cosines and sines as filters [window+2, 1, window]."""
    angles = 2 * np.pi * np.outer(np.arange(window // 2 + 1), np.arange(window)) / window
    filters = np.concatenate([np.cos(angles), -np.sin(angles)]) * np.hanning(window + 1)[:-1]
    return filters[:, None, :]


def int64_tensor(value: int) -> onnx.TensorProto:
    """A tensor of one element, for the attribute of ConstantOfShape."""
    return numpy_helper.from_array(np.array([value], np.int64))


def float_tensor(value: float) -> onnx.TensorProto:
    """A tensor of one float, for the attribute of ConstantOfShape."""
    return numpy_helper.from_array(np.array([value], np.float32))


def encode(body: Body, value: str, bins: int, random: np.random.Generator) -> str:
    """Four convolutions [batch, bins, 4] -> [batch, HIDDEN, 1]."""
    width = bins
    for index, (channels, stride) in enumerate(zip(CHANNELS, STRIDES)):
        scale = np.sqrt(2 / (3 * width))
        kernel = scale * random.standard_normal((channels, width, 3))
        weight = body.weight(f"encoder.{index}.weight", kernel)
        bias = body.weight(f"encoder.{index}.bias", 0.1 * random.standard_normal(channels))
        value = body.op(
            "Conv", value, weight, bias, kernel_shape=[3], pads=[1, 1], strides=[stride]
        )
        value = body.op("Relu", value)
        width = channels
    return value


class Cell(NamedTuple):
    """The LSTM's weights, in the source framework's gate order: input, forget, cell, output."""

    weight_ih: str
    weight_hh: str
    bias_ih: str
    bias_hh: str


def add_cell(body: Body, random: np.random.Generator) -> Cell:
    """Initializers for one LSTM."""
    shapes = {
        "weight_ih": (4 * HIDDEN, HIDDEN),
        "weight_hh": (4 * HIDDEN, HIDDEN),
        "bias_ih": (4 * HIDDEN,),
        "bias_hh": (4 * HIDDEN,),
    }
    scale = 1 / np.sqrt(HIDDEN)
    return Cell(
        *(
            body.weight(f"rnn.{name}", random.uniform(-scale, scale, shape))
            for name, shape in shapes.items()
        )
    )


def reorder_gates(body: Body, weight: str) -> str:
    """From the source framework's gate order (i, f, c, o) to ONNX's (i, o, f, c)."""
    axis = body.constant([0])
    gates = [
        body.op(
            "Slice", weight, body.constant([first * HIDDEN]), body.constant([last * HIDDEN]), axis
        )
        for first, last in ((0, 1), (3, 4), (1, 3))
    ]
    return body.op("Concat", *gates, axis=0)


def add_dimension(body: Body, is_batched: str, values: list[str]) -> list[str]:
    """`values` with a new axis 0 if the condition is true, otherwise unchanged."""
    then, other = body.inner("batched"), body.inner("unbatched")
    unsqueezed = [then.op("Unsqueeze", value, then.constant([0])) for value in values]
    same = [other.op("Identity", value) for value in values]
    return body.branch(is_batched, then.close(unsqueezed), other.close(same))


def recurrence(body: Body, features: str, state: list[str], cell: Cell) -> list[str]:
    """An LSTM over one time step; returns the hidden and cell state [batch, HIDDEN].

    `features` is [batch, HIDDEN] after the squeeze. The source also accepts a sequence
    [time, batch, HIDDEN], and checks before and after the LSTM which of the two it got. `state` is
    the hidden and the cell state, or empty for zeros.
    """
    rank = body.op("Size", body.op("Shape", features))
    is_step = body.op("Equal", rank, body.constant(2))
    is_sequence = body.op("Cast", body.op("Not", is_step), to=TensorProto.BOOL)
    (steps,) = add_dimension(body, is_sequence, [features])
    if state:
        state = add_dimension(body, is_sequence, state)
    else:
        batch = body.op("Gather", body.op("Shape", steps), body.constant([0]), axis=0)
        sizes = body.op("Concat", batch, body.constant([HIDDEN]), axis=0)
        state = [body.op("ConstantOfShape", sizes, value=float_tensor(0.0))] * 2

    sequence, hidden, memory = (
        body.op("Unsqueeze", value, body.constant([0])) for value in (steps, *state)
    )
    biases = [reorder_gates(body, bias) for bias in (cell.bias_ih, cell.bias_hh)]
    operands = (
        reorder_gates(body, cell.weight_ih),
        reorder_gates(body, cell.weight_hh),
        body.op("Concat", *biases, axis=0),
    )
    w, r, b = (body.op("Unsqueeze", operand, body.constant([0])) for operand in operands)
    _, *last = body.ops(
        "LSTM", sequence, w, r, b, "", hidden, memory, outputs=3, hidden_size=HIDDEN
    )
    last = [body.op("Squeeze", value, body.constant([0])) for value in last]

    then, other = body.inner("sequence"), body.inner("step")
    squeezed = [squeeze(then, value, 0) for value in last]
    same = [other.op("Identity", value) for value in last]
    return body.branch(is_sequence, then.close(squeezed), other.close(same))


def network(scope: str, rate: Rate, random: np.random.Generator) -> onnx.GraphProto:
    """The whole detector for one sample rate, as a branch: outputs `output` and `stateN`."""
    body = Body(scope)
    encoded = encode(body, spectrum(body, "input", rate), rate.window // 2 + 1, random)
    features = squeeze(body, encoded, -1)

    cell = add_cell(body, random)
    length = body.op("Gather", body.op("Shape", "state"), body.constant([0]), axis=0)
    has_state = body.op("Cast", body.op("Squeeze", length, body.constant([0])), to=TensorProto.BOOL)
    given, zeros = body.inner("given"), body.inner("zeros")
    state = [given.op("Gather", "state", given.constant(index), axis=0) for index in (0, 1)]
    hidden, memory = body.branch(
        has_state,
        given.close(recurrence(given, features, state, cell)),
        zeros.close(recurrence(zeros, features, [], cell)),
    )
    joined = [body.op("Unsqueeze", value, body.constant([0])) for value in (hidden, memory)]
    next_state = body.op("Concat", *joined, axis=0)

    weight = body.weight("decoder.weight", random.standard_normal((1, HIDDEN, 1)))
    bias = body.weight("decoder.bias", random.standard_normal(1))
    series = body.op("Relu", body.op("Unsqueeze", hidden, body.constant([-1])))
    logits = body.op("Conv", series, weight, bias, kernel_shape=[1])
    probabilities = squeeze(body, body.op("Sigmoid", logits), 1)
    mean = body.op("ReduceMean", probabilities, axes=[1], keepdims=0)
    return body.close([body.op("Unsqueeze", mean, body.constant([1])), next_state])


def voice_activity_model(seed: int = 0) -> onnx.ModelProto:
    """The detector.

    Inputs: `input` float32 [batch, 576 at 16 kHz, else 288], `state` float32 [2, batch, 32],
    `sr` int64 scalar. Outputs: `output` float32 [batch, 1], the probability of speech, and
    `stateN` float32 [2, batch, 32], the state to pass to the next call.
    """
    random = np.random.default_rng(seed)
    main = Body("")
    is_first = main.op("Equal", "sr", main.constant(RATES[0].sr))
    branches = [network(f"/sr{rate.sr}", rate, random) for rate in RATES]
    outputs = main.branch(is_first, *branches)
    for value, name in zip(outputs, ("output", "stateN")):
        main.nodes.append(helper.make_node("Identity", [value], [name], name=name))
    graph = helper.make_graph(
        main.nodes,
        "voice_activity",
        [
            helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", "samples"]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", HIDDEN]),
            helper.make_tensor_value_info("sr", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [2, "batch", HIDDEN]),
        ],
    )
    opset = helper.make_opsetid("", 16)
    return helper.make_model(
        graph, opset_imports=[opset], ir_version=8, producer_name="voice_activity.py"
    )


def example_inputs(rate: Rate, batch: int, seed: int = 0) -> dict[str, Array]:
    """Random samples and a random state of the types and shapes for a rate."""
    random = np.random.default_rng(seed)
    return {
        "input": random.standard_normal((batch, rate.samples)).astype(np.float32),
        "state": random.standard_normal((2, batch, HIDDEN)).astype(np.float32),
        "sr": np.array(rate.sr, np.int64),
    }


def main() -> None:
    """Writes the model to the given path."""
    parser = argparse.ArgumentParser(description="Write a small voice-activity detector.")
    parser.add_argument("path", type=Path)
    path = parser.parse_args().path
    onnx.save(voice_activity_model(), path)
    print(f"{path}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main()
