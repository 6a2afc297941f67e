"""Convolutions of images that are small at run time: a product for each tap that reads something.

A single position of a 3x3 convolution reads one element of each channel, and padding with the other
8 taps. The inputs of each tap are gathered into a matrix, channels by positions, and multiplied by
the tap's weights with the output channels in vectors. An infinite or NaN weight of a tap that reads
only padding does not reach the output.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

from ..functions.micro_kernels import Tile, call_copy_row, call_function, call_tile
from ..functions.shared_functions import ANY_SHAPE, function_frame, noinline
from ..kernels.affine import Affine, int64, product, static_size
from ..kernels.emission import bound
from ..products.convolution_form import Convolved

MOST_POSITIONS = 12
"""The most positions of a small image."""
MOST_TAPS = 62
"""The most taps of such a convolution."""
LISTED = MOST_TAPS + 1
"""The length of the list of used taps: the taps and, at the index that is the number of all taps of
the convolution, their number. All lists are as long, so that kernels can be merged."""
GATHER = "looplift_gather_taps"
TAP_PRODUCTS = "looplift_tap_products_"
_AXIS = ("size", "taps", "stride", "dilation", "low", "high", "step")


def _pointers(*names: str) -> list[Any]:
    """Parameters: addresses of float32, and that of a list of used taps."""
    return [
        *(ib.arg(name, ib.handle("float32")) for name in names),
        ib.arg("used", ib.handle("int64")),
    ]


def _buffers(pointers: list[Any]) -> list[Any]:
    *data, used = pointers
    floats = [ib.decl_buffer(ANY_SHAPE, "float32", data=pointer) for pointer in data]
    return [*floats, ib.decl_buffer(ANY_SHAPE, "int64", data=used)]


def can_be_small(found: Convolved) -> bool:
    """Whether a convolution may have images whose taps on padding can be left out at run time.

    Where the size is known, `drop_unused_taps` and `FewPositions` do better.
    """
    taps = math.prod(axis.taps for axis in found.axes)
    return (
        1 < taps <= MOST_TAPS
        and len(found.axes) <= 2
        and static_size(product([axis.size for axis in found.axes])) is None
        and found.has_zero_fill
    )


def call_gather_taps(
    found: Convolved, position: Affine, source: Any, out: Any, used: Any, channels: Any
) -> None:
    """Emits a call that gathers what the taps of a convolution read, see `gather_taps`.

    `position` is where an element of the padded input is, and `source` the address of the first.
    """
    channel_step = int64(0) if found.channel is None else position.of(found.channel)
    axes = [
        (
            axis.size, axis.taps, axis.stride, axis.dilation, axis.low, axis.high,
            position.of(variable),
        )
        for axis, variable in zip(found.axes, found.positions, strict=True)
    ]  # fmt: skip
    if len(axes) == 1:  # a single line
        axes.insert(0, (1, 1, 1, 1, 0, 1, 0))
    call_function(GATHER, source, out, used, channels, channel_step, *itertools.chain(*axes))


def gather_taps() -> tirx.PrimFunc:
    """Gathers the inputs of the taps that read an element, and lists these taps.

    With n for the number of a tap in the list, `out[(n * channels + c) * positions + p]` becomes
    what that tap reads in channel c for position p. `source` is the address of the padded element
    0 of channel 0. An axis has a number of positions and of taps; position o and tap t read the
    padded element `o * stride + t * dilation`, which is in the input from `low` to before `high`,
    and lies `step` elements after the one before.
    """
    with IRBuilder() as builder, function_frame():
        pointers = _pointers("source", "out")
        channels, channel_step = (ib.arg(name, ib.int64()) for name in ("channels", "channel_step"))
        outer, inner = (
            {name: ib.arg(f"{name}_{axis}", ib.int64()) for name in _AXIS} for axis in range(2)
        )
        source, out, used = _buffers(pointers)
        positions = bound(outer["size"] * inner["size"])
        number = ib.alloc_buffer((1,), "int64")
        reads = ib.alloc_buffer((1,), "int64")
        ib.buffer_store(number, int64(0), [int64(0)])
        taps = bound(outer["taps"] * inner["taps"])

        def place(axis: dict[str, Any], position: Any, tap: Any) -> tuple[Any, Any]:
            """The padded element, and whether it is in the input."""
            element = bound(position * axis["stride"] + tap * axis["dilation"])
            return element, tirx.all(element >= axis["low"], element < axis["high"])

        with ib.serial(taps) as tap:
            down = bound(tirx.floordiv(tap, inner["taps"]))
            right = bound(tirx.floormod(tap, inner["taps"]))
            ib.buffer_store(reads, int64(0), [int64(0)])
            with ib.serial(outer["size"]) as y, ib.serial(inner["size"]) as x:
                inside = tirx.all(place(outer, y, down)[1], place(inner, x, right)[1])
                with ib.If(inside), ib.Then():
                    ib.buffer_store(reads, int64(1), [int64(0)])
            with ib.If(reads[int64(0)] != 0), ib.Then():
                first = bound(number[int64(0)] * channels * positions)
                with ib.serial(outer["size"]) as y, ib.serial(inner["size"]) as x:
                    line, is_line = place(outer, y, down)
                    column, is_column = place(inner, x, right)
                    target = bound(first + y * inner["size"] + x)
                    origin = bound(line * outer["step"] + column * inner["step"])
                    with ib.If(tirx.all(is_line, is_column)):
                        with ib.Then(), ib.serial(channels) as c:
                            element = source[origin + c * channel_step]
                            ib.buffer_store(out, element, [target + c * positions])
                        with ib.Else(), ib.serial(channels) as c:
                            zero = tirx.const(0.0, "float32")
                            ib.buffer_store(out, zero, [target + c * positions])
                ib.buffer_store(used, tap, [number[int64(0)]])
                ib.buffer_store(number, number[int64(0)] + 1, [int64(0)])
        ib.buffer_store(used, number[int64(0)], [taps])
    return noinline(builder.get())


def call_tap_products(
    tile: Tile, gathered: Any, weights: Any, out: Any, used: Any, *, channels: Any, positions: Any,
    taps: int, tap_step: Any, channel_step: Any, tile_step: Any,
) -> None:  # fmt: skip
    """Emits a call that multiplies what `call_gather_taps` has gathered by the taps' weights.

    `out[p * tile.width + v]` becomes the sum over taps t and channels c of what t reads in c for
    position p, times `weights[t * tap_step + c * channel_step + v]`. What lies `tile_step` elements
    after these weights, those of the next tile, is prefetched.
    """
    numbers = (channels, positions, int64(taps), tap_step, channel_step, tile_step)
    call_function(f"{TAP_PRODUCTS}{tile.size}", gathered, weights, out, used, *numbers)


def tap_products(tile: Tile) -> tirx.PrimFunc:
    """What `call_tap_products` calls."""
    with IRBuilder() as builder, function_frame():
        pointers = _pointers("gathered", "weights", "out")
        names = ("channels", "positions", "taps", "tap_step", "channel_step", "tile_step")
        channels, positions, taps, tap_step, channel_step, tile_step = (
            ib.arg(name, ib.int64()) for name in names
        )
        gathered, weights, out, used = _buffers(pointers)
        number = bound(used[taps])
        with ib.If(number == 0), ib.Then():
            zero = tirx.const(0.0, "float32")
            call_copy_row(out.data, out.data, positions * tile.width, 0, 0, 1, zero)
        of_tap = bound(channels * positions)
        # Taps that follow each other are a run, and multiplied together: their weights are read in
        # the order in which they lie in memory. In a layout like that of Winograd's form, where
        # those of a tap lie apart from all others, runs would gain nothing.
        longest_run = bound(tirx.Select(tap_step < channel_step, number, int64(1)))
        places = ib.alloc_buffer((MOST_TAPS,), "int64")
        a_step, place_step = (tap_step, of_tap) if tile.in_planes else (of_tap, tap_step)
        with ib.serial(longest_run) as n:
            ib.buffer_store(places, n * place_step, [n])
        next_tap, length = (ib.alloc_buffer((1,), "int64") for _ in range(2))
        with ib.serial(tirx.floordiv(positions + tile.rows - 1, tile.rows)) as part:
            first = bound(part * tile.rows)
            rows = bound(tirx.min(positions - first, tile.rows))
            ib.buffer_store(next_tap, int64(0), [int64(0)])
            with ib.While(next_tap[int64(0)] < number):
                begin = bound(next_tap[int64(0)])
                run = length_of_run(used, begin, tirx.min(number - begin, longest_run), length)
                row = bound(used[begin] * tap_step)
                # The taps of a run prefetch equal shares of the weights of a channel.
                step = bound(tirx.floordiv(channel_step, run))
                call_tile(
                    tile, rows, tirx.address_of(gathered[bound(begin * of_tap + first)]),
                    tirx.address_of(weights[row]), tirx.address_of(out[first * tile.width]),
                    places.data, (channels, run), (positions, a_step),
                    channel_step, int64(tile.width), begin,
                    following=(tirx.address_of(weights[bound(row + tile_step)]), step),
                )  # fmt: skip
                ib.buffer_store(next_tap, begin + run, [int64(0)])
    return noinline(builder.get())


def length_of_run(used: Any, begin: Any, most: Any, length: Any) -> Any:
    """Emits how many taps follow each other from one in the list on, into the buffer `length`."""
    ib.buffer_store(length, int64(1), [int64(0)])
    here = length[int64(0)]
    with ib.While(tirx.all(here < most, used[begin + here] == used[begin] + here)):
        ib.buffer_store(length, here + 1, [int64(0)])
    return bound(here)
