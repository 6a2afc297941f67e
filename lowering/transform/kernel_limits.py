"""Which products and convolutions the kernel of a loop is not good for.

It has no packed weights, and no register tiles of several rows where their number is not known.
Kernels of their own have both, and each call of one by the virtual machine costs microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

from tvm import relax, tirx

from ..values import as_int

_MOST_PRODUCTS = 1 << 18
"""The most multiply-adds of a product or convolution in the kernel of a loop. Above that, packed
weights and tiles gain more than the calls of the virtual machine cost."""
_USUAL_SIZE = 64
"""The estimate for a height or width that is not known."""
_LARGE_MATRIX = 1 << 14
"""The elements from which on a matrix is worth packing."""
_MOST_ROWS = 3
"""The rows that the kernel of a loop multiplies by a matrix of any size."""


def has_large_convolution(body: Any) -> bool:
    """Whether the function of a body has a convolution that needs a kernel of its own."""
    return any(_products(call) > _MOST_PRODUCTS for call in _calls(body))


def _calls(body: Any) -> Iterator[Any]:
    bindings = (binding for block in body.body.blocks for binding in block.bindings)
    return (b.value for b in bindings if isinstance(b.value, relax.Call))


def _products(call: Any) -> int:
    """About how many multiply-adds a convolution has; 0 for any other call."""
    name = str(getattr(call.op, "name", ""))
    if not name.startswith("relax.nn.conv"):
        return 0
    data, weights = call.args
    image = data.ty if name.endswith("_transpose") else call.ty
    if not all(isinstance(kind.shape, relax.ShapeExpr) for kind in (image, weights.ty)):
        return 0
    batch, _, *positions = map(as_int, image.shape.values)
    sizes = [batch or 1, *(_USUAL_SIZE if size is None else size for size in positions)]
    return prod(sizes) * prod(as_int(size) or 1 for size in weights.ty.shape.values)


@dataclass(frozen=True)
class RowLimit:
    """How many rows of a product with a matrix the kernel of a loop is good for."""

    rows: Any
    """Their number, in the sizes of the body."""
    most: int


def row_limits(body: Any) -> list[RowLimit]:
    """The limits of products of unknown numbers of rows with large matrices."""
    limits = []
    for call in _calls(body):
        if getattr(call.op, "name", "") != "relax.matmul":
            continue
        kinds = [call.args[1].ty, call.ty]
        if not all(isinstance(kind.shape, relax.ShapeExpr) for kind in kinds):
            continue
        matrix, result = (list(kind.shape.values) for kind in kinds)
        elements = prod(as_int(size) or 0 for size in matrix)
        rows = reduce(operator.mul, result[:-1], tirx.IntImm("int64", 1))
        if len(matrix) == 2 and elements >= _LARGE_MATRIX and as_int(rows) is None:
            limits.append(RowLimit(rows, max(_MOST_PRODUCTS // elements, _MOST_ROWS)))
    return limits
