"""Copies of values that bodies return: a file needs them, rules are better off without.

onnxruntime refuses a body that returns a value of an outer graph, leaves what no node of a Scan
body writes as garbage, and counts the iteration number of a Loop up in place. There a file has an
Identity. To rules it would only hide what the body returns, so it is taken out before they run, and
put back after.
"""

from __future__ import annotations

from . import loop_conditions
from .index import Index
from .ir import Graph, Node, Tensor, Variable

_FIRST_IDENTITY = {"sequence": 14, "other": 16}
"""The opset from which Identity takes values of a kind (ONNX operator spec); `other` stands for
optionals.
"""


def has_copies(kind: str, opset: int) -> bool:
    """Whether there is an operator that copies a value of such a kind (see `Fact.kind`)."""
    return opset >= _FIRST_IDENTITY.get(kind, 1)


def copied_slots(index: Index, body: Graph) -> list[int]:
    """The outputs of a body that a file needs a node of its own for; the main graph's outputs have
    names of their own to keep.
    """
    slots: list[int] = []
    returned: set[Tensor] = set()
    for slot, tensor in enumerate(body.outputs if body is not index.root else ()):
        if tensor not in returned and _may_return(index, body, slot, tensor):
            returned.add(tensor)
        else:
            slots.append(slot)
    return slots


def _may_return(index: Index, body: Graph, slot: int, tensor: Tensor) -> bool:
    """Whether a file may have a body return a value, not yet returned in another slot, as it is."""
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


class BodyOutputs:
    """The outputs of all bodies of one model."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.copies: dict[tuple[Graph, Tensor], list[Node]] = {}
        """The copies taken out, by what they copy for which body."""

    def take_copies_out(self) -> None:
        """Lets bodies return values as they are; leaves copies that are not needed to rules."""
        loop_conditions.hold(self._index)
        for body in list(self._index.graphs(self._index.root)):
            if body is self._index.root:
                continue
            outputs, taken = list(body.outputs), []
            returned: set[Tensor] = set()
            for slot, tensor in enumerate(outputs):
                copy = self._index.producer(tensor)
                if copy is not None and self._is_only_a_copy(copy, body):
                    source = copy.inputs[0]
                    if source in returned or not _may_return(self._index, body, slot, source):
                        self.copies.setdefault((body, source), []).append(copy)
                        outputs[slot] = source
                        taken.append(copy)
                returned.add(outputs[slot])
            if taken:
                self._index.set_outputs(body, outputs)
            for copy in taken:
                self._index.remove_node(copy)

    def put_copies_in(self) -> None:
        """Gives each output that needs it a copy of its own: the file's, where it had one."""
        for body in list(self._index.graphs(self._index.root)):
            outputs, slots = list(body.outputs), copied_slots(self._index, body)
            for slot in slots:
                outputs[slot] = self._copy(body, outputs[slot])
            if slots:
                self._index.set_outputs(body, outputs)

    def _is_only_a_copy(self, node: Node, body: Graph) -> bool:
        """Whether the node is an Identity of the body, for one output of it and nothing else."""
        return (
            node.op == "Identity"
            and not node.domain
            and self._index.graph_of(node) is body
            and self._index.use_count(node.outputs[0]) == 1
        )

    def _copy(self, body: Graph, tensor: Tensor) -> Tensor:
        kept = self.copies.get((body, tensor))
        if kept:
            node = kept.pop(0)
        else:
            copy = Variable(tensor.name)
            copy.info = body.output_info.get(tensor, tensor.info)
            node = Node("Identity", "", {}, [tensor], [copy], "")
        node.order = (body.nodes[-1].order if body.nodes else 0.0) + 1.0
        body.nodes.append(node)
        self._index.add_node(node, body)
        value: Tensor = node.outputs[0]
        return value
