"""Functions that copy computed columns of lines, shared by all kernels of a module.

LLVM unrolls their loops and makes vectors of them: once for a module, not once for each kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..kernels.affine import int64
from ..kernels.emission import bound
from .micro_kernels import call_function
from .shared_functions import ANY_SHAPE, function_frame, noinline
from .winograd_transforms import span

GAPS = "looplift_gaps"
COPY_COLUMNS = "looplift_copy_columns_"
COPIED_TYPES = ("float32", "float64", "int64", "int32", "uint8", "int8")
"""The element types of the lines."""
_TIMES = (1, 2)
"""How often a vector repeats each column: twice where an image grows to twice its size."""


class Columns:
    """Where the columns of lines come from: a table of places, and for each vector of columns
    whether they are consecutive there, or consecutive with each repeated twice.
    """

    def __init__(self, width: Any, lanes: int, place: Callable[[Any], Any]) -> None:
        """Emits the tables for lines of a width; `place` is where a column lies in the source."""
        self.width = bound(width)
        self._places = ib.alloc_buffer((width,), "int64")
        with ib.serial(self.width) as column:
            ib.buffer_store(self._places, place(column), [column])
        vectors = tirx.floordiv(width, lanes)
        # A buffer must not be empty, and a line shorter than a vector has no vectors.
        self._gaps = [ib.alloc_buffer((vectors + 1,), "int64") for _ in _TIMES]
        for times, gaps in zip(_TIMES, self._gaps, strict=True):
            call_function(GAPS, gaps.data, self._places.data, bound(vectors), times)

    def call_copy(self, target: Any, source: Any, kind: str) -> None:
        """Emits a call that copies a line; `target` and `source` are addresses of its elements."""
        tables = [self._places.data, *(gaps.data for gaps in self._gaps)]
        call_function(f"{COPY_COLUMNS}{kind}", target, source, *tables, self.width)


def gaps_function(lanes: int) -> tirx.PrimFunc:
    """For each vector of columns, 0 if they follow each other in the source, each several times."""
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(name, ib.handle("int64")) for name in ("gaps", "places")]
        vectors, times = (ib.arg(name, ib.int64()) for name in ("vectors", "times"))
        gaps, places = (ib.decl_buffer(ANY_SHAPE, "int64", data=pointer) for pointer in pointers)
        with ib.serial(vectors) as number:
            first = bound(places[number * lanes])
            ib.buffer_store(gaps, int64(0), [number])
            with ib.serial(int64(lanes)) as lane:
                distance = places[number * lanes + lane] - first - tirx.floordiv(lane, times)
                ib.buffer_store(gaps, gaps[number] | distance, [number])
    return noinline(builder.get())


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
                with ib.serial(int64(lanes)) as lane:
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
    return noinline(builder.get())
