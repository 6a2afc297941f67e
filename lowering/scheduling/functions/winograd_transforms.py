"""The transforms of Winograd's convolution F(2x2, 3x3), as functions shared by a module's kernels.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016). Four outputs of a 3x3
convolution take 16 products in place of 36: `A'((G g G') * (B' d B))A` for the taps g and the 4x4
elements d of the input, where * multiplies element by element.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .shared_functions import ANY_SHAPE, function_frame, noinline

POINTS = 4
"""Points along an axis: rows of B' and of G."""
INPUT = "looplift_winograd_input"
OUTPUT = "looplift_winograd_output"
TAPS = "looplift_winograd_taps"


def transformed_taps(tap: Callable[[int, int], Any], point: tuple[Any, Any]) -> Any:
    """An element of `G g G'`; `tap(i, j)` is an element of g, and the points are expressions."""
    rows = [_of_taps([tap(i, j) for i in range(3)], point[0]) for j in range(3)]
    return _of_taps(rows, point[1])


def _of_taps(taps: Sequence[Any], point: Any) -> Any:
    first, middle, last = taps
    half = tirx.const(0.5, "float32")
    edge = tirx.Select(point.equal(0), first, last)
    signed = tirx.Select(point.equal(1), middle, -middle)
    is_edge = tirx.any(point.equal(0), point.equal(3))
    return tirx.Select(is_edge, edge, (first + last + signed) * half)


def _of_input(d: Sequence[Any]) -> list[Any]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _of_products(m: Sequence[Any]) -> list[Any]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _of_points(u: Sequence[Any]) -> list[Any]:
    """The taps from which `_of_taps` has made these."""
    return [u[0], u[1] - u[2], u[3]]


def _twice(
    transform: Callable[[Sequence[Any]], list[Any]], elements: list[list[Any]]
) -> list[list[Any]]:
    """Applies a transform to the columns and to the rows of a matrix of elements."""
    columns = [transform(list(column)) for column in zip(*elements, strict=True)]
    return [transform(list(row)) for row in zip(*columns, strict=True)]


def input_transform(lanes: int, vectors: int) -> tirx.PrimFunc:
    """Transforms all positions of one channel, panel by panel.

    `planes` holds the four phases of the channel `plane` elements apart, lines at `pitch`. Point p
    of panel n is written to `out[n * panel + p * point]`. One vector of `finite` becomes 0 in
    every lane, or NaN where the channel contains an infinity, a NaN, or a number so large that a
    sum of four of them may be infinite.
    """
    with IRBuilder() as builder, function_frame():
        data, numbers = _arguments(3, 5)
        planes, out, finite = _buffers(data)
        plane, pitch, panels, panel, point = numbers
        zero = span(tirx.IntImm("int64", 0), lanes)
        total = ib.alloc_buffer((lanes,), "float32")
        nothing = tirx.Broadcast(tirx.const(0.0, "float32"), lanes)
        most = tirx.Broadcast(tirx.const(4.0, "float32"), lanes)
        ib.buffer_store(total, nothing, [zero])
        points = list(itertools.product(range(POINTS), repeat=2))
        with ib.serial(panels) as number, ib.serial(tirx.IntImm("int64", vectors)) as vector:
            column = vector * lanes
            first = number * (lanes * vectors) + column
            elements = []
            for i, j in points:
                phase = first + plane * (i % 2 * 2 + j % 2) + pitch * (i // 2) + j // 2
                elements.append(kept(planes[span(phase, lanes)], lanes))
            for (_, j), element in zip(points, elements, strict=True):
                if j < 2:  # The others are those of the next position.
                    ib.buffer_store(total, total[zero] + element * most * nothing, [zero])
            rows = [elements[4 * i : 4 * i + 4] for i in range(4)]
            columns = [
                [kept(value, lanes) for value in _of_input(list(column_))]
                for column_ in zip(*rows, strict=True)
            ]
            for i, row in enumerate(zip(*columns, strict=True)):
                for j, value in enumerate(_of_input(list(row))):
                    target = number * panel + point * (POINTS * i + j) + column
                    ib.buffer_store(out, value, [span(target, lanes)])
        ib.buffer_store(finite, total[zero], [zero])
    return noinline(builder.get())


def output_transform(lanes: int, vectors: int) -> tirx.PrimFunc:
    """Transforms the products of some positions, `vectors` vectors of output channels for each.

    Point p of a position is read from `products[p * point]`. The upper of two lines of output goes
    to `out`, the lower one `line` elements further, two positions of it for each of the products.
    """
    with IRBuilder() as builder, function_frame():
        data, numbers = _arguments(2, 3)
        products, out = _buffers(data)
        point, line, count = numbers
        width = lanes * vectors
        with ib.serial(count) as position:
            for vector in range(vectors):
                column = vector * lanes
                rows = [
                    [
                        products[span(point * (POINTS * i + j) + position * width + column, lanes)]
                        for j in range(POINTS)
                    ]
                    for i in range(POINTS)
                ]
                for i, pair in enumerate(_twice(_of_products, rows)):
                    for j, value in enumerate(pair):
                        target = line * i + (position * 2 + j) * width + column
                        ib.buffer_store(out, value, [span(target, lanes)])
    return noinline(builder.get())


def recovered_taps() -> tirx.PrimFunc:
    """Writes the taps of a panel of output channels, and after them the same negated.

    Point p of element k, a channel and row, is `points[p * count + k]`. Tap t of channel c and row
    r becomes `out[(c * 9 + t) * rows + r]`.
    """
    with IRBuilder() as builder, function_frame():
        data, (channels, rows) = _arguments(2, 2)
        points, out = _buffers(data)
        with ib.serial(channels) as channel, ib.serial(rows) as row:
            element = channel * rows + row
            values = [
                [points[(POINTS * i + j) * channels * rows + element] for j in range(POINTS)]
                for i in range(POINTS)
            ]
            for i, line in enumerate(_twice(_of_points, values)):
                for j, value in enumerate(line):
                    target = (channel * 9 + 3 * i + j) * rows + row
                    ib.buffer_store(out, value, [target])
                    ib.buffer_store(out, -value, [target + channels * 9 * rows])
    return noinline(builder.get())


def _arguments(pointers: int, numbers: int) -> tuple[list[Any], list[Any]]:
    """The parameters of a function: addresses of float32, then int64 numbers."""
    data = [ib.arg(f"data_{k}", ib.handle("float32")) for k in range(pointers)]
    return data, [ib.arg(f"number_{k}", ib.int64()) for k in range(numbers)]


def _buffers(data: Sequence[Any]) -> list[Any]:
    return [ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in data]


def span(first: Any, lanes: int) -> Any:
    """The indices of a vector."""
    return tirx.Ramp(first, tirx.IntImm("int64", 1), lanes)


def kept(value: Any, lanes: int) -> Any:
    """A vector that is computed once: TVM would repeat the expression wherever it is used."""
    place = ib.alloc_buffer((lanes,), "float32")
    zero = span(tirx.IntImm("int64", 0), lanes)
    ib.buffer_store(place, value, [zero])
    return place[zero]
