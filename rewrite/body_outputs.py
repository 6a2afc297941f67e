"""Copies of values that bodies return: a file needs them, rules are better off without.

onnxruntime refuses a body that returns a value of an outer graph, leaves what no node of a Scan
body writes as garbage, and counts the iteration number of a Loop up in place. There a file has an
Identity. To rules it would only hide what the body returns, so it is taken out before they run, and
put back after.
"""

from __future__ import annotations

from .index import Index
from .ir import Graph, Node, Tensor, Variable

_FIRST_IDENTITY = {"sequence": 14, "other": 16}
"""The opset from which Identity takes values of a kind (ONNX operator spec); `other` stands for
optionals.
"""


def has_copies(kind: str, opset: int) -> bool:
    """Whether there is an operator that copies a value of such a kind (see `Fact.kind`)."""
    return opset >= _FIRST_IDENTITY.get(kind, 1)


def may_return(index: Index, body: Graph, slot: int) -> bool:
    """Whether a file may have a body return a value, not yet returned in another slot, as it is."""
    owner, tensor = index.owner(body), body.outputs[slot]
    if owner is None:
        return True
    if index.home(tensor) is not body:
        return False
    if index.producer(tensor) is not None:
        return True
    if owner.op == "Loop":
        carried = slot < len(owner.inputs) - 1
        return carried and tensor is not body.inputs[0]
    return bool(owner.op == "If")


def needs_copy(index: Index, body: Graph, slot: int) -> bool:
    """Whether a file needs a node of its own for an output of a body; the main graph's outputs
    have names of their own to keep.
    """
    if body is index.root:
        return False
    return body.outputs[slot] in body.outputs[:slot] or not may_return(index, body, slot)


class BodyOutputs:
    """The outputs of all bodies of one model."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.copies: dict[tuple[Graph, Tensor], list[Node]] = {}
        """The copies taken out, by what they copy for which body."""

    def take_copies_out(self) -> None:
        """Lets bodies return values as they are; leaves copies that are not needed to rules."""
        for body in list(self._index.graphs(self._index.root)):
            for slot, tensor in enumerate(body.outputs):
                copy = self._index.producer(tensor)
                if copy is None or not self._is_only_a_copy(copy, body):
                    continue
                self._return(body, slot, copy.inputs[0])
                if needs_copy(self._index, body, slot):
                    self.copies.setdefault((body, copy.inputs[0]), []).append(copy)
                    self._index.remove_node(copy)
                else:
                    self._return(body, slot, tensor)

    def put_copies_in(self) -> None:
        """Gives each output that needs it a copy of its own: the file's, where it had one."""
        for body in list(self._index.graphs(self._index.root)):
            for slot, tensor in enumerate(body.outputs):
                if needs_copy(self._index, body, slot):
                    self._return(body, slot, self._copy(body, tensor))

    def _return(self, body: Graph, slot: int, tensor: Tensor) -> None:
        outputs = list(body.outputs)
        outputs[slot] = tensor
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
