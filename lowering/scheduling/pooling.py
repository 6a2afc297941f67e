"""Sums and maxima of windows: output positions in vectors.

The padded input is copied into planes as for a convolution (see there): each tap of the windows
reads a line that is as long as the results of a few lines of output.
"""

from __future__ import annotations

import operator
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.script.ir_builder import IRBuilder
from tvm.target import Target
from tvm.tirx.script import builder as ib

from .affine import flat, int64
from .convolution import Chunk, Emission
from .convolution_form import Convolved, maximum_of, sum_of
from .emission import bound, compute_block, rewritten, unless_empty
from .micro_kernels import call_function, line_tile
from .nests import inlined
from .shared_functions import ANY_SHAPE, function_frame, outlined
from .winograd_transforms import span

LINE_SUMS = "looplift_line_sums"
LINE_MAXIMA = "looplift_line_maxima"


class Pooling(ScheduleRule):  # type: ignore[misc]
    """Pooling of float32 in NCW and NCHW, and other sums and maxima of windows."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        for function, found in ((LINE_MAXIMA, maximum_of(kernel)), (LINE_SUMS, sum_of(kernel))):
            if found is not None and _suits(found, function):
                emission = _Emission(kernel, found, function)
                return s_tir.Schedule(rewritten(kernel, emission.emit))
        return None


def _suits(found: Convolved, function: str) -> bool:
    """Sums of windows that do not overlap are added up as fast where they are."""
    overlaps = any(axis.taps > axis.stride for axis in found.axes)
    return overlaps or function == LINE_MAXIMA


class _Emission(Emission):
    """The kernel of a convolution without weights, in which each channel is an image."""

    def __init__(self, kernel: tirx.PrimFunc, found: Convolved, function: str) -> None:
        super().__init__(kernel, found, line_tile())
        self._function = function
        self._tiles = int64(1)

    def emit(self) -> None:
        with compute_block("pooling"), unless_empty(self._found.store.written):
            self._found.store.declare()
            self._source = flat(self._found.source)
            self._items()

    @property
    def _groups(self) -> list[Any]:
        return []

    def _sums(
        self, chunk: Chunk, panel: Any, panel_end: Any, first_tile: Any, tiles: Any, scratch: Any
    ) -> None:
        """Combines the elements of the windows of a range of panels."""
        start = bound(panel * self._tile.width)
        call_function(
            self._function, scratch.data, tirx.address_of(chunk.planes[start]), self._table.data,
            int64(self._taps), panel_end - panel,
        )  # fmt: skip


def line_windows(name: str) -> tirx.PrimFunc:
    """`out[p]` becomes the sum or maximum over the taps t of `plane[table[t] + p]`.

    The number of positions is that of some panels, each as wide as the tile of a line.
    """
    tile = line_tile()
    with IRBuilder() as builder, function_frame():
        pointers = [ib.arg(argument, ib.handle("float32")) for argument in ("out", "plane")]
        places = ib.arg("table", ib.handle("int64"))
        taps, panels = (ib.arg(argument, ib.int64()) for argument in ("taps", "panels"))
        out, plane = (ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in pointers)
        table = ib.decl_buffer(ANY_SHAPE, "int64", data=places)
        whole = span(tirx.IntImm("int64", 0), tile.lanes)
        with ib.serial(panels) as panel:
            firsts = [bound(panel * tile.width + k * tile.lanes) for k in range(tile.vectors)]
            results = [ib.alloc_buffer((tile.lanes,), "float32") for _ in firsts]
            for first, result in zip(firsts, results, strict=True):
                element = plane[span(table[int64(0)] + first, tile.lanes)]
                ib.buffer_store(result, element, [whole])
            with ib.serial(taps - 1) as tap:
                for first, result in zip(firsts, results, strict=True):
                    element = plane[span(table[tap + 1] + first, tile.lanes)]
                    combine = tirx.max if name == LINE_MAXIMA else operator.add
                    ib.buffer_store(result, combine(result[whole], element), [whole])
            for first, result in zip(firsts, results, strict=True):
                ib.buffer_store(out, result[whole], [span(first, tile.lanes)])
    return outlined(name, builder.get())
