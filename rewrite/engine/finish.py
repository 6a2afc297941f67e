"""The end of a rewrite: what rules left becomes valid ONNX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ..facts.facts import Facts
from ..graph import loop_conditions
from ..graph.body_outputs import BodyOutputs
from ..graph.declarations import without_false_sizes
from ..graph.index import Index
from ..graph.ir import Constant, Graph, Node, Tensor
from ..storage.naming import Names, defined


def finish(
    index: Index, facts: Facts, unread: Collection[Constant], body_outputs: BodyOutputs
) -> None:
    """Leaves graphs sorted, without leftovers, with names and declarations that hold, and bodies
    that return values of their own. Initializers that nothing reads stay only if among `unread`.
    """
    loop_conditions.hand_on(index)
    for graph in list(index.graphs(index.root)):
        index.tidy(graph)
        graph.initializers[:] = [c for c in graph.initializers if index.use_count(c) or c in unread]
    body_outputs.put_copies_in()
    if index.newcomers:
        _separate_value_names(index)
        for graph in list(index.graphs(index.root)):
            _separate_node_names(graph, index)
    for graph in list(index.graphs(index.root)):
        if graph is not index.root:
            _correct_declarations(graph, facts)


def _separate_value_names(index: Index) -> None:
    """Values that stand where they did not stand in the file take names no other value has.

    A file may use one name in several bodies; what leaves a body meets the others.
    """
    names = Names(index.root)
    there = {t for g in index.graphs(index.root) for t in defined(g)}
    counts = Counter(t.name for t in there)
    interface = {*index.root.inputs, *index.root.outputs}
    for newcomer in index.newcomers:
        values: Sequence[Tensor] = newcomer.outputs if isinstance(newcomer, Node) else (newcomer,)
        for value in values:
            if value not in there or value in interface:
                continue
            if value.name and counts[value.name] > 1:
                counts[value.name] -= 1
                value.name = names.fresh(value.name)


def _separate_node_names(graph: Graph, index: Index) -> None:
    """onnxruntime wants the nodes of a graph to have different names; newcomers give way."""
    taken = {node.name for node in graph.nodes if node not in index.newcomers}
    numbers: dict[str, int] = {}
    for node in graph.nodes:
        if node in index.newcomers and node.name:
            name = node.name
            while node.name in taken:
                numbers[name] = numbers.get(name, 0) + 1
                node.name = f"{name}_{numbers[name]}"
            taken.add(node.name)


def _correct_declarations(body: Graph, facts: Facts) -> None:
    """Takes back what is declared of values of a body and cannot be.

    The file's own nodes may have said too little for anyone to notice; the new ones say more.
    """
    for tensor in defined(body):
        if tensor.info is not None:
            tensor.info = without_false_sizes(tensor.info, facts.shape(tensor))
    for tensor in body.outputs:
        info = body.output_info.get(tensor)
        if info is not None:
            body.output_info[tensor] = without_false_sizes(info, facts.shape(tensor))
