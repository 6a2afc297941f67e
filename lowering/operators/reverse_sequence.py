"""ReverseSequence: the first `n` steps of each batch entry in reverse order, the others as is."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ...rewrite.errors import UnsupportedError


def convert_reverse_sequence(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """ReverseSequence, see https://onnx.ai/onnx/operators/onnx__ReverseSequence.html."""
    batch, time = attrs.get("batch_axis", 1), attrs.get("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise UnsupportedError(f"batch_axis {batch} and time_axis {time} are not 0 and 1")
    return bb.call_te(
        _reverse, inputs[0], inputs[1], batch, time, primfunc_name_hint="reverse_sequence"
    )


def _reverse(data: Any, lengths: Any, batch: int, time: int) -> Any:
    def element(*indices: Any) -> Any:
        length = tirx.Cast("int64", lengths(indices[batch]))
        step = indices[time]
        place = tirx.Select(step < length, length - 1 - step, step)
        return data(*indices[:time], place, *indices[time + 1 :])

    return te.compute(list(data.shape), element, name="reverse")
