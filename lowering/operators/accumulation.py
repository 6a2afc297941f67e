"""Sums of narrow floating point numbers, added up as float32 like in onnxruntime.

TVM's kernels add in the type of the data: from 2048 on, a float16 sum of ones no longer grows.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tvm_onnx import Converter, InputList

SUMMING = frozenset(
    {
        "AveragePool", "Conv", "ConvTranspose", "CumSum", "Einsum", "Gemm", "GlobalAveragePool",
        "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax",
        "LpNormalization", "LpPool", "MatMul", "MeanVarianceNormalization", "RMSNormalization",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Softmax",
    }
)  # fmt: skip
"""Operators of the standard domain whose first result is made of sums of their inputs' elements."""

_NARROW = ("float16", "bfloat16")


def summing_widely(convert: Converter) -> Converter:
    """A converter of one of these operators, that gives `convert` float32 for narrower data."""

    def converted(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
        dtype = _dtype(inputs[0])
        if dtype not in _NARROW:
            return convert(bb, inputs, attrs, params)
        wide = [
            bb.normalize(relax.op.astype(value, "float32")) if _dtype(value) == dtype else value
            for value in inputs
        ]
        result = bb.normalize(convert(bb, InputList(wide), attrs, params))
        if not isinstance(result, relax.Tuple):
            return relax.op.astype(result, dtype)
        first, *others = result.fields
        return relax.Tuple([bb.normalize(relax.op.astype(first, dtype)), *others])

    return converted


def _dtype(value: Any) -> str:
    kind = getattr(value, "ty", None)
    return str(kind.dtype) if isinstance(kind, relax.TensorType) else ""
