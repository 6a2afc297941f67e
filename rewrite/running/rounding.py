"""Measures how much outputs change when the inputs or weights of a model change by rounding errors.

Rounding errors decide where a model compares floats or rounds them to integers: which of two nearly
equal scores comes first, say. A rewrite that adds in another order may change such outputs as well.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from .compare import Tolerances, distances, is_float, wrong_elements
from .runtime import (
    Array,
    Executable,
    ExecutionError,
    Feed,
    IsolatedSession,
    RuntimeValue,
    SerializedModel,
)

_FACTOR = 4.0
"""How many times as much as rounding errors of the inputs a rewrite may change an element."""
_VERSIONS = 4
"""The versions that `rounded_versions` has."""
_LARGEST_MODEL = 2**28
"""The bytes of a model up to which it has other versions: each is loaded again."""
_PERTURBED = frozenset((onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE))
"""The types of weights that get rounding errors."""


def nearby_outputs(
    model: Executable,
    feed: Feed,
    tolerances: Tolerances,
    *,
    share: float = 0.01,
    runs: int = 16,
    seconds: float,
) -> Iterator[list[RuntimeValue]]:
    """The outputs of the runs with nearby inputs that succeed; all together take about `seconds`.

    Floats differ from those of `feed` by up to `share` of the relative tolerance of their type, or
    by one rounding error if that is more. Numbers without a fraction stay: they may be counts,
    flags or masks.
    """
    rng = np.random.default_rng(0)
    end = time.monotonic() + seconds
    for _ in range(runs):
        rest = end - time.monotonic()
        if rest <= 0:
            return
        nearby = {name: _nearby(value, tolerances, share, rng) for name, value in feed.items()}
        try:
            outputs = model.run(nearby, rest)
        except ExecutionError:  # such a run says nothing about the outputs
            continue
        yield outputs


def rounded_versions(
    model: onnx.ModelProto, base_dir: str = "", *, seconds: float
) -> Iterator[Executable]:
    """Versions of a model that differ from it by rounding errors; all together take `seconds`.

    The first is the model as onnxruntime runs it without its optimizer, which computes quantised
    parts in other steps. In the others, the initializers of the main graph differ by one rounding
    error. A version can be run until the next one is asked for.
    """
    if model.ByteSize() > _LARGEST_MODEL:
        return
    rng = np.random.default_rng(0)
    end = time.monotonic() + seconds
    versions = itertools.chain([model], _with_nearby_weights(model, rng))
    for version in itertools.islice(versions, _VERSIONS):
        rest = end - time.monotonic()
        if rest <= 0:
            return
        try:
            packed = SerializedModel(version, base_dir)
            session = IsolatedSession(packed, optimizes=False, seconds=rest)
        except ExecutionError:  # such a version says nothing about the outputs
            continue
        with closing(session):
            yield session


def _with_nearby_weights(
    model: onnx.ModelProto, rng: np.random.Generator
) -> Iterator[onnx.ModelProto]:
    """Endless copies of the model with other weights; none if there are no weights to change."""
    exact = Tolerances(relative=0.0)
    weights = [
        number
        for number, tensor in enumerate(model.graph.initializer)
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.data_type in _PERTURBED
    ]
    while weights:
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for number in weights:
            tensor = changed.graph.initializer[number]
            array = _nearby(numpy_helper.to_array(tensor), exact, 0.0, rng)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        yield changed


def is_explained(
    expected: RuntimeValue,
    actual: RuntimeValue,
    nearby: Sequence[RuntimeValue],
    tolerances: Tolerances,
) -> bool:
    """Whether rounding errors explain how two values differ; `nearby` are those of nearby inputs.

    They explain another shape or length that one of the nearby values has, and elements that differ
    by at most four times as much as those of a nearby value do.
    """
    if isinstance(expected, list) and isinstance(actual, list):
        alike: list[Any] = [n for n in nearby if isinstance(n, list) and len(n) == len(actual)]
        if len(expected) != len(actual):
            return bool(alike)
        return all(
            is_explained(old, new, [n[k] for n in alike], tolerances)
            for k, (old, new) in enumerate(zip(expected, actual))
        )
    if not isinstance(expected, np.ndarray) or not isinstance(actual, np.ndarray):
        return type(expected) is type(actual) and expected == actual
    if expected.dtype != actual.dtype or expected.ndim != actual.ndim:
        return False
    same_shape = [n for n in nearby if isinstance(n, np.ndarray) and n.shape == actual.shape]
    if expected.shape != actual.shape:
        return bool(same_shape)
    wrong = wrong_elements(expected, actual, tolerances)
    if not wrong.any():
        return True
    changes = [distances(expected, n)[wrong] for n in same_shape]
    if not changes:
        return False
    return bool(np.all(distances(expected, actual)[wrong] <= _FACTOR * np.maximum.reduce(changes)))


def _nearby(
    value: RuntimeValue, tolerances: Tolerances, share: float, rng: np.random.Generator
) -> Any:
    if not isinstance(value, np.ndarray) or not is_float(value.dtype) or value.dtype.itemsize == 1:
        return value
    epsilon = float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
    relative = max(share * tolerances.of(value.dtype).relative, epsilon)
    wide: Array = value.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        changed = (wide * (1 + relative * rng.uniform(-1, 1, value.shape))).astype(value.dtype)
    return np.where(wide == np.trunc(wide), value, changed)
