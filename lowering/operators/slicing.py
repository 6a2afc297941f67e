"""Slice along dimensions whose sizes are symbolic, with bounds of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, tirx

from ..tvm_onnx import InputList
from ..values import Constant, as_int, as_tensor, fresh_dim, match
from .broadcasting import known_dims
from .runtime_shapes import sizes_of
from .sizes import read_sizes, read_symbolic, write_sizes
from .slice_bounds import Cut
from .tvm_converter import convert_as_tvm


def convert_slice(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Slice, see https://onnx.ai/onnx/operators/onnx__Slice.html: bounds are cut to the size.

    TVM's converter cuts "to the end" to `min(9223372036854775807, size)`, which no later shape is
    recognised to be equal to, takes formulas to lie inside, turns some cuts backwards into empty
    ones, fails at run time where a cut is empty, and knows only the form with inputs.
    """
    inputs = _with_known_length(bb, InputList([inputs[0], *map(_as_vector, inputs[1:])]))
    data, cuts = inputs[0], _cuts(bb, inputs, attrs)
    sizes = read_symbolic([data])
    if sizes and cuts is not None and len(cuts) == 1 and cuts[0].is_constant:
        return write_sizes(replace(sizes[0], items=list(cuts[0].picks(sizes[0].items))))
    data = as_tensor(bb, data)
    inputs = InputList([data, *inputs[1:]])
    dims = None if isinstance(data, Constant) else known_dims(data)
    if dims is None or cuts is None or _is_static(cuts, dims, attrs):
        return convert_as_tvm("Slice", bb, inputs, attrs, params)
    cuts = [replace(cut, axis=cut.axis % len(dims)) for cut in cuts]
    for cut in cuts:
        if cut.step < 0:
            data = bb.normalize(relax.op.flip(data, cut.axis))
    cuts = [cut for cut in cuts if not cut.is_whole]
    return _cut(bb, data, dims, cuts) if cuts else data


def _as_vector(bound: Any) -> Any:
    """A bound; exporters write one that is constant without a dimension."""
    if isinstance(bound, Constant) and bound.ty.ndim == 0:
        return relax.const(bound.value.numpy().reshape(1), str(bound.ty.dtype))
    return bound


def _is_static(cuts: Sequence[Cut], dims: Sequence[Any], attrs: dict[str, Any]) -> bool:
    """Whether all is known, and given as inputs: then TVM's converter is right."""
    sizes = [as_int(dims[cut.axis]) for cut in cuts]
    return None not in sizes and all(cut.is_constant for cut in cuts) and "starts" not in attrs


def _cut(bb: Any, data: Any, dims: Sequence[Any], cuts: Sequence[Cut]) -> Any:
    """The part of a tensor in which the axes that are cut backwards are turned around already."""
    bounds = [cut.bounds(dims[cut.axis]) for cut in cuts]
    part = relax.op.strided_slice(
        data,
        [cut.axis for cut in cuts],
        [relax.prim_value(start) for start, _ in bounds],
        [relax.prim_value(end) for _, end in bounds],
        [relax.prim_value(abs(cut.step)) for cut in cuts],
        assume_inbound=True,
    )
    if any(cut.is_read for cut in cuts):
        return _with_fresh_sizes(bb, bb.normalize(part), cuts)
    return part


def _with_fresh_sizes(bb: Any, part: Any, cuts: Sequence[Cut]) -> Any:
    """The part with symbols for sizes whose formulas would grow from cut to cut."""
    dims = known_dims(part) or []
    for cut in cuts:
        if as_int(dims[cut.axis]) is None:
            dims[cut.axis] = fresh_dim("part")
    return match(bb, part, relax.TensorType(dims, part.ty.dtype))


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


def _cuts(bb: Any, inputs: Any, attrs: dict[str, Any]) -> list[Cut] | None:
    """The cut along each axis, or None if axes or steps are not constant."""
    if "starts" in attrs:
        starts, ends = (
            [tirx.IntImm("int64", bound) for bound in attrs[name]] for name in ("starts", "ends")
        )
        return _rows(starts, ends, attrs.get("axes"), None, is_read=False)
    if not all(isinstance(value, Constant | None) for value in (inputs[3], inputs[4])):
        return None
    axes, steps = (
        None if value is None else value.value.numpy().tolist() for value in (inputs[3], inputs[4])
    )
    given = [read_sizes(bounds) for bounds in (inputs[1], inputs[2])]
    starts, ends = (
        sizes_of(bb, bounds) if sizes is None else sizes.items
        for sizes, bounds in zip(given, (inputs[1], inputs[2]), strict=True)
    )
    return _rows(starts, ends, axes, steps, is_read=None in given)


def _rows(
    starts: Sequence[Any],
    ends: Sequence[Any],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
    *,
    is_read: bool,
) -> list[Cut]:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return [Cut(*row, is_read) for row in zip(axes, starts, ends, steps, strict=True)]
