"""The values that decide how often a loop runs and which branch is taken."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ..rewrite.storage.protos import nodes

TRIP_COUNTS = (0, 1, 2, 7)
"""Given to inputs that say how often a loop runs."""

_VIEWS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"})


def trip_inputs(model: onnx.ModelProto) -> list[str]:
    """Inputs of the main graph that say how often a Loop anywhere in the model may run.

    Names are taken to mean the same in all bodies: a wrong guess only adds a value to try.
    """
    types = {info.name: info.type.tensor_type.elem_type for info in model.graph.input}
    integers = {
        n for n, t in types.items() if t in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    }
    sources = {name: name for name in integers}
    found: dict[str, None] = {}
    for node in nodes(model.graph):
        if node.op_type in _VIEWS and node.input and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        if node.op_type == "Loop" and node.input[0] in sources:
            found[sources[node.input[0]]] = None
    return list(found)


def decisive(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Loops and Ifs of the main graph, with the value that decides what they do."""
    for node in model.graph.node:
        if node.op_type in ("Loop", "If") and node.input and node.input[0]:
            label = next((name for name in node.output if name), node.name)
            yield f"{node.op_type} of `{label}`", node.input[0]
