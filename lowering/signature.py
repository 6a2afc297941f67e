"""The parameters of `main`: the model's inputs, and its weights if they shall be parameters."""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx
import tvm
from onnx import TensorProto
from tvm import relax, tirx
from tvm.ir.supply import UniqueNameSupply

from ..rewrite.errors import UnsupportedError
from ..rewrite.graph.declarations import declaration
from ..rewrite.graph.ir import Constant, Graph, Tensor
from ..rewrite.graph.names import graphs
from ..rewrite.storage.dim_formulas import evaluate_formula, is_formula
from ..rewrite.storage.redeclare import element_type
from .constants import stored
from .identifiers import identifier
from .small_types import stored_dtype
from .values import Element, Received, Value

Shape = Sequence[Any]
"""Sizes as integers, prim expressions, names, or None for one that is not known."""


class Symbols:
    """The symbols of sizes: one for each name, one for each dimension without a name."""

    def __init__(self, sizes: Mapping[str, int], plain: Iterable[str]) -> None:
        """`sizes` are names whose numbers are known, `plain` names that stand alone somewhere."""
        self._by_name: dict[str, Any] = {name: _number(size) for name, size in sizes.items()}
        self._taken: set[str] = set()
        for name in plain:
            self.named(name)
        self._plain = {**self._by_name}

    def named(self, name: str) -> Any:
        """The symbol of a `dim_param`, which may be any text."""
        if name not in self._by_name:
            self._by_name[name] = self._new(identifier(name, "d"))
        return self._by_name[name]

    def size(self, text: str) -> Any:
        """The size that a `dim_param` stands for.

        A formula over names that stand alone elsewhere is their expression, which a run checks. In
        a formula over other names, nothing would give those a value, so that it is a name itself.
        """
        if text in self._by_name or not is_formula(text, self._plain):
            return self.named(text)
        return evaluate_formula(text, self._plain)

    def unnamed(self, input_name: str, axis: int) -> Any:
        """The symbol of a dimension that nothing is known of."""
        return self._new(identifier(f"{input_name}_dim_{axis}", "d"))

    def _new(self, hint: str) -> Any:
        name, count = hint, 0
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._taken.add(name)
        return tirx.Var(name, "int64")


def _number(size: int) -> Any:
    return tirx.IntImm("int64", size)


class Signature:
    """Parameters of `main` in order: the inputs, then the weights if they are parameters.

    Arguments are those of TVM's `from_onnx`. Where this differs: two unnamed dimensions are two
    symbols, formulas such as `1 + 2*n` follow the precedence of operators, and a text that is not
    a formula over names of other dimensions is a name.
    """

    def __init__(
        self,
        graph: Graph,
        shape_dict: Mapping[str, Shape] | None,
        dtype_dict: str | Mapping[str, str] | None,
        sanitize_names: bool,
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._graph = graph
        self._shapes = dict(shape_dict or {})
        self._dtypes = dict(dtype_dict) if isinstance(dtype_dict, Mapping) else {}
        # One type for all inputs has no effect, as in TVM: the model declares theirs.
        for dtype in [dtype_dict] if isinstance(dtype_dict, str) else self._dtypes.values():
            element_type(dtype)
        self._sanitize = sanitize_names
        self._names = UniqueNameSupply()
        self._infos = {tensor: declaration(tensor, tensor.info) for tensor in graph.inputs}
        texts = [text for info in self._infos.values() for text in self._texts(info)]
        self._symbols = Symbols(sizes, [text for text in texts if text.isidentifier()])
        self._tested = {
            tensor
            for each in graphs(graph)
            for node in each.nodes
            if node.op == "OptionalHasElement"
            for tensor in node.inputs
        }
        self.values: dict[Tensor, Value] = {}
        """By the graph's inputs."""
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

    def add_weights(self, weights: Sequence[onnx.TensorProto], base_dir: str) -> None:
        """Makes weights parameters; those that the graph takes as inputs get their values."""
        inputs = {tensor.name: tensor for tensor in self._graph.inputs}
        for tensor in weights:
            content = tvm.runtime.tensor(stored(tensor, base_dir))
            # Exporters of PyTorch put this before the names of weights.
            name = tensor.name.removeprefix("onnx::")
            variable = relax.Var(name, relax.TensorType(content.shape, content.dtype))
            self.parameters[name] = (variable, content)
            if tensor.name in inputs:
                self.values[inputs[tensor.name]] = variable

    def add_inputs(self) -> None:
        """Makes the inputs of the graph parameters, except weights and initializers."""
        for tensor, info in self._infos.items():
            if not isinstance(tensor, Constant) and tensor not in self.values:
                variable, value = self._input(info, tensor in self._tested)
                self.values[tensor] = value
                self.inputs.append(variable)

    def _input(self, info: onnx.ValueInfoProto, is_tested: bool) -> tuple[Any, Value]:
        """The parameter of an input, and the value that the graph works with."""
        is_optional = info.type.HasField("optional_type")
        # An optional that the model does not test is there in every run that succeeds.
        kind = info.type.optional_type.elem_type if is_optional else info.type
        if kind.HasField("sequence_type"):
            element = _element(info.name, kind.sequence_type.elem_type.tensor_type)
            variable = relax.Var(self._variable_name(info.name), relax.ObjectType())
            return variable, Received(variable, element)
        if is_optional and is_tested:
            element = _element(info.name, kind.tensor_type)
            variable = relax.Var(self._variable_name(info.name), relax.ObjectType())
            return variable, Received(variable, element, is_optional=True)
        tensor_type = self._type(info.name, kind)
        variable = relax.Var(self._variable_name(info.name), tensor_type)
        return variable, variable

    def _variable_name(self, name: str) -> str:
        if not self._sanitize:
            return name
        cleaned = name.replace(".", "_")
        if not cleaned:
            cleaned = "empty_"
        elif not (cleaned[0].isalpha() or cleaned[0] == "_") or keyword.iskeyword(cleaned):
            cleaned = f"input_{cleaned}"
        unique = str(self._names.fresh_name(cleaned))
        if unique != name:
            warnings.warn(f"Renaming name {name} to {unique}", stacklevel=2)
        return unique

    def _type(self, name: str, kind: onnx.TypeProto) -> Any:
        if kind.WhichOneof("value") not in ("tensor_type", None):
            form = str(kind.WhichOneof("value")).removesuffix("_type")
            raise UnsupportedError(
                f"input {name!r} is not a tensor but a {form}",
                remedy="Make the tensors in it inputs of their own",
            )
        tensor = kind.tensor_type
        return relax.TensorType(self._shape(name, tensor), self._dtype(name, tensor))

    def _dtype(self, name: str, tensor: onnx.TypeProto.Tensor) -> str | None:
        if name in self._dtypes:
            return self._dtypes[name]
        if tensor.elem_type == TensorProto.STRING:
            raise UnsupportedError(
                f"input {name!r} holds strings, which TVM does not have",
                remedy="Remove the part of the model that handles text",
            )
        return stored_dtype(tensor.elem_type) if tensor.elem_type else None

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
            return self._symbols.size(size)
        return self._symbols.unnamed(name, axis) if size is None else size

    def _declared(self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> Any:
        if dim.dim_value > 0:
            return dim.dim_value
        if dim.dim_param.strip().isdigit():
            return int(dim.dim_param)
        if dim.dim_param in ("", "?"):
            return self._symbols.unnamed(name, axis)
        return self._symbols.size(dim.dim_param)

    def _texts(self, info: onnx.ValueInfoProto) -> list[str]:
        """The sizes of an input that are given or declared as text."""
        if info.name in self._shapes:
            return [size for size in self._shapes[info.name] if isinstance(size, str)]
        return [dim.dim_param for dim in info.type.tensor_type.shape.dim]


def _element(name: str, tensor: onnx.TypeProto.Tensor) -> Element:
    """What a declaration says of the tensors of the sequence or optional `name`.

    The declared rank is checked whenever a tensor is taken out.
    """
    if not tensor.elem_type or tensor.elem_type == TensorProto.STRING:
        raise UnsupportedError(f"input {name!r} holds tensors of a type that TVM lacks")
    dtype = stored_dtype(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Element(dtype)
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    return Element(dtype, tuple(size if size > 0 else None for size in sizes))
