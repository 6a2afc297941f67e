"""Computes a node on constant operands with onnxruntime, for constant folding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from ..graph.ir import Node
from ..storage.attributes import encode, schema_type
from .runtime import ExecutionError, SerializedModel, Session


class NotEvaluated(Exception):
    """The node cannot be evaluated: no kernel, unsafe operands, or a failure on these operands."""


_SIMPLE = frozenset({"f", "i", "u", "b"})


def evaluate(
    node: Node, operands: Sequence[np.ndarray | None], opsets: Mapping[str, int]
) -> list[np.ndarray]:
    """The outputs of one node without bodies.

    Raises NotEvaluated with onnxruntime's message.
    """
    if any(a is not None and a.dtype.kind not in _SIMPLE for a in operands):
        raise NotEvaluated("an operand has a type that numpy and onnxruntime do not share")
    _refuse_unsafe(node, operands)
    feeds = {f"i{slot}": a for slot, a in enumerate(operands) if a is not None}
    proto = helper.make_node(
        node.op,
        ["" if a is None else f"i{slot}" for slot, a in enumerate(operands)],
        [f"o{slot}" for slot in range(len(node.outputs))],
        domain=node.domain,
    )
    _copy_attributes(node, proto, opsets)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]
    graph = helper.make_graph([proto], "constant", inputs, outputs)
    imports = [helper.make_opsetid(d, v) for d, v in opsets.items() if d in ("", node.domain)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    try:
        arrays = Session(SerializedModel(model)).run(feeds)
    except ExecutionError as error:
        raise NotEvaluated(str(error).strip().splitlines()[0][:200]) from None
    if not all(isinstance(a, np.ndarray) for a in arrays):
        raise NotEvaluated("the result is not a tensor")
    return [np.asarray(a) if t.name else np.empty(0) for a, t in zip(arrays, node.outputs)]


_UNSAFE = frozenset({"DFT", "LSTM", "GRU", "RNN"})
"""Operators whose kernels crash on some operands."""
_SAFE_WHEN_EMPTY = frozenset(
    {"Cast", "Concat", "ConstantOfShape", "Expand", "Gather", "Identity", "Range", "Reshape",
     "Shape", "Size", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)  # fmt: skip


def _refuse_unsafe(node: Node, operands: Sequence[np.ndarray | None]) -> None:
    """Raises NotEvaluated where onnxruntime may crash instead of raising an error."""
    given = [a for a in operands if a is not None]
    if node.op in _UNSAFE or node.domain:
        raise NotEvaluated("its kernel may crash the process")
    if node.op not in _SAFE_WHEN_EMPTY and any(a.size == 0 for a in given):
        raise NotEvaluated("an operand has no elements")
    if node.op in ("Div", "Mod") and given[0].dtype.kind in "iu":
        lowest = np.iinfo(given[0].dtype).min
        if np.any(given[1] == 0) or (np.any(given[1] == -1) and np.any(given[0] == lowest)):
            raise NotEvaluated("the division has no result")


def _copy_attributes(node: Node, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
    for name, value in node.attrs.items():
        kind = schema_type(node.op, node.domain or "", opsets.get(node.domain or "", 1), name)
        encode(proto.attribute.add(), name, value, kind)
