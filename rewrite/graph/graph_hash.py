"""A hash of a whole graph that costs each commit no more than what the commit touched.

The hash is the sum of the hashes of its nodes, so that a node's share can be exchanged. A node's
share says what it is, which values it reads and where it stands; values go by the number of the
node that computes them (see `numbering`), never by name. Equal hashes in two runs of one rewrite
are taken to mean equal graphs; graphs of different models are not compared by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ..engine.numbering import Numbers
from ..engine.patch import Patch
from .index import Index
from .ir import Constant, Graph, Node, Tensor, bodies

_SMALL = 64
"""Bytes up to which a constant goes by its content; a larger one by type, shape and name."""
_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
"""An odd number without a pattern (the golden ratio, Knuth, TAOCP 3, 6.4), so that multiplying by
it modulo 2**64 loses nothing and spreads neighbours."""


class GraphHash:
    """The hash of the graph of one rewrite, kept up to date commit by commit."""

    def __init__(self, index: Index, numbers: Numbers) -> None:
        self._index = index
        self._numbers = numbers
        self._values: dict[Tensor, int] = {}
        self._texts: dict[str, int] = {}
        self._shares: dict[Node, int] = {}
        self._returned: list[int] = []
        self._sum = 0
        for graph in index.graphs(index.root):
            self._name_inputs(graph)
        nodes = list(index.walk())
        for node in nodes:
            self._name_outputs(node)
        for node in nodes:
            self._put(node)
        for slot in range(len(index.root.outputs)):
            self._returned.append(self._output_share(slot))
            self._sum += self._returned[slot]

    def __str__(self) -> str:
        return f"{self._sum & _MASK:016x}"

    def update(self, patch: Patch, added: Iterable[Node]) -> None:
        """Follows a commit; `added` are the nodes it added, numbered already."""
        for node in patch.removed:
            self._sum -= self._shares.pop(node, 0)
        fresh = list(added)
        for node in fresh:
            for body in bodies(node):
                self._name_inputs(body)
            self._name_outputs(node)
        for node in {**patch.touched, **patch.disturbed, **dict.fromkeys(fresh)}:
            if node in self._index:
                self._put(node)
        for slot in patch.returned:
            share = self._output_share(slot)
            self._sum += share - self._returned[slot]
            self._returned[slot] = share

    def _put(self, node: Node) -> None:
        share = self._share(node)
        self._sum += share - self._shares.get(node, 0)
        self._shares[node] = share

    def _share(self, node: Node) -> int:
        """A polynomial in _FACTOR whose coefficients are what there is to say of the node."""
        share = self._numbers[node]
        owner = self._index.owner(self._index.graph_of(node))
        share = share * _FACTOR + (0 if owner is None else self._numbers[owner] + 1)
        share = share * _FACTOR + self._text(f"{node.domain}.{node.op}")
        for tensor in node.inputs:
            share = (share * _FACTOR + self._value(tensor)) & _MASK
        for name, value in sorted(node.attrs.items()) if node.attrs else ():
            share = (share * _FACTOR + self._text(name)) & _MASK
            share = (share * _FACTOR + self._attribute(value)) & _MASK
        return _mixed(share)

    def _attribute(self, value: object) -> int:
        if not isinstance(value, Graph):
            return self._value(value) if isinstance(value, Constant) else _hash(repr(value))
        share = len(value.inputs)
        for tensor in value.outputs:
            share = (share * _FACTOR + self._value(tensor)) & _MASK
        return _mixed(share)

    def _output_share(self, slot: int) -> int:
        return _mixed(self._value(self._index.root.outputs[slot]) * _FACTOR + slot)

    def _value(self, tensor: Tensor) -> int:
        key = self._values.get(tensor)
        if key is None:
            text = _constant_text(tensor) if isinstance(tensor, Constant) else f"? {tensor.name}"
            key = self._values[tensor] = _hash(text)
        return key

    def _text(self, text: str) -> int:
        """The hash of a text that comes again and again."""
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
    """Lets all bits count in all bits: sums of shares must not cancel."""
    number &= _MASK
    number = ((number ^ (number >> 32)) * _FACTOR) & _MASK
    return number ^ (number >> 29)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
