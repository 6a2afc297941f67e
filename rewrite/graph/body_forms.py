"""Loops and bodies have one form for rules and another one in files; this converts both ways.

For rules, a body returns the values that it computes or captures, and the condition of a loop that
only its trip count ends is the constant true. A file may differ in three ways:

- An Identity copies a value that onnxruntime cannot return as it is. onnxruntime refuses a body
  that returns a value of an outer graph, leaves an output of a Scan body that no node computes
  uninitialised, and increments the iteration number of a Loop in place.
- A Loop body may return its input condition. It runs only while its condition holds, so this equals
  returning true. Where the file did so, it does so again. Rules leave the constant: OpenVINO
  2026.4 rejects a body with an output that is an input, and onnxruntime 1.31 takes only 0.2 to
  0.3 µs per iteration to copy it.
- A Loop has a first condition even if it is true, unless the file omitted it: ONNX's reference
  implementation (1.23) runs no iteration without one. Rules see such a condition as omitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import numpy as np

from .declarations import declares_shape
from .index import Index
from .ir import SPACING, Constant, Graph, Node, Tensor, Variable
from .names import UniqueNames
from .views import LoopView

_FIRST_IDENTITY = {"sequence": 14, "other": 16}
"""The first opset in which Identity takes values of a kind (ONNX operator specification); `other`
stands for optionals."""


def can_copy(kind: str, opset: int) -> bool:
    """Whether the opset has an operator that copies values of a kind (see `Fact.kind`)."""
    return opset >= _FIRST_IDENTITY.get(kind, 1)


def copied_slots(index: Index, body: Graph) -> list[int]:
    """The output slots of a body that need a copy in a file; none for the main graph."""
    slots: list[int] = []
    returned: set[Tensor] = set()
    for slot, tensor in enumerate(body.outputs if body is not index.root else ()):
        if tensor not in returned and _can_return(index, body, slot, tensor):
            returned.add(tensor)
        else:
            slots.append(slot)
    return slots


def _can_return(index: Index, body: Graph, slot: int, tensor: Tensor) -> bool:
    """Whether a body in a file may return a value without a copy, the first time it returns it."""
    if index.home(tensor) is not body:
        return False
    if index.producer(tensor) is not None:
        return True
    owner = index.owner(body)
    assert owner is not None, "the main graph is no body"
    if owner.op == "Loop":
        carried = slot < len(owner.inputs) - 1
        return carried and tensor is not body.inputs[0]
    return bool(owner.op == "If")


def _is_always_true(value: Tensor) -> TypeGuard[Constant]:
    return isinstance(value, Constant) and not value.overridable and bool(np.all(value.values))


class BodyForms:
    """Converts all bodies of one model between the form of rules and the form of files."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.removed_copies: dict[tuple[Graph, Tensor], list[Node]] = {}
        """The removed Identity nodes, by body and copied value; `to_file_form` uses them again."""
        self.input_conditions: set[Constant] = set()
        """The constants that stand for the input condition, which the file returns."""
        self.first_conditions: dict[Node, Constant | None] = {}
        """The Loops whose first condition is true in the file, with that constant; None where the
        file omits the condition."""

    def to_rule_form(self) -> None:
        """Removes the copies that only the file needs, and first conditions that are true.

        Returns constant conditions.
        """
        self._omit_first_conditions()
        self._return_true()
        for body in self._bodies():
            self._remove_copies(body)

    def to_file_form(self) -> None:
        """Gives first conditions, returns input conditions where the file did, and adds copies.

        Sorts the nodes of each graph and drops those that were removed.
        """
        self._give_first_conditions()
        self._return_input_conditions()
        for graph in list(self._index.graphs(self._index.root)):
            self._index.tidy(graph)
        for body in self._bodies():
            self._add_copies(body)

    def _bodies(self) -> list[Graph]:
        root = self._index.root
        return [graph for graph in self._index.graphs(root) if graph is not root]

    # --- loop conditions ---

    def _omit_first_conditions(self) -> None:
        for loop in self._loops():
            condition = loop.condition
            if condition is None:
                self.first_conditions[loop.node] = None
            elif _is_always_true(condition):
                self.first_conditions[loop.node] = condition
                self._set_first_condition(loop.node, Variable(""))

    def _give_first_conditions(self) -> None:
        """Gives Loops without a first condition the one of the file, or else a new constant."""
        new: dict[tuple[int, ...], Constant] = {}
        for loop in self._loops():
            node, shape = loop.node, loop.condition_shape
            condition = self.first_conditions.get(node)
            if loop.condition is not None or (condition is None and node in self.first_conditions):
                continue
            if condition is None or not self._can_read(node, condition):
                condition = new.get(shape) or self._new_condition(shape)
                new[shape] = condition
            self._set_first_condition(node, condition)

    def _set_first_condition(self, loop: Node, condition: Tensor) -> None:
        trip_count = loop.inputs[0] if loop.inputs else Variable("")
        self._index.set_node_inputs(loop, [trip_count, condition, *loop.inputs[2:]])

    def _can_read(self, node: Node, value: Tensor) -> bool:
        home = self._index.home(value)
        graph = self._index.graph_of(node)
        return home is not None and (home is graph or self._index.encloses(home, graph))

    def _new_condition(self, shape: tuple[int, ...]) -> Constant:
        root = self._index.root
        condition = Constant(UniqueNames(root).fresh("true"), np.full(shape, True))
        root.initializers.append(condition)
        self._index.add_constant(condition, root)
        return condition

    def _return_true(self) -> None:
        for loop in self._loops():
            if loop.condition_out is loop.condition_in:
                always = Constant(loop.condition_in.name, np.full(loop.condition_shape, True))
                loop.body.initializers.append(always)
                self.input_conditions.add(always)
                self._index.add_constant(always, loop.body)
                self._index.set_graph_outputs(loop.body, [always, *loop.body.outputs[1:]])

    def _return_input_conditions(self) -> None:
        """Replaces the constants that stand for input conditions."""
        for loop in self._loops():
            if loop.condition_out in self.input_conditions:
                outputs = [loop.condition_in, *loop.body.outputs[1:]]
                self._index.set_graph_outputs(loop.body, outputs)

    def _loops(self) -> Iterator[LoopView]:
        for body in self._bodies():
            owner = self._index.owner(body)
            if owner is not None and owner.op == "Loop" and not owner.domain:
                yield LoopView(owner)

    # --- copies ---

    def _remove_copies(self, body: Graph) -> None:
        outputs: list[Tensor] = list(body.outputs)
        removed: list[Node] = []
        returned: set[Tensor] = set()
        for slot, tensor in enumerate(outputs):
            copy = self._index.producer(tensor)
            if copy is not None and self._is_plain_copy(copy, body):
                source = copy.inputs[0]
                if source in returned or not _can_return(self._index, body, slot, source):
                    self.removed_copies.setdefault((body, source), []).append(copy)
                    outputs[slot] = source
                    removed.append(copy)
                    declared = body.output_info.get(tensor, tensor.info)
                    # An empty scan output has these sizes.
                    if declares_shape(declared) or (declared is not None and source.info is None):
                        body.output_info.setdefault(source, declared)
            returned.add(outputs[slot])
        if removed:
            self._index.set_graph_outputs(body, outputs)
        for copy in removed:
            self._index.remove_node(copy)

    def _is_plain_copy(self, node: Node, body: Graph) -> bool:
        """Whether the node is an Identity of the body that only one output of the body reads."""
        return (
            node.op == "Identity"
            and not node.domain
            and self._index.graph_of(node) is body
            and self._index.use_count(node.outputs[0]) == 1
        )

    def _add_copies(self, body: Graph) -> None:
        outputs, slots = list(body.outputs), copied_slots(self._index, body)
        for slot in slots:
            outputs[slot] = self._add_copy(body, outputs[slot])
        if slots:
            self._index.set_graph_outputs(body, outputs)

    def _add_copy(self, body: Graph, tensor: Tensor) -> Tensor:
        """Adds an Identity at the end of a body, by preference the one that the file had."""
        removed = self.removed_copies.get((body, tensor))
        if removed:
            node = removed.pop(0)
        else:
            copy = Variable(tensor.name)
            copy.info = body.output_info.get(tensor, tensor.info)
            node = Node("Identity", "", {}, [tensor], [copy], "")
        node.order = (body.nodes[-1].order if body.nodes else 0) + SPACING
        body.nodes.append(node)
        self._index.add_node(node, body)
        value: Tensor = node.outputs[0]
        return value
