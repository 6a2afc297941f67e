"""MatMul and Gemm of tensors whose symbolic sizes are not known to agree."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..tvm_onnx import InputList
from .broadcasting import broadcast_dims, expand, known_dims
from .elementwise import convert_elementwise, lacks_shape
from .tvm_converter import convert_as_tvm


def convert_matmul(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """MatMul; stacks of matrices are broadcast beforehand if their sizes may differ."""
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
    """Gemm; the addend is broadcast beforehand if its sizes may differ."""
    result = bb.normalize(convert_as_tvm("Gemm", bb, inputs, attrs, params))
    addend = InputList(inputs)[2]
    if not lacks_shape(result) or addend is None:
        return result
    product = bb.normalize(convert_as_tvm("Gemm", bb, inputs[:2], attrs, params))
    beta = attrs.get("beta", 1.0)
    if beta != 1.0:
        addend = bb.normalize(relax.op.multiply(addend, relax.const(beta, addend.ty.dtype)))
    return convert_elementwise("Add", bb, [product, addend], attrs, params)
