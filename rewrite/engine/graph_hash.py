"""An incremental hash of a whole graph: the cost of a commit is proportional to what it touched.

The hash is the sum of the hashes of the nodes, so that the hash of one node can be replaced. The
hash of a node covers its operator, the values that it reads and the graph that it is in. A value is
identified by the number of the node that computes it (see `numbering`), never by name. Equal hashes
in two runs of one rewrite are taken to mean equal graphs; the hash does not compare different
models.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor, bodies
from .numbering import NodeNumbers
from .patch import Patch

_SMALL = 64
"""A constant of up to this many bytes is hashed by content, a larger one by type, shape, name."""
_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
"""An odd number without a pattern (the golden ratio, Knuth, TAOCP 3, 6.4): multiplication by it
modulo 2**64 is invertible and separates neighbours."""


class GraphHash:
    """The hash of the graph of one rewrite; `str` gives it in hexadecimal."""

    def __init__(self, index: Index, numbers: NodeNumbers) -> None:
        self._index = index
        self._numbers = numbers
        self._values: dict[Tensor, int] = {}
        self._texts: dict[str, int] = {}
        self._hashes: dict[Node, int] = {}
        self._output_hashes: list[int] = []
        self._sum = 0
        for graph in index.graphs(index.root):
            self._name_inputs(graph)
        nodes = list(index.walk())
        for node in nodes:
            self._name_outputs(node)
        for node in nodes:
            self._set_hash(node)
        for slot in range(len(index.root.outputs)):
            self._output_hashes.append(self._output_hash(slot))
            self._sum += self._output_hashes[slot]

    def __str__(self) -> str:
        return f"{self._sum & _MASK:016x}"

    def update(self, patch: Patch, added: Iterable[Node]) -> None:
        """Updates the hash after a commit; `added` are its new nodes, which must have numbers."""
        for node in patch.removed:
            self._sum -= self._hashes.pop(node, 0)
        fresh = list(added)
        for node in fresh:
            for body in bodies(node):
                self._name_inputs(body)
            self._name_outputs(node)
        for node in {**patch.touched, **patch.shrunk_owners, **dict.fromkeys(fresh)}:
            if node in self._index:
                self._set_hash(node)
        for slot in patch.changed_outputs:
            total = self._output_hash(slot)
            self._sum += total - self._output_hashes[slot]
            self._output_hashes[slot] = total

    def _set_hash(self, node: Node) -> None:
        total = self._hash_of(node)
        self._sum += total - self._hashes.get(node, 0)
        self._hashes[node] = total

    def _hash_of(self, node: Node) -> int:
        """The hash of a node: a polynomial in _FACTOR whose coefficients describe the node."""
        total = self._numbers[node]
        owner = self._index.owner(self._index.graph_of(node))
        total = total * _FACTOR + (0 if owner is None else self._numbers[owner] + 1)
        total = total * _FACTOR + self._text(f"{node.domain}.{node.op}")
        for tensor in node.inputs:
            total = (total * _FACTOR + self._value(tensor)) & _MASK
        for name, value in sorted(node.attrs.items()) if node.attrs else ():
            total = (total * _FACTOR + self._text(name)) & _MASK
            total = (total * _FACTOR + self._attribute(value)) & _MASK
        return _mixed(total)

    def _attribute(self, value: object) -> int:
        if not isinstance(value, Graph):
            return self._value(value) if isinstance(value, Constant) else _hash(repr(value))
        total = len(value.inputs)
        for tensor in value.outputs:
            total = (total * _FACTOR + self._value(tensor)) & _MASK
        return _mixed(total)

    def _output_hash(self, slot: int) -> int:
        return _mixed(self._value(self._index.root.outputs[slot]) * _FACTOR + slot)

    def _value(self, tensor: Tensor) -> int:
        key = self._values.get(tensor)
        if key is None:
            text = _constant_text(tensor) if isinstance(tensor, Constant) else f"? {tensor.name}"
            key = self._values[tensor] = _hash(text)
        return key

    def _text(self, text: str) -> int:
        """The hash of a text, cached."""
        key = self._texts.get(text)
        if key is None:
            key = self._texts[text] = _hash(text)
        return key

    def _name_inputs(self, graph: Graph) -> None:
        owner = self._index.owner(graph)
        place = "" if owner is None else f"{self._numbers[owner]}.{bodies(owner).index(graph)}"
        for slot, tensor in enumerate(graph.inputs):
            self._values.setdefault(tensor, _hash(f"{place}<{slot}"))

    def _name_outputs(self, node: Node) -> None:
        number = self._numbers[node] + 1
        for slot, tensor in enumerate(node.outputs):
            self._values.setdefault(tensor, _mixed(number * _FACTOR + slot))


def _constant_text(constant: Constant) -> str:
    stored = constant._values
    kind = f"{constant.dtype}{list(constant.shape)}"
    if getattr(stored, "nbytes", _SMALL + 1) > _SMALL or constant.values.dtype == object:
        return f"{kind} {constant.name}"
    return f"{kind} {constant.values.tobytes().hex()}"


def _mixed(number: int) -> int:
    """Mixes all bits, so that sums of hashes do not cancel."""
    number &= _MASK
    number = ((number ^ (number >> 32)) * _FACTOR) & _MASK
    return number ^ (number >> 29)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
