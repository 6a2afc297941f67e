"""Checks assertions of the user against a model and writes them into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import AssumptionError
from ..graph.declarations import shape_of
from ..graph.ir import Constant, Graph, Variable
from ..graph.names import graphs
from ..storage.model import Model
from .assertions import Assertions, Shape, value_text
from .prefix_masks import check_mask_names, with_time_axes


def apply_assertions(model: Model, asserted: Assertions) -> Assertions:
    """Writes assertions into a model; returns them completed from the declarations of the model.

    An input with a value becomes an initializer, an asserted dim a number wherever its name
    occurs. In the result, the dims include sizes that shapes and values give to named dims, shapes
    include what the file declares, and the axes of masks count from the front.

    Raises AssumptionError for an assertion that does not fit the model.
    """
    root = model.graph
    _check_input_names(root, [*asserted.inputs, *asserted.shapes])
    _check_dim_names(root, asserted)
    check_mask_names(root, asserted)
    given = _shapes_of_values(root, asserted.inputs)
    _check_shapes_agree(asserted.shapes, given)
    dims = _resolved_dims(root, asserted, given)
    asserted = replace(asserted, dims=dims)
    shapes = {name: _filled(root, name, asserted) for name in asserted.shapes}
    for name, value in asserted.inputs.items():
        _fix_input(root, name, value, dims)
    for tensor in root.inputs:
        _declare_shape(tensor, shapes.get(tensor.name))
    for graph in graphs(root):
        _declare_dims(graph, dims)
    return with_time_axes(model, replace(asserted, shapes=shapes))


# --- checks ---


def _check_input_names(root: Graph, names: Iterable[str]) -> None:
    known = [tensor.name for tensor in root.inputs]
    for name in names:
        if name not in known:
            raise AssumptionError(
                f"The model has no input '{name}'", remedy=f"Its inputs are: {', '.join(known)}"
            )


def _check_dim_names(root: Graph, asserted: Assertions) -> None:
    shapes = [*map(_declared, root.inputs), *asserted.shapes.values()]
    known = sorted({dim for shape in shapes for dim in shape if isinstance(dim, str)})
    for name in (*asserted.dims, *asserted.minima):
        if name not in known:
            size = asserted.dims.get(name, name)
            raise AssumptionError(
                f"No input of the model has a dim named '{name}'",
                remedy=f"Its named dims are: {', '.join(known) or 'none'}; "
                f"assert others with {_shape_option(root, name, size)}",
            )


def _shape_option(root: Graph, name: str, size: int | str) -> str:
    """The option that asserts the size of the dim `x[1]`, as unnamed dims are called elsewhere."""
    found = re.fullmatch(r"(.+)\[(\d+)\]", name)
    tensor = next((t for t in root.inputs if found and t.name == found[1]), None)
    if found is None or tensor is None or int(found[2]) >= len(_declared(tensor)):
        return "--shape"
    dims: list[object] = [d if isinstance(d, int) else "?" for d in _declared(tensor)]
    dims[int(found[2])] = size if isinstance(size, int) else "N"
    return f'--shape "{tensor.name}={",".join(map(str, dims))}"'


def _check_shapes_agree(asserted: Mapping[str, Shape], given: Mapping[str, Shape]) -> None:
    for name, shape in given.items():
        if any(isinstance(d, int) and d != n for d, n in zip(asserted.get(name, ()), shape)):
            raise AssumptionError(
                f"The shape {list(asserted[name])} and the value given for input '{name}' differ",
                remedy=f"The value has the shape {list(shape)}; assert one of them",
            )


# --- shapes ---


def _declared(tensor: Variable | Constant) -> Shape:
    info = tensor.info
    if info is None or not _has_shape(tensor):
        return ()
    return tuple(shape_of(info.type.tensor_type.shape))


def _has_shape(tensor: Variable | Constant) -> bool:
    return tensor.info is not None and tensor.info.type.tensor_type.HasField("shape")


def _shapes_of_values(root: Graph, inputs: Mapping[str, Any]) -> dict[str, Shape]:
    """The shapes of given values that fit what the file declares for their inputs."""
    shapes: dict[str, Shape] = {}
    for tensor in root.inputs:
        if tensor.name in inputs and _has_shape(tensor):
            shape = _array(tensor.name, inputs[tensor.name]).shape
            if _fits(_declared(tensor), shape):
                shapes[tensor.name] = shape
    return shapes


def _fits(declared: Shape, shape: tuple[int, ...]) -> bool:
    """Whether a value may have this shape."""
    return len(shape) == len(declared) and all(
        not isinstance(d, int) or d == n for d, n in zip(declared, shape)
    )


def _resolved_dims(root: Graph, asserted: Assertions, given: Mapping[str, Shape]) -> dict[str, int]:
    """The asserted dims, and the numbers that asserted shapes, declared ones and those of given
    values give to named dims.
    """
    dims = dict(asserted.dims)
    for tensor in root.inputs:
        named, of_value = asserted.shapes.get(tensor.name), given.get(tensor.name)
        for shape in (named, of_value):
            if shape is not None:
                _resolve(dims, asserted, tensor, shape)
        for name, size in zip(named or (), of_value or ()):
            if isinstance(name, str) and isinstance(size, int):
                _agree(dims, asserted, name, size, tensor)
    return dims


def _resolve(
    dims: dict[str, int], asserted: Assertions, tensor: Variable | Constant, shape: Shape
) -> None:
    """Compares a shape of an input with the declared one, and sets the sizes of named dims."""
    declared = _declared(tensor) if _has_shape(tensor) else (None,) * len(shape)
    if len(declared) != len(shape):
        raise AssumptionError(
            f"Input '{tensor.name}' has rank {len(declared)}, not {len(shape)}",
            remedy=f"It is declared as {list(declared)}",
        )
    for old, new in zip(declared, shape):
        if isinstance(new, str) and isinstance(old, int):
            # A name along an axis of known size has that size wherever else it is asserted.
            _agree(dims, asserted, new, old, tensor)
        if not isinstance(new, int):
            continue
        if new < 0:
            raise AssumptionError(
                f"The shape of input '{tensor.name}' has a negative dim {new}",
                remedy="Leave a dim open by name or with '?'",
            )
        if isinstance(old, int) and old != new:
            raise AssumptionError(
                f"Input '{tensor.name}' has a dim {old} that cannot be {new}",
                remedy=f"It is declared as {list(declared)}",
            )
        if isinstance(old, str):
            _agree(dims, asserted, old, new, tensor)


def _agree(
    dims: dict[str, int], asserted: Assertions, name: str, size: int, tensor: Variable | Constant
) -> None:
    """Sets the size of a named dim. Raises AssumptionError if that contradicts an earlier size or
    lower bound.
    """
    if dims.setdefault(name, size) != size or asserted.minima.get(name, 0) > size:
        raise AssumptionError(
            f"The dim '{name}' cannot be {size} as in the shape of '{tensor.name}'",
            remedy="Another assertion contradicts this; drop one of them",
        )


def _filled(root: Graph, name: str, asserted: Assertions) -> Shape:
    """An asserted shape, completed from the declaration in the file and from other assertions."""
    tensor = next(t for t in root.inputs if t.name == name)
    shape = asserted.shapes[name]
    declared = _declared(tensor) if _has_shape(tensor) else (None,) * len(shape)

    def resolved(old: int | str | None, new: int | str | None) -> int | str | None:
        dim = old if isinstance(old, int) or new is None else new
        return asserted.dims.get(dim, dim) if isinstance(dim, str) else dim

    return tuple(map(resolved, declared, shape))


# --- values of inputs ---


def _fix_input(root: Graph, name: str, value: Any, dims: Mapping[str, int]) -> None:
    """Turns a graph input into an initializer of the declared type."""
    place = next(i for i, t in enumerate(root.inputs) if t.name == name)
    tensor = root.inputs[place]
    array = _typed(tensor, value, dims)
    if isinstance(tensor, Constant):
        tensor.values = array
        tensor.overridable = False
        del root.inputs[place]
        return
    constant = Constant(name, array)
    constant.info = None
    for graph in graphs(root):
        for node in graph.nodes:
            for slot, read in enumerate(node.inputs):
                if read is tensor:
                    node.inputs[slot] = constant
        graph.outputs[:] = [constant if t is tensor else t for t in graph.outputs]
    if tensor in root.output_info:
        root.output_info[constant] = root.output_info.pop(tensor)
    root.initializers.append(constant)
    del root.inputs[place]


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise AssumptionError(
            f"The value {value!r} does not fit input '{name}'",
            remedy="A tensor cannot have rows of different lengths",
        ) from None


def _typed(tensor: Variable | Constant, value: Any, dims: Mapping[str, int]) -> np.ndarray:
    """The value as an array of the declared type; refuses a conversion that changes a number."""
    info = tensor.info
    if info is None or info.type.WhichOneof("value") != "tensor_type":
        raise AssumptionError(
            f"Input '{tensor.name}' is not a tensor, so it cannot be given a value",
            remedy="Give values for tensors only",
        )
    code = info.type.tensor_type.elem_type
    wanted = helper.tensor_dtype_to_np_dtype(code)
    given = _array(tensor.name, value)
    exact = given.astype(wanted) if given.dtype.kind in "fiub" and wanted.kind in "fiubV" else None
    if code == onnx.TensorProto.STRING:
        exact = given.astype(object)
    lossless = exact is not None and (
        wanted.kind not in "iub" or bool(np.all(exact.astype(given.dtype) == given))
    )
    if exact is None or not lossless:
        raise AssumptionError(
            f"The value {value_text(value)} does not fit input '{tensor.name}'",
            remedy=f"Its type is {onnx.TensorProto.DataType.Name(code).lower()}",
        )
    declared = tuple(dims.get(d, d) if isinstance(d, str) else d for d in _declared(tensor))
    if _has_shape(tensor) and not _fits(declared, exact.shape):
        raise AssumptionError(
            f"A value of shape {list(exact.shape)} does not fit input '{tensor.name}'",
            remedy=f"Its shape is {[d if d is not None else '?' for d in declared]}",
        )
    return exact


# --- declarations ---


def _declare_dims(graph: Graph, dims: Mapping[str, int]) -> None:
    """Replaces the names of asserted dims by numbers in everything that the graph declares."""
    for tensor in {*graph.inputs, *graph.outputs, *(t for n in graph.nodes for t in n.outputs)}:
        info = tensor.info
        if info is None or not any(d.dim_param in dims for d in info.type.tensor_type.shape.dim):
            continue
        tensor.info = onnx.ValueInfoProto()
        tensor.info.CopyFrom(info)
        for dim in tensor.info.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]


def _declare_shape(tensor: Variable | Constant, shape: Shape | None) -> None:
    """Declares the asserted shape of an input."""
    if shape is None or tensor.info is None:
        return
    info = onnx.ValueInfoProto()
    info.CopyFrom(tensor.info)
    info.type.tensor_type.ClearField("shape")
    info.type.tensor_type.shape.SetInParent()
    for dim in shape:
        added = info.type.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            added.dim_value = dim
        elif dim is not None:
            added.dim_param = dim
    tensor.info = info
