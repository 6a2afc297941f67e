"""The decoder of a text-to-speech network in the manner of Kokoro (iSTFTNet on StyleTTS 2).

The pitch of `m` frames is upsampled to `2048 * m` samples of sines, which strided convolutions turn
into a spectrum of `2048 * m // 5 - k` columns. The generator brings the features to the length of
the spectrum, adapts both to a style, refines them in a loop, and goes back to samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .build import build

WIDTH, STYLE, BINS, HOP = 8, 6, 6, 5
SAMPLES = 2048
"""Samples of a frame."""

_SOURCE = f"""
    pitch_row = Unsqueeze (pitch, middle)
    curve = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel"> (
        pitch_row, "", per_frame)
    exact = Cast <to = 11> (curve)
    cycles = Div (exact, sampling_rate)
    turns = CumSum (cycles, last)
    overtone_turns = Mul (turns, overtones)
    fractions = Mod <fmod = 1> (overtone_turns, whole)
    wrapped = Cast <to = 1> (fractions)
    phases = Mul (wrapped, two_pi)
    sines = Sin (phases)
    is_voiced = Greater (curve, threshold)
    silence = Mul (sines, tenth)
    harmonics = Where (is_voiced, sines, silence)
    mixed = Conv (harmonics, mix_kernel)
    excitation = Tanh (mixed)
    real = Conv <strides = [{HOP}], kernel_shape = [20]> (excitation, real_kernel)
    imaginary = Conv <strides = [{HOP}], kernel_shape = [20]> (excitation, imaginary_kernel)
    real2 = Mul (real, real)
    imaginary2 = Mul (imaginary, imaginary)
    power0 = Add (real2, imaginary2)
    power = Add (power0, tiny)
    magnitude = Sqrt (power)
    spectrum = Concat <axis = 1> (magnitude, real)
"""

_GENERATOR = """
    columns_shape = Shape (spectrum)
    columns = Slice (columns_shape, two, three)
    up8 = ConvTranspose <strides = [8], kernel_shape = [16], pads = [4, 4]> (frames, up8_kernel)
    up64 = ConvTranspose <strides = [8], kernel_shape = [16], pads = [4, 4]> (up8, up64_kernel)
    up512 = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (up64, "", eightfold)
    padded = Pad <mode = "reflect"> (up512, one_before)
    body = Slice (padded, begin, columns, two)
    source = Conv <pads = [1, 1]> (spectrum, source_kernel)
    available_shape = Shape (body)
    available = Slice (available_shape, two, three)
    source_part = Slice (source, begin, available, two)
    joined = Add (body, source_part)
"""

_REFINEMENT = f"""
    is_long = Greater (frame_count, some)
    refined = If (is_long) <
        then_branch = long () => (float[1, {WIDTH}, l] smooth) {{
            smooth = Loop (rounds, "", joined) <body = refine (
                int64 round, bool go, float[1, {WIDTH}, l] x) => (bool goes, float[1, {WIDTH}, l] x1
            ) {{
                goes = Identity (go)
                n = InstanceNormalization (x, unit_scale, no_shift)
                scale0 = Gather (style_scales, round)
                scale1 = MatMul (style, scale0)
                scale = Unsqueeze (scale1, last_axis)
                adapted = Mul (n, scale)
                waves = Sin (adapted)
                squares = Mul (waves, waves)
                snake = Add (adapted, squares)
                r = Conv <pads = [1, 1]> (snake, refine_kernel)
                x1 = Add (x, r)
            }}>
        }},
        else_branch = short () => (float[1, {WIDTH}, l] plain) {{
            r = Conv <pads = [1, 1]> (joined, refine_kernel)
            plain = Add (joined, r)
        }}
    >
"""

_TEXT = f"""
kokoro (float[1, {WIDTH}, m] frames, float[1, m] pitch, float[1, {STYLE}] style)
    => (float[1, 1, samples] audio, float[1, {WIDTH}, steps] refined, int64 count)
{{
    frames_shape = Shape (frames)
    frame_count = Gather (frames_shape, two_scalar)
    {_SOURCE} {_GENERATOR} {_REFINEMENT}
    spectral = Conv <pads = [3, 3]> (refined, spectral_kernel)
    wave = ConvTranspose <strides = [{HOP}], kernel_shape = [20]> (spectral, inverse_kernel)
    audio = Tanh (wave)
    thinned = Conv <strides = [{HOP}], kernel_shape = [5]> (wave, thin_kernel)
    thinned_shape = Shape (thinned)
    thinned_size = Gather (thinned_shape, two_scalar)
    count = Sub (thinned_size, one)
}}
"""


def model() -> onnx.ModelProto:
    """The decoder: frames, pitch of each frame, style -> audio, what it is made of, a size."""
    weights = {
        "mix_kernel": (1, 4, 1), "real_kernel": (BINS, 1, 20), "imaginary_kernel": (BINS, 1, 20),
        "up8_kernel": (WIDTH, WIDTH, 16), "up64_kernel": (WIDTH, WIDTH, 16),
        "source_kernel": (WIDTH, 2 * BINS, 3), "style_scales": (3, STYLE, WIDTH),
        "refine_kernel": (WIDTH, WIDTH, 3), "spectral_kernel": (BINS, WIDTH, 7),
        "inverse_kernel": (BINS, 1, 20), "thin_kernel": (1, 1, 5),
    }  # fmt: skip
    integers = {
        "one": 1, "two_scalar": 2, "some": 3, "rounds": 3, "last": 2, "middle": [1], "begin": [0],
        "last_axis": [-1], "two": [2], "three": [3], "one_before": [0, 0, 1, 0, 0, 0],
    }  # fmt: skip
    floats = {
        "per_frame": [1, 1, SAMPLES], "eightfold": [1, 1, 8], "two_pi": 2 * np.pi, "threshold": 10.0,
        "tenth": 0.1, "tiny": 1e-9, "unit_scale": np.ones(WIDTH), "no_shift": np.zeros(WIDTH),
    }  # fmt: skip
    doubles = {
        "sampling_rate": 24000.0, "whole": 1.0, "overtones": np.arange(1, 5).reshape(1, 4, 1),
    }  # fmt: skip
    constants: dict[str, Any] = {name: np.array(v, np.int64) for name, v in integers.items()}
    constants.update((name, np.array(v, np.float32)) for name, v in floats.items())
    constants.update((name, np.array(v, np.float64)) for name, v in doubles.items())
    return build(_TEXT, weights, constants)


def feed(frames: int) -> dict[str, Any]:
    """Inputs for some frames, some of them without a voice."""
    rng = np.random.default_rng(frames)
    pitch = np.where(np.arange(frames) % 4 == 3, 0.0, 100 + 50 * rng.random(frames))
    return {
        "frames": rng.standard_normal((1, WIDTH, frames)).astype(np.float32),
        "pitch": pitch[None].astype(np.float32),
        "style": rng.standard_normal((1, STYLE)).astype(np.float32),
    }
