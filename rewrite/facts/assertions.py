"""What the user asserts of a model, checked against it and written into it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..errors import AssumptionError
from ..graph.ir import Constant, Graph, Variable
from ..storage.model import Model
from ..storage.naming import graphs
from .facts import Assumptions
from .prefix_masks import PrefixMasks, checked_names, time_axes

Shape = tuple[int | str | None, ...]


def parse_dims(dims: Mapping[str, int] | Sequence[str]) -> Assumptions:
    """`{"T": 16}`, or texts `"T=16"` and `"T>=2"`. Raises AssumptionError for anything else."""
    exact: dict[str, int] = {}
    minima: dict[str, int] = {}
    if isinstance(dims, Mapping):
        texts = [f"{name}={value}" for name, value in dims.items()]
    else:
        texts = list(dims)
    for text in texts:
        found = re.fullmatch(r"\s*([^<>=]+?)\s*(>=|=)\s*(\d+)\s*", text)
        if found is None:
            raise AssumptionError(
                f"'{text}' asserts no dim", remedy="Write NAME=NUMBER or NAME>=NUMBER"
            )
        name, relation, number = found[1], found[2], int(found[3])
        if relation == "=" and exact.get(name, number) != number:
            raise AssumptionError(
                f"The dim '{name}' cannot be both {exact[name]} and {number}",
                remedy="Assert it once",
            )
        if relation == "=":
            exact[name] = number
        else:
            minima[name] = max(number, minima.get(name, 0))
    for name, low in minima.items():
        if exact.get(name, low) < low:
            raise AssumptionError(
                f"The dim '{name}' cannot be {exact[name]} and at least {low}",
                remedy="Drop one of the two",
            )
    return Assumptions(exact, minima)


def assert_facts(
    model: Model,
    inputs: Mapping[str, Any],
    dims: Assumptions,
    shapes: Mapping[str, Sequence[int | str | None]],
    prefix_masks: PrefixMasks = (),
) -> tuple[Assumptions, list[str]]:
    """Writes the assertions into the model; returns them with a note on each.

    Fixed inputs become initializers. Raises AssumptionError naming what does not fit.
    """
    root = model.graph
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    _check_names(root, [*inputs, *wanted], dims)
    asserted = checked_names(root, inputs, prefix_masks)
    fixed = _shapes_of(root, inputs)
    for name, shape in fixed.items():
        if any(isinstance(d, int) and d != n for d, n in zip(wanted.get(name, ()), shape)):
            raise AssumptionError(
                f"The shape {list(wanted[name])} and the value given for input '{name}' differ",
                remedy=f"The value has the shape {list(shape)}; assert one of them",
            )
    dims = _resolve_shapes(root, dims, wanted | fixed)
    wanted = {name: _filled(root, name, shape, dims) for name, shape in wanted.items()}
    notes = [f"input `{name}` is {_short(value)}" for name, value in inputs.items()]
    notes += [f"dim `{name}` is {value}" for name, value in dims.dims.items()]
    notes += [f"dim `{name}` is at least {value}" for name, value in dims.minima.items()]
    notes += [f"`{name}` has shape {list(shape)}" for name, shape in wanted.items()]
    for name, value in inputs.items():
        _fix_input(root, name, value, dims)
    for tensor in root.inputs:
        _write_shape(tensor, wanted.get(tensor.name))
    for graph in graphs(root):
        _write_dims(graph, dims)
    assumptions = Assumptions(dims.dims, dims.minima, wanted)
    assumptions = replace(assumptions, prefix_masks=time_axes(model, assumptions, asserted))
    notes += [
        f"`{name}` is a prefix mask along axis {axis}: where a row of it is true again after it "
        "was false, the result is another"
        for name, axis in assumptions.prefix_masks.items()
    ]
    return assumptions, notes


def _short(value: Any) -> str:
    array = np.asarray(value)
    return str(array.tolist()) if array.size <= 8 else f"an array of shape {list(array.shape)}"


def _check_names(root: Graph, names: Sequence[str], dims: Assumptions) -> None:
    known = [t.name for t in root.inputs]
    for name in names:
        if name not in known:
            raise AssumptionError(
                f"The model has no input '{name}'", remedy=f"Its inputs are: {', '.join(known)}"
            )
    named = sorted({d for t in root.inputs for d in _declared(t) if isinstance(d, str)})
    for name in [*dims.dims, *dims.minima]:
        if name not in named:
            raise AssumptionError(
                f"No input of the model has a dim named '{name}'",
                remedy=f"Its named dims are: {', '.join(named) or 'none'}; "
                "assert others with the shape of an input",
            )


def _declared(tensor: Variable | Constant) -> Shape:
    info = tensor.info
    if info is None or not info.type.tensor_type.HasField("shape"):
        return ()
    return tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or None
        for d in info.type.tensor_type.shape.dim
    )


def _has_shape(tensor: Variable | Constant) -> bool:
    return tensor.info is not None and tensor.info.type.tensor_type.HasField("shape")


def _resolve_shapes(root: Graph, dims: Assumptions, wanted: dict[str, Shape]) -> Assumptions:
    """A number asserted for a named dim holds wherever the name stands."""
    exact = dict(dims.dims)
    for tensor in root.inputs:
        shape = wanted.get(tensor.name)
        if shape is None:
            continue
        declared = _declared(tensor) if _has_shape(tensor) else (None,) * len(shape)
        if len(declared) != len(shape):
            raise AssumptionError(
                f"Input '{tensor.name}' has rank {len(declared)}, not {len(shape)}",
                remedy=f"It is declared as {list(declared)}",
            )
        for old, new in zip(declared, shape):
            if isinstance(new, int) and new < 0:
                raise AssumptionError(
                    f"The shape of input '{tensor.name}' has a negative dim {new}",
                    remedy="Leave a dim open by name or with '?'",
                )
            if isinstance(old, int) and isinstance(new, int) and old != new:
                raise AssumptionError(
                    f"Input '{tensor.name}' has a dim {old} that cannot be {new}",
                    remedy=f"It is declared as {list(declared)}",
                )
            if isinstance(old, str) and isinstance(new, int):
                _agree(exact, dims, old, new, tensor.name)
    return Assumptions(exact, dims.minima)


def _shapes_of(root: Graph, inputs: Mapping[str, Any]) -> dict[str, Shape]:
    """What fixed values say of the named dims of their inputs."""
    shapes: dict[str, Shape] = {}
    for tensor in root.inputs:
        if tensor.name in inputs and _has_shape(tensor):
            shape = _array(tensor.name, inputs[tensor.name]).shape
            declared = _declared(tensor)
            fits = len(shape) == len(declared) and all(
                not isinstance(d, int) or d == n for d, n in zip(declared, shape)
            )
            if fits:
                shapes[tensor.name] = shape
    return shapes


def _filled(root: Graph, name: str, shape: Shape, dims: Assumptions) -> Shape:
    """An asserted shape, with what the file and other assertions know where it is open."""
    tensor = next(t for t in root.inputs if t.name == name)
    declared = _declared(tensor) if _has_shape(tensor) else (None,) * len(shape)
    return tuple(
        old if isinstance(old, int) else _number(new if new is not None else old, dims)
        for old, new in zip(declared, shape)
    )


def _number(dim: int | str | None, dims: Assumptions) -> int | str | None:
    return dims.dims.get(dim, dim) if isinstance(dim, str) else dim


def _agree(exact: dict[str, int], dims: Assumptions, name: str, number: int, where: str) -> None:
    """Notes the number for a named dim."""
    if exact.setdefault(name, number) != number or dims.minima.get(name, 0) > number:
        raise AssumptionError(
            f"The dim '{name}' cannot be {number} as in the shape of '{where}'",
            remedy="Another assertion says otherwise; drop one of them",
        )


def _fix_input(root: Graph, name: str, value: Any, dims: Assumptions) -> None:
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
            remedy="Rows of different lengths make no tensor",
        ) from None


def _typed(tensor: Variable | Constant, value: Any, dims: Assumptions) -> np.ndarray:
    info = tensor.info
    if info is None or info.type.WhichOneof("value") != "tensor_type":
        raise AssumptionError(
            f"Input '{tensor.name}' is no tensor and cannot be fixed",
            remedy="Fix tensors only",
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
            f"The value {_short(value)} does not fit input '{tensor.name}'",
            remedy=f"Its type is {onnx.TensorProto.DataType.Name(code).lower()}",
        )
    declared = tuple(dims.dims.get(d, d) if isinstance(d, str) else d for d in _declared(tensor))
    fits = not _has_shape(tensor) or (
        len(declared) == exact.ndim
        and all(d == n for d, n in zip(declared, exact.shape) if isinstance(d, int))
    )
    if not fits:
        raise AssumptionError(
            f"A value of shape {list(exact.shape)} does not fit input '{tensor.name}'",
            remedy=f"Its shape is {[d if d is not None else '?' for d in declared]}",
        )
    return exact


def _write_dims(graph: Graph, dims: Assumptions) -> None:
    """Replaces asserted names by numbers in everything the graph declares."""
    for tensor in {*graph.inputs, *graph.outputs, *(t for n in graph.nodes for t in n.outputs)}:
        if tensor.info is not None:
            tensor.info = _with_dims(tensor.info, dims)


def _write_shape(tensor: Variable | Constant, shape: Shape | None) -> None:
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


def _with_dims(info: onnx.ValueInfoProto, dims: Assumptions) -> onnx.ValueInfoProto:
    if not any(d.dim_param in dims.dims for d in info.type.tensor_type.shape.dim):
        return info
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    for dim in copy.type.tensor_type.shape.dim:
        if dim.dim_param in dims.dims:
            dim.dim_value = dims.dims[dim.dim_param]
    return copy
