"""CumSum and CumProd along constant or computed axes."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ..scheduling.legalization.cumulative import GUARDS_EMPTY_AXIS
from ..small_kernels import range_along
from ..values import Value
from .accumulation import accumulate_in_float32
from .axes import axis_position, middle_axis_view
from .broadcasting import ONE, ZERO, dims_of
from .padding import pad_with
from .registry import ConverterContext, converts
from .sizes import may_be_zero

_GUARD = {GUARDS_EMPTY_AXIS: True}


@converts("CumProd", "CumSum")
@accumulate_in_float32
def cumulative(ctx: ConverterContext) -> Value:
    """CumSum and CumProd, see https://onnx.ai/onnx/operators/onnx__CumSum.html."""
    data, bb = ctx.inputs[0], ctx.bb
    dims, position = dims_of(data, "data"), axis_position(ctx, ctx.inputs[1], data)
    is_known = isinstance(position, int)
    axis = position if is_known else 1
    view = data if is_known else middle_axis_view(bb, data, dims, position)
    size = dims_of(view, "data")[axis]
    view = _with_an_element(ctx, view, axis, size)
    if ctx.attr("reverse", 0):
        view = bb.normalize(relax.op.flip(view, axis))
    compute = relax.op.cumsum if ctx.op_type == "CumSum" else relax.op.cumprod
    is_exclusive = bool(ctx.attr("exclusive", 0))
    result = bb.normalize(compute(view, axis, dtype=data.ty.dtype, exclusive=is_exclusive))
    if ctx.attr("reverse", 0):
        result = bb.normalize(relax.op.flip(result, axis))
    if may_be_zero(size):
        result = ctx.call_te(range_along, result, ZERO, size, axis, name="part", attributes=_GUARD)
    return result if is_known else relax.op.reshape(result, relax.ShapeExpr(dims))


def _with_an_element(ctx: ConverterContext, data: Value, axis: int, size: Any) -> Value:
    """The data with an element along an axis that has none: TVM's kernel always reads the first."""
    if not may_be_zero(size):
        return data
    none = [ZERO] * data.ty.ndim
    after = [*none[:axis], tirx.max(ONE - size, ZERO), *none[axis + 1 :]]
    return pad_with(ctx, data, relax.const(0, data.ty.dtype), none, after, _GUARD)
