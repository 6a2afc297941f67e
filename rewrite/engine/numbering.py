"""Numbers that name the nodes and constants of one rewrite, the same in each run of it.

Names cannot: they repeat between bodies, and many nodes have none.
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


class NoReference(Exception):
    """Something that cannot be written in numbers, such as an object other than a dataclass."""


class Numbers:
    """Numbers of nodes: those of the file in its order, bodies before their owner, then those that
    commits add, commit by commit. Constants are numbered likewise.

    Rewriting is deterministic and patches that are undone leave no numbers behind, so that a
    number means the same node in a rewrite and in its replay.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._nodes: list[Node] = list(index.walk())
        self._numbers = dict(zip(self._nodes, range(len(self._nodes))))
        stored = (c for graph in index.graphs(index.root) for c in graph.initializers)
        self._constants: list[Constant] = list(dict.fromkeys(stored))
        self._places = {constant: number for number, constant in enumerate(self._constants)}

    def __getitem__(self, node: Node) -> int:
        return self._numbers[node]

    def of(self, nodes: Iterable[Node]) -> list[int]:
        return list(map(self._numbers.__getitem__, nodes))

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, number: int) -> Node | None:
        """The node of this number, which may be gone from the graph; None if there is none yet."""
        return self._nodes[number] if 0 <= number < len(self._nodes) else None

    def update(self, patch: Patch) -> list[Node]:
        """Numbers what a commit added; returns the nodes among it."""
        before = len(self._nodes)
        for constant in patch.stored:
            self._take_constant(constant)
        for node in patch.touched:
            if node not in self._numbers:
                self._take(node)
        return self._nodes[before:]

    def _take(self, node: Node) -> None:
        for body in bodies(node):
            for constant in body.initializers:
                self._take_constant(constant)
            for inner in body.nodes:
                if inner not in self._numbers:
                    self._take(inner)
        self._numbers[node] = len(self._nodes)
        self._nodes.append(node)

    def _take_constant(self, constant: Constant) -> None:
        if constant not in self._places:
            self._places[constant] = len(self._constants)
            self._constants.append(constant)

    # --- what a match found ---

    def refer(self, thing: object) -> str:
        """Writes a node, value, body, plain datum, or a list or dataclass of them as JSON, with
        numbers for nodes and constants; `resolve` reads it back.

        Raises NoReference for anything else.
        """
        if isinstance(thing, Node):
            return f'["node",{self._numbers[thing]}]'
        if isinstance(thing, Graph):
            return self._refer_graph(thing)
        if isinstance(thing, Tensor):
            return self._refer_value(thing)
        if type(thing) in (list, tuple):
            items = map(self.refer, thing)  # type: ignore[call-overload]
            return f"[{','.join((_text(type(thing).__name__), *items))}]"
        if thing is None or isinstance(thing, (bool, int, str)):
            return _text(thing)
        if is_dataclass(thing) and not isinstance(thing, type):
            values = (
                f"{_text(f.name)}:{self.refer(getattr(thing, f.name))}" for f in fields(thing)
            )
            return f'["fields",{{{",".join(values)}}}]'
        raise NoReference(type(thing).__name__)

    def _refer_value(self, tensor: Tensor) -> str:
        if isinstance(tensor, Constant) and tensor in self._places:
            return f'["constant",{self._places[tensor]}]'
        producer = self._index.producer(tensor)
        if producer is not None:
            slot = _slot(tensor, producer.outputs)
            return f'["output",{self._numbers[producer]},{slot}]'
        home = self._index.home(tensor)
        if home is None:
            raise NoReference(f"`{tensor.name}`, which nothing defines")
        return f'["input",{self._refer_graph(home)},{_slot(tensor, home.inputs)}]'

    def _refer_graph(self, graph: Graph) -> str:
        owner = self._index.owner(graph)
        if owner is None:
            return '["main"]'
        return f'["body",{self._numbers[owner]},{bodies(owner).index(graph)}]'

    def resolve(self, reference: Any, found: type | None = None) -> Any:
        """What `refer` wrote, in the graph as it stands; `found` is the type of a dataclass.

        Raises NoReference for a dataclass whose type is not given.
        """
        if not isinstance(reference, list):
            return reference
        kind, *rest = reference
        if kind == "fields":
            if found is None:
                raise NoReference("the type of a dataclass is not known")
            return found(**{name: self.resolve(value) for name, value in rest[0].items()})
        if kind in ("list", "tuple"):
            items = [self.resolve(each) for each in rest]
            return tuple(items) if kind == "tuple" else items
        if kind == "input":
            return self.resolve(rest[0]).inputs[rest[1]]
        if kind == "output":
            return self._nodes[rest[0]].outputs[rest[1]]
        if kind == "body":
            return bodies(self._nodes[rest[0]])[rest[1]]
        if kind == "constant":
            return self._constants[rest[0]]
        return self._index.root if kind == "main" else self._nodes[rest[0]]


def _slot(tensor: Tensor, tensors: Sequence[Tensor]) -> int:
    """Where a value stands; most nodes have one output."""
    if tensors[0] is tensor:
        return 0
    return next(slot for slot, each in enumerate(tensors) if each is tensor)
