"""Scan of opset 8: see https://onnx.ai/onnx/operators/onnx__Scan.html#scan-8.

Every operand has a leading batch axis, and each batch entry its own number of slices. That is a
Loop over the batch with a later Scan in its body, which is how it is emitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, Variable
from ..bodies import Step, first_output, read_body
from ..emitter import Emitter
from ..scope import Frame, Scope
from ..values import Value

ENTRY = "looplift.scan8"
"""The domain of a Scan over one batch entry, whose body is of opset 8."""

_OPSET = 13
"""The opset of the nodes around it."""


def emit_batched_scan(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Scan of opset 8; slices beyond the length of a batch entry are zeros."""
    body = read_body(_loop_over_batch(step.node), frame.body.path)
    captured = {tensor: frame.values[tensor] for tensor in body.captures}
    return replace(emitter, opset=_OPSET).emit_body(scope, body, captured)


def _loop_over_batch(node: Node) -> Graph:
    """A graph of one Loop with the outputs of the Scan, whose operands it captures."""
    label = node.name or f"{first_output(node) or 'scan'}_batch"
    body: Graph = node.attrs["body"]
    outer = _Nodes(Graph(name=label))
    entries = outer.size(_data(node)[0], 0)
    outputs = [_like(tensor) for tensor in body.outputs]
    loop = {"body": _loop_body(node, label)}
    outer.graph.nodes.append(Node("Loop", label, loop, [entries, Variable("")], outputs))
    outer.graph.outputs = outputs
    return outer.graph


def _data(node: Node) -> list[Tensor]:
    """The scan inputs."""
    return list(node.inputs[len(node.inputs) - int(node.attrs["num_scan_inputs"]) :])


def _loop_body(node: Node, label: str) -> Graph:
    """One batch entry."""
    body: Graph = node.attrs["body"]
    data = _data(node)
    count = len(node.inputs) - len(data)
    entry, holds = _scalar("entry", TensorProto.INT64), _scalar("holds", TensorProto.BOOL)
    nodes = _Nodes(Graph(name="entry", inputs=[entry, holds]))
    carried = [nodes.add("Gather", tensor, entry) for tensor in node.inputs[1:count]]
    read = [nodes.add("Gather", tensor, entry) for tensor in data]
    lengths = node.inputs[0]
    length = nodes.add("Gather", lengths, entry) if lengths.name else None
    if length is not None:
        start, end = nodes.number([0]), nodes.add("Unsqueeze", length, nodes.number([0]))
        read = [nodes.add("Slice", tensor, start, end, nodes.number([0])) for tensor in read]
    outputs: list[Tensor] = [_like(tensor) for tensor in body.outputs]
    attrs = {
        "body": body,
        "num_scan_inputs": len(read),
        "scan_input_directions": list(node.attrs.get("directions", [0] * len(read))),
    }
    name = f"{label}_entry"
    nodes.graph.nodes.append(Node("Scan", name, attrs, [*carried, *read], list(outputs), ENTRY))
    if length is not None:
        missing = nodes.add("Sub", nodes.size(data[0], 1), length)
        for slot in range(len(carried), len(outputs)):
            outputs[slot] = nodes.padded(outputs[slot], missing, _declared_type(body, slot))
    nodes.graph.outputs = [nodes.add("Identity", holds), *outputs]
    return nodes.graph


def _declared_type(body: Graph, slot: int) -> int:
    """The element type that a body declares for an output."""
    tensor = body.outputs[slot]
    info = body.output_info.get(tensor, tensor.info)
    return info.type.tensor_type.elem_type if info is not None else TensorProto.UNDEFINED


def _like(tensor: Tensor) -> Variable:
    return Variable(tensor.name or "output")


def _scalar(name: str, dtype: int) -> Variable:
    variable = Variable(name)
    variable.info = helper.make_tensor_value_info(name, dtype, ())
    return variable


class _Nodes:
    """Adds nodes to a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def add(self, op: str, *inputs: Tensor, **attrs: Any) -> Variable:
        """The result of a new node."""
        output = Variable(f"scan8_{len(self.graph.nodes)}")
        self.graph.nodes.append(Node(op, "", attrs, inputs, [output]))
        return output

    def number(self, value: int | list[int]) -> Constant:
        """An int64 constant."""
        return self._store(np.array(value, np.int64))

    def size(self, data: Tensor, axis: int) -> Variable:
        """The size of a tensor along an axis."""
        return self.add("Gather", self.add("Shape", data), self.number(axis))

    def padded(self, slices: Tensor, missing: Tensor, dtype: int) -> Variable:
        """The slices of one batch entry, followed by zeros for those that are missing."""
        sizes = self.add(
            "Slice", self.add("Shape", slices), self.number([1]), self.number([2**31 - 1])
        )
        count = self.add("Unsqueeze", missing, self.number([0]))
        shape = self.add("Concat", count, sizes, axis=0)
        zero = self._store(np.zeros((), helper.tensor_dtype_to_np_dtype(dtype)))
        return self.add("Concat", slices, self.add("Expand", zero, shape), axis=0)

    def _store(self, content: npt.NDArray[Any]) -> Constant:
        constant = Constant(f"scan8_constant_{len(self.graph.initializers)}", content)
        self.graph.initializers.append(constant)
        return constant
