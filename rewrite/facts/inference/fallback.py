"""Infers the types and shapes of all other operators with onnx's own per-node inference."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper, numpy_helper

from ...graph.ir import Graph, bodies
from ...storage.attributes import encode, schema_type
from ...symbolic import Dim
from ..fact import Fact
from .registry import NodeContext


def infer_by_schema(ctx: NodeContext) -> Sequence[Fact]:
    """The facts of a node's outputs by its onnx schema.

    A symbolic dim is passed as a name, which onnx returns for dims that it keeps.
    """
    node = ctx.node
    domain = "" if node.domain in (None, "ai.onnx") else node.domain
    version = ctx.facts.opset_of(domain)
    count = len(node.outputs)
    unknown = [Fact() for _ in range(count)]
    if bodies(node):
        return unknown
    try:
        schema = onnx.defs.get_schema(node.op, version, domain)
    except onnx.defs.SchemaError:
        return unknown
    names: dict[str, Dim] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    proto = helper.make_node(
        node.op,
        [f"i{slot}" if t.name else "" for slot, t in enumerate(node.inputs)],
        [f"o{slot}" for slot in range(count)],
        domain=domain,
    )
    proto.attribute.extend(_attributes(ctx))
    for slot in range(len(node.inputs)):
        if not ctx.present(slot):
            continue
        fact = ctx.fact(slot)
        if fact.kind != "tensor" or not fact.dtype:
            return unknown
        types[f"i{slot}"] = _type_proto(fact, names)
        array = ctx.constant(slot) if fact.values is not None else None
        if array is not None:
            data[f"i{slot}"] = numpy_helper.from_array(array)
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[helper.make_opsetid(domain, version)]
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
        # onnx rejects nodes that run (and accepts some that fail): an error proves nothing here.
        return unknown
    return [_fact(ctx, slot, inferred.get(f"o{slot}"), names) for slot in range(count)]


def types_by_schema(ctx: NodeContext) -> Sequence[Fact]:
    """The element types of a node's outputs, whatever the shapes of its inputs are."""
    then = ctx.attr("then_branch")
    if isinstance(then, Graph):
        results = map(ctx.facts.of, then.outputs)
        return [Fact(fact.dtype, kind=fact.kind) for fact in results]
    facts = infer_by_schema(_TypesOnly(ctx.node, ctx.facts))
    return [Fact(fact.dtype, kind=fact.kind) for fact in facts]


class _TypesOnly(NodeContext):
    """A node whose inputs have types, but neither shapes nor elements."""

    def fact(self, slot: int) -> Fact:
        known = super().fact(slot)
        return Fact(known.dtype, kind=known.kind)


def _attributes(ctx: NodeContext) -> list[onnx.AttributeProto]:
    node = ctx.node
    version = ctx.facts.opset_of(node.domain or "")
    result = []
    for name, value in node.attrs.items():
        attribute = onnx.AttributeProto()
        encode(attribute, name, value, schema_type(node.op, node.domain or "", version, name))
        result.append(attribute)
    return result


def _type_proto(fact: Fact, names: dict[str, Dim]) -> onnx.TypeProto:
    if fact.shape is None:
        return helper.make_tensor_type_proto(fact.dtype, None)
    dims: list[int | str] = []
    for dim in fact.shape:
        if isinstance(dim, int):
            dims.append(dim)
            continue
        name = f"d{len(names)}"
        names[name] = dim
        dims.append(name)
    return helper.make_tensor_type_proto(fact.dtype, dims)


def _fact(
    ctx: NodeContext, slot: int, inferred: onnx.TypeProto | None, names: dict[str, Dim]
) -> Fact:
    if inferred is None or inferred.WhichOneof("value") != "tensor_type":
        return Fact(kind="tensor" if inferred is None else "other")
    tensor = inferred.tensor_type
    if not tensor.HasField("shape"):
        return Fact(tensor.elem_type)
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(names.get(dim.dim_param, ctx.fresh(axis, slot)))
    return Fact(tensor.elem_type, tuple(dims))
