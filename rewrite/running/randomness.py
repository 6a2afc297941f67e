"""Which outputs of a model are drawn at random, so that no two runs give the same."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper

from ..facts.purity import RANDOM
from ..storage.protos import bodies

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})


def random_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on a random operator, in the order of the graph."""
    return _depending(model, RANDOM)


def recurrent_outputs(model: onnx.ModelProto) -> list[str]:
    """The outputs that depend on an LSTM, GRU or RNN.

    The final states of these are not specified for an empty sequence, and in onnxruntime are what
    happens to be in memory.
    """
    return _depending(model, RECURRENT)


def _depending(model: onnx.ModelProto, sources: frozenset[str]) -> list[str]:
    walk = _Walk(model, sources)
    drawn = walk.graph(model.graph, set())
    return [info.name for info in model.graph.output if info.name in drawn]


class _Walk:
    def __init__(self, model: onnx.ModelProto, sources: frozenset[str]) -> None:
        self._sources = sources
        self._trained = _constant_booleans(model.graph)
        self._functions: set[tuple[str, str]] = set()
        # Functions may call one another in any order: repeat until no more are found.
        found = True
        while found:
            fresh = {
                (function.domain, function.name)
                for function in model.functions
                if self._nodes(function.node, set())
            }
            found = fresh != self._functions
            self._functions = fresh

    def graph(self, graph: onnx.GraphProto, outer: set[str]) -> set[str]:
        """The values in a graph that are drawn, given those around it that are."""
        return self._nodes(graph.node, outer)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], outer: set[str]) -> set[str]:
        drawn = set(outer)
        for node in nodes:
            if self._is_random(node, drawn):
                drawn.update(node.output)
        drawn.discard("")
        return drawn - outer

    def _is_random(self, node: onnx.NodeProto, drawn: set[str]) -> bool:
        if node.op_type in self._sources or (node.domain, node.op_type) in self._functions:
            return True
        if not drawn.isdisjoint(node.input) or self._is_training(node):
            return True
        return any(self._nodes(body.node, drawn) for body in bodies(node))

    def _is_training(self, node: onnx.NodeProto) -> bool:
        if self._sources is not RANDOM:
            return False
        if node.op_type != "Dropout" or len(node.input) < 3 or not node.input[2]:
            return False
        return self._trained.get(node.input[2], True)


def _constant_booleans(graph: onnx.GraphProto) -> dict[str, bool]:
    """Scalar constants by name, of the main graph: what decides `training_mode` in practice."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = helper.get_attribute_value(node.attribute[0])
    return {
        name: bool(onnx.numpy_helper.to_array(tensor))
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.BOOL and not tensor.dims
    }
