"""Functions that combine or copy the elements of a line, shared by all kernels of a module.

LLVM unrolls their loops and makes vectors of them: once for a module, not once for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from .emission import bound
from .micro_kernels import call_function
from .shared_functions import ANY_SHAPE, function_frame, outlined
from .winograd_transforms import span

COMBINE = {tirx.Add: "looplift_sum", tirx.Max: "looplift_max", tirx.Min: "looplift_min"}
"""By the class of expressions that combines two elements, the function that combines a line's."""
GAPS = "looplift_gaps"
COPY_COLUMNS = "looplift_copy_columns_"
TYPES = ("float32", "float64", "int64", "int32", "uint8", "int8")
"""The element types of lines whose columns are copied."""
_VECTORS = 4
"""Vectors of partial results: enough to hide the latency of an addition."""
_TIMES = (1, 2)
"""How often a vector repeats each column: twice where an image grows to twice its size."""
_ZERO = tirx.IntImm("int64", 0)


class Combination:
    """Elements of float32 that are combined in several vectors at once, however many there are."""

    def __init__(self, kind: Any, lanes: int, start: Any) -> None:
        """Emits the result for no elements, `start`. `kind` is a key of `COMBINE`."""
        self._kind, self._lanes = kind, lanes
        self._width = _VECTORS * lanes
        self._partial = ib.alloc_buffer((self._width,), "float32")
        self._result = ib.alloc_buffer((1,), "float32")
        with ib.vectorized(tirx.IntImm("int64", self._width)) as lane:
            ib.buffer_store(self._partial, start, [lane])
        ib.buffer_store(self._result, start, [_ZERO])

    def add(self, length: Any, element: Callable[[Any], Any]) -> None:
        """Emits the combination with the elements of a line; one is asked for by its place."""
        done: Any = _ZERO
        for step in (self._width, self._lanes):
            chunks = bound(tirx.floordiv(length - done, step))
            with ib.serial(chunks) as chunk, ib.vectorized(tirx.IntImm("int64", step)) as lane:
                value = self._kind(self._partial[lane], element(done + chunk * step + lane))
                ib.buffer_store(self._partial, value, [lane])
            done = bound(done + chunks * step)
        with ib.serial(length - done) as rest:
            self._combine_with_result(element(done + rest))

    def store(self, target: Any, place: Any) -> None:
        """Emits the store of the result."""
        size = self._width
        while size > 1:
            size //= 2
            with ib.vectorized(tirx.IntImm("int64", size)) as lane:
                both = self._kind(self._partial[lane], self._partial[lane + size])
                ib.buffer_store(self._partial, both, [lane])
        self._combine_with_result(self._partial[_ZERO])
        ib.buffer_store(target, self._result[_ZERO], [place])

    def _combine_with_result(self, value: Any) -> None:
        ib.buffer_store(self._result, self._kind(self._result[_ZERO], value), [_ZERO])


def call_combine(
    kind: Any, target: Any, source: Any, lines: Any, length: Any, steps: tuple[Any, Any], start: Any
) -> None:
    """Emits a call that combines the elements of each of several lines.

    The elements of a line follow each other. `target` and `source` are addresses, and `steps` the
    distances of lines there. `kind` and `start` are those of a `Combination`.
    """
    call_function(COMBINE[kind], target, source, lines, length, *steps, start)


def combine_function(kind: Any, lanes: int) -> tirx.PrimFunc:
    """What `call_combine` calls."""
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("float32")) for name in ("target", "source")]
        names = ("lines", "length", "target_step", "source_step")
        lines, length, target_step, source_step = (ib.arg(name, ib.int64()) for name in names)
        start = ib.arg("start", ib.float32())
        target, source = (
            ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers
        )
        with ib.serial(lines) as line:
            combination = Combination(kind, lanes, start)
            combination.add(length, lambda place: source[line * source_step + place])
            combination.store(target, line * target_step)
    return outlined(builder.get())


class Columns:
    """Where the columns of lines come from: a table of places, and which vectors of columns follow
    each other there, each once or each twice.
    """

    def __init__(self, width: Any, lanes: int, place: Callable[[Any], Any]) -> None:
        """Emits the tables for lines of a width; `place` is where a column lies in the source."""
        self._width = bound(width)
        self._places = ib.alloc_buffer((width,), "int64")
        with ib.serial(self._width) as column:
            ib.buffer_store(self._places, place(column), [column])
        vectors = tirx.floordiv(width, lanes)
        self._gaps = [ib.alloc_buffer((vectors + 1,), "int64") for _ in _TIMES]
        for times, gaps in zip(_TIMES, self._gaps, strict=True):
            call_function(GAPS, gaps.data, self._places.data, bound(vectors), times)

    def call_copy(self, target: Any, source: Any, kind: str) -> None:
        """Emits a call that copies a line; `target` and `source` are addresses of its elements."""
        tables = [self._places.data, *(gaps.data for gaps in self._gaps)]
        call_function(f"{COPY_COLUMNS}{kind}", target, source, *tables, self._width)


def gaps_function(lanes: int) -> tirx.PrimFunc:
    """For each vector of columns, 0 if they follow each other in the source, each several times."""
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("int64")) for name in ("gaps", "places")]
        vectors, times = (ib.arg(name, ib.int64()) for name in ("vectors", "times"))
        gaps, places = (ib.decl_buffer(ANY_SHAPE, "int64", data=pointer) for pointer in pointers)
        with ib.serial(vectors) as number:
            first = bound(places[number * lanes])
            ib.buffer_store(gaps, _ZERO, [number])
            with ib.serial(tirx.IntImm("int64", lanes)) as lane:
                distance = places[number * lanes + lane] - first - tirx.floordiv(lane, times)
                ib.buffer_store(gaps, gaps[number] | distance, [number])
    return outlined(builder.get())


def copy_columns_function(lanes: int, kind: str) -> tirx.PrimFunc:
    """What `Columns.call_copy` calls, for elements of a type."""
    with IRBuilder() as builder, function_frame():
        data = [ib.arg(name, ib.handle(kind)) for name in ("target", "source")]
        tables = [ib.arg(name, ib.handle("int64")) for name in ("places", "once", "twice")]
        width = ib.arg("width", ib.int64())
        target, source = (ib.decl_buffer(ANY_SHAPE, kind, data=pointer) for pointer in data)
        places, *gaps = (ib.decl_buffer(ANY_SHAPE, "int64", data=pointer) for pointer in tables)

        def copy_one(column: Any) -> None:
            ib.buffer_store(target, source[places[column]], [column])

        def copy_vector(number: Any, cases: Sequence[tuple[int, Any]]) -> None:
            if not cases:
                with ib.serial(tirx.IntImm("int64", lanes)) as lane:
                    copy_one(number * lanes + lane)
                return
            (times, of_vectors), *others = cases
            with ib.If(of_vectors[number] == 0):
                with ib.Then():
                    value = source[span(places[number * lanes], lanes // times)]
                    repeated = [lane // times for lane in range(lanes)]
                    value = value if times == 1 else tirx.Shuffle([value] * times, repeated)
                    ib.buffer_store(target, value, [span(number * lanes, lanes)])
                with ib.Else():
                    copy_vector(number, others)

        vectors = bound(tirx.floordiv(width, lanes))
        with ib.serial(vectors) as number:
            copy_vector(number, list(zip(_TIMES, gaps, strict=True)))
        with ib.serial(width - vectors * lanes) as rest:
            copy_one(vectors * lanes + rest)
    return outlined(builder.get())
