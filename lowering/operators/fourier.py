"""DFT and STFT as matrix products with the cosines and sines of all frequencies.

One product takes time quadratic in the transform length, which is little for audio frames next to
the network that reads them. A length that is long, or known only when the module runs, is divided
into two factors, and a product taken for each (Cooley and Tukey, An algorithm for the machine
calculation of complex Fourier series, 1965); prime lengths, lengths other than that of the data,
and half spectra take one product. A complex number is two neighbouring elements of the
last axis, so real and complex data differ only in the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, relax, sym, te, tirx

from ...rewrite.errors import UnsupportedError
from ..scheduling.relax.size_names import OPAQUE
from ..values import Value, as_int
from .axes import axis_position, middle_axis_view
from .broadcasting import ONE, dims_of
from .registry import ConverterContext, converts
from .sizes import name_sizes, size_of

_AXIS_IS_INPUT = 20
"""The opset since which the axis of a DFT is an input instead of an attribute."""
_COMPUTED_IN = "float64"
_LONGEST_IN_ONE_STEP = 512
"""The longest transform of known length whose matrix is multiplied as a whole."""
_POWERS_OF_TWO = tuple(1 << exponent for exponent in range(1, 11))
"""The factors that are tried for a length known only when the module runs."""


@dataclass(frozen=True)
class _Transform:
    """A discrete Fourier transform along one axis."""

    length: Any
    """The period of the lowest frequency; data beyond it is left out."""
    results: Any
    """The number of elements of the result along the axis."""
    is_inverse: bool = False
    is_of_half: bool = False
    """Whether the data is the first half of a spectrum whose second half mirrors it, so that the
    result is real."""


@converts("DFT")
def dft(ctx: ConverterContext) -> Value:
    """DFT, see https://onnx.ai/onnx/operators/onnx__DFT.html."""
    data, given, axis = (ctx.inputs[slot] for slot in range(3))
    dims = dims_of(data, "data")
    position = _axis(ctx, axis, data)
    is_known = isinstance(position, int)
    along = position if is_known else 1
    view = data if is_known else middle_axis_view(ctx.bb, data, dims[:-1], position)
    size = dims_of(view, "data")[along]
    is_inverse, is_half = bool(ctx.attr("inverse", 0)), bool(ctx.attr("onesided", 0))
    if given is not None:
        length = size_of(ctx, given)
    else:
        length = 2 * (size - 1) if is_inverse and is_half else size
    results = tirx.floordiv(length, 2) + 1 if is_half and not is_inverse else length
    transform = _Transform(length, results, is_inverse, is_inverse and is_half)
    result = ctx.bb.normalize(_apply(ctx, view, along, transform))
    if is_known:
        return result
    kept = [tirx.Select(position == place, results, dim) for place, dim in enumerate(dims[:-1])]
    shape = [*name_sizes(ctx.bb, kept), dims_of(result, "data")[-1]]
    return relax.op.reshape(result, relax.ShapeExpr(shape))


@converts("STFT")
def stft(ctx: ConverterContext) -> Value:
    """STFT, see https://onnx.ai/onnx/operators/onnx__STFT.html.

    (signal [b, n, 1 or 2], frame step, window, frame length) -> [b, frames, frequencies, 2].
    Exporters leave out the axis of real and imaginary parts; onnxruntime accepts a real signal so.
    """
    signal, step, window, given = (ctx.inputs[slot] for slot in range(4))
    dims = dims_of(signal, "signal")
    if len(dims) == 2:
        shape = relax.ShapeExpr([*dims, tirx.IntImm("int64", 1)])
        signal = ctx.bb.normalize(relax.op.reshape(signal, shape))
    if given is None and window is None:
        raise UnsupportedError("the node has neither `window` nor `frame_length`")
    length = dims_of(window, "window")[0] if given is None else size_of(ctx, given)
    # A step below 1, which ONNX does not allow, would divide by 0.
    frames = _frames(ctx, signal, length, tirx.max(size_of(ctx, step), ONE), window)
    results = tirx.floordiv(length, 2) + 1 if ctx.attr("onesided", 1) else length
    return _apply(ctx, frames, 2, _Transform(length, results))


def _axis(ctx: ConverterContext, given: Value, data: Value) -> Any:
    """The axis from the front: an int if it is known, else a symbolic expression."""
    if ctx.opset >= _AXIS_IS_INPUT and given is not None:
        return axis_position(ctx, given, data)
    default = -2 if ctx.opset >= _AXIS_IS_INPUT else int(ctx.attr("axis", 1))
    return default % len(dims_of(data, "data"))


def _frames(ctx: ConverterContext, signal: Value, length: Any, step: Any, window: Value) -> Value:
    """The windowed frames of a signal, [b, frames, length, 1 or 2]."""

    def compute(signal: Any, length: Any, step: Any, *window: Any) -> Any:
        batch, size, parts = signal.shape
        frames = tirx.floordiv(size - length, step) + 1

        def element(entry: Any, frame: Any, place: Any, part: Any) -> Any:
            value = signal(entry, frame * step + place, part)
            return value * window[0](place) if window else value

        return te.compute([batch, frames, length, parts], element, name="frames")

    windows = [] if window is None else [window]
    return ctx.call_te(compute, signal, length, step, *windows, name="frames")


def _apply(ctx: ConverterContext, data: Value, axis: int, transform: _Transform) -> Value:
    """Data [..., 1 or 2] of real or complex numbers, transformed along an axis."""
    bb = ctx.bb
    parts = as_int(dims_of(data, "data")[-1])
    if parts not in (1, 2):
        raise UnsupportedError(
            "the size of the last axis must be known: 1 for real, 2 for complex numbers"
        )
    last = data.ty.ndim - 2
    data = _move_axis(bb, data, axis, last)
    *outer, size, _ = dims_of(data, "data")
    factors = _factors(bb, transform, size)
    if factors is not None:
        return _move_axis(bb, _apply_in_two_steps(ctx, data, transform, factors), last, axis)
    rows = bb.normalize(relax.op.reshape(data, relax.ShapeExpr([*outer, size * parts])))
    result_parts = 1 if transform.is_of_half else 2
    matrix = _matrix(ctx, transform, size, (parts, result_parts), str(data.ty.dtype))
    product = bb.normalize(relax.op.matmul(rows, matrix))
    shape = relax.ShapeExpr([*outer, transform.results, result_parts])
    return _move_axis(bb, bb.normalize(relax.op.reshape(product, shape)), last, axis)


def _factors(bb: Any, transform: _Transform, size: Any) -> list[Any] | None:
    """Two factors of the length of a transform; None where it is better taken in one step."""
    length = transform.length
    if transform.is_of_half or not sym.Analyzer().can_prove_equal(length, size):
        return None
    known = as_int(length)
    if known is None:
        if not isinstance(length, ir.Var):
            return None  # Of an axis that a run computes: compiling both steps takes a minute.
        first: Any = ONE
        for power in _POWERS_OF_TWO:
            fits = tirx.all(tirx.floormod(length, power) == 0, length >= power * power)
            first = tirx.Select(fits, tirx.IntImm("int64", power), first)
        return name_sizes(bb, [first, tirx.floordiv(length, first)])
    if known <= _LONGEST_IN_ONE_STEP:
        return None
    small = next(n for n in range(math.isqrt(known), 0, -1) if known % n == 0)
    return None if small == 1 else [tirx.IntImm("int64", n) for n in (small, known // small)]


def _apply_in_two_steps(
    ctx: ConverterContext, data: Value, transform: _Transform, factors: Sequence[Any]
) -> Value:
    """Data [..., a · b, 1 or 2] transformed along that axis, for the factors a and b of its length.

    The element at b · i + j has the weight w_a^ik · w_ab^jk · w_b^jl in the result at k + a · l,
    where w_n is the primitive n-th root of unity: sums over i, then over j.
    """
    bb, (first, second) = ctx.bb, factors
    *outer, _, parts = dims_of(data, "data")
    dtype, rank = str(data.ty.dtype), len(outer)

    def shaped(value: Value, *shape: Any) -> Value:
        return bb.normalize(relax.op.reshape(value, relax.ShapeExpr([*outer, *shape])))

    def multiplied(value: Value, rows: Any, size: Any, parts: Any) -> Value:
        """Sums over the last axis but one, of this size."""
        step = _Transform(size, size, transform.is_inverse)
        matrix = _matrix(ctx, step, size, (int(parts), 2), dtype)
        product = relax.op.matmul(shaped(value, rows, size * parts), matrix)
        return shaped(bb.normalize(product), rows, size, 2)

    value = _move_axis(bb, shaped(data, first, second, parts), rank + 1, rank)
    value = multiplied(value, second, first, parts)
    value = _times_twiddles(ctx, value, transform.is_inverse)
    value = multiplied(_move_axis(bb, value, rank + 1, rank), first, second, 2)
    value = shaped(_move_axis(bb, value, rank + 1, rank), first * second, 2)
    if transform.results is transform.length:
        return value
    end = transform.results
    part = relax.op.strided_slice(value, [rank], [0], [end], [1], assume_inbound=True)
    return bb.normalize(part)


def _times_twiddles(ctx: ConverterContext, data: Value, is_inverse: bool) -> Value:
    """Complex data [..., b, a, 2] times the twiddle factors exp(∓2πi · jk / ab)."""
    sign = 1 if is_inverse else -1

    def twiddles(rows: Any, columns: Any) -> Any:
        length = rows * columns

        def twiddle(row: Any, column: Any, part: Any) -> Any:
            turn = _float(tirx.floormod(row * column, length)) / _float(length)
            return tirx.Cast(
                dtype, tirx.cos(2 * math.pi * sign * turn - math.pi / 2 * _float(part))
            )

        return te.compute([rows, columns, 2], twiddle, name="twiddles")

    def compute(data: Any, twiddles: Any) -> Any:
        def element(*at: Any) -> Any:
            *outer, row, column, part = at
            real, imaginary = (data(*outer, row, column, k) for k in (0, 1))
            cosine, sine = (twiddles(row, column, k) for k in (0, 1))
            return tirx.Select(
                part == 0, real * cosine - imaginary * sine, real * sine + imaginary * cosine
            )

        return te.compute(data.shape, element, name="twiddled")

    dtype = str(data.ty.dtype)
    sizes = dims_of(data, "data")[-3:-1]
    own_kernel = {"op_pattern": OPAQUE}
    table = ctx.call_te(twiddles, *sizes, name="twiddles", attributes=own_kernel)
    return ctx.call_te(compute, data, table, name="twiddled")


def _move_axis(bb: Any, data: Value, source: int, target: int) -> Value:
    order = [axis for axis in range(data.ty.ndim) if axis != source]
    order.insert(target, source)
    return data if source == target else bb.normalize(relax.op.permute_dims(data, order))


def _matrix(
    ctx: ConverterContext, transform: _Transform, size: Any, parts: Sequence[int], dtype: str
) -> Value:
    """The matrix [size·parts, results·result parts] of the transform."""
    data_parts, result_parts = parts
    sign = 1 if transform.is_inverse else -1

    def compute(size: Any, length: Any, results: Any) -> Any:
        def wave_value(quarter: Any, step: Any) -> Any:
            turn = _float(step) / _float(length)
            return tirx.cos(2 * math.pi * sign * turn + math.pi / 2 * _float(quarter - 1))

        # Tabulated: a cosine and a division for each element would take longer than the product.
        waves = te.compute([3, length], wave_value, name="waves")
        # The product is reduced as an integer: a float32 angle would lose the precision.
        steps = te.compute(
            [size, results], lambda place, wave: tirx.floormod(place * wave, length), name="steps"
        )

        def element(row: Any, column: Any) -> Any:
            place, part = tirx.floordiv(row, data_parts), tirx.floormod(row, data_parts)
            wave, result = tirx.floordiv(column, result_parts), tirx.floormod(column, result_parts)
            value = waves(part - result + 1, steps(place, wave)) * _weight(transform, place, length)
            # The second half of the spectrum mirrors the first, whatever the data has there.
            end = tirx.floordiv(length, 2) + 1 if transform.is_of_half else length
            inside = tirx.Select(place < end, value, tirx.const(0, _COMPUTED_IN))
            return tirx.Cast(dtype, inside)

        return te.compute([size * data_parts, results * result_parts], element, name="matrix")

    sizes = size, transform.length, transform.results
    return ctx.call_te(compute, *sizes, name="waves")


def _weight(transform: _Transform, place: Any, length: Any) -> Any:
    """The factor of one frequency in the sum."""
    one, two = (tirx.const(number, _COMPUTED_IN) for number in (1, 2))
    if not transform.is_inverse:
        return one
    if not transform.is_of_half:
        return one / _float(length)
    is_its_own_mirror = tirx.any(place == 0, 2 * place == length)
    return tirx.Select(is_its_own_mirror, one, two) / _float(length)


def _float(value: Any) -> Any:
    return tirx.Cast(_COMPUTED_IN, value)
