"""GatherBlockQuantized of com.microsoft: rows of a table of quantised blocks, as floats.

Language models look up the embeddings of tokens so. The kernel reads and scales only the rows that
are looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ...rewrite.errors import UnsupportedError
from ..small_types import NOT_PACKED
from ..values import Value
from .broadcasting import ZERO, dims_of, match_dims
from .registry import ConverterContext, converts

_BITS_OF_BYTE = 8


@dataclass(frozen=True)
class _Blocks:
    """How a table is quantised, and which axis is looked up."""

    gathered: int
    """The axis of the table that indices point along."""
    quantised: int
    """The axis that is divided into blocks."""
    size: int
    """The number of elements of a block."""
    bits: int
    per_byte: int
    """How many elements an entry of the table holds, the first in the lowest bits."""
    zero: int
    """The zero point of all blocks, where none are given."""


@converts("com.microsoft::GatherBlockQuantized")
def gather_block_quantized(ctx: ConverterContext) -> Value:
    """GatherBlockQuantized: rows of a table, (element - zero point) * scale.

    Negative indices count from the end. An index outside of the table gives zeros, as in
    onnxruntime. See https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    #com.microsoft.GatherBlockQuantized.
    """
    data, indices, scales, zeros = (ctx.inputs[slot] for slot in range(4))
    dims = dims_of(data, "data")
    blocks = _blocks(ctx, str(data.ty.dtype), len(dims))
    counts = list(dims)
    entries = dims[blocks.quantised] * blocks.per_byte
    counts[blocks.quantised] = tirx.floordiv(entries + (blocks.size - 1), blocks.size)
    for value in (scales, zeros):
        if value is not None and len(dims_of(value, "scales")) != len(dims):
            raise UnsupportedError(f"the data has {len(dims)} axes, its scales or zeros have not")
    target = str(scales.ty.dtype)
    scales = match_dims(ctx.bb, ctx.cast(scales, "float32"), counts)
    given = []
    if zeros is not None:
        places = list(counts)
        last = counts[blocks.quantised] + (blocks.per_byte - 1)
        places[blocks.quantised] = tirx.floordiv(last, blocks.per_byte)
        given = [match_dims(ctx.bb, zeros, places)]

    def compute(data: Any, indices: Any, scales: Any, *zeros: Any) -> Any:
        return _gathered(data, indices, scales, zeros, blocks)

    rows = ctx.call_te(compute, data, indices, scales, *given, name="gather_blocks")
    return ctx.cast(rows, target)


def _blocks(ctx: ConverterContext, dtype: str, rank: int) -> _Blocks:
    """The attributes of the node. Raises UnsupportedError where they do not fit the table."""
    axes = [ctx.attr(name, default) for name, default in (("gather_axis", 0), ("quantize_axis", 1))]
    if any(not -rank <= axis < rank for axis in axes):
        raise UnsupportedError(f"the axes {axes} are not those of a table of rank {rank}")
    gathered, quantised = (axis % rank for axis in axes)
    bits, size = ctx.attr("bits", 4), ctx.attr("block_size", 128)
    if size <= 0:
        raise UnsupportedError(f"`block_size` is {size}, not a positive number")
    if gathered == quantised:
        raise UnsupportedError("blocks are along the axis that is looked up")
    if bits == NOT_PACKED:
        return _Blocks(gathered, quantised, size, _BITS_OF_BYTE, 1, 0)
    if dtype != "uint8":
        raise UnsupportedError(f"the table consists of {dtype}, not of int4, uint4 or uint8")
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"`bits` is {bits}, not 2, 4 or 8")
    if quantised != rank - 1:
        raise UnsupportedError("the blocks of a table of bytes are not along its last axis")
    return _Blocks(gathered, quantised, size, bits, _BITS_OF_BYTE // bits, 1 << (bits - 1))


def _gathered(data: Any, indices: Any, scales: Any, zeros: Sequence[Any], how: _Blocks) -> Any:
    axis, end = how.gathered, how.gathered + len(indices.shape)
    shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
    place = how.quantised if how.quantised < axis else how.quantised + len(indices.shape) - 1
    shape[place] = shape[place] * how.per_byte
    size = data.shape[axis]

    def element(*at: Any) -> Any:
        index = tirx.Cast("int64", indices(*at[axis:end]))
        index = tirx.Select(index < 0, index + size, index)
        inside = [*at[:axis], index, *at[end:]]
        block = list(inside)
        block[how.quantised] = tirx.floordiv(inside[how.quantised], how.size)
        zero = _unpacked(zeros[0], block, how) if zeros else how.zero
        number = tirx.Cast("float32", _unpacked(data, inside, how) - zero)
        is_inside = tirx.all(index >= ZERO, index < size)
        return tirx.if_then_else(is_inside, number * scales(*block), tirx.const(0.0, "float32"))

    return te.compute(shape, element, name="gather_blocks")


def _unpacked(table: Any, at: Sequence[Any], how: _Blocks) -> Any:
    """An element of a packed table as int32."""
    if how.per_byte == 1:
        return tirx.Cast("int32", table(*at))
    entry = list(at)
    entry[how.quantised] = tirx.floordiv(at[how.quantised], how.per_byte)
    shift = tirx.floormod(at[how.quantised], how.per_byte) * how.bits
    number = tirx.Cast("int32", table(*entry))
    moved = tirx.shift_right(number, tirx.Cast("int32", shift))
    return tirx.bitwise_and(moved, (1 << how.bits) - 1)
