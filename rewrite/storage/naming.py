"""Renames values before export, so that each name refers to the value that the graph means.

In memory a value is an object. In a file it is a name, and a body sees the names of the graphs
around it. Export needs different names for two values of one graph, and for a node output of a body
and any value of the graphs around it (ONNX forbids shadowing). The latter includes values that are
computed after the node with the body, because onnxruntime may compute them first.
"""

from __future__ import annotations

from ..errors import ModelError
from ..graph import ir
from ..graph.labels import body_label, node_label, within
from ..graph.names import UniqueNames


def separate_names(root: ir.Graph, names: UniqueNames) -> None:
    """Renames values whose names clash, but never inputs or outputs of the main graph.

    Raises ModelError if a node reads a value that no graph around it defines.
    """
    _Renaming(root, names).visit(root, [], "")


Around = tuple[tuple[dict[str, ir.Node], ir.Node], ...]
"""For each graph around a body: the producer of each name, and the node that has the body."""


class _Renaming:
    def __init__(self, root: ir.Graph, names: UniqueNames) -> None:
        self._interface = {*root.inputs, *root.outputs}
        self._names = names

    def visit(
        self, graph: ir.Graph, outer: list[dict[str, ir.Tensor]], path: str, around: Around = ()
    ) -> None:
        scopes = [*outer, {}]
        producers = {tensor.name: node for node in graph.nodes for tensor in node.outputs}
        for tensor in (*graph.inputs, *graph.initializers):
            self._define(tensor, scopes)
        for node in graph.nodes:
            self._check_reads(node.inputs, scopes, node, path)
            for name, body in ir.named_bodies(node):
                place = body_label(name, node, path)
                self.visit(body, scopes, place, (*around, (producers, node)))
            for tensor in node.outputs:
                if tensor.name:
                    self._define_output(tensor, scopes, around)
        self._check_reads(graph.outputs, scopes, f"outputs of the graph '{graph.name}'", path)

    def _define(self, tensor: ir.Tensor, scopes: list[dict[str, ir.Tensor]]) -> None:
        names = scopes[-1]
        other = names.get(tensor.name)
        if other is not None and other is not tensor:
            renamed = other if tensor in self._interface else tensor
            self._rename(renamed)
            names[renamed.name] = renamed
        names[tensor.name] = tensor

    def _define_output(
        self, tensor: ir.Tensor, scopes: list[dict[str, ir.Tensor]], around: Around
    ) -> None:
        clashes = any(producers.get(tensor.name, owner) is not owner for producers, owner in around)
        if clashes or any(tensor.name in names for names in scopes[:-1]):
            self._rename(tensor)
        self._define(tensor, scopes)

    def _check_reads(
        self,
        tensors: list[ir.Tensor],
        scopes: list[dict[str, ir.Tensor]],
        reader: ir.Node | str,
        path: str,
    ) -> None:
        for tensor in tensors:
            if tensor.name and scopes[-1].get(tensor.name) is not tensor:
                label = reader if isinstance(reader, str) else node_label(reader)
                self._make_visible(tensor, scopes, within(label, path))

    def _make_visible(
        self, tensor: ir.Tensor, scopes: list[dict[str, ir.Tensor]], place: str
    ) -> None:
        """Renames the inputs and initializers of graphs in between that shadow a captured value."""
        for names in reversed(scopes):
            found = names.get(tensor.name)
            if found is tensor:
                return
            if found is not None:
                del names[tensor.name]
                self._rename(found)
                names[found.name] = found
        raise ModelError(
            f"The value '{tensor.name}' is read, but no enclosing graph defines it before",
            where=place,
            remedy="If the model was valid before rewriting, a rule is at fault",
        )

    def _rename(self, tensor: ir.Tensor) -> None:
        tensor.name = self._names.fresh(tensor.name)
