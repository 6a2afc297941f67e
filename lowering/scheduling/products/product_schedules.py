"""Schedules of kernels that begin with a product: what follows it is fused into its stores, or
computed line by line after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import s_tir, tirx

from ..injective.elementwise import Lines, lines_of
from ..kernels.emission import allocated, rewritten
from ..kernels.nests import Nest, loads
from ..kernels.stores import Store, epilogue_of
from .products import SumOfProducts


def schedule_product(
    kernel: tirx.PrimFunc,
    nests: Sequence[Nest],
    product: SumOfProducts,
    emit: Callable[[Store], None],
) -> s_tir.Schedule | None:
    """The schedule in which `emit` computes the first nest, a product.

    None where the nests that follow it cannot be computed by lines.
    """
    variables = [*product.batch, *product.rows, *product.columns]
    dtype = str(nests[0].buffer.dtype)
    # What is fused after the product, and may have more elements than it.
    for count in (len(nests), 2, 1):
        epilogue = epilogue_of(nests[0], product.c, nests[1:count])
        rest = lines_of(nests[count:])
        if epilogue is None or rest is None:
            continue
        if not epilogue.is_identity and _is_read(kernel, nests[0].buffer, nests[count:]):
            continue
        store = Store(epilogue, variables, product.extents, product.columns, dtype)
        if store.is_storable:
            written = [epilogue.output, *(lines.buffer for lines in rest)]
            emit_all = partial(_emit, partial(emit, store), rest)
            return s_tir.Schedule(rewritten(kernel, emit_all, written))
    return None


def _is_read(kernel: tirx.PrimFunc, buffer: Any, nests: Sequence[Nest]) -> bool:
    """Whether nests, or the caller of the kernel, read a buffer."""
    if not any(buffer.same_as(own) for own in allocated(kernel)):
        return True
    return any(load.source.same_as(buffer) for nest in nests for load in loads(nest.value))


def _emit(emit: Callable[[], None], rest: Sequence[Lines]) -> None:
    emit()
    for lines in rest:
        lines.emit()
