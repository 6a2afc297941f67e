"""Ways to make a model smaller. Each changes a copy and leaves the rest to `tidy`.

Every value of the model has a name of its own (`normalised`), so that nodes can move between graphs
and what is no longer computed can become an input of the main graph, which all bodies see.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto

from ...rewrite.storage.model import export_model, import_model
from ...rewrite.storage.naming import UniqueNames, defined, graphs
from .types import Types

Graph = onnx.GraphProto
Path = tuple[tuple[int, int], ...]
"""Node and attribute numbers that lead to a body."""


class NotPossible(Exception):
    """The edit gives no model."""


def normalised(model: onnx.ModelProto, base_dir: str) -> onnx.ModelProto:
    """The model with functions inlined, a name of its own for each value, and no declarations but
    those of the interface. Raises ModelError if it is not valid.
    """
    imported = import_model(model, base_dir)
    names, seen = UniqueNames(imported.graph), set()
    for graph in graphs(imported.graph):
        for tensor in defined(graph):
            if tensor.name and tensor.name in seen:
                tensor.name = names.fresh(tensor.name)
            seen.add(tensor.name)
    plain = export_model(imported)
    for _, proto in walk(plain.graph):
        del proto.value_info[:]
        del proto.quantization_annotation[:]
    return plain


# --- finding one's way ---


def walk(graph: Graph, path: Path = ()) -> Iterator[tuple[Path, Graph]]:
    """A graph and all bodies in it, outer ones first."""
    yield path, graph
    for place, node in enumerate(graph.node):
        for slot, attribute in enumerate(node.attribute):
            if attribute.type == AttributeProto.GRAPH:
                yield from walk(attribute.g, (*path, (place, slot)))


def at(model: onnx.ModelProto, path: Path) -> Graph:
    """The body a path leads to."""
    graph = model.graph
    for place, slot in path:
        graph = graph.node[place].attribute[slot].g
    return graph


def bodies(node: onnx.NodeProto) -> list[Graph]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def body(node: onnx.NodeProto, name: str = "body") -> Graph:
    found: Graph = next(a.g for a in node.attribute if a.name == name)
    return found


def size(model: onnx.ModelProto) -> int:
    """The number of nodes, those in bodies included."""
    return sum(len(graph.node) for _, graph in walk(model.graph))


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


# --- edits of nodes ---


def drop_outputs(model: onnx.ModelProto, first: int, last: int) -> None:
    """Takes away outputs of the model; one stays."""
    if last - first >= len(model.graph.output):
        raise NotPossible
    del model.graph.output[first:last]


def drop_nodes(model: onnx.ModelProto, path: Path, first: int, last: int) -> None:
    """Takes away nodes; what is read of them becomes inputs of the model."""
    del at(model, path).node[first:last]


def forward(model: onnx.ModelProto, path: Path, place: int, slot: int, types: Types) -> None:
    """Lets the readers of a node read one of its operands, which has the same type."""
    graph = at(model, path)
    node = graph.node[place]
    results = [name for name in node.output if name]
    if slot >= len(node.input) or not node.input[slot] or len(results) != 1:
        raise NotPossible
    old, new = results[0], node.input[slot]
    if old not in types or new not in types or types[old].type != types[new].type:
        raise NotPossible
    if not path and any(info.name == old for info in graph.output):
        raise NotPossible  # an output of the model keeps its name
    del graph.node[place]
    rename_reads(model.graph, old, new)


def end_earlier(model: onnx.ModelProto, path: Path, place: int, types: Types) -> None:
    """Takes away the nodes from a place on; a body returns earlier values of the same types
    instead, the model the last value that is left.
    """
    graph = at(model, path)
    kept = [name for node in graph.node[:place] for name in node.output if name in types]
    lost = {name for node in graph.node[place:] for name in node.output if name}
    if not kept:
        raise NotPossible
    del graph.node[place:]
    if not path:
        del graph.output[:]
        graph.output.add().CopyFrom(types[kept[-1]])
        return
    for info in graph.output:
        if info.name in lost:
            info.name = _latest_like(info.name, kept, types)


def _latest_like(name: str, kept: list[str], types: Types) -> str:
    if name in types:
        for other in reversed(kept):
            if types[other].type == types[name].type:
                return other
    raise NotPossible


def rename_reads(graph: Graph, old: str, new: str) -> None:
    """Lets every reader of a value, in bodies too, read another one."""
    for _, inner in walk(graph):
        for node in inner.node:
            for slot, name in enumerate(node.input):
                if name == old:
                    node.input[slot] = new
        for info in inner.output:
            if info.name == old:
                info.name = new


# --- leaving a valid model ---


def tidy(model: onnx.ModelProto, types: Types) -> onnx.ModelProto:
    """Removes what nothing reads and makes inputs of what nothing computes.

    Raises NotPossible if no output is left or the type of an input is not known.
    """
    graph = model.graph
    _drop_lost_outputs(graph)
    _prune(graph)
    _own_results(graph)
    given = _given(graph)
    for name in dict.fromkeys(_undefined(graph, set())):
        if name not in types:
            raise NotPossible
        graph.input.add().CopyFrom(types[name])
    read = set(_reads(graph))
    for info in [info for info in graph.input if info.name not in read and info.name in given]:
        graph.input.remove(info)
    if not graph.output or not graph.node:
        raise NotPossible
    return model


def _drop_lost_outputs(graph: Graph) -> None:
    """Outputs of the model that no node computes any more."""
    computed = {name for node in graph.node for name in node.output}
    for info in [info for info in graph.output if info.name not in computed]:
        graph.output.remove(info)


def _prune(graph: Graph) -> None:
    """Removes nodes, from the last to the first, and initializers that nothing reads."""
    needed = {info.name for info in graph.output}
    for place in range(len(graph.node) - 1, -1, -1):
        node = graph.node[place]
        if not needed.intersection(name for name in node.output if name):
            del graph.node[place]
            continue
        for inner in bodies(node):
            _prune(inner)
            needed.update(_reads(inner))
        needed.update(node.input)
    for tensor in [t for t in graph.initializer if t.name not in needed]:
        graph.initializer.remove(tensor)


def _own_results(graph: Graph) -> None:
    """Gives a body that returns a value it does not compute a copy of it (see `Engine.finish`)."""
    for path, inner in walk(graph):
        if not path:
            continue
        computed = {name for node in inner.node for name in node.output}
        for info in inner.output:
            if info.name not in computed:
                copy = f"{info.name}_of_{inner.name or 'body'}_{len(path)}"
                while copy in computed:
                    copy += "_"
                inner.node.add(op_type="Identity", input=[info.name], output=[copy])
                info.name = copy
                computed.add(copy)


def _given(graph: Graph) -> set[str]:
    return {info.name for info in graph.input}


def _reads(graph: Graph) -> Iterator[str]:
    """Everything a graph and the bodies in it read."""
    for _, inner in walk(graph):
        for node in inner.node:
            yield from node.input
        yield from (info.name for info in inner.output)


def _undefined(graph: Graph, outer: set[str]) -> Iterator[str]:
    known = outer | _given(graph) | {tensor.name for tensor in graph.initializer} | {""}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in node.input if name not in known)
        for inner in bodies(node):
            yield from _undefined(inner, known)
        known.update(node.output)
    yield from (info.name for info in graph.output if info.name not in known)
