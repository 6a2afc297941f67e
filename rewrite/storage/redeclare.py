"""Replaces what a model declares about its inputs, and drops what was inferred from that."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import onnx
from onnx import helper

from ..errors import AssumptionError
from ..graph.declarations import shape_of
from .protos import containers

_log = logging.getLogger("looplift")


def check_declarations(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]], dtypes: Mapping[str, str]
) -> None:
    """Warns of names that are not inputs, which TVM's importer ignores.

    Raises AssumptionError for a shape that is not a list, or whose rank is not that of the input.
    """
    if not isinstance(shapes, Mapping):
        raise AssumptionError(
            f"shape_dict is {shapes!r}, which is not a dict",
            remedy='Write a dict of lists, such as {"x": [1, "T"]}',
        )
    inputs = {info.name: info.type.tensor_type for info in model.graph.input}
    for argument, names in (("shape_dict", shapes), ("dtype_dict", dtypes)):
        for name in names:
            if name not in inputs:
                _log.warning(
                    "%s: the model has no input '%s'; its inputs are: %s",
                    argument, name, ", ".join(inputs),
                )  # fmt: skip
    for name, shape in shapes.items():
        check_is_shape(name, shape, "shape_dict")
        if name in inputs and inputs[name].HasField("shape"):
            declared = shape_of(inputs[name].shape)
            if len(declared) != len(shape):
                raise AssumptionError(
                    f"Input '{name}' has rank {len(declared)}, not {len(shape)}",
                    where="shape_dict",
                    remedy=f"It is declared as {declared}",
                )
            for axis, (old, new) in enumerate(zip(declared, shape)):
                if isinstance(old, int) and isinstance(new, int) and old != new:
                    # TVM's importer takes any size.
                    _log.warning(
                        "shape_dict: axis %s of input '%s' gets the size %s; the model declares %s",
                        axis, name, new, old,
                    )  # fmt: skip


def check_is_shape(name: str, shape: object, where: str = "") -> None:
    """Raises AssumptionError if the shape of input `name` is not a sequence."""
    if isinstance(shape, str | bytes | Mapping) or not _is_iterable(shape):
        raise AssumptionError(
            f"The shape of input '{name}' is {shape!r}, which is not a list",
            where=where,
            remedy=f'Write a list of sizes: {{"{name}": [1, "T"]}}',
        )


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def redeclare(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[Any]], dtypes: Mapping[str, str]
) -> onnx.ModelProto:
    """A model whose inputs have other shapes and element types; the model itself if none differ.

    A size is a number, a name, or anything else for a dim that is not known. Shapes, and element
    types if one of them changes, that the model declares for other values are dropped: they were
    inferred from the old declarations. Names that are not inputs are ignored.
    """
    inputs = [info for info in model.graph.input if info.type.HasField("tensor_type")]
    resized = [info.name for info in inputs if info.name in shapes]
    elements = {
        info.name: element_type(dtypes[info.name]) for info in inputs if info.name in dtypes
    }
    if not resized and not elements:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for info in changed.graph.input:
        if info.name in resized:
            _write_shape(info.type.tensor_type, shapes[info.name])
        if info.name in elements:
            info.type.tensor_type.elem_type = elements[info.name]
    for graph in containers(changed.graph):
        assert isinstance(graph, onnx.GraphProto)
        graph.ClearField("value_info")
        inner = [] if graph is changed.graph else graph.input
        for info in (*graph.output, *inner):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
                if elements:
                    info.type.tensor_type.ClearField("elem_type")
    return changed


def element_type(name: str) -> int:
    """The number in ONNX of a type such as `float16`. Raises AssumptionError if there is none."""
    try:
        dtype = np.dtype(str(name))
        # Short forms mean other types in TVM: `float` is float64 here and float32 there.
        if dtype.name != str(name):
            raise TypeError(name)
        return int(helper.np_dtype_to_tensor_dtype(dtype))
    except (TypeError, ValueError, KeyError):
        raise AssumptionError(
            f"{name!r} is not an element type",
            where="dtype_dict",
            remedy="Give a name of NumPy, such as float16",
        ) from None


def _write_shape(tensor: onnx.TypeProto.Tensor, shape: Sequence[Any]) -> None:
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for size in shape:
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif isinstance(size, SupportsIndex):
            dim.dim_value = operator.index(size)


def with_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """A model that declares a version of the standard operators; the model itself if it does."""
    standard = [entry for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if all(entry.version == version for entry in standard):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for entry in changed.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = version
    return changed
