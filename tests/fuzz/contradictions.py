"""Models that declare other sizes than they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from looplift.rewrite.storage.protos import attributes, body_protos, containers

TensorType = onnx.TypeProto.Tensor


def breaks_declarations(
    model: onnx.ModelProto, feed: Mapping[str, Any], outputs: Sequence[Any]
) -> bool:
    """Whether an output of a run has another shape than the model declares for it.

    A symbol stands for the size that the inputs give it, if they agree.
    """
    sizes: dict[str, int] = {}
    conflicting = set()
    for info in model.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, np.shape(feed.get(info.name, ()))):
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                conflicting.add(dim.dim_param)
    known = {name: size for name, size in sizes.items() if name not in conflicting}
    return any(
        _has_other_sizes(info.type, value, known)
        for info, value in zip(model.graph.output, outputs)
    )


def _has_other_sizes(declared: onnx.TypeProto, value: Any, known: Mapping[str, int]) -> bool:
    if isinstance(value, list):
        element = declared.sequence_type.elem_type
        return any(_has_other_sizes(element, item, known) for item in value)
    if not declared.tensor_type.HasField("shape") or not isinstance(value, np.ndarray):
        return False
    dims = declared.tensor_type.shape.dim
    expected = [d.dim_value if d.HasField("dim_value") else known.get(d.dim_param) for d in dims]
    return len(dims) != value.ndim or any(
        size not in (None, given) for size, given in zip(expected, value.shape)
    )


def contradicts_initial_values(model: onnx.ModelProto) -> bool:
    """Whether a loop declares a carried value with other sizes than its initial value has.

    A size of an input of the model counts as different from a number.
    """
    try:
        inferred = onnx.shape_inference.infer_shapes(_with_near_ends(model), data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    dims = (d for info in model.graph.input for d in info.type.tensor_type.shape.dim)
    symbols = {d.dim_param for d in dims if d.dim_param}
    return any(_conflict(*pair, symbols) for pair in _carried_types(inferred.graph, {}))


_FAR = 2**16
"""Beyond the sizes of all random tensors."""


def _with_near_ends(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with smaller integers in place of large ones, such as the end of a slice to the end.

    The inference of onnx 1.23 mistakes equal names in two bodies for one value: it may take such an
    end for the shape of a ConstantOfShape, and computes all its elements.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for owner in containers(copy.graph):
        stored = [*owner.initializer] if isinstance(owner, onnx.GraphProto) else []
        for tensor in [*stored, *(a.t for a in attributes(owner) if a.HasField("t"))]:
            if tensor.data_type == onnx.TensorProto.INT64:
                near = np.clip(numpy_helper.to_array(tensor), -_FAR, _FAR)
                tensor.CopyFrom(numpy_helper.from_array(near, tensor.name))
    return copy


def _carried_types(
    graph: onnx.GraphProto, outer: Mapping[str, TensorType]
) -> Iterator[tuple[TensorType, TensorType]]:
    """The types of initial values, each with the one that the body declares for it."""
    types = dict(outer)
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(
            tensor.data_type, tensor.dims
        ).tensor_type
    for info in (*graph.input, *graph.value_info, *graph.output):
        types[info.name] = info.type.tensor_type
    for node in graph.node:
        for body in body_protos(node):
            skipped = 2 if node.op_type == "Loop" else 0
            for initial, carried in zip(node.input[skipped:], body.input[skipped:]):
                if initial in types and not _is_scanned(node, body, carried):
                    yield types[initial], carried.type.tensor_type
            yield from _carried_types(body, types)


def _is_scanned(
    node: onnx.NodeProto, body: onnx.GraphProto, parameter: onnx.ValueInfoProto
) -> bool:
    """Whether a parameter of a body is the slice of a scan input."""
    counts = [a.i for a in node.attribute if a.name == "num_scan_inputs"]
    return any(parameter in body.input[len(body.input) - count :] for count in counts)


def _conflict(one: TensorType, other: TensorType, symbols: set[str]) -> bool:
    if not one.HasField("shape") or not other.HasField("shape"):
        return False
    pairs = zip(one.shape.dim, other.shape.dim)
    sizes = [(_size(a, symbols), _size(b, symbols)) for a, b in pairs]
    return len(one.shape.dim) != len(other.shape.dim) or any(
        None not in (a, b) and a != b and not (isinstance(a, str) and isinstance(b, str))
        for a, b in sizes
    )


def _size(dim: onnx.TensorShapeProto.Dimension, symbols: set[str]) -> int | str | None:
    """A number, or the symbol of a size of an input; None for any other size."""
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param if dim.dim_param in symbols else None
