"""DFT and STFT as one product with a matrix of waves.

That takes time quadratic in the length of a transform, which for the frames of audio is little next
to the network behind them. A complex number is two neighbours, so that real and complex data
differ in the matrix only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from ...rewrite.errors import UnsupportedError
from ..tvm_onnx import InputList
from ..values import as_int
from .broadcasting import known_dims
from .runtime_shapes import size_of
from .tvm_converter import known_content

_AXIS_IS_INPUT = 20
"""The version from which on the axis of a DFT is no attribute."""
_COMPUTED_IN = "float64"


@dataclass(frozen=True)
class _Transform:
    """Which waves are summed."""

    length: Any
    """The period of the lowest frequency; data beyond it is left out."""
    results: Any
    is_inverse: bool = False
    is_of_half: bool = False
    """Whether the data is the first half of a spectrum whose second half mirrors it, so that what
    results is real."""


def convert_dft(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """DFT, see https://onnx.ai/onnx/operators/onnx__DFT.html."""
    data, given, axis = (InputList(inputs)[index] for index in range(3))
    dims = _dims(data)
    where = _axis(axis, attrs, params) % len(dims)
    is_inverse, is_half = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    if given is not None:
        length = size_of(bb, given, params)
    else:
        length = 2 * (dims[where] - 1) if is_inverse and is_half else dims[where]
    results = tirx.floordiv(length, 2) + 1 if is_half and not is_inverse else length
    transform = _Transform(length, results, is_inverse, is_inverse and is_half)
    return _transformed(bb, data, where, transform)


def convert_stft(bb: Any, inputs: Any, attrs: dict[str, Any], params: Any) -> Any:
    """STFT: (signal [b, n, 1 or 2], step, window, length) -> [b, frames, frequencies, 2].

    See https://onnx.ai/onnx/operators/onnx__STFT.html.
    """
    signal, step, window, given = (InputList(inputs)[index] for index in range(4))
    if given is None and window is None:
        raise UnsupportedError("it has neither a window nor the length of a frame")
    length = _dims(window)[0] if given is None else size_of(bb, given, params)
    framed = _framed(bb, signal, length, size_of(bb, step, params), window)
    results = tirx.floordiv(length, 2) + 1 if attrs.get("onesided", 1) else length
    return _transformed(bb, framed, 2, _Transform(length, results))


def _dims(tensor: Any) -> list[Any]:
    dims = known_dims(tensor)
    if dims is None:
        raise UnsupportedError("the shape of an input is not known")
    return dims


def _axis(given: Any, attrs: dict[str, Any], params: Any) -> int:
    if attrs["tvm_custom"]["opset"] < _AXIS_IS_INPUT:
        return int(attrs.get("axis", 1))
    if given is None:
        return -2
    content = known_content(given, params)
    if content is None:
        raise UnsupportedError("the axis is not constant")
    return int(content.item())


def _framed(bb: Any, signal: Any, length: Any, step: Any, window: Any) -> Any:
    """The frames of a signal, [b, frames, length, 1 or 2]."""

    def compute(signal: Any, length: Any, step: Any, *window: Any) -> Any:
        batch, size, parts = signal.shape
        frames = tirx.floordiv(size - length, step) + 1

        def element(entry: Any, frame: Any, place: Any, part: Any) -> Any:
            value = signal(entry, frame * step + place, part)
            return value * window[0](place) if window else value

        return te.compute([batch, frames, length, parts], element, name="frames")

    _dims(signal)
    windows = [] if window is None else [window]
    call = bb.call_te(compute, signal, length, step, *windows, primfunc_name_hint="frames")
    return bb.normalize(call)


def _transformed(bb: Any, data: Any, axis: int, transform: _Transform) -> Any:
    """Data with its numbers in the last axis, transformed along another."""
    parts = as_int(_dims(data)[-1])
    if parts not in (1, 2):
        raise UnsupportedError("the last axis is not known to hold real or complex numbers")
    last = data.ty.ndim - 2
    data = _moved(bb, data, axis, last)
    *outer, size, _ = _dims(data)
    rows = bb.normalize(relax.op.reshape(data, relax.ShapeExpr([*outer, size * parts])))
    made = 1 if transform.is_of_half else 2
    matrix = _waves(bb, transform, size, (parts, made), str(data.ty.dtype))
    product = bb.normalize(relax.op.matmul(rows, matrix))
    shape = relax.ShapeExpr([*outer, transform.results, made])
    return _moved(bb, bb.normalize(relax.op.reshape(product, shape)), last, axis)


def _moved(bb: Any, data: Any, source: int, target: int) -> Any:
    """The tensor with one axis moved to another place."""
    order = [axis for axis in range(data.ty.ndim) if axis != source]
    order.insert(target, source)
    return data if source == target else bb.normalize(relax.op.permute_dims(data, order))


def _waves(bb: Any, transform: _Transform, size: Any, parts: Sequence[int], dtype: str) -> Any:
    """What each part of each of `size` numbers adds to each part of each result, as a matrix."""
    taken, made = parts

    def compute(size: Any, length: Any, results: Any) -> Any:
        def element(row: Any, column: Any) -> Any:
            place, part = tirx.floordiv(row, taken), tirx.floormod(row, taken)
            wave, result = tirx.floordiv(column, made), tirx.floormod(column, made)
            # The product is reduced as an integer: a float32 angle would lose the precision.
            turn = _float(tirx.floormod(place * wave, length)) / _float(length)
            quarters = _float(part - result)
            sign = 1 if transform.is_inverse else -1
            value = tirx.cos(2 * math.pi * sign * turn + math.pi / 2 * quarters)
            weight = _weight(transform, place, length)
            inside = tirx.Select(place < length, value * weight, tirx.const(0, _COMPUTED_IN))
            return tirx.Cast(dtype, inside)

        return te.compute([size * taken, results * made], element, name="waves")

    sizes = size, transform.length, transform.results
    return bb.normalize(bb.call_te(compute, *sizes, primfunc_name_hint="waves"))


def _weight(transform: _Transform, place: Any, length: Any) -> Any:
    """How often a frequency counts."""
    one, two = (tirx.const(number, _COMPUTED_IN) for number in (1, 2))
    if not transform.is_inverse:
        return one
    if not transform.is_of_half:
        return one / _float(length)
    is_its_own_mirror = tirx.any(place == 0, 2 * place == length)
    return tirx.Select(is_its_own_mirror, one, two) / _float(length)


def _float(value: Any) -> Any:
    return tirx.Cast(_COMPUTED_IN, value)
