"""Random inputs, and what the tests of operators ask of an imported model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx.reference
import pytest
import tvm
from tvm import relax

Load = Callable[..., Any]
"""The fixture `imported`."""
Array = np.ndarray[Any, np.dtype[np.float32]]


def random(*shape: int) -> Array:
    """Normally distributed values, the same for equal shapes."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def output_dims(model: Any) -> list[str]:
    """The shape of the first output, as far as the importer knows it."""
    kind = model.module["main"].ret_ty
    first = kind.fields[0] if isinstance(kind, relax.TupleType) else kind
    return [re.sub(r"T\.int64\((\d+)\)", r"\1", str(size)) for size in first.shape.values]


def check_reference(model: Any, *inputs: Any, tolerance: float = 1e-5) -> None:
    """TVM and ONNX's reference implementation give the same types, shapes and values."""
    names = [value.name for value in model.model.graph.input]
    evaluator = onnx.reference.ReferenceEvaluator(model.model)
    wanted: Any = evaluator.run(None, dict(zip(names, inputs, strict=True)))
    for got, want in zip(model.run(*inputs), wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if got.dtype.kind not in "biuf":
            got, want = got.astype(np.float32), want.astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


Shapes = Sequence[tuple[int, ...]]
"""The shape of each input."""


def check_sizes(model: Any, valid: Iterable[Shapes], invalid: Iterable[Shapes]) -> None:
    """A run with inputs of valid shapes is right, and one with inputs of invalid shapes fails."""
    for shapes in valid:
        model.check(*(random(*shape) for shape in shapes))
    for shapes in invalid:
        with pytest.raises((RuntimeError, ValueError), match=r"mismatch|do not fit"):
            model.machine["main"](*(tvm.runtime.tensor(random(*shape)) for shape in shapes))
