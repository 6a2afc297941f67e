"""DFT and STFT against onnxruntime: every direction and length, one module for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import check_reference

Load = Callable[..., Any]
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def dft(attributes: str, parts: int = 2, opset: int = 17, more: str = "") -> str:
    return f"""
    <ir_version: 9, opset_import: ["" : {opset}]>
    g (float[b, n, m, {parts}] x) => (float[?, ?, ?, ?] y) <int64 eight = {{8}}, int64 two = {{2}}>
    {{ y = DFT <{attributes}> (x{more}) }}"""


@pytest.mark.parametrize(("axis", "inverse"), one_of(4, [(1, 0), (1, 1), (2, 0), (2, 1)]))
def test_complex_data(imported: Load, axis: int, inverse: int) -> None:
    model = imported(dft(f"axis = {axis}, inverse = {inverse}"))
    model.check(random(2, 5, 8, 2))
    model.check(random(1, 6, 7, 2))


@pytest.mark.parametrize("onesided", one_of(2, [1, 0]))
def test_real_data(imported: Load, onesided: int) -> None:
    model = imported(dft(f"axis = 2, onesided = {onesided}", parts=1))
    for length in (1, 6, 9, 64):
        model.check(random(2, 3, length, 1))


def _spectrum(x: Array, inverse: int) -> Array:
    values = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    found = (np.fft.ifft if inverse else np.fft.fft)(values.astype(np.complex128), axis=1)
    return np.stack([found.real, found.imag], axis=-1).astype(np.float32)


def _assert_transformed(model: Any, x: Array, inverse: int) -> None:
    """Compares with numpy, which is more precise than onnxruntime for lengths such as 400."""
    (found,), want = model.run(x), _spectrum(x, inverse)
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * max(np.abs(want).max(), 1))


@pytest.mark.parametrize(("inverse", "parts"), one_of(3, [(0, 1), (0, 2), (1, 2)]))
def test_a_length_that_is_known_when_the_module_runs(
    imported: Load, inverse: int, parts: int
) -> None:
    model = imported(dft(f"axis = 1, inverse = {inverse}", parts))
    for length in (1, 2, 3, 12, 64, 97, 400, 1024):
        _assert_transformed(model, random(2, length, 3, parts), inverse)


@pytest.mark.parametrize("length", [600, 601, 1024])
def test_long_transforms_of_known_length(imported: Load, length: int) -> None:
    model = imported(dft("axis = 1, inverse = 0").replace("b, n, m", f"b, {length}, m"))
    _assert_transformed(model, random(1, length, 2, 2), 0)


@pytest.mark.parametrize("length", [600, 1024])
def test_half_of_a_long_spectrum(imported: Load, length: int) -> None:
    text = dft("axis = 1, onesided = 1", parts=1).replace("b, n, m", f"b, {length}, m")
    x = random(2, length, 2, 1)
    (found,) = imported(text).run(x)
    want = _spectrum(x, 0)[:, : length // 2 + 1]
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_data_is_truncated_or_padded_to_the_length(imported: Load) -> None:
    model = imported(dft("axis = 1, inverse = 0", more=", eight"))
    for size in (5, 8, 11):
        model.check(random(1, size, 2, 2))


def test_the_axis_as_an_input(imported: Load) -> None:
    imported(dft("inverse = 0", opset=20, more=', "", two')).check(random(1, 3, 5, 2))
    imported(dft("onesided = 1", opset=20, parts=1, more="")).check(random(1, 3, 6, 1))


@pytest.mark.parametrize("length", [6, 7])
def test_half_a_spectrum_gives_a_real_signal(imported: Load, length: int) -> None:
    """onnxruntime has no such transform, so numpy is the reference."""
    text = dft("inverse = 1, onesided = 1", opset=20, more=", eight").replace(
        "{8}", f"{{{length}}}"
    )
    signal = random(2, 3, length)
    spectrum = np.fft.rfft(signal)
    given = np.stack([spectrum.real, spectrum.imag], axis=-1).astype(np.float32)
    (got,) = imported(text).run(given)
    np.testing.assert_allclose(got[..., 0], signal, atol=1e-5)


def test_a_last_axis_of_unknown_size_is_refused(imported: Load) -> None:
    text = "g (float[b, n, parts] x) => (float[?, ?, ?] y) { y = DFT <axis = 1> (x) }"
    with pytest.raises(UnsupportedError, match="the size of the last axis must be known"):
        imported(text)


@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_of_a_signal(imported: Load, onesided: int) -> None:
    model = imported(
        f"""
        g (float[b, n, 1] x, float[16] window) => (float[?, ?, ?, ?] y) <int64 step = {{5}}> {{
            y = STFT <onesided = {onesided}> (x, step, window)
        }}"""
    )
    for length in (16, 20, 100):
        model.check(random(2, length, 1), np.hanning(16).astype(np.float32))


@pytest.mark.parametrize("bins", [2, 3, 4, 7])
def test_a_half_spectrum_of_any_number_of_bins(imported: Load, bins: int) -> None:
    """What is beyond the half that the length needs is left out, as in `numpy.fft.irfft`."""
    model = imported(
        """
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[b, n, 2] x, int64 axis) => (float[?, ?, ?] y) <int64 length = {4}> {
            y = DFT <onesided = 1, inverse = 1> (x, length, axis)
        }"""
    )
    x = random(2, bins, 2)
    got = model.run(x, np.array(1))
    wanted = np.fft.irfft(x[..., 0] + 1j * x[..., 1], 4, axis=1)
    np.testing.assert_allclose(np.asarray(got[0])[..., 0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", ["b, n", "2, 100"])
def test_a_signal_without_the_axis_of_real_and_imaginary_parts(imported: Load, shape: str) -> None:
    model = imported(
        f"""
        g (float[{shape}] x, float[16] window) => (float[?, ?, ?, ?] y) <int64 step = {{5}}> {{
            y = STFT (x, step, window)
        }}"""
    )
    model.check(random(2, 100), np.hanning(16).astype(np.float32))


def test_frames_of_a_length_and_a_step_that_are_inputs(imported: Load) -> None:
    model = imported(
        """
        g (float[1, n, 1] x, int64 step, int64 length) => (float[?, ?, ?, ?] y) {
            y = STFT (x, step, "", length)
        }"""
    )
    for step, length in ((1, 8), (3, 10), (7, 20)):
        model.check(random(1, 40, 1), np.array(step), np.array(length))


def test_an_axis_that_a_run_computes(imported: Load) -> None:
    model = imported(
        """
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[b, n, m, 1] x, int64 axis) => (float[?, ?, ?, ?] y) {
            y = DFT <onesided = 1> (x, "", axis)
        }"""
    )
    for axis in (0, 1, -2, -3):
        check_reference(model, random(3, 5, 4, 1), np.array(axis))
