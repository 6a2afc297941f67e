"""Finds the outputs of a model that may differ between two runs."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper

from ..facts.purity import RANDOM
from ..storage.protos import body_protos

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


def random_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a random operator, in the order of the graph."""
    return _depending(model, RANDOM)


def recurrent_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on an LSTM, GRU or RNN.

    The final states of these operators are not specified for an empty sequence; onnxruntime returns
    uninitialised memory.
    """
    return _depending(model, RECURRENT)


def _depending(model: onnx.ModelProto, sources: frozenset[str]) -> list[str]:
    dependent = _Dependence(model, sources).graph(model.graph)
    return [info.name for info in model.graph.output if info.name in dependent]


class _Dependence:
    """Follows the dependence on some operators through the graphs and functions of a model."""

    def __init__(self, model: onnx.ModelProto, sources: frozenset[str]) -> None:
        self._sources = sources
        self._booleans = _constant_booleans(model.graph)
        self._functions: set[tuple[str, str]] = set()
        # Functions may call each other in any order: repeat until no more are found.
        changed = True
        while changed:
            dependent = {
                (function.domain, function.name)
                for function in model.functions
                if self._nodes(function.node, set())
            }
            changed = dependent != self._functions
            self._functions = dependent

    def graph(self, graph: onnx.GraphProto) -> set[str]:
        """The dependent values of the main graph."""
        return self._nodes(graph.node, set())

    def _nodes(self, nodes: Iterable[onnx.NodeProto], outer: set[str]) -> set[str]:
        """The dependent values that nodes compute; `outer` are those of the graphs around them."""
        dependent = set(outer)
        for node in nodes:
            if self._is_dependent(node, dependent):
                dependent.update(node.output)
        dependent.discard("")
        return dependent - outer

    def _is_dependent(self, node: onnx.NodeProto, dependent: set[str]) -> bool:
        if node.op_type in self._sources or (node.domain, node.op_type) in self._functions:
            return True
        if not dependent.isdisjoint(node.input) or self._is_training(node):
            return True
        return any(self._nodes(body.node, dependent) for body in body_protos(node))

    def _is_training(self, node: onnx.NodeProto) -> bool:
        """Whether random values are searched for and the node is a Dropout that may be training."""
        if self._sources is not RANDOM:
            return False
        if node.op_type != "Dropout" or len(node.input) < 3 or not node.input[2]:
            return False
        return self._booleans.get(node.input[2], True)


def _constant_booleans(graph: onnx.GraphProto) -> dict[str, bool]:
    """The scalar boolean constants of the main graph, by name: usual values of `training_mode`."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = helper.get_attribute_value(node.attribute[0])
    return {
        name: bool(onnx.numpy_helper.to_array(tensor))
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.BOOL and not tensor.dims
    }
