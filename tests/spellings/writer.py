"""Writes ONNX nodes, each in a spelling that is chosen at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT


class Writer:
    """The nodes of one graph. Constants are initializers of the main graph or nodes."""

    def __init__(self, choose: random.Random, constants: dict[str, np.ndarray]) -> None:
        self.choose = choose
        self.constants = constants
        """Initializers of the main graph, which bodies read as captured values."""
        self.nodes: list[onnx.NodeProto] = []
        self._prefix = f"w{choose.randrange(1 << 30)}"

    def op(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of its output, or of all of them."""
        names = [f"{self._prefix}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        array = np.asarray(value, dtype)
        if self.choose.random() < 0.3:
            return str(self.op("Constant", value=numpy_helper.from_array(array)))
        name = f"k{len(self.constants)}"
        self.constants[name] = array
        return name

    def integers(self, *values: int) -> str:
        return self.constant(list(values), np.int64)

    def either(self, *choices: Any) -> Any:
        return self.choose.choice(choices)

    # --- arithmetic in random order and spelling ---

    def add(self, *terms: str) -> str:
        left = list(terms)
        self.choose.shuffle(left)
        if len(left) > 2 and self.choose.random() < 0.2:
            return str(self.op("Sum", *left))
        while len(left) > 1:
            left.append(self.op("Add", left.pop(), left.pop()))
            self.choose.shuffle(left)
        return left[0]

    def mul(self, a: str, b: str) -> str:
        return str(self.op("Mul", *self.choose.sample([a, b], 2)))

    def scaled(self, value: str, factor: float) -> str:
        if self.choose.random() < 0.3:
            return str(self.op("Div", value, self.constant(1 / factor)))
        return self.mul(value, self.constant(factor))

    def negated(self, value: str) -> str:
        if self.choose.random() < 0.5:
            return str(self.op("Neg", value))
        return self.mul(value, self.constant(-1))

    def one_minus(self, value: str, one: float = 1.0) -> str:
        if self.choose.random() < 0.6:
            return str(self.op("Sub", self.constant(one), value))
        return self.add(self.constant(one), self.negated(value))

    # --- products ---

    def product(self, value: str, matrix: np.ndarray) -> str:
        """`value · matrix` for a value of two axes."""
        kind = self.either(
            "MatMul", "Gemm", "Gemm transposed", "Einsum", "Einsum apart", "left", "alpha", "stack"
        )
        if kind == "MatMul":
            return str(self.op("MatMul", value, self.constant(matrix)))
        if kind == "Gemm":
            return str(self.op("Gemm", value, self.constant(matrix)))
        if kind == "Gemm transposed":
            return str(self.op("Gemm", value, self.constant(matrix.T), transB=1))
        if kind == "Einsum":
            return str(self.op("Einsum", value, self.constant(matrix.T), equation="bi,ji->bj"))
        if kind == "Einsum apart":  # two axes of outputs
            apart = self.constant(matrix.reshape(matrix.shape[0], -1, 1))
            both = self.op("Einsum", value, apart, equation="bi,ijk->bjk")
            return str(self.op("Reshape", both, self.integers(-1, matrix.shape[1])))
        if kind == "stack":
            matrices = matrix.reshape(matrix.shape[0], -1, 1).transpose(1, 0, 2)
            each = self.op("MatMul", value, self.constant(matrices))
            rows = self.op("Transpose", each, perm=[1, 0, 2])
            return str(self.op("Reshape", rows, self.integers(-1, matrix.shape[1])))
        if kind == "alpha":
            return str(self.op("Gemm", value, self.constant(matrix * 2), alpha=0.5, beta=0.0))
        turned = self.op("Transpose", value, perm=[1, 0])
        return str(self.op("Transpose", self.op("MatMul", self.constant(matrix.T), turned)))

    def affine(self, value: str, matrix: np.ndarray, bias: np.ndarray) -> str:
        """`value · matrix + bias`"""
        if self.choose.random() < 0.4:
            return str(self.op("Gemm", value, self.constant(matrix), self.constant(bias)))
        return self.add(self.product(value, matrix), self.constant(bias))

    def pieces(self, value: str, count: int, size: int) -> list[str]:
        """The parts of the last of two axes."""
        kind = self.either(
            "Split", "Split sizes", "Slice", "Gather", "Reshape", "turned", "inside", "strided",
            "sequence",
        )  # fmt: skip
        if kind == "Split":
            if self.choose.random() < 0.5:
                return list(self.op("Split", value, outputs=count, axis=1, num_outputs=count))
            return list(self.op("Split", value, outputs=count, axis=-1, num_outputs=count))
        if kind == "Split sizes":
            sizes = self.integers(*[size] * count)
            return list(self.op("Split", value, sizes, outputs=count, axis=1))
        if kind == "Reshape":
            apart = self.op("Reshape", value, self.integers(-1, count, size))
            return [
                self.op("Gather", apart, self.constant(k, np.int64), axis=1) for k in range(count)
            ]
        if kind == "turned":
            apart = self.op("Reshape", value, self.integers(-1, count, size))
            first = self.op("Transpose", apart, perm=[1, 0, 2])
            return [
                self.op("Gather", first, self.constant(k, np.int64), axis=0) for k in range(count)
            ]
        if kind == "inside":  # the gates of one feature are neighbours
            apart = self.op("Reshape", value, self.integers(-1, size, count))
            parts = self.op("Split", apart, outputs=count, axis=2, num_outputs=count)
            return [self.op("Squeeze", part, self.integers(2)) for part in parts]
        if kind == "strided":
            end, axis, step = (self.integers(v) for v in (np.iinfo(np.int64).max, 1, count))
            return [
                self.op("Slice", value, self.integers(k), end, axis, step) for k in range(count)
            ]
        if kind == "sequence":
            sequence = self.op("SplitToSequence", value, self.integers(*[size] * count), axis=1)
            return [
                self.op("SequenceAt", sequence, self.constant(k, np.int64)) for k in range(count)
            ]
        return [self.piece(value, k, size, kind) for k in range(count)]

    def piece(self, value: str, number: int, size: int, kind: str) -> str:
        first = number * size
        if kind == "Gather":
            indices = self.constant(np.arange(first, first + size), np.int64)
            return str(self.op("Gather", value, indices, axis=1))
        bounds = (self.integers(b) for b in (first, first + size, 1))
        return str(self.op("Slice", value, *bounds))

    # --- activations ---

    def sigmoid(self, value: str) -> str:
        kind = self.either("Sigmoid", "Sigmoid", "exp", "reciprocal", "tanh")
        if kind == "Sigmoid":
            return str(self.op("Sigmoid", value))
        if kind == "tanh":
            half = self.op("Tanh", self.scaled(value, 0.5))
            return self.add(self.scaled(half, 0.5), self.constant(0.5))
        below = self.add(self.op("Exp", self.negated(value)), self.constant(1))
        if kind == "exp":
            return str(self.op("Div", self.constant(1), below))
        return str(self.op("Reciprocal", below))

    def tanh(self, value: str) -> str:
        if self.choose.random() < 0.7:
            return str(self.op("Tanh", value))
        double = self.op("Sigmoid", self.scaled(value, 2.0))
        return str(self.op("Sub", self.scaled(double, 2.0), self.constant(1)))

    def hard_sigmoid(self, value: str, alpha: float = 0.2, beta: float = 0.5) -> str:
        if self.choose.random() < 0.5:
            return str(self.op("HardSigmoid", value, alpha=alpha, beta=beta))
        line = self.add(self.scaled(value, alpha), self.constant(beta))
        return str(self.op("Clip", line, self.constant(0), self.constant(1)))

    def softsign(self, value: str) -> str:
        if self.choose.random() < 0.5:
            return str(self.op("Softsign", value))
        return str(self.op("Div", value, self.add(self.op("Abs", value), self.constant(1))))

    def activation(self, name: str, value: str) -> str:
        spelled = {
            "Sigmoid": self.sigmoid,
            "Tanh": self.tanh,
            "HardSigmoid": self.hard_sigmoid,
            "Softsign": self.softsign,
        }
        if name in spelled:
            return spelled[name](value)
        if name == "Relu" and self.choose.random() < 0.3:
            return str(self.op("Max", value, self.constant(0)))
        return str(self.op(name, value))


def tensor(name: str, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)
