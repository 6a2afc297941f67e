"""Numbers the nodes and constants of one rewrite; each run of the rewrite gives the same numbers.

Names do not identify nodes: they repeat between bodies, and many nodes have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor, bodies
from .patch import Patch

_text = json.JSONEncoder().encode


class NotReplayable(Exception):
    """A match that holds something other than nodes, values, plain data and dataclasses of them."""


class NodeNumbers:
    """The numbers of nodes: first those of the file in its order, bodies before their owner, then
    the new nodes of each commit. Constants have numbers of their own, in the same order.

    Rewriting is deterministic, and a patch that is undone uses no numbers, so a number means the
    same node in a rewrite and in its replay.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._nodes: list[Node] = list(index.walk())
        self._numbers = dict(zip(self._nodes, range(len(self._nodes))))
        stored = (c for graph in index.graphs(index.root) for c in graph.initializers)
        self._constants: list[Constant] = list(dict.fromkeys(stored))
        self._constant_numbers = {
            constant: number for number, constant in enumerate(self._constants)
        }

    def __getitem__(self, node: Node) -> int:
        return self._numbers[node]

    def of(self, nodes: Iterable[Node]) -> list[int]:
        """The numbers of nodes."""
        return list(map(self._numbers.__getitem__, nodes))

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, number: int) -> Node | None:
        """The node with this number, which may have been removed; None if there is none yet."""
        return self._nodes[number] if 0 <= number < len(self._nodes) else None

    def update(self, patch: Patch) -> list[Node]:
        """Numbers the new nodes and constants of a commit; returns the nodes."""
        before = len(self._nodes)
        for constant in patch.added_constants:
            self._add_constant(constant)
        for node in patch.touched:
            if node not in self._numbers:
                self._add(node)
        return self._nodes[before:]

    def _add(self, node: Node) -> None:
        for body in bodies(node):
            for constant in body.initializers:
                self._add_constant(constant)
            for inner in body.nodes:
                if inner not in self._numbers:
                    self._add(inner)
        self._numbers[node] = len(self._nodes)
        self._nodes.append(node)

    def _add_constant(self, constant: Constant) -> None:
        if constant not in self._constant_numbers:
            self._constant_numbers[constant] = len(self._constants)
            self._constants.append(constant)

    # --- matches as JSON ---

    def encode(self, thing: object) -> str:
        """Writes what a match returned as JSON, with numbers for nodes and constants.

        It may be a node, value, body, plain datum, or a list, tuple or dataclass of these. Raises
        NotReplayable for anything else.
        """
        if isinstance(thing, Node):
            return f'["node",{self._numbers[thing]}]'
        if isinstance(thing, Graph):
            return self._encode_graph(thing)
        if isinstance(thing, Tensor):
            return self._encode_value(thing)
        if type(thing) in (list, tuple):
            items = map(self.encode, thing)  # type: ignore[call-overload]
            return f"[{','.join((_text(type(thing).__name__), *items))}]"
        if thing is None or isinstance(thing, (bool, int, str)):
            return _text(thing)
        if is_dataclass(thing) and not isinstance(thing, type):
            values = (
                f"{_text(f.name)}:{self.encode(getattr(thing, f.name))}" for f in fields(thing)
            )
            return f'["fields",{{{",".join(values)}}}]'
        raise NotReplayable(type(thing).__name__)

    def _encode_value(self, tensor: Tensor) -> str:
        if isinstance(tensor, Constant) and tensor in self._constant_numbers:
            return f'["constant",{self._constant_numbers[tensor]}]'
        producer = self._index.producer(tensor)
        if producer is not None:
            slot = _slot(tensor, producer.outputs)
            return f'["output",{self._numbers[producer]},{slot}]'
        home = self._index.home(tensor)
        if home is None:
            raise NotReplayable(f"`{tensor.name}`, which nothing defines")
        return f'["input",{self._encode_graph(home)},{_slot(tensor, home.inputs)}]'

    def _encode_graph(self, graph: Graph) -> str:
        owner = self._index.owner(graph)
        if owner is None:
            return '["main"]'
        return f'["body",{self._numbers[owner]},{bodies(owner).index(graph)}]'

    def decode(self, reference: Any, found: type | None = None) -> Any:
        """Reads what `encode` wrote, in the current graph; `found` is the type of a dataclass.

        Raises NotReplayable for a dataclass without a type.
        """
        if not isinstance(reference, list):
            return reference
        kind, *rest = reference
        if kind == "fields":
            if found is None:
                raise NotReplayable("the type of a dataclass is not known")
            return found(**{name: self.decode(value) for name, value in rest[0].items()})
        if kind in ("list", "tuple"):
            items = [self.decode(each) for each in rest]
            return tuple(items) if kind == "tuple" else items
        if kind == "input":
            return self.decode(rest[0]).inputs[rest[1]]
        if kind == "output":
            return self._nodes[rest[0]].outputs[rest[1]]
        if kind == "body":
            return bodies(self._nodes[rest[0]])[rest[1]]
        if kind == "constant":
            return self._constants[rest[0]]
        return self._index.root if kind == "main" else self._nodes[rest[0]]


def _slot(tensor: Tensor, tensors: Sequence[Tensor]) -> int:
    """The slot of a value; most nodes have one output."""
    if tensors[0] is tensor:
        return 0
    return next(slot for slot, each in enumerate(tensors) if each is tensor)
