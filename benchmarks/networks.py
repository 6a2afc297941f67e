"""Networks without control flow: an encoder, a convolutional network and dense layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


class Network:
    """A graph under construction; each method appends nodes and returns the name of the result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node with one output."""
        name = f"/{op_type}_{len(self.nodes)}"
        output = f"{name}_output_0"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def constant(self, values: Array) -> str:
        """An initializer."""
        name = f"onnx::{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        """A random initializer."""
        return self.constant(self.random.standard_normal(shape).astype(np.float32) * 0.02)

    def dense(self, value: str, inputs: int, outputs: int) -> str:
        """`value` [..., inputs] times a weight, plus a bias."""
        product = self.op("MatMul", value, self.weight(inputs, outputs))
        return self.op("Add", product, self.weight(outputs))

    def normalize(self, value: str, width: int) -> str:
        """Layer normalization over the last axis, as exported before opset 17."""
        centred = self.op("Sub", value, self.op("ReduceMean", value, axes=[-1]))
        square = self.op("Pow", centred, self.constant(np.float32(2)))
        variance = self.op("ReduceMean", square, axes=[-1])
        shifted = self.op("Add", variance, self.constant(np.float32(1e-5)))
        scaled = self.op(
            "Mul", self.op("Div", centred, self.op("Sqrt", shifted)), self.weight(width)
        )
        return self.op("Add", scaled, self.weight(width))

    def attend(self, value: str, length: int, width: int, heads: int) -> str:
        """Self-attention over `value` [1, length, width]."""
        split = self.constant(np.array([1, length, heads, width // heads], np.int64))
        query, key, values = (
            self.op(
                "Transpose", self.op("Reshape", self.dense(value, width, width), split), perm=perm
            )
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scale = self.constant(np.float32((width // heads) ** -0.5))
        scores = self.op("Softmax", self.op("Mul", self.op("MatMul", query, key), scale), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", scores, values), perm=[0, 2, 1, 3])
        joined = self.op("Reshape", mixed, self.constant(np.array([1, length, width], np.int64)))
        return self.dense(joined, width, width)

    def model(self, shape: list[int], result: str) -> onnx.ModelProto:
        """The network as a model; input and output are float32 of this shape."""
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def transformer(layers: int, length: int = 64, width: int = 256, heads: int = 4) -> onnx.ModelProto:
    """An encoder of pre-norm blocks, with 45 nodes per layer."""
    net = Network()
    value = "input"
    for _ in range(layers):
        value = net.op("Add", value, net.attend(net.normalize(value, width), length, width, heads))
        hidden = net.dense(net.normalize(value, width), width, 4 * width)
        gate = net.op("Erf", net.op("Div", hidden, net.constant(np.float32(2**0.5))))
        gelu = net.op("Mul", hidden, net.op("Add", gate, net.constant(np.float32(1))))
        halved = net.op("Mul", gelu, net.constant(np.float32(0.5)))
        value = net.op("Add", value, net.dense(halved, 4 * width, width))
    return net.model([1, length, width], value)


def convolutional(blocks: int, channels: int = 64) -> onnx.ModelProto:
    """Residual blocks of two convolutions, with 7 nodes per block."""
    net = Network()
    value = "input"
    for _ in range(blocks):
        inner = value
        for _ in range(2):
            weights = net.weight(channels, channels, 3, 3), net.weight(channels)
            inner = net.op("Conv", inner, *weights, pads=[1, 1, 1, 1], kernel_shape=[3, 3])
            inner = net.op("Relu", inner)
        value = net.op("Relu", net.op("Add", inner, value))
    return net.model([1, channels, 14, 14], value)


def perceptron(layers: int, width: int = 64) -> onnx.ModelProto:
    """Dense layers with a residual, with 4 nodes per layer."""
    net = Network()
    value = "input"
    for _ in range(layers):
        value = net.op("Add", value, net.op("Tanh", net.dense(value, width, width)))
    return net.model([8, width], value)
