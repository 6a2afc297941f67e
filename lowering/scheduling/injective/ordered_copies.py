"""Copies that keep the order of elements, such as a reshape that is an output.

TVM's kernel divides once for each axis to find an element.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.dlight.base import ScheduleRule
from tvm.target import Target
from tvm.tirx.script import builder as ib

from ..kernels.affine import flat, product
from ..kernels.emission import (
    CHUNK,
    COST_OF_ELEMENT,
    bound,
    compute_block,
    for_items,
    pieces,
    rewritten,
)

KEEPS_ORDER = "looplift.keeps_order"
"""The attribute of kernels that copy their first parameter to the last, element by element."""


class OrderedCopy(ScheduleRule):  # type: ignore[misc]
    """Kernels with the attribute `KEEPS_ORDER`."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        if target.kind.name != "llvm" or not func.attrs or KEEPS_ORDER not in func.attrs:
            return None
        emit = partial(_emit, func.params[0], func.params[-1])
        return s_tir.Schedule(rewritten(func, emit))


def _emit(given: Any, result: Any) -> None:
    with compute_block("copy"):
        source, target = flat(given), flat(result)
        count = bound(product(list(result.shape)))

        def item(number: Any) -> None:
            first = bound(number * CHUNK)
            with ib.serial(bound(tirx.min(count - first, CHUNK))) as k:
                ib.buffer_store(target, source[first + k], [first + k])

        for_items(bound(pieces(count, CHUNK)), count * COST_OF_ELEMENT, item)
