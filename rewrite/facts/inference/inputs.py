"""Infers the facts of values that no node computes: graph inputs, initializers, body inputs."""

from __future__ import annotations

import onnx

from ... import symbolic
from ...graph.ir import Constant, Tensor
from ...symbolic import Dim
from ..fact import ABSENT, BOOL, INTEGERS, MOST_VALUES, UNKNOWN, Element, Fact
from ..facts import Facts
from . import control, creation


def infer_input(facts: Facts, tensor: Tensor) -> Fact:
    """The fact of a value without a producer."""
    if isinstance(tensor, Constant) and not tensor.overridable:
        return creation.constant_fact(tensor)
    home = facts.index.home(tensor)
    if home is None:
        return UNKNOWN if tensor.name else ABSENT
    owner = facts.index.owner(home)
    if owner is not None and not isinstance(tensor, Constant):
        control.derive_body_inputs(facts, owner, home)
        return facts.cached(tensor)
    return declared(facts, tensor)


def declared(facts: Facts, tensor: Tensor) -> Fact:
    """The fact of a graph input, from its declaration in the file and the user's assertions."""
    info = tensor.info
    kind = info.type.WhichOneof("value") if info is not None else None
    if info is None or kind is None:
        return UNKNOWN
    if kind == "sequence_type":
        element = info.type.sequence_type.elem_type.tensor_type
        dims = _shape(facts, tensor, element)
        if dims is not None:
            dims = tuple(d if isinstance(d, int) else symbolic.VARYING for d in dims)
        return Fact(element.elem_type, dims, None, None, "sequence", facts.fresh(tensor, -1000))
    if kind != "tensor_type":
        return Fact(kind="other")
    dims = _shape(facts, tensor, info.type.tensor_type)
    dtype = info.type.tensor_type.elem_type
    return Fact(dtype, dims, None, _unknown_elements(facts, tensor, dtype, dims))


def _shape(facts: Facts, tensor: Tensor, type_: onnx.TypeProto.Tensor) -> tuple[Dim, ...] | None:
    asserted = facts.assertions.shapes.get(tensor.name)
    if asserted is not None:
        return tuple(_dim(facts, tensor, axis, d) for axis, d in enumerate(asserted))
    if not type_.HasField("shape"):
        return None
    return tuple(
        _dim(facts, tensor, axis, d.dim_value if d.HasField("dim_value") else d.dim_param or None)
        for axis, d in enumerate(type_.shape.dim)
    )


def _dim(facts: Facts, tensor: Tensor, axis: int, dim: int | str | None) -> Dim:
    if isinstance(dim, str):
        return facts.assertions.dim(dim)
    return facts.fresh(tensor, axis) if dim is None or dim < 0 else dim


def _unknown_elements(
    facts: Facts, tensor: Tensor, dtype: int, dims: tuple[Dim, ...] | None
) -> tuple[Element, ...] | None:
    """A symbol for each element of a small integer input; None for each of a bool input."""
    if dims is None or not all(isinstance(d, int) for d in dims):
        return None
    count = symbolic.product(dims)
    if not isinstance(count, int) or count > MOST_VALUES:
        return None
    if dtype == BOOL:
        return (None,) * count
    if dtype not in INTEGERS:
        return None
    return tuple(facts.fresh(tensor, -1 - i, low=None) for i in range(count))
