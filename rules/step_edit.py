"""Changes what the iterations of a counted loop read, whether it stands as Loop or as Scan."""

from __future__ import annotations

from collections.abc import Sequence

from ..rewrite.facts import Facts
from ..rewrite.ir import Graph, Node, Tensor, Variable
from ..rewrite.patch import Patch
from ..rewrite.steps import Steps
from ..rewrite.views import ScanView


def read_instead(patch: Patch, steps: Steps, values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Lets the body read slices along axis 0 of outer values instead of computing inner ones.

    `values` are pairs of an inner value and what it is in all iterations, stacked.
    """
    for inner, stacked in values:
        patch.replace(inner, _read(patch, steps, inner, stacked))


def _read(patch: Patch, steps: Steps, like: Tensor, stacked: Tensor) -> Tensor:
    if steps.iteration is not None:
        operands = [stacked, steps.iteration]
        return patch.node_first(steps.body, "Gather", operands, [like], {"axis": 0})[0]
    node, body = steps.node, steps.body
    view = ScanView(node)
    parameter = Variable(like.name)
    count = len(view.scan_inputs)
    patch.set_attribute(node, "num_scan_inputs", count + 1)
    _set_list(patch, node, "scan_input_axes", [s.axis for s in view.scan_inputs] + [0])
    ways = [int(s.reverse) for s in view.scan_inputs] + [0]
    _set_list(patch, node, "scan_input_directions", ways)
    patch.set_interface(
        node, [*node.inputs, stacked], [*body.inputs, parameter], body.outputs, node.outputs
    )
    return parameter


def _set_list(patch: Patch, node: Node, name: str, values: list[int]) -> None:
    """Sets a list attribute of which all zeros is the default."""
    patch.set_attribute(node, name, values if any(values) else None)


def drop_unread_inputs(patch: Patch, node: Node) -> None:
    """Takes scan inputs away that the body of a Scan does not read; one must stay."""
    if node.op != "Scan":
        return
    view = ScanView(node)
    kept = [k for k, s in enumerate(view.scan_inputs) if patch.index.use_count(s.slice)] or [0]
    if len(kept) == len(view.scan_inputs):
        return
    first = len(view.states)
    body: Graph = node.attrs["body"]

    def chosen(values: Sequence[Tensor]) -> list[Tensor]:
        return [*values[:first], *(values[first + k] for k in kept)]

    patch.set_attribute(node, "num_scan_inputs", len(kept))
    _set_list(patch, node, "scan_input_axes", [view.scan_inputs[k].axis for k in kept])
    _set_list(
        patch, node, "scan_input_directions", [int(view.scan_inputs[k].reverse) for k in kept]
    )
    patch.set_interface(node, chosen(node.inputs), chosen(body.inputs), body.outputs, node.outputs)


def remove_if_unused(patch: Patch, node: Node) -> None:
    """Removes a loop of which nothing is read any more."""
    if patch.index.is_unused(node):
        patch.remove(node)


def collect_rows(patch: Patch, node: Node, row: Tensor) -> Tensor:
    """Lets a loop collect a value of its body; returns the rows stacked along axis 0."""
    rows = Variable(row.name)
    body: Graph = node.attrs["body"]
    if node.op == "Scan":
        outputs = ScanView(node).scan_outputs
        _set_list(patch, node, "scan_output_axes", [o.axis for o in outputs] + [0])
        ways = [int(o.reverse) for o in outputs] + [0]
        _set_list(patch, node, "scan_output_directions", ways)
    patch.set_interface(node, node.inputs, body.inputs, [*body.outputs, row], [*node.outputs, rows])
    return rows


def declare_rows(patch: Patch, facts: Facts, steps: Steps) -> None:
    """Writes down the sizes of the rows of a Loop that may not run: what onnxruntime could infer
    of them it may no longer see once work has left the body.
    """
    if steps.iteration is None:
        return
    for row in steps.rows:
        fact = facts.of(row.row)
        if fact.kind == "tensor" and fact.dtype and fact.shape is not None:
            patch.declare_row(steps.body, row.row, fact.dtype, fact.shape)
