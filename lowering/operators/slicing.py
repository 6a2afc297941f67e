"""Slice with constant bounds along dimensions whose sizes are symbolic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, sym, tirx

from ..tvm_onnx import InputList
from ..values import Constant, as_int, as_tensor, match
from .broadcasting import known_dims
from .sizes import read_symbolic, write_sizes
from .tvm_converter import convert_as_tvm

_END = 2**31 - 1
"""Exporters write this or a larger number for "to the end"."""


@dataclass(frozen=True)
class _Cut:
    axis: int
    start: int
    end: int
    step: int


def convert_slice(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Slice, see https://onnx.ai/onnx/operators/onnx__Slice.html: bounds are cut to the size.

    TVM's converter cuts "to the end" to `min(9223372036854775807, size)`, which no later shape is
    recognised to be equal to, and knows only the form with inputs.
    """
    inputs = _with_known_length(bb, inputs)
    data, cuts = inputs[0], _cuts(inputs, attrs)
    sizes = read_symbolic([data])
    if sizes and cuts is not None and len(cuts) == 1:
        # ONNX's bounds of a vector mean what Python's do.
        kept = sizes[0].items[cuts[0].start : cuts[0].end : cuts[0].step]
        return write_sizes(replace(sizes[0], items=kept))
    data = as_tensor(bb, data)
    inputs = InputList([data, *inputs[1:]])
    dims = None if isinstance(data, Constant) else known_dims(data)
    if dims is None or cuts is None:
        return convert_as_tvm("Slice", bb, inputs, attrs, params)
    turned = [cut for cut in cuts if _is_reversal(cut)]
    if any(cut.step < 0 for cut in cuts if cut not in turned):
        return convert_as_tvm("Slice", bb, inputs, attrs, params)
    if turned:
        for cut in turned:
            data = bb.normalize(relax.op.flip(data, cut.axis % len(dims)))
        cuts = [cut for cut in cuts if cut not in turned]
    is_static = all(as_int(dims[cut.axis]) is not None for cut in cuts)
    if is_static and not turned and "starts" not in attrs:
        return convert_as_tvm("Slice", bb, inputs, attrs, params)
    cuts = [cut for cut in cuts if not _is_whole(cut)]
    if not cuts:
        return data
    bounds = [_bounds(cut, dims[cut.axis]) for cut in cuts]
    return relax.op.strided_slice(
        data,
        [cut.axis for cut in cuts],
        [relax.prim_value(start) for start, _ in bounds],
        [relax.prim_value(end) for _, end in bounds],
        [relax.prim_value(cut.step) for cut in cuts],
        assume_inbound=True,
    )


def _with_known_length(bb: Any, inputs: Any) -> Any:
    """The inputs; bounds of unknown number are cast to as many as there are axes."""
    given = [inputs[index] for index in range(5)]
    lengths = {value.ty.shape.values[0] for value in given[3:] if isinstance(value, Constant)}
    if not lengths:
        return inputs
    length = next(iter(lengths))

    def cast(bound: Any) -> Any:
        is_vector = isinstance(bound, relax.Expr) and isinstance(bound.ty, relax.TensorType)
        dims = known_dims(bound) if is_vector else None
        if not dims or as_int(dims[0]) is not None:
            return bound
        return match(bb, bound, relax.TensorType([length], bound.ty.dtype))

    return InputList([given[0], *(cast(bound) for bound in given[1:3]), *given[3:]])


def _cuts(inputs: Any, attrs: dict[str, Any]) -> list[_Cut] | None:
    """The bounds along each axis, or None if they are not all constant."""
    columns = _columns(inputs, attrs)
    if columns is None:
        return None
    starts, ends, axes, steps = columns
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return [_Cut(*map(int, row)) for row in zip(axes, starts, ends, steps, strict=True)]


def _columns(inputs: Any, attrs: dict[str, Any]) -> list[Any] | None:
    if "starts" in attrs:
        return [attrs["starts"], attrs["ends"], attrs.get("axes"), None]
    given = [inputs[index] for index in range(1, 5)]
    if not all(value is None or isinstance(value, Constant) for value in given):
        return None
    return [None if value is None else value.value.numpy().tolist() for value in given]


def _is_whole(cut: _Cut) -> bool:
    return cut.start == 0 and cut.end >= _END and cut.step == 1


def _is_reversal(cut: _Cut) -> bool:
    """Whether a cut is the whole dimension backwards."""
    return cut.step == -1 and (cut.start == -1 or cut.start >= _END) and cut.end <= -_END


def _bounds(cut: _Cut, size: Any) -> tuple[Any, Any]:
    """The bounds as they lie within the dimension, the end not before the start."""
    analyzer = sym.Analyzer()
    start, end = (analyzer.simplify(_cut_to(bound, size)) for bound in (cut.start, cut.end))
    if cut.end >= _END or cut.start == 0 or cut.start <= cut.end < 0 or 0 <= cut.start <= cut.end:
        return start, end
    return start, analyzer.simplify(tirx.max(start, end))


def _cut_to(bound: int, size: Any) -> Any:
    if bound >= _END:
        return size
    if bound < 0:
        return tirx.max(size + bound, tirx.IntImm("int64", 0))
    return tirx.min(tirx.IntImm("int64", bound), size)
