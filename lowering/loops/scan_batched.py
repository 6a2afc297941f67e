"""Scan of opset 8: see https://onnx.ai/onnx/operators/onnx__Scan.html#scan-8.

Every operand has a leading batch axis, and each batch entry its own number of slices. That is a
Loop over the batch with a later Scan in its body, which is how it is emitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..attributes import attributes
from ..bodies import Step, read_body
from ..emitter import Emitter
from ..scope import Frame, Scope
from ..values import Value

ENTRY = "looplift.scan8"
"""The domain of a Scan over one batch entry, whose body is of opset 8."""

_OPSET = 13
"""The opset of the nodes around it."""


def emit_batched_scan(emitter: Emitter, scope: Scope, frame: Frame, step: Step) -> list[Value]:
    """The outputs of a Scan of opset 8; slices beyond the length of a batch entry are zeros."""
    graph = _Batch(step.node, step.bodies["body"].graph).graph()
    body = read_body(graph, frame.body.path)
    captured = {name: frame.values[name] for name in body.captures}
    return replace(emitter, opset=_OPSET).emit_body(scope, body, captured)


class _Batch:
    """Builds the graph of one Loop, which captures the operands of the Scan."""

    def __init__(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        given = attributes(node)
        slices = given["num_scan_inputs"]
        self._node = node
        self._body = body
        self._lengths = node.input[0]
        operands = list(node.input[1:])
        self._carried = operands[: len(operands) - slices]
        self._data = operands[len(operands) - slices :]
        self._directions = given.get("directions", (0,) * slices)
        taken = {name for proto in (node, *body.node) for name in (*proto.input, *proto.output)}
        taken.update(value.name for value in (*body.input, *body.output, *body.initializer))
        self._names: Iterator[str] = (
            name for name in map("scan8_{}".format, count()) if name not in taken
        )
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[onnx.TensorProto] = []

    def graph(self) -> onnx.GraphProto:
        """A graph with the outputs of the Scan."""
        loop = self._loop_body()
        self._nodes, self._stored = [], []
        entries = self._size(self._data[0], 0)
        outputs = [name or next(self._names) for name in self._node.output]
        outputs += [next(self._names) for _ in range(len(loop.output) - 1 - len(outputs))]
        self._nodes.append(helper.make_node("Loop", [entries, ""], outputs, self._label, body=loop))
        results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
        return helper.make_graph(self._nodes, self._label, [], results, self._stored)

    @property
    def _label(self) -> str:
        return self._node.name or f"{next(filter(None, self._node.output), 'scan')}_batch"

    def _loop_body(self) -> onnx.GraphProto:
        entry, holds, still_holds = (next(self._names) for _ in range(3))
        length = self._add("Gather", self._lengths, entry) if self._lengths else ""
        carried_values = [self._add("Gather", name, entry) for name in self._carried]
        data = [self._add("Gather", name, entry) for name in self._data]
        if length:
            data = [self._cut(name, length) for name in data]
        outputs = self._scan(carried_values, data)
        if length:
            missing = self._add("Sub", self._size(self._data[0], 1), length)
            slices = self._body.output[len(carried_values) :]
            outputs[len(carried_values) :] = [
                self._padded(name, missing, declared.type.tensor_type.elem_type)
                for name, declared in zip(outputs[len(carried_values) :], slices, strict=True)
            ]
        self._nodes.append(helper.make_node("Identity", [holds], [still_holds]))
        inputs = [
            helper.make_tensor_value_info(entry, TensorProto.INT64, ()),
            helper.make_tensor_value_info(holds, TensorProto.BOOL, ()),
        ]
        named = [still_holds, *outputs]
        results = [helper.make_value_info(name, onnx.TypeProto()) for name in named]
        return helper.make_graph(self._nodes, "entry", inputs, results, self._stored)

    def _scan(self, carried_values: list[str], data: list[str]) -> list[str]:
        """The Scan over one batch entry."""
        outputs = [next(self._names) for _ in self._body.output]
        self._nodes.append(
            helper.make_node(
                "Scan",
                [*carried_values, *data],
                outputs,
                f"{self._label}_entry",
                domain=ENTRY,
                body=self._body,
                num_scan_inputs=len(data),
                scan_input_directions=self._directions,
            )
        )
        return outputs

    def _cut(self, data: str, length: str) -> str:
        """The slices that a batch entry has."""
        start, end = self._number([0]), self._add("Unsqueeze", length, self._number([0]))
        return self._add("Slice", data, start, end, self._number([0]))

    def _padded(self, slices: str, missing: str, dtype: int) -> str:
        """The slices of one batch entry, followed by zeros for those that are missing."""
        start, end = self._number([1]), self._number([2**31 - 1])
        sizes = self._add("Slice", self._add("Shape", slices), start, end)
        count = self._add("Unsqueeze", missing, self._number([0]))
        shape = self._add("Concat", count, sizes, axis=0)
        zero = self._store(np.zeros((), helper.tensor_dtype_to_np_dtype(dtype)))
        return self._add("Concat", slices, self._add("Expand", zero, shape), axis=0)

    def _size(self, data: str, axis: int) -> str:
        return self._add("Gather", self._add("Shape", data), self._number(axis))

    def _number(self, value: int | list[int]) -> str:
        return self._store(np.array(value, np.int64))

    def _store(self, content: npt.NDArray[Any]) -> str:
        self._stored.append(numpy_helper.from_array(content, next(self._names)))
        return self._stored[-1].name

    def _add(self, op_type: str, *inputs: str, **given: Any) -> str:
        output = next(self._names)
        self._nodes.append(helper.make_node(op_type, inputs, [output], **given))
        return output
