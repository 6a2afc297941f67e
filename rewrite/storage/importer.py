"""Reads a GraphProto with its bodies as an `ir.Graph`.

Names are resolved through a chain of scopes, one per graph. A body that names a value of an outer
graph gets that tensor object, so a capture is a reference and survives renaming. A name that a body
defines itself shadows the outer one in that body and the bodies inside it. Scopes are never copied,
so the time is linear in the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from ..errors import ModelError
from ..graph import ir
from ..graph.declarations import declare
from ..graph.labels import body_label, node_label, standard_name, within
from ..graph.ordering import Dependencies, topological
from .attributes import decode, is_body
from .lazy_values import StoredSparseValues, StoredValues

FIRST_IR_WITH_DEFAULTS = 4
"""Since this IR version, an initializer that is also an input is a default that the caller may
override. Before, every initializer had to be repeated among the inputs."""


def need_text(name: str | bytes) -> None:
    """Raises ModelError for a name that is not UTF-8, which protobuf gives as bytes."""
    if isinstance(name, bytes):
        raise ModelError(
            f"The name {name!r} is not text: it is not UTF-8",
            where="the names of the model",
            remedy="The file may be damaged: copy or export it again",
        )


class NameScope:
    """The values that one graph defines, by name, and those that it captures."""

    def __init__(self, outer: NameScope | None, path: str) -> None:
        self.outer = outer
        self.path = path
        self.values: dict[str, ir.Tensor] = {}
        self.captured: set[ir.Tensor] = set()

    def define(self, tensor: ir.Tensor, by: onnx.NodeProto | str) -> None:
        """Raises ModelError if this graph already defines the name, or it is not text."""
        need_text(tensor.name)
        if tensor.name in self.values:
            raise ModelError(
                f"The value '{tensor.name}' is defined twice",
                where=self._where(by),
                remedy="Give every input, initializer and node output of a graph its own name",
            )
        self.values[tensor.name] = tensor

    def find(self, name: str) -> ir.Tensor | None:
        """The value that a name refers to here; the scopes up to its definition capture it."""
        crossed: list[NameScope] = []
        scope: NameScope | None = self
        while scope is not None:
            tensor = scope.values.get(name)
            if tensor is not None:
                for between in crossed:
                    between.captured.add(tensor)
                return tensor
            crossed.append(scope)
            scope = scope.outer
        return None

    def need(self, name: str, by: onnx.NodeProto | str) -> ir.Tensor:
        """Raises ModelError if neither this graph nor an outer one defines the name."""
        tensor = self.values.get(name) or self.find(name)
        if tensor is None:
            raise ModelError(
                f"The value '{name}' is not defined anywhere",
                where=self._where(by),
                remedy="Every name must be a graph input, an initializer or the output of a node "
                "of this or an enclosing graph; export the model again",
            )
        return tensor

    def _where(self, by: onnx.NodeProto | str) -> str:
        return within(by if isinstance(by, str) else node_label(by), self.path)


class Importer:
    """One import: the settings that all graphs of a model share."""

    def __init__(self, ir_version: int, base_dir: str) -> None:
        self._defaults = ir_version >= FIRST_IR_WITH_DEFAULTS
        self._base_dir = base_dir

    def graph(
        self, proto: onnx.GraphProto, outer: NameScope | None = None, path: str = ""
    ) -> ir.Graph:
        """Imports a graph. `path` names the bodies around it; it is "" for the main graph.

        Raises ModelError for undefined names, names defined twice, and cycles.
        """
        return self._graph(proto, NameScope(outer, path))

    def _graph(self, proto: onnx.GraphProto, scope: NameScope) -> ir.Graph:
        graph = ir.Graph(name=proto.name, doc_string=proto.doc_string)
        graph.origin = proto
        declared = _declarations(proto)
        graph.initializers = self._initializers(proto, scope, declared)
        graph.inputs = self._inputs(proto, scope)
        producers = _define_outputs(proto.node, scope, declared)
        graph.nodes = self._nodes(proto.node, scope, producers)
        graph.outputs = [
            scope.need(info.name, f"output '{info.name}' of the graph '{proto.name}'")
            for info in proto.output
        ]
        graph.output_info = {
            tensor: info
            for tensor, info in zip(graph.outputs, proto.output, strict=True)
            if tensor.info is not info
        }
        graph.annotations = [_annotation(a, scope) for a in proto.quantization_annotation]
        return graph

    def _initializers(
        self,
        proto: onnx.GraphProto,
        scope: NameScope,
        declared: dict[str, onnx.ValueInfoProto],
    ) -> list[ir.Constant]:
        constants = [
            ir.Constant(tensor.name, StoredValues(tensor, self._base_dir))
            for tensor in proto.initializer
        ]
        constants += [
            ir.Constant(sparse.values.name, StoredSparseValues(sparse, self._base_dir))
            for sparse in proto.sparse_initializer
        ]
        for constant in constants:
            constant.info = declared.get(constant.name)
            scope.define(constant, f"initializer '{constant.name}'")
        return constants

    def _inputs(self, proto: onnx.GraphProto, scope: NameScope) -> list[ir.Tensor]:
        inputs: list[ir.Tensor] = []
        seen: set[str] = set()
        for info in proto.input:
            known = scope.values.get(info.name)
            if isinstance(known, ir.Constant) and info.name not in seen:
                known.info = info
                known.overridable = self._defaults
                known.listed = not self._defaults
                if self._defaults:
                    inputs.append(known)
            else:
                variable = ir.Variable(info.name)
                declare(variable, info)
                scope.define(variable, f"graph input '{info.name}'")
                inputs.append(variable)
            seen.add(info.name)
        return inputs

    def _nodes(
        self,
        protos: Iterable[onnx.NodeProto],
        scope: NameScope,
        producers: dict[ir.Tensor, int],
    ) -> list[ir.Node]:
        nodes: list[ir.Node] = []
        dependencies = Dependencies(producers)
        for proto in protos:
            node, captured = self._node(proto, scope)
            dependencies.add(node.inputs, captured)
            nodes.append(node)
        ordered = topological(nodes, dependencies, scope.path)
        ir.number_nodes(ordered)
        return ordered

    def _node(self, proto: onnx.NodeProto, scope: NameScope) -> tuple[ir.Node, set[ir.Tensor]]:
        op, name, domain = proto.op_type, proto.name, proto.domain
        for text in (op, name, domain):
            need_text(text)
        inputs = [scope.need(name, proto) if name else ir.Variable("") for name in proto.input]
        outputs = [scope.values[name] if name else ir.Variable("") for name in proto.output]
        attrs = {}
        captured: set[ir.Tensor] = set()
        for attribute in proto.attribute:
            if is_body(attribute):
                body = NameScope(scope, body_label(attribute.name, proto, scope.path))
                attrs[attribute.name] = self._graph(attribute.g, body)
                captured |= body.captured
            else:
                value = decode(attribute, self._base_dir)
                if value is not None:
                    attrs[attribute.name] = value
        node = ir.Node(
            op=op,
            name=name,
            attrs=attrs,
            inputs=inputs,
            outputs=outputs,
            domain=standard_name(domain),
            origin=proto,
        )
        return node, captured


def _declarations(proto: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The declared types of values, by name; a declaration as an output takes precedence."""
    declared = {info.name: info for info in proto.value_info}
    declared.update(
        (info.name, info)
        for info in proto.output
        if info.HasField("type") or info.name not in declared
    )
    return declared


def _define_outputs(
    protos: Iterable[onnx.NodeProto],
    scope: NameScope,
    declared: dict[str, onnx.ValueInfoProto],
) -> dict[ir.Tensor, int]:
    """Defines the outputs of all nodes; returns the index of the producer of each.

    Runs before any node is imported, because a file need not list its nodes in order.
    """
    producers: dict[ir.Tensor, int] = {}
    for index, proto in enumerate(protos):
        for name in proto.output:
            if not name:
                continue
            variable = ir.Variable(name)
            declare(variable, declared.get(name))
            scope.define(variable, proto)
            producers[variable] = index
    return producers


def _annotation(proto: onnx.TensorAnnotation, scope: NameScope) -> ir.Annotation:
    return ir.Annotation(
        proto,
        scope.find(proto.tensor_name),
        tuple(scope.find(entry.value) for entry in proto.quant_parameter_tensor_names),
    )
