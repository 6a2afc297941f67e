"""From Relax operators to kernels: TVM's LegalizeOps with exceptions."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi


def legalize_operators() -> Any:
    """The pass that replaces operators by calls of kernels.

    TVM's own kernel for `take` computes the same as the one here, and prints for each that it does
    not check indices. ONNX does not allow indices outside of the data. TVM's kernel for `relu`
    turns NaN into 0; onnxruntime keeps it.
    """
    return relax.transform.LegalizeOps({"relax.take": _take, "relax.nn.relu": _relu})


def _relu(bb: relax.BlockBuilder, call: Any) -> Any:
    def relu(x: te.Tensor) -> te.Tensor:
        # `Max(a, b)` is `a > b ? a : b`, so that with NaN as b the result is NaN.
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Max(zero, x(*i)), name="relu", tag="elemwise")

    return bb.call_te(relu, *call.args)


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if axis is None or mode != "fast":
        return bb.call_te(topi.take, data, indices, axis, mode=mode)

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        first = int(axis) % len(data.shape)
        end = first + len(indices.shape)
        shape = [*data.shape[:first], *indices.shape, *data.shape[first + 1 :]]

        def element(*places: Any) -> Any:
            return data(*places[:first], indices(*places[first:end]), *places[end:])

        return te.compute(shape, element, name="T_take", tag="injective")

    return bb.call_te(take, data, indices)
