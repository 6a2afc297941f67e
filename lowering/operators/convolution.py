"""Conv, pooling and ConvTranspose where the padding depends on sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax, sym, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.relax.size_names import OPAQUE
from ..values import Value, as_int
from .accumulation import accumulate_in_float32
from .broadcasting import ONE, ZERO, dims_of, known_dims, match_dims
from .extremes import lowest
from .max_positions import pool_with_positions
from .padding import pad_with
from .registry import ConverterContext, converts

_SAME = ("SAME_UPPER", "SAME_LOWER")
_BY_RANK = {3: relax.op.nn.conv1d, 4: relax.op.nn.conv2d, 5: relax.op.nn.conv3d}
"""The operator for data of a rank."""


@converts("Conv")
@accumulate_in_float32
def conv(ctx: ConverterContext) -> Value:
    """Conv, see https://onnx.ai/onnx/operators/onnx__Conv.html."""
    data, weight, bias = (ctx.inputs[slot] for slot in range(3))
    dims = known_dims(weight)
    declared = ctx.attrs.get("kernel_shape")
    if declared is None and ctx.attr("auto_pad", "NOTSET") in _SAME:
        ctx = ctx.derive(kernel_shape=_kernel_shape(ctx))
    if declared is not None and dims is not None:
        sizes = [as_int(size) for size in dims[2:]]
        if None not in sizes and list(declared) != sizes:
            raise UnsupportedError(f"kernel_shape is {list(declared)}, the weight is of {sizes}")
    if dims is None:
        return _by_tvm_after_padding(ctx, 0)
    if bias is not None:
        bias = match_dims(ctx.bb, bias, dims[:1])
    data, weight = _with_equal_channels(ctx.bb, data, weight, 1, ctx.attr("group", 1))
    return _by_tvm_after_padding(ctx.derive(inputs=[data, weight, bias]), 0)


def _with_equal_channels(
    bb: Any, data: Value, weight: Value, axis: int, groups: int
) -> tuple[Value, Value]:
    """The data and the weight, one of them cast: a run in which their input channels differ fails.

    The weight has those of a group along an axis.
    """
    dims, of_weight = known_dims(data), known_dims(weight)
    if dims is None or of_weight is None:
        return data, weight
    channels = as_int(dims[1])
    if channels is None:
        wanted = sym.Analyzer().simplify(of_weight[axis] * groups)
        return match_dims(bb, data, [dims[0], wanted, *dims[2:]]), weight
    if as_int(of_weight[axis]) is not None:
        return data, weight  # TVM compares numbers itself.
    of_weight[axis] = tirx.IntImm("int64", channels // groups)
    return data, match_dims(bb, weight, of_weight)


def conv_of_bytes(ctx: ConverterContext, data: Value, weight: Value, fill: Value) -> Value:
    """The convolution of two tensors of bytes, as int32, with the attributes of the node.

    `fill` pads the data.
    """
    rank = data.ty.ndim
    if rank not in _BY_RANK:
        raise UnsupportedError(f"a convolution of rank {rank} has no translation to Relax")
    data, weight = _with_equal_channels(ctx.bb, data, weight, 1, ctx.attr("group", 1))
    ctx = ctx.derive(inputs=[data, weight])
    ctx = ctx.derive(kernel_shape=_kernel_shape(ctx))
    before, after = pooling_padding(ctx, _spatial_dims(data))
    if any(as_int(amount) != 0 for amount in (*before, *after)):
        data = pad_with(ctx, data, fill, before, after)
    result = _BY_RANK[rank](
        data, weight, strides=ctx.attr("strides", 1), dilation=ctx.attr("dilations", 1),
        groups=ctx.attr("group", 1), out_dtype="int32",
    )  # fmt: skip
    return ctx.bb.emit(result)


@converts("MaxPool")
def max_pool(ctx: ConverterContext) -> Value:
    """MaxPool, see https://onnx.ai/onnx/operators/onnx__MaxPool.html."""
    if ctx.num_outputs > 1:
        before, after = pooling_padding(ctx, _spatial_dims(ctx.inputs[0]))
        return pool_with_positions(ctx, before, after)
    return _by_tvm_after_padding(_without_ceil_mode(ctx), lowest(str(ctx.inputs[0].ty.dtype)))


@converts("com.microsoft::NhwcMaxPool")
def nhwc_max_pool(ctx: ConverterContext) -> Value:
    """NhwcMaxPool of onnxruntime's `docs/ContribOperators.md`: MaxPool with the channels last."""
    data = ctx.inputs[0]
    dims = dims_of(data, "data")
    is_given = ctx.attr("auto_pad", "NOTSET") not in _SAME and not ctx.attr("ceil_mode", 0)
    if len(dims) == 4 and is_given:
        before, after = pooling_padding(ctx, dims[1:-1])
        return relax.op.nn.max_pool2d(
            data, ctx.attrs["kernel_shape"], ctx.attr("strides", 1),
            [as_int(amount) for amount in (*before[2:], *after[2:])], ctx.attr("dilations", 1),
            layout="NHWC",
        )  # fmt: skip
    rank = len(dims)
    first = ctx.apply("Transpose", data, perm=[0, rank - 1, *range(1, rank - 1)])
    attrs = {name: value for name, value in ctx.attrs.items() if name != "tvm_custom"}
    pooled = ctx.apply("MaxPool", first, **attrs)
    return ctx.apply("Transpose", pooled, perm=[0, *range(2, rank), 1])


@converts("AveragePool")
@accumulate_in_float32
def average_pool(ctx: ConverterContext) -> Value:
    """AveragePool, see https://onnx.ai/onnx/operators/onnx__AveragePool.html.

    With padding of unknown size that is not counted, the mean of all elements of a window is
    divided by the share that lies in the data.
    """
    ctx = _without_ceil_mode(ctx)
    mean = _by_tvm_after_padding(ctx, 0)
    counts_padding = ctx.attr("count_include_pad", 0)
    is_same = ctx.attr("auto_pad", "NOTSET") in _SAME
    if _padding_is_known(ctx) or (counts_padding and is_same):
        return mean
    data = ctx.inputs[0]
    sizes = _spatial_dims(data)
    before, after = pooling_padding(ctx, sizes)
    one = relax.const(1, str(data.ty.dtype))
    counted = ctx.bb.emit(relax.op.full(relax.ShapeExpr([ONE, ONE, *sizes]), one))
    if counts_padding:  # But for what rounding up adds.
        given, more = pooling_padding(ctx.derive(ceil_mode=0), sizes)
        counted = pad_with(ctx, counted, one, given, more)
        before, after = [ZERO] * len(before), [a - m for a, m in zip(after, more, strict=True)]
    share = _pad_then_by_tvm(ctx, counted, 0, before, after)
    return relax.op.divide(ctx.bb.emit(mean), ctx.bb.emit(share))


def _without_ceil_mode(ctx: ConverterContext) -> ConverterContext:
    """Replaces `ceil_mode` by more padding after the data, where sizes are symbolic.

    Rounding up equals padding by `stride - 1` more and rounding down, if no window begins after the
    data. That holds where the padding is shorter than a window. TVM guards the last window by a
    conditional size, which its passes cannot nest.
    """
    if not ctx.attr("ceil_mode", 0) or ctx.attr("auto_pad", "NOTSET") != "NOTSET":
        return ctx
    sizes = _spatial_dims(ctx.inputs[0])
    if all(as_int(size) is not None for size in sizes):
        return ctx
    rank = len(sizes)
    strides = ctx.attr("strides", [1] * rank)
    pads = list(ctx.attr("pads", [0] * 2 * rank))
    extents = _window_extents(ctx, ctx.attrs["kernel_shape"])
    after = [amount + stride - 1 for amount, stride in zip(pads[rank:], strides, strict=True)]
    if not all(amount < extent for amount, extent in zip(after, extents, strict=True)):
        return ctx
    if not ctx.attr("count_include_pad", 0):
        return ctx.derive(pads=[*pads[:rank], *after], ceil_mode=0)
    # Padding from `pads` counts towards the average; padding from rounding up does not.
    data = ctx.inputs[0]
    before, counted = pooling_padding(ctx.derive(ceil_mode=0), sizes)
    padded = pad_with(ctx, data, relax.const(0, data.ty.dtype), before, counted)
    after = [stride - 1 for stride in strides]
    return ctx.derive(inputs=[padded], pads=[0] * rank + after, ceil_mode=0, count_include_pad=0)


def _padding_is_known(ctx: ConverterContext) -> bool:
    """Whether the padding is known at import.

    SAME has `(size + stride - 1) // stride` windows, which is the size itself for a stride of 1.
    """
    is_same = ctx.attr("auto_pad", "NOTSET") in _SAME
    if not is_same and not ctx.attr("ceil_mode", 0):
        return True
    are_known = [as_int(size) is not None for size in _spatial_dims(ctx.inputs[0])]
    if not is_same:
        return all(are_known)
    strides = ctx.attr("strides", [1] * len(are_known))
    pairs = zip(are_known, strides, strict=True)
    return all(is_known or stride == 1 for is_known, stride in pairs)


def _by_tvm_after_padding(ctx: ConverterContext, fill: float) -> Value:
    """TVM's converter, with the padding of `auto_pad` SAME and of `ceil_mode` computed here.

    TVM's own is wrong for SAME_LOWER with strides, and needs the size of the batch.
    """
    is_same = ctx.attr("auto_pad", "NOTSET") in _SAME
    is_known = _padding_is_known(ctx)
    if not is_same and is_known:
        return ctx.by_tvm()
    data = ctx.inputs[0]
    before, after = pooling_padding(ctx, _spatial_dims(data))
    if is_known:
        pads = [as_int(amount) for amount in (*before[2:], *after[2:])]
        return ctx.by_tvm(auto_pad=b"NOTSET", pads=pads)
    return _pad_then_by_tvm(ctx, data, fill, before, after)


def _pad_then_by_tvm(
    ctx: ConverterContext, data: Value, fill: float, before: Sequence[Any], after: Sequence[Any]
) -> Value:
    """TVM's converter on data that is padded first."""
    own_kernel = {"op_pattern": OPAQUE}  # What reads it may take the padding in.
    number = relax.const(fill, str(data.ty.dtype))
    padded = pad_with(ctx, data, number, before, after, own_kernel)
    pads = [0] * 2 * (len(before) - 2)
    return ctx.by_tvm([padded, *ctx.inputs[1:]], auto_pad=b"NOTSET", pads=pads, ceil_mode=0)


@converts("ConvTranspose")
@accumulate_in_float32
def conv_transpose(ctx: ConverterContext) -> Value:
    """ConvTranspose, see https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.

    TVM's converter ignores `output_shape`. Here it decides the padding, as in the specification.
    """
    data, weight, *bias = ctx.inputs
    data, weight = _with_equal_channels(ctx.bb, data, weight, 0, 1)
    ctx = ctx.derive(inputs=[data, weight, *bias])
    if ctx.attr("group", 1) > 1 and as_int(dims_of(weight, "weights")[0]) is None:
        raise UnsupportedError("the number of channels, which form groups, is not known")
    kernel = _kernel_shape(ctx)
    if "output_shape" not in ctx.attrs:
        return ctx.by_tvm()
    sizes = _spatial_dims(ctx.inputs[0])
    wanted = ctx.attrs["output_shape"][-len(sizes) :]
    extents = _window_extents(ctx, kernel)
    strides = ctx.attr("strides", [1] * len(sizes))
    output_padding = list(ctx.attr("output_padding", [0] * len(sizes)))
    sides = []
    for axis, (size, stride, extent) in enumerate(zip(sizes, strides, extents, strict=True)):
        known = as_int(size)
        if known is None:
            raise UnsupportedError(
                f"`output_shape` is given, but the size of axis {axis + 2} of the data is not known"
            )
        total = stride * (known - 1) + output_padding[axis] + extent - wanted[axis]
        output_padding[axis] += max(-total, 0)
        sides.append(_split_padding(ctx, max(total, 0)))
    pads = [before for before, _ in sides] + [after for _, after in sides]
    return ctx.by_tvm(auto_pad=b"NOTSET", pads=pads, output_padding=output_padding)


@converts("LpPool")
@accumulate_in_float32
def lp_pool(ctx: ConverterContext) -> Value:
    """LpPool, see https://onnx.ai/onnx/operators/onnx__LpPool.html.

    TVM's converter computes a sum as an average times the window size, which is wrong for a window
    that reaches past the padded data. Here the zeros of the padding reach as far as the windows.
    """
    data = ctx.inputs[0]
    before, after = pooling_padding(ctx, _spatial_dims(data))
    padded = pad_with(ctx, data, relax.const(0, data.ty.dtype), before, after)
    kept = {name: value for name, value in ctx.attrs.items() if name not in ("pads", "ceil_mode")}
    return replace(ctx, attrs=kept).by_tvm([padded], auto_pad=b"VALID")


def pooling_padding(ctx: ConverterContext, sizes: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The padding before and after each axis that makes the last window end where the data does."""
    mode = ctx.attr("auto_pad", "NOTSET")
    if mode in _SAME:
        return _same_padding(ctx, sizes, ctx.attrs["kernel_shape"])
    none = [0] * 2 * len(sizes)
    pads = ctx.attr("pads", none) if mode == "NOTSET" else none
    before = [ZERO] * 2 + [tirx.IntImm("int64", pad) for pad in pads[: len(sizes)]]
    after = [ZERO] * 2 + [tirx.IntImm("int64", pad) for pad in pads[len(sizes) :]]
    if not ctx.attr("ceil_mode", 0):
        return before, after
    strides = ctx.attr("strides", [1] * len(sizes))
    extents = _window_extents(ctx, ctx.attrs["kernel_shape"])
    for axis, (size, stride, extent) in enumerate(zip(sizes, strides, extents, strict=True), 2):
        last = tirx.floordiv(size + before[axis] + after[axis] - extent + stride - 1, stride)
        # A window that would begin after the data and the padding before it is left out.
        last = tirx.min(last, tirx.floordiv(size + before[axis] - 1, stride))
        total = last * stride + extent - size - before[axis]
        after[axis] = sym.Analyzer().simplify(tirx.max(total, after[axis]))
    return before, after


def _same_padding(
    ctx: ConverterContext, sizes: Sequence[Any], kernel: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The padding of `auto_pad` SAME before and after each axis, batch and channels included."""
    analyzer = sym.Analyzer()
    sides = [(ZERO, ZERO)] * 2
    strides = ctx.attr("strides", [1] * len(sizes))
    for size, stride, extent in zip(sizes, strides, _window_extents(ctx, kernel), strict=True):
        results = tirx.floordiv(size + (stride - 1), stride)
        total = analyzer.simplify((results - 1) * stride + extent - size)
        sides.append(_split_padding(ctx, tirx.max(total, ZERO)))
    return [before for before, _ in sides], [after for _, after in sides]


def _split_padding(ctx: ConverterContext, total: Any) -> tuple[Any, Any]:
    """The padding before and after an axis; SAME_UPPER puts the odd element at the end."""
    half = total // 2 if isinstance(total, int) else tirx.floordiv(total, 2)
    is_upper = ctx.attr("auto_pad") == "SAME_UPPER"
    return (half, total - half) if is_upper else (total - half, half)


def _spatial_dims(data: Value) -> list[Any]:
    return dims_of(data, "data")[2:]


def _kernel_shape(ctx: ConverterContext) -> list[int]:
    """The size of the kernel along each axis. Raises UnsupportedError if it is not known."""
    if "kernel_shape" in ctx.attrs:
        return list(ctx.attrs["kernel_shape"])
    sizes = [as_int(size) for size in _spatial_dims(ctx.inputs[1])]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        raise UnsupportedError("the size of the kernel is not known")
    return known


def _window_extents(ctx: ConverterContext, kernel: Sequence[int]) -> list[int]:
    """The number of elements from the first to the last one that a dilated window covers."""
    dilations = ctx.attr("dilations", [1] * len(kernel))
    return [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
