"""Range between sizes: its length is a formula over them, not a new symbol."""

from __future__ import annotations

from typing import Any

from tvm import relax, sym, tirx

from ..values import Sizes, as_int, as_tensor
from .sizes import is_nonnegative, read_symbolic
from .tvm_converter import convert_as_tvm


def convert_range(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """Range, see https://onnx.ai/onnx/operators/onnx__Range.html."""
    operands = read_symbolic(inputs)
    if not operands or operands[0].dtype != "int64":
        tensors = [as_tensor(bb, value) if isinstance(value, Sizes) else value for value in inputs]
        return convert_as_tvm("Range", bb, tensors, attrs, params)
    start, limit, step = (operand.items[0] for operand in operands)
    stride = as_int(step)
    if not stride:
        return convert_as_tvm("Range", bb, inputs, attrs, params)
    distance = limit - start if stride > 0 else start - limit
    length = sym.Analyzer().simplify(tirx.floordiv(distance + (abs(stride) - 1), abs(stride)))
    if not is_nonnegative(length):
        length = tirx.max(length, tirx.IntImm("int64", 0))
    positions = bb.normalize(relax.op.arange(0, length, 1, "int64"))
    if stride != 1:
        positions = relax.op.multiply(positions, relax.const(stride, "int64"))
    if as_int(start) == 0:
        return positions
    return relax.op.add(positions, as_tensor(bb, start))
