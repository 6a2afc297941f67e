"""Edits that make a model smaller. Each changes a copy; `tidy` then makes the copy valid.

Every value of the model has a unique name (`normalised`), so that nodes can move between graphs,
and a value that is no longer computed can become an input of the main graph, which bodies see, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, helper

from ...request import Request
from ...rewrite.facts.fact import Fact
from ...rewrite.graph.ir import Tensor
from ...rewrite.graph.names import UniqueNames, defined, graphs
from ...rewrite.storage.model import export_model, import_model
from ...rewrite.symbolic import Dim
from ..fact_text import is_named

Path = tuple[tuple[int, int], ...]
"""The way to a body: pairs of a node and an attribute, by number."""
Types = dict[str, onnx.ValueInfoProto]
"""Declarations by name, without values whose type is not known."""


class NotPossible(Exception):
    """The edit does not give a valid model."""


def normalised(model: onnx.ModelProto, base_dir: str) -> onnx.ModelProto:
    """The model with functions inlined and a unique name for each value.

    Raises ModelError if the model is not valid.
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
        del proto.quantization_annotation[:]
    return plain


# --- graphs and bodies ---


def walk(graph: onnx.GraphProto, path: Path = ()) -> Iterator[tuple[Path, onnx.GraphProto]]:
    """A graph and all bodies in it, outer ones first."""
    yield path, graph
    for place, node in enumerate(graph.node):
        for slot, attribute in enumerate(node.attribute):
            if attribute.type == AttributeProto.GRAPH:
                yield from walk(attribute.g, (*path, (place, slot)))


def at(model: onnx.ModelProto, path: Path) -> onnx.GraphProto:
    """The graph at the end of a path."""
    graph = model.graph
    for place, slot in path:
        graph = graph.node[place].attribute[slot].g
    return graph


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def body(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    found: onnx.GraphProto = next(a.g for a in node.attribute if a.name == name)
    return found


def size(model: onnx.ModelProto) -> int:
    """The number of nodes, including those in bodies."""
    return sum(len(graph.node) for _, graph in walk(model.graph))


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


# --- types of values ---


def types_of(model: onnx.ModelProto, base_dir: str) -> Types:
    """Declarations from facts, for a model in which names are unique."""
    engine = Request(model, base_dir).engine()
    names = _DimNames()
    found: Types = {}
    for tensor in (t for graph in graphs(engine.model.graph) for t in defined(graph)):
        declared = _declaration(tensor, engine.facts.of(tensor), names) if tensor.name else None
        if declared is not None:
            found[tensor.name] = declared
    found.update((info.name, info) for info in model.graph.input)
    return found


class _DimNames:
    """UniqueNames of dims: those of the file, and a new one for each other expression."""

    def __init__(self) -> None:
        self._unknown: dict[Dim, str] = {}

    def name(self, dim: Dim) -> int | str:
        if isinstance(dim, int):
            return dim
        if is_named(dim):
            return str(dim)
        return self._unknown.setdefault(dim, f"unknown_{len(self._unknown)}")


def _declaration(tensor: Tensor, fact: Fact, names: _DimNames) -> onnx.ValueInfoProto | None:
    if not fact.dtype or fact.kind not in ("tensor", "sequence"):
        return None
    shape = None if fact.shape is None else [names.name(dim) for dim in fact.shape]
    make = (
        helper.make_tensor_value_info
        if fact.kind == "tensor"
        else helper.make_tensor_sequence_value_info
    )
    return make(tensor.name, fact.dtype, shape)


def drop_declarations(model: onnx.ModelProto) -> None:
    """Drops the declared types of all values but inputs and outputs."""
    for _, graph in walk(model.graph):
        del graph.value_info[:]


# --- edits of nodes ---


def drop_outputs(model: onnx.ModelProto, first: int, last: int) -> None:
    """Drops outputs of the model, but not all of them."""
    if last - first >= len(model.graph.output):
        raise NotPossible
    del model.graph.output[first:last]


def drop_nodes(model: onnx.ModelProto, path: Path, first: int, last: int) -> None:
    """Drops nodes; their results that are still read become inputs of the model."""
    del at(model, path).node[first:last]


def forward(model: onnx.ModelProto, path: Path, place: int, slot: int, types: Types) -> None:
    """Drops a node and makes its readers read one of its operands, which has the same type."""
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


def truncate(model: onnx.ModelProto, path: Path, place: int, types: Types) -> None:
    """Drops all nodes from an index on.

    A body returns earlier values of the same types instead, the model its last remaining value.
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
    """The last of some values that has the same type."""
    if name in types:
        for other in reversed(kept):
            if types[other].type == types[name].type:
                return other
    raise NotPossible


def rename_reads(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Makes every reader of a value, in bodies too, read another one."""
    for _, inner in walk(graph):
        for node in inner.node:
            for slot, name in enumerate(node.input):
                if name == old:
                    node.input[slot] = new
        for info in inner.output:
            if info.name == old:
                info.name = new


# --- a valid model ---


def tidy(model: onnx.ModelProto, types: Types) -> onnx.ModelProto:
    """Removes what nothing reads, and makes inputs of values that nothing computes.

    Raises NotPossible if no output remains or the type of an input is not known.
    """
    graph = model.graph
    _drop_lost_outputs(graph)
    _prune(graph)
    _copy_outer_results(graph)
    _drop_lost_declarations(graph)
    inputs = _inputs(graph)
    for name in dict.fromkeys(_undefined(graph, set())):
        if name not in types:
            raise NotPossible
        graph.input.add().CopyFrom(types[name])
    read = set(_reads(graph))
    for info in [info for info in graph.input if info.name not in read and info.name in inputs]:
        graph.input.remove(info)
    if not graph.output or not graph.node:
        raise NotPossible
    for info in graph.output:
        if not info.HasField("type") and info.name in types:
            info.CopyFrom(types[info.name])
    return model


def _drop_lost_outputs(graph: onnx.GraphProto) -> None:
    """Drops outputs of the model that no node computes."""
    computed = {name for node in graph.node for name in node.output}
    for info in [info for info in graph.output if info.name not in computed]:
        graph.output.remove(info)


def _drop_lost_declarations(graph: onnx.GraphProto) -> None:
    for _, inner in walk(graph):
        computed = {name for node in inner.node for name in node.output}
        for info in [info for info in inner.value_info if info.name not in computed]:
            inner.value_info.remove(info)


def _prune(graph: onnx.GraphProto) -> None:
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


def _copy_outer_results(graph: onnx.GraphProto) -> None:
    """Adds an Identity for each value that a body returns without computing it; onnxruntime does
    not accept a body that returns an outer value.
    """
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


def _inputs(graph: onnx.GraphProto) -> set[str]:
    return {info.name for info in graph.input}


def _reads(graph: onnx.GraphProto) -> Iterator[str]:
    """Everything that a graph and the bodies in it read."""
    for _, inner in walk(graph):
        for node in inner.node:
            yield from node.input
        yield from (info.name for info in inner.output)


def _undefined(graph: onnx.GraphProto, outer: set[str]) -> Iterator[str]:
    """The names that a graph and the bodies in it read but nothing defines."""
    known = outer | _inputs(graph) | {tensor.name for tensor in graph.initializer} | {""}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        yield from (name for name in node.input if name not in known)
        for inner in bodies(node):
            yield from _undefined(inner, known)
        known.update(node.output)
    yield from (info.name for info in graph.output if info.name not in known)
