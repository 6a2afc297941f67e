"""Sums of float16 and bfloat16 elements accumulate in float32, as in onnxruntime.

TVM's kernels accumulate in the type of the data: from 2048 on, a float16 sum of ones stops growing.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from tvm import relax

from ..values import Value
from .registry import ConverterContext, ConverterFunction, converts


def accumulate_in_float32(convert: ConverterFunction) -> ConverterFunction:
    """Makes a converter compute in float32 where the first input is narrower.

    For operators whose first output sums elements of the inputs, or cancels. That output gets the
    type of the input back; the other outputs keep the type that the converter gives them.
    """
    return _widen(convert, ("float16", "bfloat16"))


def widen_bfloat16(convert: ConverterFunction) -> ConverterFunction:
    """Makes a converter compute in float32 where the first input is bfloat16.

    For operators that TVM cannot compile for it. A first output of float32 gets the type back.
    """
    return _widen(convert, ("bfloat16",))


def _widen(convert: ConverterFunction, narrow: Collection[str]) -> ConverterFunction:
    @functools.wraps(convert)
    def converted(ctx: ConverterContext) -> Value:
        bb, dtype = ctx.bb, _dtype(ctx.inputs[0])
        if dtype not in narrow:
            return convert(ctx)
        wide = [
            bb.normalize(relax.op.astype(value, "float32")) if _dtype(value) == dtype else value
            for value in ctx.inputs
        ]
        result = bb.normalize(convert(ctx.derive(inputs=wide)))
        fields = result.fields if isinstance(result, relax.Tuple) else [result]
        first, *others = fields
        if _dtype(first) == "float32":
            first = bb.normalize(relax.op.astype(first, dtype))
        return relax.Tuple([first, *others]) if isinstance(result, relax.Tuple) else first

    return converted


def _dtype(value: Any) -> str:
    kind = getattr(value, "ty", None)
    return str(kind.dtype) if isinstance(kind, relax.TensorType) else ""


@converts("GlobalAveragePool", "LogSoftmax", "LRN", "MeanVarianceNormalization", "Softmax")
@accumulate_in_float32
def sum_by_tvm(ctx: ConverterContext) -> Value:
    """Operators whose only defect in TVM is the type they accumulate in."""
    return ctx.by_tvm()
