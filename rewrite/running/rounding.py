"""Tells how much the outputs of a run change when its inputs change by rounding errors.

Rounding errors decide where a model compares floats or rounds them to integers: which of two nearly
equal scores comes first, say. A rewrite that adds in another order may change such outputs as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .compare import Tolerances, is_float
from .runtime import Executable, ExecutionError, Feed, RuntimeValue


def changes_by_rounding(
    model: Executable,
    feed: Feed,
    outputs: Sequence[RuntimeValue],
    tolerances: Tolerances,
    *,
    share: float = 0.01,
    runs: int = 8,
    seconds: float | None = None,
) -> list[float]:
    """The largest change of each output, as `distance` measures it, in runs with nearby inputs.

    Their floats differ from those of `feed` by up to `share` of the relative tolerance of their
    type. Numbers without a fraction stay: they may be counts, flags or masks. The changes are
    infinite if a run fails.
    """
    rng = np.random.default_rng(0)
    changes = [0.0] * len(outputs)
    for _ in range(runs):
        nearby = {name: _nearby(value, tolerances, share, rng) for name, value in feed.items()}
        try:
            results = model.run(nearby, seconds)
        except ExecutionError:
            return [np.inf] * len(outputs)
        changes = [max(c, distance(*pair)) for c, *pair in zip(changes, outputs, results)]
    return changes


def distance(expected: RuntimeValue, actual: RuntimeValue) -> float:
    """The largest difference of two floats of a value; infinite if anything else differs.

    That is a type, a shape, an integer or a text, and NaN or an infinity in one of the two.
    """
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        return max(map(distance, expected, actual), default=0.0)
    a, b = np.asarray(expected), np.asarray(actual)
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    if not is_float(a.dtype):
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        found = np.abs(a[~same] - b[~same])
    return float(np.nan_to_num(found, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _nearby(
    value: RuntimeValue, tolerances: Tolerances, share: float, rng: np.random.Generator
) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    epsilon = float(np.finfo(value.dtype).eps)
    relative = max(share * tolerances.of(value.dtype).relative, epsilon)
    factor = 1 + relative * rng.uniform(-1, 1, value.shape)
    with np.errstate(over="ignore"):
        changed = (value * factor).astype(value.dtype)
    return np.where(value == np.trunc(value), value, changed)
