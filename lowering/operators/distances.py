"""CDist of com.microsoft: the distances between the rows of two matrices."""

from __future__ import annotations

from typing import Any

from tvm import te

from ...rewrite.errors import UnsupportedError
from ..values import Value
from .broadcasting import ZERO, dims_of, match_dims
from .registry import ConverterContext, converts


@converts("com.microsoft::CDist")
def cdist(ctx: ConverterContext) -> Value:
    """CDist, [m, k] and [n, k] -> [m, n], by sums of squared differences.

    Rows of other sizes fail. See
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    #com.microsoft.CDist.
    """
    metric = ctx.attr("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise UnsupportedError(f"`metric` is {metric}, not euclidean or sqeuclidean")
    left, right = ctx.inputs[0], ctx.inputs[1]
    shapes = [dims_of(value, "rows") for value in (left, right)]
    if any(len(shape) != 2 for shape in shapes):
        raise UnsupportedError("the rows are not those of matrices")
    right = match_dims(ctx.bb, right, [shapes[1][0], shapes[0][1]])
    squares = ctx.bb.emit(ctx.call_te(_squares, left, right, name="squared_distances"))
    return ctx.apply("Sqrt", squares) if metric == "euclidean" else squares


def _squares(left: Any, right: Any) -> Any:
    column = te.reduce_axis((ZERO, left.shape[1]), name="column")

    def element(row: Any, other: Any) -> Any:
        difference = left[row, column] - right[other, column]
        return te.sum(difference * difference, axis=column)

    return te.compute([left.shape[0], right.shape[0]], element, name="squared_distances")
