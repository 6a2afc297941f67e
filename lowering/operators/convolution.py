"""Conv, MaxPool and ConvTranspose where the padding follows from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import as_int
from .broadcasting import known_dims
from .padding import pad_constant
from .reductions import lowest
from .tvm_converter import convert_as_tvm

_ZERO = tirx.IntImm("int64", 0)


def convert_conv(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Conv, see https://onnx.ai/onnx/operators/onnx__Conv.html."""
    return _convert_window("Conv", bb, inputs, attrs, params)


def convert_max_pool(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """MaxPool, see https://onnx.ai/onnx/operators/onnx__MaxPool.html."""
    return _convert_window("MaxPool", bb, inputs, attrs, params)


def convert_conv_transpose(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """ConvTranspose; TVM's converter ignores the shape of the output.

    See https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.
    """
    if "output_shape" not in attrs:
        return convert_as_tvm("ConvTranspose", bb, inputs, attrs, params)
    sizes = _spatial(inputs[0])
    wanted = attrs["output_shape"][-len(sizes) :]
    spans = _spans(attrs, _kernel(inputs, attrs))
    strides = attrs.get("strides", [1] * len(sizes))
    more = list(attrs.get("output_padding", [0] * len(sizes)))
    sides = []
    for axis, (size, stride, span) in enumerate(zip(sizes, strides, spans, strict=True)):
        known = as_int(size)
        if known is None:
            raise UnsupportedError("the size of the data is not known, but that of the result is")
        total = stride * (known - 1) + more[axis] + span - wanted[axis]
        more[axis] += max(-total, 0)
        sides.append(_sides(max(total, 0), attrs))
    pads = [before for before, _ in sides] + [after for _, after in sides]
    fixed = {**attrs, "auto_pad": b"NOTSET", "pads": pads, "output_padding": more}
    return convert_as_tvm("ConvTranspose", bb, inputs, fixed, params)


def convert_lp_pool(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """LpPool, see https://onnx.ai/onnx/operators/onnx__LpPool.html.

    TVM's converter takes an average for a sum that has fewer elements where a window reaches past
    the end of the padded data. Here the padding, zeros, reaches as far as the windows.
    """
    data, sizes = inputs[0], _spatial(inputs[0])
    zero = relax.const(0, data.ty.dtype)
    before, after = _window_padding(attrs, sizes)
    padded = bb.call_te(pad_constant, data, zero, before, after, primfunc_name_hint="pad")
    kept = {key: value for key, value in attrs.items() if key not in ("pads", "ceil_mode")}
    operands = InputList([bb.normalize(padded)])
    return convert_as_tvm("LpPool", bb, operands, {**kept, "auto_pad": b"VALID"}, params)


def _window_padding(attrs: dict[str, Any], sizes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """How much to add so that the windows end where the data does, as `_amounts` does."""
    mode = attrs.get("auto_pad", b"NOTSET")
    if mode in (b"SAME_UPPER", b"SAME_LOWER"):
        return _amounts(attrs, sizes, attrs["kernel_shape"])
    pads = attrs.get("pads", [0] * 2 * len(sizes)) if mode == b"NOTSET" else [0] * 2 * len(sizes)
    before = [_ZERO] * 2 + [tirx.IntImm("int64", pad) for pad in pads[: len(sizes)]]
    after = [_ZERO] * 2 + [tirx.IntImm("int64", pad) for pad in pads[len(sizes) :]]
    if not attrs.get("ceil_mode", 0):
        return before, after
    strides = attrs.get("strides", [1] * len(sizes))
    spans = _spans(attrs, attrs["kernel_shape"])
    for axis, (size, stride, span) in enumerate(zip(sizes, strides, spans, strict=True), 2):
        steps = tirx.floordiv(size + before[axis] + after[axis] - span + stride - 1, stride)
        # A window that would begin behind the data and the padding before it is left out.
        steps = tirx.min(steps, tirx.floordiv(size + before[axis] - 1, stride))
        total = steps * stride + span - size - before[axis]
        after[axis] = sym.Analyzer().simplify(tirx.max(total, after[axis]))
    return before, after


def _convert_window(op_type: str, bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """With symbolic sizes and as many results as strides fit, the padding depends on the sizes."""
    is_same = attrs.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER")
    if not is_same or all(as_int(size) is not None for size in _spatial(inputs[0])):
        return convert_as_tvm(op_type, bb, inputs, attrs, params)
    dtype = str(inputs[0].ty.dtype)
    fill = relax.const(0 if op_type == "Conv" else lowest(dtype), dtype)
    before, after = _amounts(attrs, _spatial(inputs[0]), _kernel(inputs, attrs))
    padded = bb.call_te(pad_constant, inputs[0], fill, before, after, primfunc_name_hint="pad")
    fixed = {**attrs, "auto_pad": b"VALID"}
    operands = InputList([bb.normalize(padded), *inputs[1:]])
    return convert_as_tvm(op_type, bb, operands, fixed, params)


def _amounts(
    attrs: dict[str, Any], sizes: Sequence[Any], kernel: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """How much to add before and after each axis, those of batch and channels included."""
    analyzer = sym.Analyzer()
    sides = [(_ZERO, _ZERO)] * 2
    strides = attrs.get("strides", [1] * len(sizes))
    for size, stride, span in zip(sizes, strides, _spans(attrs, kernel), strict=True):
        results = tirx.floordiv(size + (stride - 1), stride)
        total = analyzer.simplify((results - 1) * stride + span - size)
        sides.append(_sides(tirx.max(total, _ZERO), attrs))
    return [before for before, _ in sides], [after for _, after in sides]


def _sides(total: Any, attrs: dict[str, Any]) -> tuple[Any, Any]:
    """An amount split into two; what is odd goes to the end if the attribute says so."""
    half = total // 2 if isinstance(total, int) else tirx.floordiv(total, 2)
    is_upper = attrs.get("auto_pad") == b"SAME_UPPER"
    return (half, total - half) if is_upper else (total - half, half)


def _spatial(data: Any) -> list[Any]:
    dims = known_dims(data)
    if dims is None:
        raise UnsupportedError("the shape of the data is not known")
    return dims[2:]


def _kernel(inputs: Any, attrs: dict[str, Any]) -> list[int]:
    if "kernel_shape" in attrs:
        return list(attrs["kernel_shape"])
    sizes = [as_int(size) for size in _spatial(inputs[1])]
    if None in sizes:
        raise UnsupportedError("the size of the kernel is not known")
    return [size for size in sizes if size is not None]


def _spans(attrs: dict[str, Any], kernel: Sequence[int]) -> list[int]:
    """How many elements lie between the first and the last that a window reads, these included."""
    dilations = attrs.get("dilations", [1] * len(kernel))
    return [(size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True)]
