"""Squeeze of a dimension whose size is known only at run time; axes given as a scalar."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax, sym

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import Constant, as_int, as_tensor, match
from .broadcasting import known_dims
from .sizes import read_symbolic, write_sizes
from .tvm_converter import convert_as_tvm


def convert_squeeze(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Squeeze; a symbolic size is cast to 1, and a run with another size fails."""
    sizes = read_symbolic(inputs[:1])
    if sizes and len(sizes[0].items) == 1:
        return write_sizes(replace(sizes[0], rank=0))
    axes = _axes(inputs, attrs)
    inputs = InputList([as_tensor(bb, inputs[0]), *inputs[1:]])
    dims = known_dims(inputs[0])
    is_open = dims is not None and any(as_int(size) is None for size in dims)
    if axes is None and inputs[1] is None and is_open:
        axes = _unit_axes(dims or [])
        if not axes:
            return inputs[0]
        inputs = InputList([inputs[0], relax.const(axes, "int64")])
    if axes is None or dims is None or isinstance(inputs[0], Constant):
        return convert_as_tvm("Squeeze", bb, inputs, attrs, params)
    for axis in axes:
        if not -len(dims) <= axis < len(dims):
            raise UnsupportedError(f"axis {axis} is out of range for rank {len(dims)}")
    unknown = [axis for axis in axes if as_int(dims[axis]) is None]
    if not unknown:
        return convert_as_tvm("Squeeze", bb, inputs, attrs, params)
    for axis in unknown:
        dims[axis] = 1
    unit = match(bb, inputs[0], relax.TensorType(dims, inputs[0].ty.dtype))
    return convert_as_tvm("Squeeze", bb, [unit, *inputs[1:]], attrs, params)


def _unit_axes(dims: list[Any]) -> list[int]:
    """The axes that a Squeeze without axes removes: all of size 1."""
    for axis, size in enumerate(dims):
        if as_int(size) is None and not sym.Analyzer().can_prove(size != 1):
            raise UnsupportedError(
                f"the rank of the result depends on whether axis {axis}, of size {size}, has size 1"
            )
    return [axis for axis, size in enumerate(dims) if as_int(size) == 1]


def convert_unsqueeze(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Unsqueeze; onnxruntime takes one axis without a dimension, and so do exporters."""
    sizes = read_symbolic(inputs[:1])
    if sizes and sizes[0].rank == 0:
        return write_sizes(replace(sizes[0], rank=1))
    inputs = [as_tensor(bb, inputs[0]), *inputs[1:]]
    if isinstance(InputList(inputs)[1], Constant) and inputs[1].value.numpy().ndim == 0:
        inputs = [inputs[0], relax.const(inputs[1].value.numpy().reshape(1), "int64")]
    return convert_as_tvm("Unsqueeze", bb, inputs, attrs, params)


def _axes(inputs: Any, attrs: dict[str, Any]) -> list[int] | None:
    if "axes" in attrs:
        return list(attrs["axes"])
    if isinstance(inputs[1], Constant):
        return [int(axis) for axis in inputs[1].value.numpy().reshape(-1)]
    return None
