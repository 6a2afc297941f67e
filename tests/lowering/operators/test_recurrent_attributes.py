"""What the attributes of LSTM, GRU and RNN mean, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from looplift.lowering.emit import emit
from looplift.lowering.operators.recurrent_attributes import Activation, parse_layer
from looplift.lowering.operators.recurrent_layout import choose_layout, pack_array
from looplift.rewrite.errors import LoopliftError, ModelError


def test_defaults() -> None:
    layer = parse_layer("LSTM", {}, hidden=4)
    (direction,) = layer.directions
    assert not direction.reverse
    assert [a.name for a in direction.activations] == ["sigmoid", "tanh", "tanh"]
    assert layer.clip is None
    assert not layer.batch_first
    assert not layer.input_forget


def test_the_activations_of_both_directions() -> None:
    attributes = {
        "direction": b"bidirectional",
        "activations": (b"HARDSIGMOID", b"tanh", b"LeakyRelu", b"Affine"),
        "activation_alpha": (0.5, 0.1),
        "activation_beta": (0.25,),
    }
    forward, backward = parse_layer("GRU", attributes, hidden=4).directions
    assert forward.activations == (Activation("hardsigmoid", 0.5, 0.25), Activation("tanh"))
    assert backward.reverse
    assert backward.activations == (Activation("leakyrelu", 0.1), Activation("affine", 0.0, 0.0))


def test_the_specification_lists_two_activations_for_an_rnn_of_one_direction() -> None:
    layer = parse_layer("RNN", {"activations": (b"Tanh", b"Tanh")}, hidden=4)
    assert layer.directions[0].activations == (Activation("tanh"),)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"direction": b"sideways"}, "direction 'sideways'"),
        ({"layout": 2}, "layout 2"),
        ({"clip": 0.0}, "clip 0.0"),
        ({"clip": float("nan")}, "clip nan"),
        ({"hidden_size": 3}, "hidden_size 3"),
        ({"activations": (b"Sigmoid", b"Gelu", b"Tanh")}, "unknown activation 'Gelu'"),
        ({"activations": (b"Sigmoid", b"Tanh")}, "has 2 activations"),
        ({"activations": (b"Sigmoid",) * 3, "direction": b"bidirectional"}, "has 3 activations"),
    ],
)
def test_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_layer("LSTM", attributes, hidden=4)


def lstm(
    x: tuple[Any, ...], w: tuple[Any, ...], r: tuple[Any, ...], **attributes: Any
) -> onnx.ModelProto:
    """A model of one LSTM with inputs of the given shapes."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", x), ("w", w), ("r", r))
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], **attributes)
    graph = helper.make_graph([node], "lstm", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lstm(("n", "b", 3), (1, 20, 4), (1, 20, 5)), "X has shape"),
        (lstm(("n", "b", 3), (1, 15, 3), (1, 20, 5)), "W has shape"),
        (lstm(("n", "b", 3), (1, 20, 3), (2, 20, 5)), "R has shape"),
        (lstm(("n", 3), (1, 20, 3), (1, 20, 5)), "X has shape"),
        (lstm(("n", "b", 3), (1, 20, 3), (1, 20, "h")), "hidden units"),
        (lstm(("n", "b", "i"), (1, 20, "i"), (1, 20, 5)), "input size"),
    ],
    ids=["columns", "gates", "directions", "rank", "hidden", "input"],
)
def test_shapes_that_do_not_fit(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(LoopliftError, match=message):
        emit(model)


def test_packing_puts_the_gates_of_a_block_side_by_side() -> None:
    layout = choose_layout(gates=4, hidden=18, dtype="float32")
    assert (layout.lanes, layout.blocks, layout.padded, layout.panel) == (16, 2, 32, 64)
    weight = np.arange(2 * 4 * 18 * 4, dtype="float32").reshape(2, 4 * 18, 4)
    packed = pack_array(weight, layout)
    assert packed.shape == (2 * 2, 4, 64)
    # Direction 1, gate 2, hidden unit 17, column 3: second lane of the second block.
    assert packed[1 * 2 + 1, 3, 2 * 16 + 1] == weight[1, 2 * 18 + 17, 3]
    assert (packed[1, :, 2:16] == 0).all()
