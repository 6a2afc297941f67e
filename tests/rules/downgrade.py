"""Writes a model in an older opset, where axes, sizes and bounds are attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

_INPUTS_SINCE = {
    "Squeeze": (13, ("axes",)),
    "Unsqueeze": (13, ("axes",)),
    "ReduceSum": (13, ("axes",)),
    "ReduceMax": (18, ("axes",)),
    "ReduceMean": (18, ("axes",)),
    "ReduceMin": (18, ("axes",)),
    "ReduceProd": (18, ("axes",)),
    "Split": (13, ("split",)),
    "Slice": (10, ("starts", "ends", "axes")),
    "Clip": (11, ("min", "max")),
    "TopK": (10, ("k",)),
}
"""The opset since which an operator takes attributes as inputs after the first, and their names."""
_NUMBERS = {"min", "max", "k"}
Constants = Mapping[str, np.ndarray]


def downgraded(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """A copy of a model in an older opset, which may lack operators of the model."""
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = min(older.ir_version, 8)
    for entry in older.opset_import:
        if entry.domain == "":
            entry.version = opset
    _downgrade(older.graph, {}, opset)
    return older


def _downgrade(graph: onnx.GraphProto, outer: Constants, opset: int) -> None:
    known = {**outer, **{i.name: numpy_helper.to_array(i) for i in graph.initializer}}
    for node in graph.node:
        if node.op_type == "Constant":
            _as_tensor(node)
            known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    for node in graph.node:
        for body in _bodies(node):
            _downgrade(body, known, opset)
        since, names = _INPUTS_SINCE.get(node.op_type, (0, ()))
        if opset < since:
            _inputs_to_attributes(node, names, known)
        if node.op_type == "Split":
            _drop(node, "num_outputs")


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    return (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)


def _as_tensor(node: onnx.NodeProto) -> None:
    """Constants have no numbers as attributes before opset 12."""
    (attribute,) = node.attribute
    if attribute.name != "value":
        given = helper.get_attribute_value(attribute)
        kinds = {"int": np.int64, "float": np.float32, "string": object}
        kind = next(kind for name, kind in kinds.items() if name in attribute.name)
        tensor = numpy_helper.from_array(np.array(given, kind))
        node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))


def _inputs_to_attributes(node: onnx.NodeProto, names: tuple[str, ...], known: Constants) -> None:
    """Turns constant operands into attributes.

    Operands that are empty, not constant or without an attribute stay: older opsets cannot express
    them.
    """
    if len(node.input) > 1 + len(names):
        return
    operands = dict(zip(names, node.input[1:]))
    given = {name: known[t] for name, t in operands.items() if t in known}
    if len(given) < sum(map(bool, operands.values())) or not all(a.size for a in given.values()):
        return
    for name, array in given.items():
        value = array.item() if name in _NUMBERS else array.tolist()
        node.attribute.append(helper.make_attribute(name, value))
    del node.input[1:]


def _drop(node: onnx.NodeProto, name: str) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
