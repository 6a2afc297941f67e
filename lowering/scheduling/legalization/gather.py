"""Gather, GatherElements and GatherND without reads outside of the data.

ONNX allows no index outside of the data, and onnxruntime reports one. TVM's kernels read any
memory. Here such an index is taken for the first or the last of its axis. A kernel has no way to
report an error. That there is a first is not checked: a test of the size beside each element takes
three times as long as the copy of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi

from ..kernels.affine import static_size


def _element(data: te.Tensor, places: list[Any], indexed: list[int]) -> Any:
    """The element at `places`, of which those of the axes `indexed` may be out of range."""
    within = list(places)
    for axis in indexed:
        place = tirx.Cast("int64", places[axis])
        within[axis] = tirx.max(tirx.min(place, data.shape[axis] - 1), 0)
    return data(*within)


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM's kernel prints, too, for each that it does not check indices."""
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if axis is None or mode != "fast":
        return bb.call_te(topi.take, data, indices, axis, mode=mode)

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        first = int(axis) % len(data.shape)
        end = first + len(indices.shape)
        shape = [*data.shape[:first], *indices.shape, *data.shape[first + 1 :]]

        def element(*places: Any) -> Any:
            index = indices(*places[first:end])
            return _element(data, [*places[:first], index, *places[end:]], [first])

        return te.compute(shape, element, name="T_take", tag="injective")

    return bb.call_te(take, data, indices)


def _gather_elements(bb: relax.BlockBuilder, call: Any) -> Any:
    def gather_elements(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        axis = int(call.attrs.axis) % len(data.shape)

        def element(*places: Any) -> Any:
            index = indices(*places)
            return _element(data, [*places[:axis], index, *places[axis + 1 :]], [axis])

        return te.compute(indices.shape, element, name="gather_elements", tag="injective")

    return bb.call_te(gather_elements, *call.args)


def _gather_nd(bb: relax.BlockBuilder, call: Any) -> Any:
    batch = int(call.attrs.batch_dims)

    def gather_nd(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        outer, depth = indices.shape[:-1], static_size(indices.shape[-1])
        assert depth is not None, "Relax knows the rank of the result"
        indexed = list(range(batch, batch + depth))

        def element(*places: Any) -> Any:
            row, inner = places[: len(outer)], places[len(outer) :]
            found = [indices(*row, number) for number in range(depth)]
            return _element(data, [*row[:batch], *found, *inner], indexed)

        shape = [*outer, *data.shape[batch + depth :]]
        return te.compute(shape, element, name="gather_nd", tag="injective")

    return bb.call_te(gather_nd, *call.args)


GATHERS: dict[str, Callable[[relax.BlockBuilder, Any], Any]] = {
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.take": _take,
}
"""The legalization of each operator of this kind."""
