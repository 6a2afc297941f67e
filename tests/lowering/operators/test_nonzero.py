"""NonZero against onnxruntime: one module for all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .inputs import Load

NUMBERS = np.array([0, 1, -2, 0, 0, 3, 0, 0.5, 0, -0.0, 0, 7])


@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 2), (0,), (3, 0)])
def test_positions_of_any_rank(imported: Load, shape: tuple[int, ...]) -> None:
    model = imported(_model("float", len(shape)))
    model.check(NUMBERS[: int(np.prod(shape))].reshape(shape).astype(np.float32))
    model.check(np.zeros(shape, np.float32))
    model.check(np.ones(shape, np.float32))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bool", bool), ("int64", np.int64), ("int32", np.int32), ("uint8", np.uint8)],
)
def test_positions_in_other_types(imported: Load, name: str, dtype: Any) -> None:
    imported(_model(name, 2)).check(np.abs(NUMBERS).reshape(3, 4).astype(dtype))


@pytest.mark.parametrize(
    ("name", "dtype"), [("float16", np.float16), ("float", np.float32), ("double", np.float64)]
)
def test_only_zeros_of_both_signs_are_zero(imported: Load, name: str, dtype: Any) -> None:
    least = np.nextafter(np.array(0, dtype), np.array(1, dtype))
    values = np.array([0, -0.0, np.nan, np.inf, -np.inf, least, -least], dtype)
    positions = imported(_model(name, 1)).run(values)[0]
    np.testing.assert_array_equal(positions, [[2, 3, 4, 5, 6]])


def test_no_function_of_the_runtime_is_called(imported: Load) -> None:
    assert "nonzero" not in str(_packed_functions(imported(_model("float", 1))))


def _model(dtype: str, rank: int) -> str:
    dims = ", ".join("abcd"[:rank])
    return f"model ({dtype}[{dims}] x) => (int64[r, k] y) {{ y = NonZero (x) }}"


def _packed_functions(model: Any) -> list[str]:
    executable = model.compiled()
    return [line for line in executable.as_text().splitlines() if "relax.run" in line]
