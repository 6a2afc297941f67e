"""How messages name a node and the graphs around it."""

from __future__ import annotations

import onnx

from . import ir


def node_label(node: ir.Node | onnx.NodeProto) -> str:
    """`If 'cond_3'`; a node without a name is identified by a result: `If giving 'y'`."""
    if isinstance(node, onnx.NodeProto):
        op, outputs = node.op_type, list(node.output)
    else:
        op, outputs = node.op, [tensor.name for tensor in node.outputs]
    if node.name:
        return f"{op} '{node.name}'"
    named = next((name for name in outputs if name), "")
    return f"{op} giving '{named}'" if named else f"{op} without a name"


def body_label(attribute: str, owner: ir.Node | onnx.NodeProto, outer: str) -> str:
    """`then_branch of If 'cond_3'`, followed by the bodies around that If."""
    label = f"{attribute} of {node_label(owner)}"
    return f"{label}, in {outer}" if outer else label


def within(label: str, path: str) -> str:
    """A node or value, and the body that it is in unless that is the main graph."""
    return f"{label}, in {path}" if path else label


def standard_name(domain: str) -> str:
    """The canonical name of a domain: `ai.onnx` is another name of the default domain ``""``."""
    return "" if domain == "ai.onnx" else domain
