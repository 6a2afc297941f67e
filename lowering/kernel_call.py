"""Calls of kernels that looplift writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from .values import Value


def call_kernel(
    bb: Any, name: str, kernel: tirx.PrimFunc, arguments: Sequence[Value], types: Sequence[Any]
) -> list[Value]:
    """Add the kernel to the module, unless an equal one is there already, and call it.

    Gives its results, whose types are `types`.
    """
    function = bb.add_func(kernel, name)
    if len(types) == 1:
        return [bb.emit(relax.op.call_tir(function, arguments, types[0]))]
    result = bb.emit(relax.op.call_tir(function, arguments, types))
    return [bb.emit(relax.TupleGetItem(result, index)) for index in range(len(types))]
