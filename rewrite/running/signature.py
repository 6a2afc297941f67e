"""The inputs of a model: their types, and the dimensions that have no fixed size.

Every open dimension has a name: the one in the file, or `x[1]` for an axis of the input `x` that
has none. A name means the same size in all inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..graph.declarations import shape_of
from ..storage.dim_formulas import evaluate_formula, is_formula

DimSizes = Mapping[str, int]
Dimension = int | str

GENERATED = frozenset(
    {
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
        onnx.TensorProto.BOOL,
        onnx.TensorProto.STRING,
    }
)
"""Element types that numpy represents and that onnxruntime accepts from Python."""

LARGEST_LIKELY = 4096
"""The largest declared size that is also tried for other dimensions."""


class CannotGenerateInputs(Exception):
    """Values for an input cannot be generated; the text says which and why."""


@dataclass(frozen=True)
class TensorInput:
    """A tensor; `dims` is None when the rank is not declared."""

    dtype: np.dtype[Any]
    dims: tuple[Dimension, ...] | None


@dataclass(frozen=True)
class SequenceInput:
    """A list of tensors of one type."""

    element: TensorInput


@dataclass(frozen=True)
class OptionalInput:
    """A tensor or a sequence that may be omitted."""

    element: TensorInput | SequenceInput


Input = TensorInput | SequenceInput | OptionalInput


@dataclass(frozen=True)
class InputSignature:
    """The inputs that a caller must provide, by name: those without a default."""

    inputs: Mapping[str, Input]

    def tensors(self) -> dict[str, TensorInput]:
        """For each input the tensor that it is or consists of."""
        return {name: _tensor(given) for name, given in self.inputs.items()}

    def unranked(self) -> list[str]:
        """The inputs whose rank is not declared."""
        return [name for name, tensor in self.tensors().items() if tensor.dims is None]

    def with_rank(self, rank: int) -> InputSignature:
        """The signature in which every input of unknown rank has this rank."""
        inputs = {
            name: _with_dims(given, tuple(f"{name}[{axis}]" for axis in range(rank)))
            if _tensor(given).dims is None
            else given
            for name, given in self.inputs.items()
        }
        return InputSignature(inputs)

    def open_dims(self) -> list[str]:
        """The names whose sizes a caller chooses, in order of appearance.

        Leaves out a name such as `2*n` if `n` is among them, which determines its size.
        """
        names = dict.fromkeys(
            dim
            for tensor in self.tensors().values()
            for dim in tensor.dims or ()
            if isinstance(dim, str)
        )
        plain = {name for name in names if name.isidentifier()}
        return [name for name in names if name in plain or not is_formula(name, plain)]

    def shape(self, tensor: TensorInput, sizes: DimSizes) -> tuple[int, ...]:
        """The shape of an input under an assignment of sizes to `open_dims`."""
        return tuple(
            dim
            if isinstance(dim, int)
            else sizes[dim]
            if dim in sizes
            else evaluate_dim(dim, sizes)
            for dim in tensor.dims or ()
        )

    def elements(self, sizes: DimSizes) -> int:
        """The number of elements of all inputs together."""
        return sum(
            int(np.prod(self.shape(tensor, sizes), dtype=object))
            for tensor in self.tensors().values()
        )


def input_signature(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> InputSignature:
    """The inputs of a model, with asserted shapes.

    A number or a name in `shapes` replaces the dimension of the file there, and in all other places
    where the file uses the same name; None leaves it as it is. Raises `CannotGenerateInputs` for
    types whose values cannot be generated.
    """
    defaults = {tensor.name for tensor in model.graph.initializer}
    defaults |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    inputs = {
        info.name: _read(info.name, info.type)
        for info in model.graph.input
        if info.name not in defaults
    }
    if not shapes:
        return InputSignature(inputs)
    known: dict[str, Dimension] = {}
    for name, asserted in shapes.items():
        if name in inputs:
            inputs[name], replaced = _assert_shape(name, inputs[name], asserted)
            known |= replaced
    return InputSignature({name: _substitute(given, known) for name, given in inputs.items()})


def declared_sizes(model: onnx.ModelProto) -> list[int]:
    """The sizes that the file declares for inputs and outputs.

    They are also likely for open dimensions: exporters often declare only one of two equal ones.
    """
    infos = (*model.graph.output, *model.graph.input)
    dims = (dim.dim_value for info in infos for dim in info.type.tensor_type.shape.dim)
    return list(dict.fromkeys(size for size in dims if 1 < size <= LARGEST_LIKELY))


def _read(name: str, kind: onnx.TypeProto) -> Input:
    case = kind.WhichOneof("value")
    if case == "tensor_type":
        return _read_tensor(name, kind.tensor_type)
    if case == "sequence_type":
        element = _read(name, kind.sequence_type.elem_type)
        if isinstance(element, TensorInput):
            return SequenceInput(element)
    if case == "optional_type":
        element = _read(name, kind.optional_type.elem_type)
        if not isinstance(element, OptionalInput):
            return OptionalInput(element)
    spelling = (case or "no type").removesuffix("_type").replace("_", " ")
    raise CannotGenerateInputs(f"no values can be generated for the input '{name}' ({spelling})")


def _read_tensor(name: str, kind: onnx.TypeProto.Tensor) -> TensorInput:
    if kind.elem_type not in GENERATED:
        spelling = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        raise CannotGenerateInputs(
            f"no values can be generated for the input '{name}' ({spelling} tensor)"
        )
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if not kind.HasField("shape"):
        return TensorInput(dtype, None)
    return TensorInput(
        dtype,
        tuple(
            f"{name}[{axis}]" if dim is None else dim
            for axis, dim in enumerate(shape_of(kind.shape))
        ),
    )


def _tensor(given: Input) -> TensorInput:
    while not isinstance(given, TensorInput):
        given = given.element
    return given


def _with_dims(given: Input, dims: tuple[Dimension, ...]) -> Input:
    if isinstance(given, TensorInput):
        return replace(given, dims=dims)
    element: Any = _with_dims(given.element, dims)
    return replace(given, element=element)


def _assert_shape(
    name: str, given: Input, asserted: Sequence[int | str | None]
) -> tuple[Input, dict[str, Dimension]]:
    """The input with the asserted shape, and the replacements of the names that it had."""
    declared = _tensor(given).dims
    if declared is None:
        declared = tuple(f"{name}[{axis}]" for axis in range(len(asserted)))
    dims = tuple(old if new is None else new for old, new in zip(declared, asserted, strict=True))
    replaced = {old: new for old, new in zip(declared, dims) if isinstance(old, str) and old != new}
    return _with_dims(given, dims), replaced


def _substitute(given: Input, known: Mapping[str, Dimension]) -> Input:
    dims = _tensor(given).dims
    if dims is None:
        return given
    return _with_dims(given, tuple(known.get(d, d) if isinstance(d, str) else d for d in dims))


def evaluate_dim(text: str, sizes: DimSizes) -> int:
    """The value of a formula such as `2*n + 1`, at least 0; `sizes` must have all names in it."""
    return max(0, int(evaluate_formula(text, sizes)))
