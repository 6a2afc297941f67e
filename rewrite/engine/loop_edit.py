"""Edits a Loop or Scan by role: carried values, scan inputs, scan outputs, condition, trip count.

Which input or output slot a role occupies is known to `looplift.rewrite.graph.views` and to this
module only (ONNX operator specification: Loop, Scan). Scan means its form since opset 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..graph.ir import Graph, Node, Tensor, Variable
from ..graph.views import CarriedValue, LoopView, ScanInput, ScanOutput, ScanView

if TYPE_CHECKING:
    from ..facts.counted_loop import CountedLoop
    from ..facts.facts import Facts
    from .edits import Edits


class LoopEdit:
    """The edits of one Loop or Scan; `Patch.loop` makes one."""

    def __init__(self, patch: Edits, node: Node) -> None:
        self._patch = patch
        self._node = node
        self._body: Graph = node.attrs["body"]
        self._is_loop = node.op == "Loop"

    # --- carried values ---

    def drop_carried(self, numbers: Iterable[int]) -> None:
        """Drops carried values by number; their body inputs and final values must be unread."""
        gone = set(numbers)
        carried = [c for number, c in enumerate(self._view().carried) if number not in gone]
        self._set_carried(carried)

    def replace_carried(self, number: int, new: Sequence[CarriedValue]) -> None:
        """Replaces one carried value, whose body input and final value must be unread, by others.

        A new carried value needs a `final`; a value without a name stands for none.
        """
        carried = self._view().carried
        self._set_carried([*carried[:number], *new, *carried[number + 1 :]])

    def _set_carried(self, carried: Sequence[CarriedValue]) -> None:
        node, body, before = self._node, self._body, len(self._view().carried)
        ahead = 2 if self._is_loop else 0  # trip count and condition
        self._patch.set_interface(
            node,
            [*node.inputs[:ahead], *(c.initial for c in carried), *node.inputs[ahead + before :]],
            [*body.inputs[:ahead], *(c.input for c in carried), *body.inputs[ahead + before :]],
            [
                *body.outputs[: ahead // 2],
                *(c.output for c in carried),
                *body.outputs[ahead // 2 + before :],
            ],
            [*self._finals(carried), *node.outputs[before:]],
        )

    def _finals(self, carried: Sequence[CarriedValue]) -> list[Tensor]:
        """The outputs of the node for carried values, old ones as the node lists them."""
        outputs = dict(zip((c.input for c in self._view().carried), self._node.outputs))
        finals = [outputs.get(c.input, c.final) for c in carried]
        while finals and finals[-1] is None and not self._has_scan_outputs():
            finals.pop()
        return [Variable("") if final is None else final for final in finals]

    def _has_scan_outputs(self) -> bool:
        return len(self._node.outputs) > len(self._view().carried)

    def _view(self) -> LoopView | ScanView:
        return LoopView(self._node) if self._is_loop else ScanView(self._node)

    # --- condition and trip count ---

    def drop_trip_count(self) -> None:
        """Removes the trip count: only the condition ends the Loop."""
        self._patch.replace_input(self._node, 0, Variable(""))

    def drop_condition(self) -> None:
        """Removes the condition of the first iteration, which must be true."""
        self._patch.replace_input(self._node, 1, Variable(""))

    def set_next_condition(self, value: bool) -> None:
        """Makes the condition for the next iteration a constant of the body."""
        out = LoopView(self._node).condition_out
        constant = self._patch.constant(np.array(value), like=out, graph=self._body)
        node, body = self._node, self._body
        self._patch.set_interface(
            node, node.inputs, body.inputs, [constant, *body.outputs[1:]], node.outputs
        )

    def count(self, trip_count: Tensor) -> None:
        """Gives a Loop a trip count in place of its conditions."""
        node, body = self._node, self._body
        out = LoopView(node).condition_out
        always = self._patch.constant(np.array(True), like=out, graph=body)
        self._patch.set_interface(
            node,
            [trip_count, Variable(""), *node.inputs[2:]],
            body.inputs,
            [always, *body.outputs[1:]],
            node.outputs,
        )

    # --- scan inputs ---

    def read_slices(
        self, iteration: Tensor | None, values: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        """Lets the body read slices of outer values along axis 0 instead of computing them.

        `values` are pairs of an inner value and its values in all iterations, stacked along axis 0.
        `iteration` is the iteration number of a Loop, None for a Scan.
        """
        if iteration is not None:
            for inner, stacked in values:
                operands = [stacked, iteration]
                read = self._patch.node_first(self._body, "Gather", operands, [inner], {"axis": 0})
                self._patch.replace(inner, read[0])
            return
        added = [ScanInput(stacked, Variable(inner.name), 0, False) for inner, stacked in values]
        self._set_scan_inputs([*ScanView(self._node).scan_inputs, *added])
        for (inner, _), scan_input in zip(values, added):
            self._patch.replace(inner, scan_input.slice)

    def drop_unread_scan_inputs(self) -> None:
        """Drops the scan inputs of a Scan that its body does not read; keeps at least one."""
        if self._is_loop:
            return
        scan_inputs = ScanView(self._node).scan_inputs
        index = self._patch.index
        kept = [s for s in scan_inputs if index.use_count(s.slice)] or scan_inputs[:1]
        if len(kept) < len(scan_inputs):
            self._set_scan_inputs(kept)

    def _set_scan_inputs(self, scan_inputs: Sequence[ScanInput]) -> None:
        node, body, carried = self._node, self._body, len(ScanView(self._node).carried)
        self._patch.set_attribute(node, "num_scan_inputs", len(scan_inputs))
        self._set_list("scan_input_axes", [s.axis for s in scan_inputs])
        self._set_list("scan_input_directions", [int(s.reverse) for s in scan_inputs])
        inputs = [*node.inputs[:carried], *(s.sequence for s in scan_inputs)]
        parameters = [*body.inputs[:carried], *(s.slice for s in scan_inputs)]
        self._patch.set_interface(node, inputs, parameters, body.outputs, node.outputs)

    def _set_list(self, name: str, values: list[int]) -> None:
        """Sets a list attribute whose default is all zeros."""
        self._patch.set_attribute(self._node, name, values if any(values) else None)

    # --- scan outputs ---

    def add_scan_outputs(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Collects values of the body; returns them stacked along axis 0."""
        node, body = self._node, self._body
        stacked: list[Tensor] = [Variable(value.name) for value in values]
        if not self._is_loop:
            more = [ScanOutput(v, s, 0, False) for v, s in zip(values, stacked)]
            self._set_scan_output_axes([*ScanView(node).scan_outputs, *more])
        self._patch.set_interface(
            node, node.inputs, body.inputs, [*body.outputs, *values], [*node.outputs, *stacked]
        )
        return stacked

    def drop_scan_outputs(self, numbers: Iterable[int]) -> None:
        """Drops scan outputs by number; they must be unread."""
        node, body, gone = self._node, self._body, set(numbers)
        carried = len(self._view().carried)
        first = carried + 1 if self._is_loop else carried
        if not self._is_loop:
            outputs = ScanView(node).scan_outputs
            self._set_scan_output_axes([o for k, o in enumerate(outputs) if k not in gone])
        results = [t for k, t in enumerate(body.outputs) if k - first not in gone]
        outer = [t for k, t in enumerate(node.outputs) if k - carried not in gone]
        self._patch.set_interface(node, node.inputs, body.inputs, results, outer)

    def _set_scan_output_axes(self, outputs: Sequence[ScanOutput]) -> None:
        self._set_list("scan_output_axes", [o.axis for o in outputs])
        self._set_list("scan_output_directions", [int(o.reverse) for o in outputs])

    def declare_scan_outputs(self, facts: Facts, loop: CountedLoop) -> None:
        """Declares the shapes of the scan outputs of a Loop that may not run.

        onnxruntime infers the shape of an empty scan output from the body, and can no longer do so
        once work has left the body.
        """
        if loop.iteration is None:
            return
        for output in loop.scan_outputs:
            fact = facts.of(output.slice)
            if fact.kind == "tensor" and fact.dtype and fact.shape is not None:
                self._patch.declare_scan_output(loop.body, output.slice, fact.dtype, fact.shape)

    # --- the node itself ---

    def to_scan(self, loop: CountedLoop, scan_inputs: Sequence[ScanInput]) -> None:
        """Turns a counted Loop into a Scan with the same carried values and scan outputs.

        `scan_inputs` has one entry for each slice read, and one for the iteration number where the
        body needs it; the `slice` of each is the value it replaces in the body of the Loop.
        """
        patch, node, body = self._patch, self._node, self._body
        parameters: list[Tensor] = [Variable(scan_input.slice.name) for scan_input in scan_inputs]
        for scan_input, parameter in zip(scan_inputs, parameters):
            patch.replace(scan_input.slice, parameter)
        for read in loop.reads:
            if read.gather is not None:
                patch.remove(read.gather)
        condition = LoopView(node).condition_in
        if patch.index.use_count(condition):
            holds = patch.constant(np.array(True), like=condition, graph=body)
            patch.replace(condition, holds)
        axes = [scan_input.axis for scan_input in scan_inputs]
        patch.turn_into(
            node,
            "Scan",
            {"num_scan_inputs": len(scan_inputs), "scan_input_axes": axes if any(axes) else None},
            [*(c.initial for c in loop.carried), *(s.sequence for s in scan_inputs)],
            [*(c.input for c in loop.carried), *parameters],
            body.outputs[1:],  # read now: a scan output may have been the slice that was replaced
        )
        self._is_loop = False

    def remove_if_unused(self) -> None:
        """Removes the node if nothing reads a result of it."""
        if self._patch.index.is_unused(self._node):
            self._patch.remove(self._node)
