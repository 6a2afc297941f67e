"""Checks the numbers of inputs and outputs of the bodies of If, Loop and Scan."""

from __future__ import annotations

from ..errors import ModelError
from ..graph import ir
from ..graph.labels import body_label, node_label, within

_REMEDY = "Export the model again"
_SCAN_WITHOUT_BATCH = 9
"""The first opset in which Scan has no batch axis and no input for sequence lengths."""


def check_bodies(node: ir.Node, opset: int, path: str) -> None:
    """Raises ModelError if the arity of a body does not match its node of the standard domain."""
    if node.op == "If":
        _check_if(node, path)
    elif node.op == "Loop":
        _check_loop(node, path)
    elif node.op == "Scan":
        _check_scan(node, opset, path)


def _check_if(node: ir.Node, path: str) -> None:
    branches = [(name, _body(node, name, path)) for name in ("then_branch", "else_branch")]
    for name, branch in branches:
        _check(len(branch.inputs), 0, "inputs", "a branch of an If has none", name, node, path)
        needed = len(node.outputs)
        _check(len(branch.outputs), needed, "outputs", f"the If has {needed}", name, node, path)


def _check_loop(node: ir.Node, path: str) -> None:
    body = _body(node, "body", path)
    carried = max(len(node.inputs) - 2, 0)
    _check(
        len(body.inputs),
        2 + carried,
        "inputs",
        f"{2 + carried} are needed: iteration number, condition and {carried} carried values",
        "body",
        node,
        path,
    )
    needed = 1 + max(len(node.outputs), carried)
    _check(
        len(body.outputs),
        needed,
        "outputs",
        f"{needed} are needed: condition, {carried} carried values and "
        f"{needed - 1 - carried} scan outputs",
        "body",
        node,
        path,
    )


def _check_scan(node: ir.Node, opset: int, path: str) -> None:
    body = _body(node, "body", path)
    inputs = len(node.inputs) - (1 if opset < _SCAN_WITHOUT_BATCH else 0)
    _check(len(body.inputs), inputs, "inputs", f"the Scan has {inputs}", "body", node, path)
    outputs = len(node.outputs)
    _check(len(body.outputs), outputs, "outputs", f"the Scan has {outputs}", "body", node, path)
    scanned = node.attrs.get("num_scan_inputs", 0)
    if not 1 <= scanned <= inputs:
        raise ModelError(
            f"num_scan_inputs is {scanned}, but the Scan has {inputs} inputs",
            where=within(node_label(node), path),
            remedy=_REMEDY,
        )


def _body(node: ir.Node, name: str, path: str) -> ir.Graph:
    body = node.attrs.get(name)
    if not isinstance(body, ir.Graph):
        raise ModelError(
            f"The {node.op} has no graph in its attribute '{name}'",
            where=within(node_label(node), path),
            remedy=_REMEDY,
        )
    return body


def _check(
    count: int, wanted: int, what: str, reason: str, name: str, node: ir.Node, path: str
) -> None:
    if count != wanted:
        raise ModelError(
            f"The {name} has {count} {what}, but {reason}",
            where=body_label(name, node, path),
            remedy=_REMEDY,
        )
