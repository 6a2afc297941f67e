"""Writes an `ir.Graph` with its bodies as a GraphProto: the inverse of the importer.

Objects that rules did not change are written from the protos of the file, so that nothing is lost
that onnx-graphsurgeon cannot represent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto

from ..graph import ir
from ..graph.body_forms import can_copy
from ..graph.declarations import declaration
from ..graph.labels import standard_name
from ..graph.names import UniqueNames
from .attributes import decode, encode, is_body, same, schema_type, tensor_proto
from .lazy_values import StoredSparseValues

_GRAPH_FIELDS_FROM_VALUES = frozenset(
    (
        "node",
        "initializer",
        "sparse_initializer",
        "input",
        "output",
        "value_info",
        "quantization_annotation",
    )
)
_NODE_FIELDS_FROM_VALUES = frozenset(("input", "output", "attribute"))
_KINDS = {"sequence_type": "sequence", "optional_type": "other"}
"""The kinds of values (see `Fact.kind`) other than tensors that an Identity may have to copy."""


class Exporter:
    """One export."""

    def __init__(self, opsets: dict[str, int], list_initializers: bool, names: UniqueNames) -> None:
        """`opsets` has the version of each domain.

        `list_initializers` repeats those initializers among the inputs that the file repeats there.
        """
        self._opsets = opsets
        self._list_initializers = list_initializers
        self._names = names
        self.domains: set[str] = set()
        """The domains of all written nodes."""

    def graph(self, graph: ir.Graph, target: onnx.GraphProto) -> None:
        """Writes the main graph into an empty GraphProto."""
        self._graph(graph, target)
        for tensor in graph.outputs:
            target.output.append(_output_info(graph, tensor))

    def _body(self, body: ir.Graph, target: onnx.GraphProto) -> None:
        """Writes a body.

        An Identity copies an output that is a value of an outer graph, which onnxruntime rejects,
        or a computed value that is returned twice, for which onnxruntime returns garbage.
        """
        defined = self._graph(body, target)
        listed: set[ir.Tensor] = set()
        for tensor in body.outputs:
            info = _output_info(body, tensor)
            direct = tensor in defined and (tensor not in listed or isinstance(tensor, ir.Constant))
            if not direct and self._can_copy(tensor):
                info.name = self._names.fresh(tensor.name)
                target.node.add(op_type="Identity", input=[tensor.name], output=[info.name])
            listed.add(tensor)
            target.output.append(info)

    def _can_copy(self, tensor: ir.Tensor) -> bool:
        kind = tensor.type if isinstance(tensor, ir.Variable) else "tensor_type"
        return can_copy(_KINDS.get(kind, "tensor"), self._opsets.get("", 1))

    def _graph(self, graph: ir.Graph, target: onnx.GraphProto) -> set[ir.Tensor]:
        """Writes all but the outputs; returns the values that the graph defines."""
        copy_fields(graph.origin, target, _GRAPH_FIELDS_FROM_VALUES)
        if target.name != graph.name:
            target.name = graph.name
        defined = _initializers(graph, target)
        defined.update(graph.inputs)
        for info in self._inputs(graph):
            target.input.append(info)
        for node in graph.nodes:
            self._node(node, target.node.add())
            defined.update(tensor for tensor in node.outputs if tensor.name)
        target.value_info.extend(_value_infos(graph, defined))
        _annotations(graph, target, defined)
        return defined

    def _inputs(self, graph: ir.Graph) -> list[onnx.ValueInfoProto]:
        tensors = list(graph.inputs)
        if self._list_initializers:
            tensors += [constant for constant in graph.initializers if constant.listed]
            places = _places(graph.origin.input if graph.origin else ())
            tensors.sort(key=lambda tensor: places.get(tensor.name, len(places)))
        return [declaration(tensor, tensor.info) for tensor in tensors]

    def _node(self, node: ir.Node, target: onnx.NodeProto) -> None:
        copy_fields(node.origin, target, _NODE_FIELDS_FROM_VALUES)
        target.input.extend(tensor.name for tensor in node.inputs)
        target.output.extend(tensor.name for tensor in node.outputs)
        if target.op_type != node.op:
            target.op_type = node.op
        if target.name != node.name:
            target.name = node.name
        domain = node.domain or ""
        self.domains.add(domain)
        if standard_name(target.domain) != domain:
            target.domain = domain
        self._attributes(node, target)

    def _attributes(self, node: ir.Node, target: onnx.NodeProto) -> None:
        written: set[str] = set()
        for attribute in node.origin.attribute if node.origin is not None else ():
            written.add(attribute.name)
            value = node.attrs.get(attribute.name)
            if _unchanged(attribute, value):
                target.attribute.add().CopyFrom(attribute)
            elif value is not None:
                added = target.attribute.add()
                if attribute.HasField("doc_string"):
                    added.doc_string = attribute.doc_string
                self._attribute(added, attribute.name, value, attribute.type)
        for name, value in node.attrs.items():
            if name not in written:
                kind = schema_type(node.op, node.domain or "", self._opset(node), name)
                self._attribute(target.attribute.add(), name, value, kind)

    def _opset(self, node: ir.Node) -> int:
        return self._opsets.get(node.domain or "", 1)

    def _attribute(self, target: AttributeProto, name: str, value: Any, kind: int) -> None:
        if isinstance(value, ir.Graph):
            target.name = name
            target.type = AttributeProto.GRAPH
            self._body(value, target.g)
        else:
            encode(target, name, value, kind)


def _unchanged(attribute: AttributeProto, value: Any) -> bool:
    """Whether `Node.attrs` has the same value as the file, or cannot represent the attribute."""
    if is_body(attribute):
        return False
    if value is None:
        return decode(attribute, "") is None
    return same(attribute, value)


def copy_fields(source: Message | None, target: Message, left_out: frozenset[str]) -> None:
    """Copies the fields of a proto other than `left_out`."""
    for field, value in source.ListFields() if source is not None else ():
        if field.name in left_out:
            continue
        if isinstance(value, (str, int, float, bytes)):
            setattr(target, field.name, value)
        elif isinstance(value, Message):
            getattr(target, field.name).CopyFrom(value)
        else:
            getattr(target, field.name).extend(value)


def _output_info(graph: ir.Graph, tensor: ir.Tensor) -> onnx.ValueInfoProto:
    return declaration(tensor, graph.output_info.get(tensor, tensor.info))


def _initializers(graph: ir.Graph, target: onnx.GraphProto) -> set[ir.Tensor]:
    for constant in graph.initializers:
        if isinstance(constant._values, StoredSparseValues):
            sparse = target.sparse_initializer.add()
            sparse.CopyFrom(constant._values.tensor)
            sparse.values.name = constant.name
            continue
        tensor = target.initializer.add()
        tensor.CopyFrom(tensor_proto(constant))
        tensor.name = constant.name
    return set(graph.initializers)


def _places(infos: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    return {info.name: place for place, info in enumerate(infos)}


def _value_infos(graph: ir.Graph, defined: set[ir.Tensor]) -> list[onnx.ValueInfoProto]:
    """The declarations of a graph's values other than inputs and outputs, in file order."""
    interface = {*graph.inputs, *graph.outputs}
    infos = [
        declaration(tensor, tensor.info)
        for tensor in _in_order(graph)
        if tensor.info is not None and tensor not in interface and tensor in defined
    ]
    places = _places(graph.origin.value_info if graph.origin else ())
    infos.sort(key=lambda info: places.get(info.name, len(places)))
    return infos


def _in_order(graph: ir.Graph) -> Iterable[ir.Tensor]:
    yield from (constant for constant in graph.initializers if not constant.listed)
    for node in graph.nodes:
        yield from node.outputs


def _annotations(graph: ir.Graph, target: onnx.GraphProto, defined: set[ir.Tensor]) -> None:
    """Writes the quantization annotations of values that still exist, with their current names."""
    for annotation in graph.annotations:
        known = [tensor for tensor in (annotation.tensor, *annotation.parameters) if tensor]
        if not defined.issuperset(known):
            continue
        proto = target.quantization_annotation.add()
        proto.CopyFrom(annotation.origin)
        if annotation.tensor is not None:
            proto.tensor_name = annotation.tensor.name
        for entry, tensor in zip(
            proto.quant_parameter_tensor_names, annotation.parameters, strict=True
        ):
            if tensor is not None:
                entry.value = tensor.name
