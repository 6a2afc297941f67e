"""A text-to-speech network in the manner of StyleTTS 2 (https://arxiv.org/abs/2306.07691).

A text encoder with a bidirectional LSTM over padded text, a style from a diffusion sampler of fixed
steps, durations from two masked recurrences, a length regulator that repeats the features of every
token, and a decoder that makes 60 samples of every frame: it resizes by 2, then come transposed
convolutions of strides 5 and 6. How many frames there are depends on
the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .build import build

SYMBOLS, WIDTH, HIDDEN, STYLE, STEPS = 24, 16, 8, 12, 5
_STEP = """
    products = MatMul (x, {side}_input)
    recurrent = MatMul (h, {side}_state)
    summed = Add (products, recurrent)
    gates = Add (summed, {side}_bias)
    i0, f0, g0, o0 = Split <axis = 1> (gates)
    i = Sigmoid (i0)
    f = Sigmoid (f0)
    g = Tanh (g0)
    o = Sigmoid (o0)
    kept = Mul (f, c)
    new = Mul (i, g)
    cell = Add (kept, new)
    squashed = Tanh (cell)
    hidden = Mul (o, squashed)
    h1 = Where (alive, hidden, h)
    c1 = Where (alive, cell, c)
    y = Where (alive, hidden, no_state)
"""
"""One step of an LSTM; in the padding the state is kept and the output is zero."""


def _recurrence(side: str, direction: int) -> str:
    state = f"float[1, {HIDDEN}]"
    return f"""
    {side}_h, {side}_c, {side}_rows = Scan <
        num_scan_inputs = 2, scan_input_directions = [{direction}, {direction}],
        scan_output_directions = [{direction}], body = {side}_step (
            {state} h, {state} c, float[1, {WIDTH}] x, bool[1, 1] alive
        ) => ({state} h1, {state} c1, {state} y) {{ {_STEP.format(side=side)} }}
    > (no_state, no_state, encoded, is_token)
    """


_ENCODER = f"""
    embedded = Gather (embedding, tokens)
    text = Transpose <perm = [0, 2, 1]> (embedded)
    blurred = Conv <pads = [2, 2]> (text, text_kernel, text_bias)
    bent = LeakyRelu <alpha = 0.2> (blurred)
    sequence = Transpose <perm = [2, 0, 1]> (bent)
    lengths32 = Cast <to = 6> (lengths)
    both, final_h, final_c = LSTM <direction = "bidirectional", hidden_size = {HIDDEN}> (
        sequence, lstm_w, lstm_r, lstm_b, lengths32)
    sides = Transpose <perm = [0, 2, 1, 3]> (both)
    encoded = Reshape (sides, steps_of_width)
    pooled = ReduceMean <axes = [0], keepdims = 0> (encoded)
"""

_DIFFUSION = f"""
    style = Loop (steps, "", noise) <body = denoise (
        int64 step, bool go, float[1, {STYLE}] noisy) => (bool goes, float[1, {STYLE}] cleaner
    ) {{
        goes = Identity (go)
        following = Add (step, one)
        sigma = Gather (sigmas, step)
        target = Gather (sigmas, following)
        level = Log (sigma)
        phases = Mul (level, frequencies)
        waves = Sin (phases)
        joined = Concat <axis = 1> (noisy, pooled, waves)
        wide = MatMul (joined, denoise_in)
        soft = Tanh (wide)
        clean = MatMul (soft, denoise_out)
        error = Sub (noisy, clean)
        slope = Div (error, sigma)
        interval = Sub (target, sigma)
        change = Mul (slope, interval)
        cleaner = Add (noisy, change)
    }}>
"""

_DURATIONS = f"""
    token_shape = Shape (tokens)
    count = Gather (token_shape, one)
    positions = Range (zero, count, one)
    is_text = Less (positions, lengths)
    is_token = Reshape (is_text, steps_of_one)
    {_recurrence("forward", 0)}
    {_recurrence("backward", 1)}
    predicted = Concat <axis = 2> (forward_rows, backward_rows)
    scores = MatMul (predicted, duration_kernel)
    chances = Sigmoid (scores)
    lasting = ReduceSum <keepdims = 0> (chances, row_axes)
    paced = Div (lasting, speed)
    rounded = Round (paced)
    at_least_one = Max (rounded, one_f)
    frames_of = Cast <to = 7> (at_least_one)
    durations = Where (is_text, frames_of, zero)
"""

_REGULATOR = f"""
    features = Reshape (predicted, rows_of_width)
    frames = Loop (count, "", no_frames) <body = repeat (
        int64 token, bool go, float[r, {WIDTH}] before) => (bool goes, float[r1, {WIDTH}] longer
    ) {{
        goes = Identity (go)
        at = Unsqueeze (token, first_axis)
        row = Gather (features, at)
        times = Gather (durations, at)
        size = Concat <axis = 0> (times, width)
        rows = Expand (row, size)
        longer = Concat <axis = 0> (before, rows)
    }}>
"""

_DECODER = """
    columns = Transpose <perm = [1, 0]> (frames)
    signal = Unsqueeze (columns, first_axis)
    normal = InstanceNormalization (signal, unit_scale, no_shift)
    scale0 = MatMul (style, style_scale)
    shift0 = MatMul (style, style_shift)
    scale = Unsqueeze (scale0, last_axis)
    shift = Unsqueeze (shift0, last_axis)
    scaled = Mul (normal, scale)
    adapted = Add (scaled, shift)
    doubled = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (adapted, "", twice)
    sharp = Conv <pads = [1, 1]> (doubled, sharp_kernel)
    up5 = ConvTranspose <strides = [5], kernel_shape = [11], pads = [3, 3]> (sharp, up5_kernel)
    bumps = Sin (up5)
    squares = Mul (bumps, bumps)
    snake = Add (up5, squares)
    wide_view = Conv <dilations = [3], pads = [3, 3]> (snake, dilated_kernel)
    residual = Add (snake, wide_view)
    up6 = ConvTranspose <strides = [6], kernel_shape = [12], pads = [3, 3]> (residual, up6_kernel)
    wave = Conv <pads = [3, 3]> (up6, wave_kernel)
    audio = Tanh (wave)
"""

_TEXT = f"""
style_tts (int64[1, t] tokens, int64[1] lengths, float[1, {STYLE}] noise, float speed)
    => (float[1, 1, samples] audio, int64[t] durations)
{{ {_ENCODER} {_DIFFUSION} {_DURATIONS} {_REGULATOR} {_DECODER} }}
"""


def model() -> onnx.ModelProto:
    """The network: tokens, their number without padding, noise, speed -> audio, durations."""
    gates, double = 4 * HIDDEN, 2 * HIDDEN
    recurrent = {
        f"{side}_{name}": shape
        for side in ("forward", "backward")
        for name, shape in {
            "input": (WIDTH, gates), "state": (HIDDEN, gates), "bias": (1, gates),
        }.items()
    }  # fmt: skip
    weights = {
        "embedding": (SYMBOLS, WIDTH),
        "text_kernel": (WIDTH, WIDTH, 5), "text_bias": (WIDTH,),
        "lstm_w": (2, gates, WIDTH), "lstm_r": (2, gates, HIDDEN), "lstm_b": (2, 2 * gates),
        "denoise_in": (STYLE + WIDTH + 4, 32), "denoise_out": (32, STYLE),
        "duration_kernel": (WIDTH, 8),
        "style_scale": (STYLE, WIDTH), "style_shift": (STYLE, WIDTH),
        "sharp_kernel": (WIDTH, WIDTH, 3), "up5_kernel": (WIDTH, 8, 11),
        "dilated_kernel": (8, 8, 3), "up6_kernel": (8, 4, 12), "wave_kernel": (1, 4, 7),
        **recurrent,
    }  # fmt: skip
    assert double == WIDTH, "the two directions together are as wide as their input"
    return build(_TEXT, weights, _constants())


def _constants() -> dict[str, Any]:
    integers = {
        "zero": 0, "one": 1, "steps": STEPS, "first_axis": [0], "last_axis": [-1],
        "row_axes": [1, 2], "width": [WIDTH], "rows_of_width": [-1, WIDTH],
        "steps_of_width": [0, 1, WIDTH], "steps_of_one": [-1, 1, 1],
    }  # fmt: skip
    floats = {
        "one_f": 1.0, "twice": [1, 1, 2], "unit_scale": np.ones(WIDTH), "no_shift": np.zeros(WIDTH),
        "no_state": np.zeros((1, HIDDEN)), "no_frames": np.zeros((0, WIDTH)),
        "frequencies": [[1, 2, 4, 8]], "sigmas": np.geomspace(3.0, 0.1, STEPS + 1),
    }  # fmt: skip
    return {
        **{name: np.array(value, np.int64) for name, value in integers.items()},
        **{name: np.array(value, np.float32) for name, value in floats.items()},
    }


def feed(tokens: int, padding: int = 0, speed: float = 1.0) -> dict[str, Any]:
    """Inputs for a text of some tokens, with padding behind it."""
    rng = np.random.default_rng(tokens)
    return {
        "tokens": rng.integers(0, SYMBOLS, (1, tokens + padding)),
        "lengths": np.array([tokens]),
        "noise": rng.standard_normal((1, STYLE)).astype(np.float32),
        "speed": np.array(speed, np.float32),
    }
