"""The operators in the body of the one loop of a model."""

from __future__ import annotations

from collections import Counter

import onnx


def body_of(model: onnx.ModelProto) -> onnx.GraphProto:
    """The body of the only Loop or Scan of the main graph."""
    (loop,) = (node for node in model.graph.node if node.op_type in ("Loop", "Scan"))
    body: onnx.GraphProto = next(a.g for a in loop.attribute if a.name == "body")
    return body


def body_ops(model: onnx.ModelProto, *ignored: str) -> Counter[str]:
    """How often each operator stands in that body, without Identity and `ignored` ones."""
    ops = (node.op_type for node in body_of(model).node)
    return Counter(op for op in ops if op not in ("Identity", *ignored))
