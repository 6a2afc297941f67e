"""Kernels on images in NCHW that can take and give them with channels last.

An *image* is a tensor `[n, c, h, w]`, or one with another number of spatial axes. Any kernel of
loop nests computes the same if the axes of a buffer are permuted in every access to it. This module
finds the buffers for which that leaves kernels that schedule rules know, and estimates the time
that it saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from ..functions.lane_kernels import LOWEST
from ..functions.micro_kernels import native_tile
from ..kernels.affine import product, static_size
from ..kernels.nests import Nest, depends, is_if_then_else, is_number, loads, nests_of
from ..products.products import SumOfProducts, maximum_of_windows, sum_of_products, sum_of_windows

MOVING = 0.5
"""The time to move an element of an image to its place in the other layout, in nanoseconds."""
_TRANSPOSING = 0.3
"""The time that a convolution of several taps takes to transpose an element that it reads, in
nanoseconds."""
_GAIN_OF_WINDOWS = 0.2
"""The nanoseconds that channels last save for an element that windows over each channel read or
write: fewer than it takes to move it, so that such windows alone do not pay for that."""
_MULTIPLICATION, _MULTIPLICATION_LAST = 0.0174, 0.0138
"""The nanoseconds for a multiply-add of a convolution of a single tap, with channels first and
last; vectors are of channels in the second case, and the last one is padded.

These times are of a Xeon (Sapphire Rapids). Only their ratios decide."""
_ZERO = tirx.const(0.0, "float64")


@dataclass(frozen=True)
class ImageKernel:
    """A kernel on images whose channels may be last."""

    kernel: tirx.PrimFunc
    moved: list[Any]
    """The buffers of images: parameters, and those between loop nests."""
    gain: Any
    """The nanoseconds that channels last save, an expression of the kernel's sizes."""

    @cached_property
    def places(self) -> list[int]:
        """The positions of the parameters that are images."""
        params = enumerate(self.kernel.params)
        return [k for k, param in params if any(param.same_as(buffer) for buffer in self.moved)]

    def with_channels_last(self) -> tirx.PrimFunc:
        """The kernel on images with channels last."""
        return _moved(self.kernel, self.moved)


def channels_last(axes: Sequence[Any]) -> list[Any]:
    """What belongs to the axes of an image, in the order of the axes if channels are last."""
    return [axes[0], *axes[2:], axes[1]]


def channels_first(axes: Sequence[Any]) -> list[Any]:
    """The inverse of `channels_last`."""
    return [axes[0], axes[-1], *axes[1:-1]]


def image_kernel(kernel: tirx.PrimFunc, constants: set[int]) -> ImageKernel | None:
    """The buffers of a kernel that can have channels last, and the time saved; None if none can.

    `constants` are the positions of parameters that are constants.
    """
    nests = nests_of(kernel)
    if not nests or any(nest.is_empty for nest in nests):
        return None
    written = [nest.buffer for nest in nests if _is_among(nest.buffer, kernel.params)]
    if len(written) != 1 or not nests[-1].buffer.same_as(written[0]):
        return None
    found = _Search(kernel, nests, [kernel.params[place] for place in constants])
    gain = found.of_result() if _is_image(written[0]) else None
    if gain is None:
        found = _Search(kernel, nests, [])
        gain = found.of_operand()
    return None if gain is None else ImageKernel(kernel, found.moved, gain)


def _is_image(buffer: Any) -> bool:
    """Whether a buffer is an image with more than one position and channel, of float32."""
    shape = list(buffer.shape)
    if not 3 <= len(shape) <= 5 or str(buffer.dtype) != "float32":
        return False
    return static_size(shape[1]) not in (None, 1) and static_size(product(shape[2:])) != 1


def _is_among(item: Any, items: Sequence[Any]) -> bool:
    return any(item.same_as(other) for other in items)


class _Search:
    """Finds the buffers that have channels last if some have."""

    def __init__(self, kernel: tirx.PrimFunc, nests: Sequence[Nest], constants: list[Any]) -> None:
        self._kernel = kernel
        self._nests = nests
        self._constants = constants
        self.moved: list[Any] = []

    def of_result(self) -> Any:
        """The gain where the result of the kernel has channels last; None if it cannot."""
        self.moved = [self._nests[-1].buffer]
        gain: Any = _ZERO
        for nest in reversed(self._nests):
            if not _is_among(nest.buffer, self.moved):
                if any(_is_among(load.source, self.moved) for load in loads(nest.value)):
                    return None
                continue
            saved = self._of_nest(nest)
            if saved is None:
                return None
            gain = gain + saved
        return gain

    def of_operand(self) -> Any:
        """The gain where only operands have channels last: those that the kernel transposes, or
        adds up over all positions; None if there are none.
        """
        nest = self._nests[0]
        order = [index for index in nest.indices if isinstance(index, ir.Var)]
        order = [index for index in order if not is_number(nest.extent(index), 1)]
        if not order:
            return None
        gain: Any = None
        for load in loads(nest.value):
            source = load.source
            if source.same_as(nest.buffer) or not _is_among(source, self._kernel.params):
                continue
            if not _is_image(source) or not load.indices[1].same_as(order[-1]):
                continue
            if any(depends(index, order[-1:]) for index in (*load.indices[:1], *load.indices[2:])):
                continue
            self.moved.append(source)
            if nest.reduced and not _adds_up_positions(nest, load):
                return None
            saved = _ZERO if nest.reduced else MOVING * _count(source.shape)
            gain = saved if gain is None else gain + saved
        others = [load for other in self._nests[1:] for load in loads(other.value)]
        if any(_is_among(load.source, self.moved) for load in others):
            return None
        return gain

    def _of_nest(self, nest: Nest) -> Any:
        """The time that a nest saves if it writes an image with channels last; None if it cannot.

        Adds the images that it reads to those that are moved.
        """
        places = _places(nest)
        if places is None:
            return None
        if not nest.reduced:
            return self._of_elementwise(nest, places)
        convolution = sum_of_products(nest)
        if convolution is not None:
            return self._of_convolution(nest, places, convolution)
        windows = maximum_of_windows(nest) or sum_of_windows(nest)
        return None if windows is None else self._of_windows(nest, places, windows)

    def _of_elementwise(self, nest: Nest, places: list[Any]) -> Any:
        gain: Any = _ZERO
        channel, *positions = places[1:]
        for load in loads(nest.value):
            if not _depend(load.indices, [channel]) or not _depend(load.indices, positions):
                continue
            if _is_image(load.source) and _is_aligned(load, places):
                if not _is_among(load.source, self.moved):
                    self.moved.append(load.source)
            elif load.indices[-1].same_as(channel) and not _depend(load.indices[:-1], [channel]):
                # The kernel transposes a tensor that has channels last.
                gain = gain + MOVING * _count(load.source.shape)
            else:
                return None
        return gain

    def _of_convolution(self, nest: Nest, places: list[Any], found: SumOfProducts) -> Any:
        """A convolution, of channels by themselves or of several."""
        data, weights = found.b, found.a
        if not _is_among(weights.buffer, self._constants) or not _is_image(data.buffer):
            return None
        channel, *positions = places[1:]
        load = next(x for x in loads(nest.value) if x.source.same_as(data.buffer))
        if not _are_own(load.indices[2:], positions):
            return None
        outputs = product([nest.extent(v) for v in positions if isinstance(v, ir.Var)])
        outputs = outputs * _extent(nest, places[0])
        is_depthwise = not found.rows and depends(load.indices[1], [channel])
        if is_depthwise and len(positions) <= 2:
            return self._of_channels(nest, channel, load, outputs, 0)
        own = [v for v in places[1:] if isinstance(v, ir.Var)]
        if not found.rows or depends(load.indices[1], own):
            return None  # Groups of channels gain nothing.
        count, depth = (static_size(x) for x in (nest.extent(channel), data.buffer.shape[1]))
        lanes = native_tile().lanes
        if count is None or depth is None:
            return None
        if depth >= lanes:
            self.moved.append(data.buffer)
        before = [nest for nest in self._nests if nest.buffer.same_as(data.buffer)]
        is_padded = not all(isinstance(nest.value, ir.TensorLoad) for nest in before)
        if len(found.reduced) > 1 or is_padded or depth < lanes:
            # A single line is computed with channels first, also as an image of height 1.
            is_plane = all(static_size(index) is None for index in data.indices[2:])
            if len(positions) != 2 or not is_plane:
                return None
            if depth < lanes:  # The input keeps its layout.
                return _ZERO
            return -_TRANSPOSING * _count(self._unpadded(data.buffer).shape)
        whole = -(-count // lanes) * lanes
        saved = (count * _MULTIPLICATION - whole * _MULTIPLICATION_LAST) * depth
        return saved * outputs.astype("float64")

    def _of_windows(self, nest: Nest, places: list[Any], found: SumOfProducts) -> Any:
        channel, *positions = places[1:]
        load = next(x for x in loads(nest.value) if x.source.same_as(found.b.buffer))
        if not _is_image(load.source) or len(positions) > 2:
            return None
        if not depends(load.indices[1], [channel]) or not _are_own(load.indices[2:], positions):
            return None
        outputs = product([nest.extent(v) for v in positions if isinstance(v, ir.Var)])
        outputs = outputs * _extent(nest, places[0])
        neutral = LOWEST if isinstance(nest.value, tirx.Max) else 0
        return self._of_channels(nest, channel, load, outputs, neutral)

    def _of_channels(
        self, nest: Nest, channel: Any, load: Any, outputs: Any, neutral: float
    ) -> Any:
        """Windows over each channel by itself, which leave out padding of a neutral value."""
        count = static_size(nest.extent(channel))
        if count is None or count < native_tile().lanes:
            return None
        fills = [
            nest.value.args[2]
            for nest in self._nests
            if nest.buffer.same_as(load.source) and is_if_then_else(nest.value)
        ]
        if any(not isinstance(f, tirx.FloatImm) or float(f) != neutral for f in fills):
            return None
        self.moved.append(load.source)
        inputs = _count(self._unpadded(load.source).shape)
        return _GAIN_OF_WINDOWS * (inputs + (outputs * count).astype("float64"))

    def _unpadded(self, buffer: Any) -> Any:
        """The image that a nest of the kernel pads into a buffer; the buffer if none does."""
        writers = [nest for nest in self._nests if nest.buffer.same_as(buffer)]
        read = [load.source for nest in writers for load in loads(nest.value)]
        return read[0] if len(read) == 1 else buffer


def _depend(indices: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Whether one of some indices depends on variables."""
    return any(depends(index, variables) for index in indices)


def _count(shape: Sequence[Any]) -> Any:
    """The number of elements of a shape, as a float64."""
    return product(list(shape)).astype("float64")


def _extent(nest: Nest, place: Any) -> Any:
    return nest.extent(place) if isinstance(place, ir.Var) else 1


def _places(nest: Nest) -> list[Any] | None:
    """The variable of each axis of the image that a nest writes; None if it writes another way.

    A number 0 stands for an axis of one element.
    """
    places = nest.indices
    if not all(_is_among(index, nest.spatial) or is_number(index, 0) for index in places):
        return None
    variables = [index for index in places if isinstance(index, ir.Var)]
    distinct = len({str(variable) for variable in variables}) == len(variables)
    covered = len(variables) == len(nest.spatial) or all(
        _is_among(v, variables) or is_number(nest.extent(v), 1) for v in nest.spatial
    )
    return places if distinct and covered and isinstance(places[1], ir.Var) else None


def _is_aligned(load: Any, places: Sequence[Any]) -> bool:
    """Whether a load reads the image at the place that is written, or a fixed distance from it."""
    if len(load.indices) != len(places):
        return False
    variables = [place for place in places if isinstance(place, ir.Var)]
    for index, place in zip(load.indices, places, strict=True):
        others = [v for v in variables if not v.same_as(place)]
        if depends(index, others):
            return False
    channel, index = places[1], load.indices[1]
    return static_size(index - channel) is not None


def _adds_up_positions(nest: Nest, load: Any) -> bool:
    """Whether a nest adds up all positions of each channel that it loads."""
    return isinstance(nest.value, tirx.Add) and all(
        _is_among(index, nest.reduced) and tvm_ffi.structural_equal(nest.extent(index), size)
        for index, size in zip(load.indices[2:], load.source.shape[2:], strict=True)
    )


def _are_own(indices: Sequence[Any], positions: Sequence[Any]) -> bool:
    """Whether each spatial index depends on the output's position along its own axis alone."""
    if len(indices) != len(positions):
        return False
    return not any(
        depends(index, [v for v in positions if isinstance(v, ir.Var) and not v.same_as(position)])
        for index, position in zip(indices, positions, strict=True)
    )


def _moved(kernel: tirx.PrimFunc, buffers: Sequence[Any]) -> tirx.PrimFunc:
    """The kernel with channels last in some buffers, and its loops in that order."""
    moved = {
        buffer: tirx.decl_buffer(
            channels_last(list(buffer.shape)), buffer.dtype, buffer.name, layout=None
        )
        for buffer in buffers
    }

    def load(old: Any) -> Any:
        new = moved.get(old.source)
        return old if new is None else new[tuple(channels_last(list(old.indices)))]

    def store(old: Any) -> Any:
        if old is None:
            return None
        value = tvm_ffi.structural_map(old.value, (ir.TensorLoad, load), order="post")
        new = moved.get(old.buffer)
        if new is None:
            return tirx.BufferStore(old.buffer, value, old.indices)
        return tirx.BufferStore(new, value, channels_last(list(old.indices)))

    def regions(old: Sequence[Any]) -> list[Any]:
        return [
            tirx.BufferRegion(moved[r.source], channels_last(list(r.region)))
            if r.source in moved
            else r
            for r in old
        ]

    def statement(nest: Nest) -> Any:
        block = nest.block
        body = store(block.body)
        order = _order(block, list(body.indices))
        inner = s_tir.SBlock(
            order, regions(block.reads), regions(block.writes), block.name_hint, body,
            store(block.init), annotations=block.annotations,
        )  # fmt: skip
        loops = [tirx.Var(variable.var.name, variable.var.ty.dtype) for variable in order]
        result: Any = s_tir.SBlockRealize(loops, tirx.const(True, "bool"), inner)
        for loop, variable in zip(reversed(loops), reversed(order), strict=True):
            extent = variable.dom.extent
            result = tirx.For(loop, variable.dom.min, extent, tirx.ForKind.SERIAL, result)
        return result

    nests = nests_of(kernel)
    assert nests is not None, "only kernels of loop nests have images"
    root = kernel.body.block
    statements = [statement(nest) for nest in nests]
    body = tirx.SeqStmt(statements) if len(statements) > 1 else statements[0]
    between = [moved.get(buffer, buffer) for buffer in root.alloc_buffers]
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, between)
    params = [moved.get(param, param) for param in kernel.params]
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return tirx.PrimFunc(params, realized, kernel.ret_type, attrs=kernel.attrs)


def _order(block: Any, indices: Sequence[Any]) -> list[Any]:
    """The iteration variables of a block: those of its output in the order of its axes first."""
    own = [v for index in indices for v in block.iter_vars if v.var.same_as(index)]
    return [*own, *(v for v in block.iter_vars if not _is_among(v, own))]
