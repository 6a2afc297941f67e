"""The graph after each commit of a rewrite, stored as changes.

The page of a rewrite with thousands of commits stays small: a node is stored once for each form it
had, and most have one. Nodes, values and graphs are numbers; a version `[commit, …]` is valid from
that commit on, 0 being the model in the file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx.defs

from ...rewrite.graph.ir import Constant, Graph, Node, Tensor, named_bodies
from ..fact_text import value_text
from ..replay import Replay
from ..trace_reader import CommitLine

_FEW = 6
"""The elements of a constant or list that are written out."""
_LONGEST = 200
"""The characters of an attribute that are shown."""

Version = list[Any]


class Pool:
    """Items that repeat, such as texts, each stored once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[Hashable, int] = {}

    def place(self, item: Any, key: Hashable = None) -> int:
        """The number of an item; `key` identifies an item that is not hashable."""
        key = item if key is None else key
        if key not in self._places:
            self._places[key] = len(self.items)
            self.items.append(item)
        return self._places[key]


class GraphHistory:
    """The versions of nodes, values and graphs. Nodes have the numbers of the trace."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._index = replay.engine.index
        self._facts = replay.engine.facts
        self._texts, self._records = Pool(), Pool()
        self._values: dict[Tensor, int] = {}
        self._value_versions: list[list[Version]] = []
        self._graphs: dict[Graph, int] = {}
        self._graph_facts: list[dict[str, Any]] = []
        self._node_versions: dict[int, list[Version]] = {}
        self._formals: dict[str, list[str]] = {}
        self._outputs = self._output_names()
        self._add_graph(self._index.root, 0)
        for node in self._index.walk():
            self._add_node(node, 0)

    def advance(self, commit: CommitLine) -> None:
        """Adds what a commit changed, after the replay has made it."""
        for number in commit.removed:
            self._push(self._versions(number), [commit.number, -1])
        for number in dict.fromkeys((*commit.touched, *commit.added)):
            node = self._replay.numbers.node(number)
            if node is not None and node in self._index:
                self._add_node(node, commit.number)
        # A value that replaces an output also takes over its name.
        outputs = self._output_names()
        if outputs != self._outputs:
            self._outputs = outputs
            self._add_graph(self._index.root, commit.number)

    def as_json(self) -> dict[str, Any]:
        count = max(self._node_versions, default=-1) + 1
        return {
            "texts": self._texts.items,
            "records": self._records.items,
            "values": self._value_versions,
            "graphs": self._graph_facts,
            "nodes": [self._node_versions.get(number, []) for number in range(count)],
            "formals": self._formals,
        }

    def _output_names(self) -> list[tuple[Tensor, str]]:
        return [(tensor, tensor.name) for tensor in self._index.root.outputs]

    # --- nodes ---

    def _add_node(self, node: Node, commit: int) -> None:
        home = self._graph(self._index.graph_of(node))
        inputs = [self._value(t, commit) if t.name else -1 for t in node.inputs]
        outputs = [self._value(t, commit) if t.name else -1 for t in node.outputs]
        op = f"{node.domain}.{node.op}" if node.domain else node.op
        if op not in self._formals:
            self._formals[op] = _formal_inputs(node, self._facts.opset)
        record = [
            self._texts.place(op),
            node.name or "",
            self._texts.place(_attributes(node)),
            home,
            inputs,
            outputs,
        ]
        place = self._records.place(record, str(record))
        self._push(self._versions(self._replay.numbers[node]), [commit, place])
        for attribute, body in named_bodies(node):
            self._add_graph(body, commit, self._replay.numbers[node], attribute)

    def _versions(self, number: int) -> list[Version]:
        return self._node_versions.setdefault(number, [])

    # --- graphs ---

    def _graph(self, graph: Graph) -> int:
        number = self._graphs.get(graph)
        if number is None:
            number = self._graphs[graph] = len(self._graphs)
            about: dict[str, Any] = {
                "name": graph.name or "",
                "owner": -1,
                "attribute": [],
                "versions": [],
            }
            self._graph_facts.append(about)
        return number

    def _add_graph(self, graph: Graph, commit: int, owner: int = -1, attribute: str = "") -> None:
        about = self._graph_facts[self._graph(graph)]
        about["owner"] = owner
        self._push(about["attribute"], [commit, attribute])
        inputs = [self._value(t, commit) for t in graph.inputs]
        outputs = [self._value(t, commit) for t in graph.outputs]
        self._push(about["versions"], [commit, inputs, outputs])

    # --- values ---

    def _value(self, tensor: Tensor, commit: int) -> int:
        number = self._values.get(tensor)
        if number is None:
            number = self._values[tensor] = len(self._values)
            self._value_versions.append([])
        stored = constant_text(tensor) if isinstance(tensor, Constant) else None
        version = [
            commit,
            tensor.name,
            self._texts.place(value_text(self._facts.of(tensor))),
            -1 if stored is None else self._texts.place(stored),
        ]
        self._push(self._value_versions[number], version)
        return number

    @staticmethod
    def _push(versions: list[Version], version: Version) -> None:
        """Adds a version unless it equals the last one."""
        if versions and versions[-1][0] == version[0]:
            versions.pop()
        if not versions or versions[-1][1:] != version[1:]:
            versions.append(version)


def _formal_inputs(node: Node, opset: int) -> list[str]:
    """The names of the inputs in the operator specification; empty if it is not known."""
    if node.domain or not onnx.defs.has(node.op):
        return []
    schema = onnx.defs.get_schema(node.op, opset)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return [given.name for given in schema.inputs if given.option != variadic]


def constant_text(constant: Constant) -> str:
    """The elements of a small constant, or the type and shape of a large one."""
    if int(np.prod(constant.shape)) <= _FEW:
        return _shortened(np.asarray(constant.values).tolist())
    return f"{constant.dtype}[{', '.join(map(str, constant.shape))}]"


def _attributes(node: Node) -> str:
    """`group=1, pads=[0, 0]`, without bodies."""
    given = {name: value for name, value in node.attrs.items() if not isinstance(value, Graph)}
    return ", ".join(f"{name}={_attribute(value)}" for name, value in given.items())


def _attribute(value: object) -> str:
    if isinstance(value, Constant):
        return constant_text(value)
    if isinstance(value, (list, tuple)) and len(value) > _FEW:
        return f"[{_listed(value[:_FEW])}, … {len(value)} in all]"
    return _shortened(value)


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
