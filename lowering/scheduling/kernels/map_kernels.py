"""Passes that change each kernel of a module by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx


def map_kernels(
    module: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]
) -> tvm.IRModule:
    """The module with what `change` makes of each kernel."""
    for variable, kernel in list(module.functions_items()):
        if isinstance(kernel, tirx.PrimFunc):
            changed = change(kernel)
            if not changed.same_as(kernel):
                module[variable] = changed
    return module


def map_bodies(
    module: tvm.IRModule, *callbacks: tuple[type | Sequence[type], Callable[[Any], Any]]
) -> tvm.IRModule:
    """The module with parts of its kernels replaced: what is inside of a part first.

    Each callback is a kind of statement or expression, or several, and what replaces one.
    """

    def changed(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
        body = tvm_ffi.structural_map(kernel.body, list(callbacks), order="post")
        return kernel if body.same_as(kernel.body) else kernel.with_body(body)

    return map_kernels(module, changed)
