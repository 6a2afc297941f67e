"""Reductions along rows, and the elementwise nests before and after them: softmax, norms, means.

Nests between reductions are computed as elementwise kernels are.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target

from ..injective.elementwise import Lines, is_plain, lines_of
from ..kernels.affine import static_size
from ..kernels.emission import rewritten
from ..kernels.nests import Nest, inlined, nests_of
from .row_nests import Element, Rows, rows_of
from .rows_in_turn import rows_in_turn


class RowReduction(ScheduleRule):  # type: ignore[misc]
    """Sums, maxima and minima of float32 along rows, of static and dynamic sizes."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm":
            return None
        kernel = inlined(func)
        nests = nests_of(kernel)
        if not nests or not any(nest.reduced for nest in nests):
            return None
        in_turn = rows_in_turn(kernel, nests)
        if in_turn is not None:
            return s_tir.Schedule(rewritten(kernel, in_turn.emit))
        parts = [_part(nest) for nest in nests]
        found = [part for part in parts if part is not None]
        if len(found) != len(parts):
            return None

        def emit() -> None:
            for part in found:
                part.emit()

        return s_tir.Schedule(rewritten(kernel, emit, [nest.buffer for nest in nests]))


def _part(nest: Nest) -> Lines | Element | Rows | None:
    if nest.reduced:
        return rows_of(nest)
    if all(static_size(extent) == 1 for extent in nest.extents):
        return Element(nest) if is_plain(nest) else None
    lines = lines_of([nest])
    return lines[0] if lines else None
