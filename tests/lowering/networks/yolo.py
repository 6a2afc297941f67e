"""A detector in the manner of YOLO: a strided backbone, a grid of boxes, and suppression in loops.

Boxes with a high score are found with NonZero, so their number depends on the data. Non-maximum
suppression is a while loop that takes the best box that is left; an inner loop compares it with
every other. How many boxes are kept depends on the data as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from .build import build

CHANNELS, CLASSES = 8, 3

_BACKBONE = """
    half = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, stem_kernel)
    half1 = Sigmoid (half)
    half2 = Mul (half, half1)
    quarter = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (half2, down_kernel)
    quarter1 = Sigmoid (quarter)
    fine = Mul (quarter, quarter1)
    pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (fine)
    coarse = Conv <pads = [1, 1, 1, 1]> (pooled, coarse_kernel)
    fine_shape = Shape (fine)
    fine_size = Slice (fine_shape, two, four)
    leading = Slice (fine_shape, zero, two)
    new_size = Concat <axis = 0> (leading, fine_size)
    up = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",
        nearest_mode = "floor"> (coarse, "", "", new_size)
    neck = Concat <axis = 1> (fine, up)
    head = Conv (neck, head_kernel, head_bias)
"""

_BOXES = """
    rows = Gather (fine_shape, two_scalar)
    columns = Gather (fine_shape, three_scalar)
    ys = Range (zero_scalar, rows, one_scalar)
    xs = Range (zero_scalar, columns, one_scalar)
    yf = Cast <to = 1> (ys)
    xf = Cast <to = 1> (xs)
    y_column = Unsqueeze (yf, one)
    x_row = Unsqueeze (xf, zero)
    grid_shape = Slice (fine_shape, two, four)
    grid_y = Expand (y_column, grid_shape)
    grid_x = Expand (x_row, grid_shape)
    grid_y1 = Reshape (grid_y, one_column)
    grid_x1 = Reshape (grid_x, one_column)
    grid = Concat <axis = 1> (grid_y1, grid_x1)
    cells = Transpose <perm = [0, 2, 3, 1]> (head)
    flat = Reshape (cells, rows_of_eight)
    at, growth, object, kinds = Split <axis = 1> (flat, parts)
    offsets = Sigmoid (at)
    centre0 = Add (offsets, grid)
    centres = Mul (centre0, stride)
    grown = Exp (growth)
    sizes = Mul (grown, anchor)
    halves = Mul (sizes, a_half)
    lows = Sub (centres, halves)
    highs = Add (centres, halves)
    boxes = Concat <axis = 1> (lows, highs)
    chance0 = Sigmoid (object)
    kind_chances = Softmax <axis = 1> (kinds)
    best_chance = ReduceMax <axes = [1]> (kind_chances)
    chance1 = Mul (chance0, best_chance)
    chances = Squeeze (chance1, one)
    classes = ArgMax <axis = 1, keepdims = 0> (kind_chances)
"""

_CANDIDATES = """
    is_likely = Greater (chances, least)
    found = NonZero (is_likely)
    chosen = Squeeze (found, zero)
    c_boxes = Gather (boxes, chosen)
    c_chances = Gather (chances, chosen)
    c_classes = Gather (classes, chosen)
    amounts = Shape (c_chances)
    amount = Squeeze (amounts, zero)
    any_left = Greater (amount, zero_scalar)
"""

_SUPPRESSION = """
    rest, kept = Loop (amount, any_left, c_chances) <body = take_best (
        int64 round, bool go, float[k] left) => (bool goes, float[k] remaining, int64 best
    ) {
        best = ArgMax <axis = 0, keepdims = 0> (left)
        box = Gather (c_boxes, best)
        b_low, b_high = Split <axis = 0> (box)
        b_class = Gather (c_classes, best)
        b_extent = Sub (b_high, b_low)
        b_area = ReduceProd <keepdims = 0> (b_extent)
        spared = Loop (amount, "") <body = compare (
            int64 i, bool on) => (bool ons, float factor
        ) {
            ons = Identity (on)
            other = Gather (c_boxes, i)
            low, high = Split <axis = 0> (other)
            class = Gather (c_classes, i)
            low1 = Max (low, b_low)
            high1 = Min (high, b_high)
            overlap0 = Sub (high1, low1)
            overlap1 = Max (overlap0, nothing)
            shared = ReduceProd <keepdims = 0> (overlap1)
            extent = Sub (high, low)
            area = ReduceProd <keepdims = 0> (extent)
            both = Add (area, b_area)
            united = Sub (both, shared)
            ratio = Div (shared, united)
            overlaps = Greater (ratio, most)
            is_same = Equal (class, b_class)
            goes_away = And (overlaps, is_same)
            is_best = Equal (i, best)
            goes_away1 = Or (goes_away, is_best)
            factor = Where (goes_away1, nothing, unit)
        }>
        remaining = Mul (left, spared)
        highest = ReduceMax <keepdims = 0> (remaining)
        goes = Greater (highest, nothing)
    }>
    out_boxes = Gather (c_boxes, kept)
    out_chances = Gather (c_chances, kept)
    out_classes = Gather (c_classes, kept)
"""

_TEXT = f"""
yolo (float[1, 3, h, w] image)
    => (float[r, 4] out_boxes, float[r] out_chances, int64[r] out_classes)
{{ {_BACKBONE} {_BOXES} {_CANDIDATES} {_SUPPRESSION} }}
"""


def model() -> onnx.ModelProto:
    """The detector: an image of any size -> boxes, their scores and classes."""
    weights = {
        "stem_kernel": (CHANNELS, 3, 3, 3), "down_kernel": (CHANNELS, CHANNELS, 3, 3),
        "coarse_kernel": (CHANNELS, CHANNELS, 3, 3),
        "head_kernel": (5 + CLASSES, 2 * CHANNELS, 1, 1), "head_bias": (5 + CLASSES,),
    }  # fmt: skip
    integers = {
        "zero": [0], "one": [1], "two": [2], "four": [4], "zero_scalar": 0, "one_scalar": 1,
        "two_scalar": 2, "three_scalar": 3, "rows_of_eight": [-1, 5 + CLASSES],
        "one_column": [-1, 1], "parts": [2, 2, 1, CLASSES],
    }  # fmt: skip
    floats = {
        "stride": 4.0, "anchor": [[28, 36]], "a_half": 0.5, "least": 0.35, "most": 0.45,
        "nothing": 0.0, "unit": 1.0,
    }  # fmt: skip
    constants: dict[str, Any] = {name: np.array(v, np.int64) for name, v in integers.items()}
    constants.update((name, np.array(v, np.float32)) for name, v in floats.items())
    return build(_TEXT, weights, constants)


def feed(height: int, width: int) -> dict[str, Any]:
    """An image of noise."""
    rng = np.random.default_rng(height)
    return {"image": rng.standard_normal((1, 3, height, width)).astype(np.float32)}
