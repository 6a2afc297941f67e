"""Edits a Loop or Scan by role: carried values, scan inputs, scan outputs, condition, trip count.

Which input or output slot a role occupies is known to `looplift.rewrite.graph.views` and to this
module only (ONNX operator specification: Loop, Scan). Scan means its form since opset 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from ..graph.declarations import declare
from ..graph.ir import Graph, Node, Tensor, Variable
from ..graph.views import CarriedValue, LoopView, ScanInput, ScanOutput, ScanView
from .builder import Builder

if TYPE_CHECKING:
    from ..facts.counted_loop import CountedLoop
    from .edits import Edits


class LoopEdit:
    """The edits of one Loop or Scan; `Patch.loop` makes one.

    Carried values, scan inputs and scan outputs are numbered from 0, each kind by itself. Whatever
    is dropped must be unread; otherwise the edit raises PatchError.
    """

    def __init__(self, patch: Edits, node: Node) -> None:
        self._patch = patch
        self._node = node
        self._body: Graph = node.attrs["body"]
        self._is_loop = node.op == "Loop"

    @property
    def carried(self) -> list[CarriedValue]:
        """The carried values as they stand."""
        view = LoopView(self._node) if self._is_loop else ScanView(self._node)
        return view.carried

    @property
    def _first_input(self) -> int:
        """The slot of the first carried value among the inputs, after trip count and condition."""
        return 2 if self._is_loop else 0

    @property
    def _first_result(self) -> int:
        """The slot of the first carried value among the outputs of the body."""
        return 1 if self._is_loop else 0

    def _set_interface(
        self,
        inputs: Sequence[Tensor] | None = None,
        parameters: Sequence[Tensor] | None = None,
        results: Sequence[Tensor] | None = None,
        outputs: Sequence[Tensor] | None = None,
    ) -> None:
        """Sets the inputs, body inputs, body outputs and outputs that are given."""
        node, body = self._node, self._body
        self._patch.set_interface(
            node,
            node.inputs if inputs is None else inputs,
            body.inputs if parameters is None else parameters,
            body.outputs if results is None else results,
            node.outputs if outputs is None else outputs,
        )

    # --- carried values ---

    def drop_carried(self, numbers: Iterable[int]) -> None:
        """Drops carried values; their body inputs and final values must be unread."""
        gone = set(numbers)
        self._set_carried([c for number, c in enumerate(self.carried) if number not in gone])

    def replace_carried(self, number: int, new: Sequence[CarriedValue]) -> None:
        """Replaces one carried value, whose body input and final value must be unread, by others.

        See `add_carried` for final values.
        """
        carried = self.carried
        self._set_carried([*carried[:number], *_complete(new), *carried[number + 1 :]])

    def add_carried(self, new: Sequence[CarriedValue]) -> None:
        """Adds carried values after the others.

        A new carried value whose final value nothing reads need not have one: it gets one here,
        because onnxruntime 1.31 crashes if a Loop omits an output.
        """
        self._set_carried([*self.carried, *_complete(new)])

    def _set_carried(self, carried: Sequence[CarriedValue]) -> None:
        node, body, before = self._node, self._body, self.carried
        listed = dict(zip((c.input for c in before), node.outputs))
        finals = [listed.get(c.input, c.final) for c in carried]
        others = node.outputs[len(before) :]
        while finals and finals[-1] is None and not others:
            finals.pop()
        first, after = self._first_input, self._first_input + len(before)
        first_result, after_result = self._first_result, self._first_result + len(before)
        self._set_interface(
            [*node.inputs[:first], *(c.initial for c in carried), *node.inputs[after:]],
            [*body.inputs[:first], *(c.input for c in carried), *body.inputs[after:]],
            [
                *body.outputs[:first_result],
                *(c.output for c in carried),
                *body.outputs[after_result:],
            ],
            [*(Variable("") if final is None else final for final in finals), *others],
        )

    # --- condition and trip count of a Loop ---

    def drop_trip_count(self) -> None:
        """Removes the trip count: only the condition ends the Loop."""
        self._patch.replace_input(self._node, 0, Variable(""))

    def drop_condition(self) -> None:
        """Removes the condition of the first iteration, which must be true."""
        self._patch.replace_input(self._node, 1, Variable(""))

    def set_next_condition(self, value: bool) -> None:
        """Makes the condition for the next iteration a constant of the body."""
        self._set_interface(results=[self._condition(value), *self._body.outputs[1:]])

    def count(self, trip_count: Tensor) -> None:
        """Gives a Loop a trip count in place of its conditions."""
        self._set_interface(
            inputs=[trip_count, Variable(""), *self._node.inputs[2:]],
            results=[self._condition(True), *self._body.outputs[1:]],
        )

    def take_scalar_iteration(self) -> None:
        """Makes the body of a Loop take the iteration number as a scalar instead of a vector.

        The readers of the vector read an Unsqueeze of the scalar. Rules for reads at the iteration
        number decline while it is a vector; all nodes of the body are therefore visited again.
        """
        vector, *others = self._body.inputs
        scalar = Variable(vector.name)
        declare(scalar, helper.make_tensor_value_info(vector.name, TensorProto.INT64, ()))
        emit = Builder(self._patch, vector, self._patch.start(self._body))
        self._patch.replace(vector, emit.unsqueeze(scalar, [0]))
        self._set_interface(parameters=[scalar, *others])
        inside = (node for graph in self._patch.index.graphs(self._body) for node in graph.nodes)
        self._patch.retried.update(dict.fromkeys(inside))

    def _condition(self, value: bool) -> Tensor:
        """A constant condition in the body."""
        view = LoopView(self._node)
        values = np.full(view.condition_shape, value)
        return self._patch.constant(values, like=view.condition_out, graph=self._body)

    # --- scan inputs ---

    def read_slices(self, values: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Lets the body read slices of outer values along axis 0 instead of computing them.

        `values` are pairs of an inner value and its values in all iterations, stacked along axis 0.
        A Loop reads each by a Gather at the iteration number, which must be a scalar; for a Scan it
        becomes a scan input.
        """
        if self._is_loop:
            iteration = LoopView(self._node).iteration
            for inner, stacked in values:
                operands = [stacked, iteration]
                read = self._patch.node_first(self._body, "Gather", operands, [inner], {"axis": 0})
                self._patch.replace(inner, read[0])
            return
        added = [ScanInput(stacked, Variable(inner.name), 0, False) for inner, stacked in values]
        if added:
            self._set_scan_inputs([*ScanView(self._node).scan_inputs, *added])
        for (inner, _), scan_input in zip(values, added):
            self._patch.replace(inner, scan_input.slice)

    def drop_unread_scan_inputs(self) -> None:
        """Drops the scan inputs that the body of a Scan does not read; keeps at least one.

        Does nothing to a Loop.
        """
        if self._is_loop:
            return
        scan_inputs = ScanView(self._node).scan_inputs
        index = self._patch.index
        kept = [s for s in scan_inputs if index.use_count(s.slice)] or scan_inputs[:1]
        if len(kept) < len(scan_inputs):
            self._set_scan_inputs(kept)

    def _set_scan_inputs(self, scan_inputs: Sequence[ScanInput]) -> None:
        carried = len(self.carried)
        inputs = [*self._node.inputs[:carried], *(s.sequence for s in scan_inputs)]
        parameters = [*self._body.inputs[:carried], *(s.slice for s in scan_inputs)]
        for name, value in _scan_input_attributes(scan_inputs).items():
            self._patch.set_attribute(self._node, name, value)
        self._set_interface(inputs, parameters)

    # --- scan outputs ---

    def add_scan_outputs(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Collects values of the body; returns them stacked along axis 0."""
        node, results = self._node, self._body.outputs
        listed = len(node.outputs)
        omitted = [Variable(t.name) for t in results[self._first_result + listed :]]
        stacked: list[Tensor] = [Variable(value.name) for value in values]
        if not self._is_loop:
            more = [ScanOutput(v, s, 0, False) for v, s in zip(values, stacked)]
            self._set_scan_output_axes([*ScanView(node).scan_outputs, *more])
        self._set_interface(
            results=[*results, *values], outputs=[*node.outputs, *omitted, *stacked]
        )
        return stacked

    def drop_scan_outputs(self, numbers: Iterable[int]) -> None:
        """Drops scan outputs."""
        node, body, gone = self._node, self._body, set(numbers)
        carried = len(self.carried)
        first = self._first_result + carried
        if not self._is_loop:
            outputs = ScanView(node).scan_outputs
            self._set_scan_output_axes([o for k, o in enumerate(outputs) if k not in gone])
        self._set_interface(
            results=[t for k, t in enumerate(body.outputs) if k - first not in gone],
            outputs=[t for k, t in enumerate(node.outputs) if k - carried not in gone],
        )

    def _set_scan_output_axes(self, outputs: Sequence[ScanOutput]) -> None:
        axes, directions = [o.axis for o in outputs], [int(o.reverse) for o in outputs]
        self._patch.set_attribute(self._node, "scan_output_axes", _unless_zeros(axes))
        self._patch.set_attribute(self._node, "scan_output_directions", _unless_zeros(directions))

    def declare_scan_outputs(self, loop: CountedLoop) -> None:
        """Declares the shapes of the scan outputs of a Loop that may not run; not of a Scan.

        onnxruntime infers the shape of an empty scan output from the body, and can no longer do so
        once nodes have left the body.
        """
        if loop.iteration is None:
            return
        for output in loop.scan_outputs:
            fact = self._patch.facts.of(output.slice)
            if fact.kind == "tensor" and fact.dtype and fact.shape is not None:
                self._patch.declare_scan_output(loop.body, output.slice, fact.dtype, fact.shape)

    # --- the node itself ---

    def to_scan(self, loop: CountedLoop, scan_inputs: Sequence[ScanInput]) -> None:
        """Turns a counted Loop into a Scan with the same carried values and scan outputs.

        `scan_inputs` has one entry for each slice read, and one for the iteration number where the
        body needs it; the `slice` of each is the value it replaces in the body of the Loop.
        """
        patch, body, view = self._patch, self._body, LoopView(self._node)
        parameters: list[Tensor] = [Variable(scan_input.slice.name) for scan_input in scan_inputs]
        for scan_input, parameter in zip(scan_inputs, parameters):
            patch.replace(scan_input.slice, parameter)
        for read in loop.reads:
            if read.gather is not None:
                patch.remove(read.gather)
        if patch.index.use_count(view.condition_in):
            true = np.full(view.condition_shape, True)
            always = patch.constant(true, like=view.condition_in, graph=body)
            patch.replace(view.condition_in, always)
        patch.turn_into(
            self._node,
            "Scan",
            _scan_input_attributes(scan_inputs),
            [*(c.initial for c in loop.carried), *(s.sequence for s in scan_inputs)],
            [*(c.input for c in loop.carried), *parameters],
            body.outputs[1:],  # read now: a scan output may have been the slice that was replaced
        )
        self._is_loop = False

    def remove_if_unused(self) -> None:
        """Removes the node if nothing reads a result of it."""
        if self._patch.index.is_unused(self._node):
            self._patch.remove(self._node)


def _complete(new: Sequence[CarriedValue]) -> list[CarriedValue]:
    """The carried values, each with a final value."""
    return [
        replace(c, final=Variable(c.input.name)) if c.final is None or not c.final.name else c
        for c in new
    ]


def _scan_input_attributes(scan_inputs: Sequence[ScanInput]) -> dict[str, int | list[int] | None]:
    """The attributes of a Scan that follow from its scan inputs."""
    return {
        "num_scan_inputs": len(scan_inputs),
        "scan_input_axes": _unless_zeros([s.axis for s in scan_inputs]),
        "scan_input_directions": _unless_zeros([int(s.reverse) for s in scan_inputs]),
    }


def _unless_zeros(values: list[int]) -> list[int] | None:
    """A list attribute; None, which omits the attribute, for its default."""
    return values if any(values) else None
