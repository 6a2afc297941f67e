"""MatMul and Gemm of tensors whose symbolic sizes are not known to agree, or may be 0."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tvm_onnx import InputList
from .broadcasting import broadcast_dims, expand, known_dims
from .elementwise import convert_elementwise, lacks_shape
from .reductions import may_be_zero, where_empty
from .tvm_converter import convert_as_tvm


def convert_matmul(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """MatMul; sums of no products are 0."""
    product = bb.normalize(_matmul(bb, inputs, attrs, params))
    dims = known_dims(inputs[0])
    return where_empty(bb, product, dims[-1:] if dims else [], 0)


def _matmul(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Stacks of matrices are broadcast beforehand if their sizes may differ."""
    result = bb.normalize(convert_as_tvm("MatMul", bb, inputs, attrs, params))
    if not lacks_shape(result):
        return result
    left, right = (known_dims(value) for value in inputs)
    if left is None or right is None or min(len(left), len(right)) < 2:
        return result
    stack = broadcast_dims([left[:-2], right[:-2]])
    aligned = [
        expand(bb, value, [*stack, *dims[-2:]])
        for value, dims in zip(inputs, (left, right), strict=True)
    ]
    return convert_as_tvm("MatMul", bb, aligned, attrs, params)


def convert_gemm(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Gemm; likewise, and the addend is broadcast beforehand if its sizes may differ."""
    result = bb.normalize(convert_as_tvm("Gemm", bb, inputs, attrs, params))
    dims, addend = known_dims(inputs[0]), InputList(inputs)[2]
    inner = [dims[0 if attrs.get("transA", 0) else 1]] if dims else []
    if addend is None:
        return where_empty(bb, result, inner, 0)
    if not lacks_shape(result) and not any(may_be_zero(size) for size in inner):
        return result
    product = bb.normalize(convert_as_tvm("Gemm", bb, inputs[:2], attrs, params))
    product = where_empty(bb, product, inner, 0)
    beta = attrs.get("beta", 1.0)
    if beta != 1.0:
        addend = bb.normalize(relax.op.multiply(addend, relax.const(beta, addend.ty.dtype)))
    return convert_elementwise("Add", bb, [product, addend], attrs, params)
