"""Random inputs, and what the tests of operators ask of an imported model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from looplift.lowering.values import as_int

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
    return [str(as_int(size) or size) for size in first.shape.values]
