"""Adds to a module the shared functions that its kernels call."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from .convolutions.tap_products import GATHER, TAP_PRODUCTS, gather_taps, tap_products
from .functions.column_functions import (
    COPIED_TYPES,
    COPY_COLUMNS,
    GAPS,
    copy_columns_function,
    gaps_function,
)
from .functions.dot_kernels import dot_function, native_dot, select_dots
from .functions.lane_kernels import (
    LINE_MAXIMA,
    LINE_SUMS,
    TRANSPOSE,
    line_windows,
    transposition,
    windows,
)
from .functions.micro_kernels import (
    COPY_ROW,
    MOST_ROW_STRIDE,
    PANELS,
    PRODUCT,
    TILE,
    Tile,
    channel_tile,
    copy_row_function,
    line_tile,
    narrow_tile,
    native_tile,
    panels_function,
    product_function,
    select_product,
    select_tile,
    selector,
    tile_function,
)
from .functions.row_functions import REDUCE_ROWS, reduce_rows_function
from .functions.winograd_transforms import (
    INPUT,
    OUTPUT,
    TAPS,
    input_transform,
    output_transform,
    recovered_taps,
)
from .kernels.map_kernels import map_kernels

_Family = tuple[Tile, Callable[[Tile, int], tirx.PrimFunc], Callable[..., None]]
"""A tile, the function for a number of rows, and what the selection of one of them emits."""


def link_micro_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Adds the micro-kernels that kernels of a module call by name, and binds the calls to them.

    They have no global symbol, so that TVM compiles them as internal functions.
    """
    tiles = (native_tile(), narrow_tile())
    in_planes = [
        replace(tile, in_planes=True, row_stride=stride)
        for stride in range(1, MOST_ROW_STRIDE + 1)
        for tile in tiles
    ]
    kinds = (*tiles, line_tile(), channel_tile(), *in_planes)
    names: dict[str, _Family] = {
        **{f"{TILE}{tile.size}": (tile, tile_function, select_tile) for tile in kinds},
        **{f"{PRODUCT}{tile.size}": (tile, product_function, select_product) for tile in tiles},
        **_dots(),
    }
    variables = {
        f"{name}{suffix}": ir.GlobalVar(f"{name}{suffix}")
        for name, (tile, *_) in names.items()
        for suffix in ("", *(f"_{rows}" for rows in range(1, tile.rows + 1)))
    }
    lanes, vectors = native_tile().lanes, native_tile().vectors
    others: dict[str, Callable[[], tirx.PrimFunc]] = {
        # Before what they call.
        **{
            f"{PANELS}{tile.size}": partial(panels_function, tile)
            for tile in (native_tile(), line_tile())
        },
        **{
            f"{TAP_PRODUCTS}{tile.size}": partial(tap_products, tile)
            for tile in (native_tile(), channel_tile(), replace(native_tile(), in_planes=True))
        },
        GATHER: gather_taps,
        COPY_ROW: lambda: copy_row_function(lanes),
        GAPS: lambda: gaps_function(lanes),
        **{
            f"{COPY_COLUMNS}{kind}": partial(copy_columns_function, lanes, kind)
            for kind in COPIED_TYPES
        },
        **{
            name: partial(reduce_rows_function, combination, lanes)
            for combination, name in REDUCE_ROWS.items()
        },
        INPUT: lambda: input_transform(lanes, vectors),
        OUTPUT: lambda: output_transform(lanes, vectors),
        TAPS: recovered_taps,
        TRANSPOSE: lambda: transposition(lanes),
        **{
            name: partial(line_windows, name, lanes, line_tile().vectors, combine)
            for name, combine in ((LINE_MAXIMA, tirx.max), (LINE_SUMS, operator.add))
        },
    }
    variables |= {name: ir.GlobalVar(name) for name in others}
    families = {family.names[0]: family for family in windows(lanes)}
    for family in families.values():
        variables |= {name: ir.GlobalVar(name) for name in family.names}
    called: set[str] = set()

    def bind(call: Any) -> Any:
        if getattr(call.op, "name", "") != "tirx.call_extern":
            return call
        variable = variables.get(str(call.args[0].value))
        if variable is None:
            return call
        called.add(variable.name_hint)
        return ir.Call(variable, list(call.args[1:]), ret_ty="int32")

    def linked(function: tirx.PrimFunc) -> tirx.PrimFunc:
        body = tvm_ffi.structural_map(function.body, (ir.Call, bind), order="post")
        return function if body.same_as(function.body) else function.with_body(body)

    module = map_kernels(module, linked)
    for name, function_of in others.items():
        if name in called:
            module[variables[name]] = linked(function_of())
    for name, (tile, of_rows, selection) in names.items():
        if name in called or f"{name}_{tile.rows}" in called:
            for rows in range(1, tile.rows + 1):
                module[variables[f"{name}_{rows}"]] = of_rows(tile, rows)
            module[variables[name]] = linked(selector(name, tile, selection))
    for name, family in families.items():
        if name in called:
            for part, function in family.functions():
                module[variables[part]] = linked(function)
    return module


def _dots() -> dict[str, _Family]:
    """The micro-kernels of products of bytes, by name."""
    dots = [native_dot(a_is_signed=signed) for signed in (False, True)]
    return {
        dot.name: (dot.tile, partial(dot_function, dot), partial(select_dots, dot.word))
        for dot in dots
    }
