"""The parameters of `main`: the model's inputs, and its weights if they shall be parameters."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import tvm
from onnx import TensorProto, helper
from tvm import relax, tirx
from tvm.ir.supply import UniqueNameSupply

from ..rewrite.errors import UnsupportedError
from .constants import array
from .values import Element, Received, Value

Shape = Sequence[Any]
"""Sizes as integers, prim expressions, names, or None for one that is not known."""


class Symbols:
    """The symbols of sizes: one for each name, one for each dimension without a name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}
        self._taken: set[str] = set()

    def named(self, name: str) -> Any:
        """The symbol of a `dim_param`, which may be any text."""
        if name not in self._by_name:
            self._by_name[name] = self._new(re.sub(r"\W", "_", name, flags=re.ASCII))
        return self._by_name[name]

    def unnamed(self, input_name: str, axis: int) -> Any:
        """The symbol of a dimension that nothing is known of."""
        cleaned = re.sub(r"\W", "_", input_name, flags=re.ASCII)
        return self._new(f"{cleaned}_dim_{axis}")

    def _new(self, hint: str) -> Any:
        stem = hint if hint[:1].isalpha() or hint[:1] == "_" else f"d{hint}"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return tirx.Var(name, "int64")


class Signature:
    """Parameters of `main` in order: the inputs, then the weights if they are parameters.

    Arguments are those of TVM's `from_onnx`. Where this differs: two unnamed dimensions are two
    symbols, and a `dim_param` is a name even if it looks like a formula.
    """

    def __init__(
        self,
        shape_dict: Mapping[str, Shape] | None,
        dtype_dict: str | Mapping[str, str] | None,
        sanitize_names: bool,
    ) -> None:
        self._shapes = dict(shape_dict or {})
        self._dtypes = dict(dtype_dict) if isinstance(dtype_dict, Mapping) else {}
        self._sanitize = sanitize_names
        self._names = UniqueNameSupply()
        self._symbols = Symbols()
        self.values: dict[str, Value] = {}
        """By the model's names."""
        self.inputs: list[Any] = []
        self.parameters: dict[str, tuple[Any, Any]] = {}
        """Weights that are parameters: (variable, array) by the variable's name."""

    @property
    def variables(self) -> list[Any]:
        """The parameters of `main`."""
        return self.inputs + [variable for variable, _ in self.parameters.values()]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of `main`, the same as TVM's importer gives it."""
        attributes: dict[str, Any] = {"num_input": len(self.inputs)}
        if self.parameters:
            attributes["params"] = [content for _, content in self.parameters.values()]
        return attributes

    def add_weights(self, graph: onnx.GraphProto, base_dir: str) -> None:
        """Make the initializers of a graph parameters."""
        for tensor in graph.initializer:
            content = tvm.runtime.tensor(array(tensor, base_dir))
            # Exporters of PyTorch put this before the names of weights.
            name = tensor.name.removeprefix("onnx::")
            variable = relax.Var(name, relax.TensorType(content.shape, content.dtype))
            self.values[tensor.name] = variable
            self.parameters[name] = (variable, content)

    def add_inputs(self, graph: onnx.GraphProto) -> None:
        """Make the inputs of a graph parameters, except those that an initializer gives."""
        given = {tensor.name for tensor in graph.initializer}
        for info in graph.input:
            if info.name not in given:
                element = _element(info)
                kind = self._type(info) if element is None else relax.ObjectType()
                variable = relax.Var(self._variable_name(info.name), kind)
                self.values[info.name] = (
                    variable if element is None else Received(variable, element)
                )
                self.inputs.append(variable)

    def _variable_name(self, name: str) -> str:
        if not self._sanitize:
            return name
        cleaned = name.replace(".", "_")
        if not cleaned:
            cleaned = "empty_"
        elif not (cleaned[0].isalpha() or cleaned[0] == "_"):
            cleaned = f"input_{cleaned}"
        unique = str(self._names.fresh_name(cleaned))
        if unique != name:
            warnings.warn(f"Renaming name {name} to {unique}", stacklevel=2)
        return unique

    def _type(self, info: onnx.ValueInfoProto) -> Any:
        kind = info.type
        if kind.HasField("optional_type"):
            # TVM has no optional: an input declared as one is taken to be there.
            kind = kind.optional_type.elem_type
        if kind.WhichOneof("value") not in ("tensor_type", None):
            form = str(kind.WhichOneof("value")).removesuffix("_type")
            raise UnsupportedError(
                f"input {info.name!r} is not a tensor but a {form}",
                remedy="Make the tensors in it inputs of their own",
            )
        tensor = kind.tensor_type
        return relax.TensorType(self._shape(info.name, tensor), self._dtype(info.name, tensor))

    def _dtype(self, name: str, tensor: onnx.TypeProto.Tensor) -> str | None:
        if name in self._dtypes:
            return self._dtypes[name]
        if tensor.elem_type == TensorProto.STRING:
            raise UnsupportedError(
                f"input {name!r} holds strings, which TVM does not have",
                remedy="Remove the part of the model that handles text",
            )
        return str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else None

    def _shape(self, name: str, tensor: onnx.TypeProto.Tensor) -> list[Any] | None:
        if name in self._shapes:
            sizes = enumerate(self._shapes[name])
            return [self._given(name, axis, size) for axis, size in sizes]
        if not tensor.HasField("shape"):
            warnings.warn(
                f"Input {name} has unknown rank. Specifying a static shape may improve performance",
                stacklevel=2,
            )
            return None
        return [self._declared(name, axis, dim) for axis, dim in enumerate(tensor.shape.dim)]

    def _given(self, name: str, axis: int, size: Any) -> Any:
        if isinstance(size, str):
            return self._symbols.named(size)
        return self._symbols.unnamed(name, axis) if size is None else size

    def _declared(self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> Any:
        if dim.dim_value:
            return dim.dim_value
        if dim.dim_param.strip().isdigit():
            return int(dim.dim_param)
        if dim.dim_param in ("", "?"):
            return self._symbols.unnamed(name, axis)
        return self._symbols.named(dim.dim_param)


def _element(info: onnx.ValueInfoProto) -> Element | None:
    """What a declaration says of the tensors of a sequence; None for what is not a sequence.

    The declared rank is checked whenever a tensor is taken out.
    """
    kind = info.type
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if not kind.HasField("sequence_type"):
        return None
    tensor = kind.sequence_type.elem_type.tensor_type
    if not tensor.elem_type or tensor.elem_type == TensorProto.STRING:
        raise UnsupportedError(f"input {info.name!r} is a sequence of something that TVM lacks")
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape"):
        return Element(dtype)
    return Element(dtype, tuple(dim.dim_value or None for dim in tensor.shape.dim))
