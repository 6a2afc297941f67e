"""Pooling where channels do not fill a vector (see `channel_lanes`): output positions in vectors.

The padded input is copied into planes as for a convolution (see there): each tap of the windows
reads a line that is as long as the results of a few lines of output.
"""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from ..functions.lane_kernels import LINE_MAXIMA, LINE_SUMS
from ..functions.micro_kernels import call_function, line_tile
from ..kernels.affine import flat, int64
from ..kernels.emission import bound, compute_block, rewritten, unless_empty
from ..kernels.nests import inlined
from ..products.convolution_form import Convolved, maximum_of, sum_of, windows_overlap
from .convolution import Chunk, Emission


class Pooling(ScheduleRule):  # type: ignore[misc]
    """Pooling of float32 in NCW and NCHW, and other sums and maxima of windows."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        found, function = maximum_of(kernel), LINE_MAXIMA
        if found is None:
            found, function = sum_of(kernel), LINE_SUMS
            # Windows that do not overlap are added up as fast where they are.
            if found is None or not windows_overlap(found):
                return None
        if found.channel is not None:
            return None  # Windows as high as the input, or that combine channels.
        return s_tir.Schedule(rewritten(kernel, _Emission(kernel, found, function).emit))


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

    def _sums(
        self, chunk: Chunk, panel: Any, panel_end: Any, first_tile: Any, tiles: Any, scratch: Any
    ) -> None:
        """Combines the elements of the windows of a range of panels."""
        start = bound(panel * self._tile.width)
        call_function(
            self._function, scratch.data, tirx.address_of(chunk.planes[start]), self._table.data,
            int64(self._taps), panel_end - panel,
        )  # fmt: skip
