"""NumPy's copies give what the compiled kernels give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from looplift.lowering.scheduling.kernels.affine import int64
from looplift.lowering.scheduling.relax.constant_copies import constant_copy


def _below(limit: int, index: Any, element: Any) -> Any:
    return tirx.if_then_else(index < limit, element, tirx.const(0, str(element.dtype)))


Element = Callable[..., Any]
COPIES: dict[str, tuple[Sequence[int], Sequence[int], Element]] = {
    "panels": ((64, 5), (2, 5, 32), lambda b, p, k, j: b[p * 32 + j, k]),
    "transposed": ((5, 64), (2, 5, 32), lambda b, p, k, j: b[k, p * 32 + j]),
    "a part of a panel": (
        (5, 50), (2, 5, 32), lambda b, p, k, j: _below(50, p * 32 + j, b[k, p * 32 + j])
    ),
    "panels without elements": (
        (5, 50), (4, 5, 32), lambda b, p, k, j: _below(50, p * 32 + j, b[k, p * 32 + j])
    ),
    "parts of two axes": ((30, 30), (3, 12), lambda b, i, j: _below(17, i * 5 + j * 2, b[i, j])),
    "taps of two axes": ((8, 3, 4), (12, 8), lambda b, t, f: b[f, t // 4, t % 4]),
    "from an element on": ((8, 6), (4, 2), lambda b, i, j: b[i + 3, j * 2 + 1]),
    "no elements": ((0, 5), (5, 0), lambda b, i, j: b[j, i]),
    "one element": ((1, 1), (1, 1), lambda b, i, j: b[i, j]),
}  # fmt: skip
OTHERS: dict[str, tuple[Sequence[int], Sequence[int], Element]] = {
    "bounded": ((50,), (2, 32), lambda b, p, j: b[tirx.min(p * 32, 18) + j]),
    "computed": ((8,), (8,), lambda b, i: b[i] * 2),
    "added": ((8,), (7,), lambda b, i: b[i] + b[i + 1]),
    "reversed": ((8,), (8,), lambda b, i: b[7 - i]),
    "not zero elsewhere": (
        (8,), (9,), lambda b, i: tirx.if_then_else(i < 8, b[i], tirx.const(1.0, "float32"))
    ),
    "negative zero elsewhere": (
        (8,), (9,), lambda b, i: tirx.if_then_else(i < 8, b[i], tirx.const(-0.0, "float32"))
    ),
    "above a limit": (
        (8,), (8,), lambda b, i: tirx.if_then_else(i > 2, b[i], tirx.const(0.0, "float32"))
    ),
}  # fmt: skip


def _kernel(given: Sequence[int], shape: Sequence[int], element: Element, dtype: str) -> Any:
    source = te.placeholder([*map(int64, given)], dtype, "b")
    target = te.compute(
        [*map(int64, shape)], lambda *places: element(source, *places), name="packed"
    )
    return te.create_prim_func([source, target])


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_copies(name: str, dtype: str) -> None:
    given, shape, element = COPIES[name]
    kernel = _kernel(given, shape, element, dtype)
    copy = constant_copy(kernel)
    assert copy is not None
    source = np.random.default_rng(0).integers(1, 100, given).astype(dtype)
    want, got = (tvm.runtime.tensor(np.zeros(shape, dtype)) for _ in range(2))
    tvm.compile(kernel, "llvm")(tvm.runtime.tensor(source), want)
    copy(tvm.runtime.tensor(source), got)
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_compiled(name: str) -> None:
    assert constant_copy(_kernel(*OTHERS[name], "float32")) is None


def test_what_numpy_does_not_know_is_compiled() -> None:
    assert constant_copy(_kernel(*COPIES["panels"], "bfloat16")) is None


def test_two_loop_nests_are_compiled() -> None:
    source = te.placeholder((int64(8),), "float32", "b")
    first = te.compute((int64(8),), lambda i: source[i], name="first")
    second = te.compute((int64(8),), lambda i: first[i], name="second")
    assert constant_copy(te.create_prim_func([source, second])) is None
