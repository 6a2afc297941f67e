"""Compares the outputs of two models.

Types, shapes, integers and texts must be equal; floats may differ within a tolerance that depends
on their precision and magnitude.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from ..storage.protos import attributes, containers, nodes
from .runtime import Array, RuntimeValue


@dataclass(frozen=True)
class Tolerance:
    """|expected - actual| <= relative * |expected| + absolute * (typical size of expected)."""

    relative: float
    absolute: float


TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-9, 1e-10),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(2e-2, 5e-3),
    "bfloat16": Tolerance(8e-2, 2e-2),
}
"""Tolerances that allow for sums in another order, the finest precision first."""

PRECISIONS = tuple(TOLERANCES)

SMALLEST_SCALE = 1e-30
"""Differences below `absolute` times this count as rounding: denormal numbers may become 0."""

_ELEMENT_PRECISION = {
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}


@dataclass(frozen=True)
class Difference:
    """One output in which two models differ."""

    output: str
    """The name of the output; `ys[2]` for the third element of a sequence; empty where the models
    differ as a whole, such as in the number of outputs."""
    what: str
    """The difference in words, without a full stop."""
    index: tuple[int, ...] | None = None
    """The position of the largest difference, if types and shapes agree."""
    expected: object = None
    actual: object = None
    max_absolute: float = 0.0
    max_relative: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes of the open dimensions in that run."""

    def __str__(self) -> str:
        place = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        subject = f"output '{self.output}': " if self.output else ""
        return f"{subject}{self.what}" + (f" (at {place})" if place else "")


class Tolerances:
    """The tolerance for each type of output, given the precision that a model computes in.

    A model that computes in half precision may return single precision, so the coarsest type of its
    values decides. `relative` and `absolute` replace the defaults.
    """

    def __init__(
        self,
        coarsest: str = "float64",
        *,
        relative: float | None = None,
        absolute: float | None = None,
    ) -> None:
        self._coarsest = coarsest
        self._relative = relative
        self._absolute = absolute

    def of(self, dtype: np.dtype[Any]) -> Tolerance:
        """The tolerance for a float type."""
        name = max(str(dtype), self._coarsest, key=PRECISIONS.index)
        default = TOLERANCES[name]
        return Tolerance(
            default.relative if self._relative is None else self._relative,
            default.absolute if self._absolute is None else self._absolute,
        )


def working_precision(model: onnx.ModelProto) -> str:
    """The coarsest float type among a model's inputs, weights and casts."""
    kinds = {info.type.tensor_type.elem_type for info in model.graph.input}
    kinds |= set(_stored_types(model.graph))
    for node in nodes(model.graph):
        kinds |= {a.i for a in node.attribute if a.name == "to"}
    present = [_ELEMENT_PRECISION[kind] for kind in kinds if kind in _ELEMENT_PRECISION]
    return max(present, key=PRECISIONS.index, default="float64")


def _stored_types(graph: onnx.GraphProto) -> Iterator[int]:
    for owner in containers(graph):
        if isinstance(owner, onnx.GraphProto):
            yield from (tensor.data_type for tensor in owner.initializer)
        for attribute in attributes(owner):
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t.data_type


def compare(
    names: Sequence[str],
    expected: Sequence[RuntimeValue],
    actual: Sequence[RuntimeValue],
    tolerances: Tolerances | None = None,
) -> list[Difference]:
    """The differences between the outputs of two models, at most one for each output.

    NaN equals NaN, and an infinity equals itself. Types and shapes must be equal.
    """
    tolerances = tolerances or Tolerances("float32")
    if len(expected) != len(actual):
        plural = "s" * (len(actual) != 1)
        return [Difference("", f"{len(actual)} output{plural} instead of {len(expected)}")]
    return [
        difference
        for name, left, right in zip(names, expected, actual)
        for difference in [_difference(name, left, right, tolerances)]
        if difference is not None
    ]


def max_difference(expected: Sequence[RuntimeValue], actual: Sequence[RuntimeValue]) -> float:
    """The largest absolute difference between floats of outputs with equal types and shapes."""
    largest = 0.0
    for left, right in zip(expected, actual):
        if not isinstance(left, np.ndarray) or not isinstance(right, np.ndarray):
            continue
        if is_float(left.dtype) and left.shape == right.shape and left.size:
            wide = _distance(left.astype(np.float64), right.astype(np.float64))
            largest = max(largest, float(wide.max()))
    return largest


def _difference(
    name: str, expected: RuntimeValue, actual: RuntimeValue, tolerances: Tolerances
) -> Difference | None:
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray):
        return _array_difference(name, expected, actual, tolerances)
    if isinstance(expected, list) and isinstance(actual, list):
        return _list_difference(name, expected, actual, tolerances)
    if isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            return Difference(name, "the keys of the map differ", None, expected, actual)
        pairs = [np.array(list(value.values())) for value in (expected, actual)]
        return _array_difference(name, pairs[0], pairs[1], tolerances)
    if type(expected) is type(actual) and expected == actual:
        return None
    what = f"{_describe(actual)} instead of {_describe(expected)}"
    return Difference(name, what, None, expected, actual)


def _list_difference(
    name: str, expected: list[Any], actual: list[Any], tolerances: Tolerances
) -> Difference | None:
    if len(expected) != len(actual):
        what = f"{len(actual)} elements instead of {len(expected)}"
        return Difference(name, what, None, expected, actual)
    for index, (left, right) in enumerate(zip(expected, actual)):
        difference = _difference(f"{name}[{index}]", left, right, tolerances)
        if difference is not None:
            return difference
    return None


def _array_difference(
    name: str, expected: Array, actual: Array, tolerances: Tolerances
) -> Difference | None:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        what = f"{_describe(actual)} instead of {_describe(expected)}"
        return Difference(name, what, None, expected, actual)
    if expected.size == 0:
        return None
    wrong = wrong_elements(expected, actual, tolerances)
    if not wrong.any():
        return None
    if not is_float(expected.dtype):
        return _where(name, expected, actual, wrong, wrong.astype(float))
    return _where(name, expected, actual, wrong, distances(expected, actual))


def wrong_elements(expected: Array, actual: Array, tolerances: Tolerances) -> Array:
    """Which elements of two tensors of one type and shape differ by more than is allowed."""
    if not is_float(expected.dtype):
        return np.asarray(expected != actual)
    tolerance = tolerances.of(expected.dtype)
    wide, found = expected.astype(np.float64), distances(expected, actual)
    with np.errstate(invalid="ignore"):
        allowed = tolerance.relative * np.abs(wide) + tolerance.absolute * scale(wide)
    # An expected NaN gives a NaN in `allowed`, which must not allow a finite value.
    wrong: Array = (found > 0) & ~(found <= np.nan_to_num(allowed, posinf=0))
    return wrong


def distances(expected: Array, actual: Array) -> Array:
    """The absolute differences of numbers; infinite for texts, and for NaN and infinities that
    only one of the tensors has.
    """
    if expected.dtype.kind in "OSU":
        return np.where(np.asarray(expected == actual), 0.0, np.inf)
    return _distance(expected.astype(np.float64), actual.astype(np.float64))


def is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16


def scale(values: Array) -> float:
    """The typical magnitude of the numbers that are neither 0 nor infinite: their median.

    A few outliers, such as a mask of -1e9 on an attention score, do not change it.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    return max(float(np.median(sizes)), SMALLEST_SCALE) if sizes.size else 1.0


def _distance(expected: Array, actual: Array) -> Array:
    """|expected - actual|, where NaN and infinities differ from all other values infinitely."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance: Array = np.abs(expected - actual)
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _where(name: str, expected: Array, actual: Array, wrong: Array, distance: Array) -> Difference:
    worst = np.where(wrong, distance, -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(worst)), expected.shape))
    left, right = expected[index], actual[index]
    count = f"{int(wrong.sum())} of {expected.size} elements"
    at = f" at {list(index)}" if index else ""
    what = f"{_number(right)} instead of {_number(left)}{at}"
    if not is_float(expected.dtype):
        return Difference(name, f"{what}; {count} differ", index, left, right)
    largest = float(distance[wrong].max())
    relative = _relative(expected, distance, wrong)
    what = f"{what}; {count} differ, by up to {largest:.3g}"
    if np.isfinite(relative):  # The original is 0 at one of them otherwise, or infinite.
        what += f" (relative {relative:.3g})"
    return Difference(name, what, index, float(left), float(right), largest, relative)


def _relative(expected: Array, distance: Array, wrong: Array) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = distance[wrong] / np.abs(expected[wrong].astype(np.float64))
    return float(np.nan_to_num(ratios, nan=np.inf, posinf=np.inf).max())


def _number(value: Any) -> str:
    if isinstance(value, np.generic) and is_float(value.dtype):
        return f"{float(value):.7g}"
    return repr(value) if isinstance(value, str) else str(value)


def _describe(value: RuntimeValue) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if value is None:
        return "an empty optional"
    kind = "a sequence" if isinstance(value, list) else "a map"
    return f"{kind} of {len(value)} elements"
