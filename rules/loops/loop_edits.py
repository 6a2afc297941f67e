"""Changes what the iterations of a counted loop read, whether it stands as Loop or as Scan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...rewrite.engine.patch import Patch
from ...rewrite.facts.counted_loop import CountedLoop
from ...rewrite.facts.facts import Facts
from ...rewrite.graph.ir import Graph, Node, Tensor, Variable
from ...rewrite.graph.views import LoopView, ScanInput, ScanView


def read_instead(patch: Patch, steps: CountedLoop, values: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Lets the body read slices along axis 0 of outer values instead of computing inner ones.

    `values` are pairs of an inner value and what it is in all iterations, stacked.
    """
    if steps.iteration is not None:
        for inner, stacked in values:
            operands = [stacked, steps.iteration]
            read = patch.node_first(steps.body, "Gather", operands, [inner], {"axis": 0})
            patch.replace(inner, read[0])
        return
    added = [ScanInput(stacked, Variable(inner.name), 0, False) for inner, stacked in values]
    _set_scan_inputs(patch, steps.node, [*ScanView(steps.node).scan_inputs, *added])
    for (inner, _), scanned in zip(values, added):
        patch.replace(inner, scanned.slice)


def _set_scan_inputs(patch: Patch, node: Node, slices: Sequence[ScanInput]) -> None:
    """Gives a Scan other scan inputs behind its states."""
    body, carried = node.attrs["body"], len(ScanView(node).carried)
    patch.set_attribute(node, "num_scan_inputs", len(slices))
    _set_list(patch, node, "scan_input_axes", [s.axis for s in slices])
    _set_list(patch, node, "scan_input_directions", [int(s.reverse) for s in slices])
    inputs = [*node.inputs[:carried], *(s.sequence for s in slices)]
    parameters = [*body.inputs[:carried], *(s.slice for s in slices)]
    patch.set_interface(node, inputs, parameters, body.outputs, node.outputs)


def _set_list(patch: Patch, node: Node, name: str, values: list[int]) -> None:
    """Sets a list attribute of which all zeros is the default."""
    patch.set_attribute(node, name, values if any(values) else None)


def drop_unread_inputs(patch: Patch, node: Node) -> None:
    """Takes scan inputs away that the body of a Scan does not read; one must stay."""
    if node.op != "Scan":
        return
    slices = ScanView(node).scan_inputs
    kept = [s for s in slices if patch.index.use_count(s.slice)] or slices[:1]
    if len(kept) < len(slices):
        _set_scan_inputs(patch, node, kept)


def turn_into_scan(patch: Patch, steps: CountedLoop, slices: Sequence[ScanInput]) -> None:
    """Makes a Loop a Scan of the same states and rows.

    `slices` has an input for each read, and for the iteration number where it is needed otherwise;
    their `slice` is what the body of the Loop has had for it.
    """
    node, body = steps.node, steps.body
    parameters: list[Tensor] = [Variable(scanned.slice.name) for scanned in slices]
    for scanned, parameter in zip(slices, parameters):
        patch.replace(scanned.slice, parameter)
    for read in steps.reads:
        assert read.gather is not None, "a Loop reads through Gather"
        patch.remove(read.gather)
    condition = LoopView(node).condition_in
    if patch.index.use_count(condition):
        holds = patch.constant(np.array(True), like=condition, graph=body)
        patch.replace(condition, holds)
    axes = [scanned.axis for scanned in slices]
    patch.turn_into(
        node,
        "Scan",
        {"num_scan_inputs": len(slices), "scan_input_axes": axes if any(axes) else None},
        [*(state.initial for state in steps.carried), *(s.sequence for s in slices)],
        [*(state.input for state in steps.carried), *parameters],
        body.outputs[1:],  # as they are now: a row may be what was read
    )


def remove_if_unused(patch: Patch, node: Node) -> None:
    """Removes a loop of which nothing is read any more."""
    if patch.index.is_unused(node):
        patch.remove(node)


def collect_rows(patch: Patch, node: Node, values: Sequence[Tensor]) -> list[Tensor]:
    """Lets a loop collect values of its body; returns their rows, stacked along axis 0."""
    rows: list[Tensor] = [Variable(value.name) for value in values]
    body: Graph = node.attrs["body"]
    if node.op == "Scan":
        outputs = ScanView(node).scan_outputs
        more = [0] * len(values)
        _set_list(patch, node, "scan_output_axes", [o.axis for o in outputs] + more)
        ways = [int(o.reverse) for o in outputs] + more
        _set_list(patch, node, "scan_output_directions", ways)
    patch.set_interface(
        node, node.inputs, body.inputs, [*body.outputs, *values], [*node.outputs, *rows]
    )
    return rows


def declare_rows(patch: Patch, facts: Facts, steps: CountedLoop) -> None:
    """Writes down the sizes of the rows of a Loop that may not run: what onnxruntime could infer
    of them it may no longer see once work has left the body.
    """
    if steps.iteration is None:
        return
    for row in steps.rows:
        fact = facts.of(row.row)
        if fact.kind == "tensor" and fact.dtype and fact.shape is not None:
            patch.declare_row(steps.body, row.row, fact.dtype, fact.shape)
