"""Functions for transpositions and windows, shared by all kernels of a module.

An image in NCHW is transposed, so that vectors of neighbouring channels follow each other position
by position. Windows over it then read whole vectors, whatever their stride, dilation and width.
Where channels are few, vectors hold positions (`line_windows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernels.emission import bound
from .shared_functions import ANY_SHAPE, function_frame, noinline
from .winograd_transforms import kept, span

TRANSPOSE = "looplift_transpose"
MOST_POSITIONS = 8
"""Positions whose results are in registers together."""
LOWEST = float(np.finfo(np.float32).min)
"""The least finite float32."""
_ZERO = tirx.IntImm("int64", 0)


def transposition(lanes: int) -> tirx.PrimFunc:
    """Transposes a matrix: `target[c * target_row + r] = source[r * source_row + c]`.

    Squares of vectors are transposed in registers; the last square of rows or columns ends with the
    last element, and writes some elements again. Vectors are shorter where the matrix has fewer
    rows or columns, and a matrix with fewer than four is transposed element by element.
    """
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("float32")) for name in ("target", "source")]
        names = ("rows", "columns", "target_row", "source_row")
        rows, columns, target_row, source_row = (ib.arg(name, ib.int64()) for name in names)
        target, source = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
        )

        def transpose(sizes: Sequence[int]) -> None:
            """Transposes by squares of the first of some sizes that the matrix has room for."""
            if not sizes:
                with ib.serial(columns) as column, ib.serial(rows) as row:
                    element = source[row * source_row + column]
                    ib.buffer_store(target, element, [column * target_row + row])
                return
            size, *smaller = sizes
            with ib.If(tirx.all(rows >= size, columns >= size)):
                with (
                    ib.Then(),
                    ib.serial(tirx.floordiv(rows + size - 1, size)) as down,
                    ib.serial(tirx.floordiv(columns + size - 1, size)) as right,
                ):
                    row = bound(tirx.min(down * size, rows - size))
                    column = bound(tirx.min(right * size, columns - size))
                    values = [
                        source[span((row + k) * source_row + column, size)] for k in range(size)
                    ]
                    for k, value in enumerate(_transposed(values, size)):
                        place = (column + k) * target_row + row
                        ib.buffer_store(target, value, [span(place, size)])
                with ib.Else():
                    transpose(smaller)

        transpose([size for size in (lanes, lanes // 2, lanes // 4) if size >= 4])
    return noinline(builder.get())


def _transposed(rows: Sequence[Any], lanes: int) -> list[Any]:
    """The columns of a square of vectors: halves of ever larger blocks change places."""
    rows = [kept(row, lanes) for row in rows]
    size = 1
    while size < lanes:
        low = [k + (lanes - size if k & size else 0) for k in range(lanes)]
        high = [k + size for k in low]
        for k in range(lanes):
            if not k & size:
                pair = [rows[k], rows[k + size]]
                rows[k] = kept(tirx.Shuffle(pair, low), lanes)
                rows[k + size] = kept(tirx.Shuffle(pair, high), lanes)
        size *= 2
    return rows


class Windows(ABC):
    """Combines the elements of windows, vector by vector of channels, along a line of positions.

    Over the taps t, with `x = plane[p * step + table[t, 0] + lane]`, `out[p, lane]` is

    - `PRODUCTS`: the sum of `x * weights[table[t, 1] + lane]`,
    - `SUMS`: the sum of x,
    - `MAXIMA`: the maximum of x.
    """

    neutral: float
    """The result for no elements, with which windows of all channels start."""

    def __init__(self, name: str, lanes: int) -> None:
        self._name = name
        self._lanes = lanes

    def functions(self) -> Iterator[tuple[str, Any]]:
        """A function for each number of positions that are computed together, and a selector."""
        for together in range(1, MOST_POSITIONS + 1):
            yield f"{self._name}_{together}", self._together(together)
        yield self._name, self._selector()

    @property
    def names(self) -> list[str]:
        """The names of all these functions."""
        numbers = range(1, MOST_POSITIONS + 1)
        return [self._name, *(f"{self._name}_{number}" for number in numbers)]

    def _parameters(self) -> tuple[list[Any], list[Any]]:
        names = ("out", "plane", "weights")
        pointers = [ib.arg(name, ib.handle("float32")) for name in names]
        pointers.append(ib.arg("table", ib.handle("int64")))
        return pointers, [ib.arg(name, ib.int64()) for name in ("taps", "count", "step")]

    def _selector(self) -> tirx.PrimFunc:
        with IRBuilder() as builder, function_frame():
            together = ib.arg("together", ib.int64())
            pointers, numbers = self._parameters()
            for number in range(1, MOST_POSITIONS + 1):
                with ib.If(together == number), ib.Then():
                    call = tirx.call_extern("int32", f"{self._name}_{number}", *pointers, *numbers)
                    ib.evaluate(call)
        return noinline(builder.get())

    def _together(self, together: int) -> tirx.PrimFunc:
        lanes = self._lanes
        with IRBuilder() as builder, function_frame():
            pointers, (taps, count, step) = self._parameters()
            out, plane, weights = (
                ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers[:3]
            )
            table = ib.decl_buffer(ANY_SHAPE, "int64", data=pointers[3])
            zero = span(_ZERO, lanes)
            with ib.serial(tirx.floordiv(count + together - 1, together)) as number:
                # The last ones end with the last position, and are computed again in part.
                first = bound(tirx.min(number * together, count - together))
                start = bound(first * step)
                results = [ib.alloc_buffer((lanes,), "float32") for _ in range(together)]

                def element(tap: Any, place: int, start: Any = start) -> Any:
                    return plane[span(start + place * step + table[2 * tap], lanes)]

                for place, result in enumerate(results):
                    ib.buffer_store(result, self._start(element(_ZERO, place)), [zero])
                with ib.serial(taps) as tap:
                    weight = weights[span(table[2 * tap + 1], lanes)]
                    for place, result in enumerate(results):
                        value = self._combined(result[zero], element(tap, place), weight)
                        ib.buffer_store(result, value, [zero])
                for place, result in enumerate(results):
                    ib.buffer_store(out, result[zero], [span((first + place) * lanes, lanes)])
        return builder.get()

    def _start(self, element: Any) -> Any:
        return tirx.Broadcast(tirx.const(0.0, "float32"), self._lanes)

    @abstractmethod
    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        """The result for one more element of a window."""


class ProductsOfWindows(Windows):
    """The sums of elements times weights."""

    neutral = 0.0

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return result + element * weight


class MaximaOfWindows(Windows):
    """The greatest elements."""

    neutral = LOWEST

    def _start(self, element: Any) -> Any:
        return element

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return tirx.max(result, element)


class SumsOfWindows(Windows):
    """The sums of elements."""

    neutral = 0.0

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return result + element


class WindowsOfChannels(Windows):
    """Combines the elements of windows for all channels of a few positions at once.

    Tap (t, u) of a number of rows and columns of taps reads, for position p and channel c,
    `x = image[p * step + t * row_step + u * column_step + c]`. Its weight is
    `w = weights[g * vector_step + t * tap_row + u * lanes + lane]`, where c is a lane of vector g
    of channels. `out[p, c]` is what they become.
    """

    def _parameters(self) -> tuple[list[Any], list[Any]]:
        pointers = [ib.arg(name, ib.handle("float32")) for name in ("out", "image", "weights")]
        names = (
            "rows", "columns", "channels", "step", "row_step", "column_step", "vector_step",
            "tap_row",
        )  # fmt: skip
        return pointers, [ib.arg(name, ib.int64()) for name in names]

    def _together(self, together: int) -> tirx.PrimFunc:
        lanes = self._lanes
        with IRBuilder() as builder, function_frame():
            pointers, numbers = self._parameters()
            rows, columns, channels, step, row_step, column_step, vector_step, tap_row = numbers
            out, image, weights = (
                ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
            )
            zero = span(_ZERO, lanes)
            with ib.serial(tirx.floordiv(channels + lanes - 1, lanes)) as vector:
                # The last vector ends with the last channel; some are computed again.
                first = bound(tirx.min(vector * lanes, channels - lanes))
                results = [ib.alloc_buffer((lanes,), "float32") for _ in range(together)]
                for result in results:
                    nothing = tirx.Broadcast(tirx.const(self.neutral, "float32"), lanes)
                    ib.buffer_store(result, nothing, [zero])
                with ib.serial(rows) as row, ib.serial(columns) as column:
                    place = first + row * row_step + column * column_step
                    tap = vector * vector_step + row * tap_row + column * lanes
                    weight = weights[span(tap, lanes)]
                    for number, result in enumerate(results):
                        element = image[span(place + number * step, lanes)]
                        value = self._combined(result[zero], element, weight)
                        ib.buffer_store(result, value, [zero])
                for number, result in enumerate(results):
                    ib.buffer_store(out, result[zero], [span(first + number * channels, lanes)])
        return builder.get()


class ProductsOfChannels(WindowsOfChannels, ProductsOfWindows):
    """The sums of elements times weights, for all channels."""


class MaximaOfChannels(WindowsOfChannels, MaximaOfWindows):
    """The greatest elements, for all channels."""


class SumsOfChannels(WindowsOfChannels, SumsOfWindows):
    """The sums of elements, for all channels."""


LINE_SUMS = "looplift_line_sums"
LINE_MAXIMA = "looplift_line_maxima"


def line_windows(
    name: str, lanes: int, vectors: int, combine: Callable[[Any, Any], Any]
) -> tirx.PrimFunc:
    """Combines what the taps of windows read: `out[p]` becomes that of all `plane[table[t] + p]`.

    The positions p are those of a number of panels, each of a few vectors.
    """
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(argument, ib.handle("float32")) for argument in ("out", "plane")]
        places = ib.arg("table", ib.handle("int64"))
        taps, panels = (ib.arg(argument, ib.int64()) for argument in ("taps", "panels"))
        out, plane = (ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers)
        table = ib.decl_buffer(ANY_SHAPE, "int64", data=places)
        whole = span(_ZERO, lanes)
        with ib.serial(panels) as panel:
            firsts = [bound((panel * vectors + k) * lanes) for k in range(vectors)]
            results = [ib.alloc_buffer((lanes,), "float32") for _ in firsts]
            for first, result in zip(firsts, results, strict=True):
                ib.buffer_store(result, plane[span(table[_ZERO] + first, lanes)], [whole])
            with ib.serial(taps - 1) as tap:
                for first, result in zip(firsts, results, strict=True):
                    element = plane[span(table[tap + 1] + first, lanes)]
                    ib.buffer_store(result, combine(result[whole], element), [whole])
            for first, result in zip(firsts, results, strict=True):
                ib.buffer_store(out, result[whole], [span(first, lanes)])
    return noinline(builder.get())


PRODUCTS = "looplift_windows_product"
SUMS = "looplift_windows_sum"
MAXIMA = "looplift_windows_max"
CHANNEL_PRODUCTS = "looplift_channels_product"
CHANNEL_SUMS = "looplift_channels_sum"
CHANNEL_MAXIMA = "looplift_channels_max"


def windows(lanes: int) -> list[Windows]:
    """All kinds of windows."""
    return [
        ProductsOfWindows(PRODUCTS, lanes),
        SumsOfWindows(SUMS, lanes),
        MaximaOfWindows(MAXIMA, lanes),
        ProductsOfChannels(CHANNEL_PRODUCTS, lanes),
        SumsOfChannels(CHANNEL_SUMS, lanes),
        MaximaOfChannels(CHANNEL_MAXIMA, lanes),
    ]
