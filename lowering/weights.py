"""Weights as parameters: initializers that a user may replace become inputs of the graph.

    W, b, shape = initializers          W, b = inputs, shape = initializer
    y = Reshape(Gemm(x, W, b), shape)   y = Reshape(Gemm(x, W, b), shape)

A rewrite then keeps their names and shapes, and never merges, folds or transposes them. Converters
do not see their values, so that replacing them has the effect that the model says.

An initializer that decides shapes or control flow stays, though `main` has a parameter for it, as
in TVM. Replacing it has no effect; shapes would otherwise be unknown where the file has numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import onnx
from onnx import TensorProto, helper

from ..rewrite.storage.exporter import copy_fields
from ..rewrite.storage.functions import inline_functions
from ..rewrite.storage.protos import body_protos, containers, nodes

_LARGEST = 64
"""The most elements of an initializer that may decide shapes."""

_DECIDED_BY_ALL = frozenset({"ConstantOfShape", "If", "Range", "SequenceAt"})
_DECIDED_BY = MappingProxyType(
    {
        "Col2Im": (1, 2),
        "DFT": (1, 2),
        "Dropout": (2,),
        "Loop": (0, 1),
        "MaxUnpool": (2,),
        "MelWeightMatrix": (0, 1),
        "OneHot": (1,),
        "Pad": (1, 3),
        "Resize": (1, 2, 3),
        "SequenceErase": (1,),
        "SequenceInsert": (2,),
        "STFT": (1, 3),
        **dict.fromkeys(
            (
                "AffineGrid", "CenterCropPad", "CumSum", "Expand", "Reshape", "Split",
                "SplitToSequence", "Squeeze", "Tile", "TopK", "Trilu", "Unsqueeze", "Upsample",
            ),
            (1,),
        ),
        "Slice": (1, 2, 3, 4),
    }
)  # fmt: skip
"""The inputs that decide the shape of a result, whether a node does anything, or how often a body
runs."""

_OF_SHAPES = frozenset({"Shape", "Size"})


def lift_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """The model with inputs in place of its weights, after its other inputs; all initializers.

    The given model is not changed. Initializers that stay are in both.
    """
    model = inline_functions(model)
    weights = list(model.graph.initializer)
    kept = _deciding(model.graph)
    lifted = onnx.ModelProto()
    copy_fields(model, lifted, frozenset({"graph"}))
    copy_fields(model.graph, lifted.graph, frozenset({"initializer", "input"}))
    names = {tensor.name for tensor in weights}
    lifted.graph.input.extend(info for info in model.graph.input if info.name not in names)
    for tensor in weights:
        if tensor.name in kept:
            lifted.graph.initializer.append(tensor)
        else:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            lifted.graph.input.append(info)
    return lifted, weights


def _deciding(graph: onnx.GraphProto) -> set[str]:
    """The initializers that decide shapes or control flow, directly or in computed sizes."""
    small = {
        tensor.name: tensor.data_type
        for tensor in graph.initializer
        if len(tensor.dims) <= 1 and _count(tensor) <= _LARGEST
    }
    # Sizes are computed in these types, and conditions are computed from sizes.
    integers = {
        name
        for name, dtype in small.items()
        if dtype in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    }
    data = {info.name for info in graph.input if info.name not in small}
    data |= {tensor.name for tensor in graph.initializer if tensor.name not in integers}
    data |= {info.name for body in containers(graph) if body is not graph for info in body.input}
    found: set[str] = set()
    for node in nodes(graph):
        found |= small.keys() & set(_deciding_inputs(node))
        if node.op_type in _OF_SHAPES:
            continue
        if next(body_protos(node), None) is not None or not data.isdisjoint(node.input):
            data.update(node.output)
        else:
            found |= integers.intersection(node.input)
    return found


def _deciding_inputs(node: onnx.NodeProto) -> Iterator[str]:
    if node.op_type in _DECIDED_BY_ALL:
        yield from node.input
    elif node.op_type.startswith("Reduce"):
        yield from node.input[1:]
    else:
        slots = _DECIDED_BY.get(node.op_type, ())
        yield from (node.input[slot] for slot in slots if slot < len(node.input))


def _count(tensor: onnx.TensorProto) -> int:
    """The number of elements."""
    return int(tensor.dims[0]) if tensor.dims else 1
