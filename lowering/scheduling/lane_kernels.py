"""Functions for transpositions and windows, shared by all kernels of a module.

An image in NCHW is transposed, so that vectors of neighbouring channels follow each other position
by position. Windows over it then read whole vectors, whatever their stride, dilation and width.
Where channels are few, vectors hold positions (`line_windows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .emission import bound
from .shared_functions import ANY_SHAPE, function_frame, noinline
from .winograd_transforms import kept, span

TRANSPOSE = "looplift_transpose"
MOST_POSITIONS = 8
"""Positions whose results are in registers together."""
_ZERO = tirx.IntImm("int64", 0)


def transposition(lanes: int) -> tirx.PrimFunc:
    """Transposes a matrix: `target[c * target_row + r] = source[r * source_row + c]`.

    Squares of vectors are transposed in registers; the last square of rows or columns ends with the
    last element, and writes some elements again. A matrix with fewer rows or columns than a vector
    has elements is transposed element by element.
    """
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("float32")) for name in ("target", "source")]
        names = ("rows", "columns", "target_row", "source_row")
        rows, columns, target_row, source_row = (ib.arg(name, ib.int64()) for name in names)
        target, source = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
        )
        with ib.If(tirx.all(rows >= lanes, columns >= lanes)):
            with (
                ib.Then(),
                ib.serial(tirx.floordiv(rows + lanes - 1, lanes)) as down,
                ib.serial(tirx.floordiv(columns + lanes - 1, lanes)) as right,
            ):
                row = bound(tirx.min(down * lanes, rows - lanes))
                column = bound(tirx.min(right * lanes, columns - lanes))
                values = [
                    source[span((row + k) * source_row + column, lanes)] for k in range(lanes)
                ]
                for k, value in enumerate(_transposed(values, lanes)):
                    ib.buffer_store(target, value, [span((column + k) * target_row + row, lanes)])
            with ib.Else(), ib.serial(columns) as column, ib.serial(rows) as row:
                element = source[row * source_row + column]
                ib.buffer_store(target, element, [column * target_row + row])
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
    def _combined(self, result: Any, element: Any, weight: Any) -> Any: ...


class ProductsOfWindows(Windows):
    """The sums of elements times weights."""

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return result + element * weight


class MaximaOfWindows(Windows):
    """The greatest elements."""

    def _start(self, element: Any) -> Any:
        return element

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return tirx.max(result, element)


class SumsOfWindows(Windows):
    """The sums of elements."""

    def _combined(self, result: Any, element: Any, weight: Any) -> Any:
        return result + element


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


def windows(lanes: int) -> list[Windows]:
    """All kinds of windows."""
    return [
        ProductsOfWindows(PRODUCTS, lanes),
        SumsOfWindows(SUMS, lanes),
        MaximaOfWindows(MAXIMA, lanes),
    ]
