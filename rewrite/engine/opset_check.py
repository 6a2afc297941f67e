"""Whether the operator set that a model imports has a node as a rule wrote it.

Operators got inputs, attributes and element types over time: Squeeze takes its axes as an input
since opset 13, Max takes integers since opset 12 (ONNX operator specification, changelog).
"""

from __future__ import annotations

from onnx import TensorProto

from ..facts.facts import Facts
from ..graph.ir import Node
from ..graph.operators import operator
from .rule import Miss


def need_in_opset(node: Node, facts: Facts, opset: int) -> None:
    """Raises Miss where an opset lacks an operator of the standard domain, or its form."""
    found = operator(node.op, "", opset)
    if found is None:
        raise Miss("it would take {}, which opset {} lacks", node.op, opset)
    fits = found.min_inputs <= len(node.inputs) <= found.max_inputs
    if not fits or not found.attributes.keys() >= node.attrs.keys():
        raise Miss("it would take {} in a form that opset {} lacks", node.op, opset)
    for place, tensor in enumerate(node.inputs):
        formal = found.inputs[min(place, len(found.inputs) - 1)]  # the last may stand for several
        fact = facts.of(tensor)
        if not tensor.name or fact.kind != "tensor" or not fact.dtype:
            continue
        name = TensorProto.DataType.Name(fact.dtype).lower()
        if formal.allowed and f"tensor({name})" not in formal.allowed:
            sentence = "it would take {} of {}, which opset {} lacks"
            raise Miss(sentence, node.op, name, opset)
