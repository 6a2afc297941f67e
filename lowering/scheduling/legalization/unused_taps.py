"""Convolutions without the taps that read only padding, such as 8 of 3x3 on a single position.

The products of such taps are 0. An infinite or NaN weight would make them NaN: a convolution with
such a weight keeps all taps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...values import Constant
from ..relax.dataflow import rewritten_functions

_OPERATORS = {
    "relax.nn.conv1d": (relax.op.nn.conv1d, "NCW", "OIW"),
    "relax.nn.conv2d": (relax.op.nn.conv2d, "NCHW", "OIHW"),
    "relax.nn.conv3d": (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}


def drop_unused_taps(module: tvm.IRModule) -> tvm.IRModule:
    """The module without such taps, along axes of known size, of convolutions by a constant."""
    return rewritten_functions(_Taps(module), module)


@mutator
class _Taps(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") not in _OPERATORS:
            return call
        operator, *layouts = _OPERATORS[call.op.name]
        data, weight = call.args
        attrs = call.attrs
        if not isinstance(weight, Constant) or layouts != [attrs.data_layout, attrs.kernel_layout]:
            return call
        given, results = _sizes(data), _sizes(call)
        rank = len(given)
        low, high = ([int(n) for n in attrs.padding[k * rank : (k + 1) * rank]] for k in (0, 1))
        kept = [slice(None), slice(None)]
        for axis, taps in enumerate(weight.value.shape[2:]):
            stride, dilation = int(attrs.strides[axis]), int(attrs.dilation[axis])
            size, count = given[axis], results[axis]
            if size is None or count is None:
                kept.append(slice(0, taps))
                continue
            first, last = _used((size, count), taps, stride, dilation, low[axis], high[axis])
            kept.append(slice(first, last))
            low[axis] -= first * dilation
            high[axis] -= (taps - last) * dilation
        whole = weight.value.numpy()
        used = whole[tuple(kept)]
        if used.shape == whole.shape or not np.isfinite(whole).all():
            return call
        return operator(
            data, relax.const(used.copy()), strides=attrs.strides, padding=[*low, *high],
            dilation=attrs.dilation, groups=int(attrs.groups), data_layout=attrs.data_layout,
            kernel_layout=attrs.kernel_layout, out_dtype=attrs.out_dtype or None,
        )  # fmt: skip


def _sizes(tensor: Any) -> list[int | None]:
    """The spatial sizes of a tensor; None for those that are unknown or 0."""
    shape = getattr(tensor.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return [None] * (tensor.ty.ndim - 2)
    sizes = list(shape.values)[2:]
    return [int(s) if isinstance(s, tirx.IntImm) and int(s) > 0 else None for s in sizes]


def _used(
    sizes: tuple[int, int], taps: int, stride: int, dilation: int, low: int, high: int
) -> tuple[int, int]:
    """The first tap that reads an element, and the tap after the last one.

    No more taps are left out than the padding is long: it must not become negative.
    """
    given, results = sizes

    def reads_some(tap: int) -> bool:
        shift = low - tap * dilation
        return max(-(-shift // stride), 0) <= min((shift + given - 1) // stride, results - 1)

    reads = [reads_some(tap) for tap in range(taps)]
    if not any(reads):
        return 0, taps
    first = min(reads.index(True), low // dilation)
    last = max(taps - reads[::-1].index(True), taps - high // dilation)
    return first, last
