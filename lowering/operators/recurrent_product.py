"""X·W + Wb for every step of a sequence at once: the part of a layer that has no order."""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .recurrent_layout import vector_lanes
from .recurrent_vectors import add_to, keep, span

_ROWS = 8
"""Rows computed together, so that a vector of the weight is loaded once for all of them, and there
are as many independent sums as multiply-add needs to be busy."""


def input_product(columns: int, panels: int, panel: int, dtype: str) -> tirx.PrimFunc:
    """The kernel (x, weight, bias) -> product for any sequence length n and batch b.

    x [n, b, columns]; weight [panels, columns, panel] and bias [panels, 1, panel], both packed;
    product [n, b, panels·panel].
    """
    with IRBuilder() as builder, ib.prim_func(private=True, s_tir=True):
        ib.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        handles = [ib.arg(name, ib.handle()) for name in ("x", "weight", "bias", "product")]
        n, b = ib.int64(), ib.int64()
        x = ib.match_buffer(handles[0], (n, b, columns), dtype)
        weight = ib.match_buffer(handles[1], (panels, columns, panel), dtype)
        bias = ib.match_buffer(handles[2], (panels, 1, panel), dtype)
        product = ib.match_buffer(handles[3], (n, b, panels * panel), dtype)
        # The same memory with steps and batch as one axis.
        rows = n * b
        x = ib.decl_buffer((rows, columns), dtype, data=x.data)
        product = ib.decl_buffer((rows, panels * panel), dtype, data=product.data)
        with ib.serial(rows // _ROWS) as group:
            _multiply(x, weight, bias, product, group * _ROWS, _ROWS, vectors=1)
        with ib.serial(rows % _ROWS) as rest:
            row = rows // _ROWS * _ROWS + rest
            _multiply(x, weight, bias, product, row, 1, vectors=panel // vector_lanes(dtype))
    return builder.get()


def _multiply(
    x: Any, weight: Any, bias: Any, product: Any, first: Any, rows: int, vectors: int
) -> None:
    """Emit the product of `rows` rows of x from `first` on with the whole weight.

    So many vectors of a panel are computed at once.
    """
    panels, columns, panel = (int(size) for size in weight.shape)
    lanes = vector_lanes(str(x.dtype))
    with ib.serial(panels) as block, ib.serial(panel // lanes // vectors) as part:
        places = [span((part * vectors + i) * lanes, lanes) for i in range(vectors)]
        sums = [[keep(bias[block, 0, place]) for place in places] for _ in range(rows)]
        with ib.serial(columns) as column:
            for row, i in itertools.product(range(rows), range(vectors)):
                add_to(sums[row][i], x[first + row, column] * weight[block, column, places[i]])
        for row, i in itertools.product(range(rows), range(vectors)):
            column = block * panel + (part * vectors + i) * lanes
            ib.buffer_store(product, sums[row][i], [first + row, span(column, lanes)])
