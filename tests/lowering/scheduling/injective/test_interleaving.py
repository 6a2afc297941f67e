"""Kernels that depend on the phase of an index give the same as NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T  # noqa: N812

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.injective.interleaving import Interleaving
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse


def _module(strides: tuple[int, ...], first: tuple[int, ...], dtype: str = "float32") -> Any:
    """Phase 0 of all axes is of one tensor, and every other phase the negative of the other."""
    axes = [tirx.Var(name, "int64") for name in "hw"[: len(strides)]]
    shape = [tirx.Var("c", "int64"), *(n * s - f for n, s, f in zip(axes, strides, first))]

    def element(at_zero: te.Tensor, elsewhere: te.Tensor) -> te.Tensor:
        def value(channel: Any, *index: Any) -> Any:
            places = [i + f for i, f in zip(index, first)]
            cells = [tirx.floordiv(p, s) for p, s in zip(places, strides)]
            is_zero = tirx.all(*(tirx.floormod(p, s) == 0 for p, s in zip(places, strides)))
            return tirx.if_then_else(is_zero, at_zero(channel, *cells), -elsewhere(channel, *cells))

        return te.compute(shape, value)

    builder = relax.BlockBuilder()
    kind = relax.TensorType([shape[0], *axes], dtype)
    at_zero, elsewhere = relax.Var("at_zero", kind), relax.Var("elsewhere", kind)
    with builder.function("main", [at_zero, elsewhere]):
        builder.emit_func_output(builder.call_te(element, at_zero, elsewhere))
    return builder.finalize()


def _expected(
    at_zero: Any, elsewhere: Any, strides: tuple[int, ...], first: tuple[int, ...]
) -> Any:
    shape = [at_zero.shape[0], *(n * s for n, s in zip(at_zero.shape[1:], strides))]
    whole = np.empty(shape, at_zero.dtype)
    for axes in np.ndindex(*strides):
        phase = (slice(None), *(slice(p, None, s) for p, s in zip(axes, strides)))
        whole[phase] = -elsewhere if any(axes) else at_zero
    kept = (slice(None), *(slice(f, None) for f in first))
    return whole[kept]


KERNELS = [
    ((2,), (0,)), ((2,), (1,)), ((3,), (2,)), ((8,), (5,)), ((2, 2), (0, 1)), ((4, 3), (3, 1)),
    ((1, 2), (0, 0)), ((2,), (4,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("strides", "first", "target"),
    one_of(2, ((*kernel, target) for kernel, target in itertools.product(KERNELS, TARGETS))),
)
def test_kernels(strides: tuple[int, ...], first: tuple[int, ...], target: Any) -> None:
    machine = virtual_machine(looplift.compile(_module(strides, first), target))
    rng = np.random.default_rng(0)
    long = 30_000 // 20 ** len(strides)
    for channels, size in ((1, 3), (3, 5), (2, 9), (2, 16), (3, 40), (70, 100), (1, long)):
        shape = (channels, *(size + axis for axis in range(len(strides))))
        at_zero, elsewhere = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
        got = machine["main"](tvm.runtime.tensor(at_zero), tvm.runtime.tensor(elsewhere)).numpy()
        np.testing.assert_array_equal(got, _expected(at_zero, elsewhere, strides, first))


def test_lines_without_a_whole_cell() -> None:
    machine = virtual_machine(looplift.compile(_module((4,), (3,)), NATIVE))
    at_zero, elsewhere = np.array([[[1]], [[2]]], np.float32)
    got = machine["main"](tvm.runtime.tensor(at_zero), tvm.runtime.tensor(elsewhere)).numpy()
    np.testing.assert_array_equal(got, [[-2.0]])


@pytest.mark.parametrize("dtype", ["float64", "int64", "int8"])
def test_other_types(dtype: str) -> None:
    machine = virtual_machine(looplift.compile(_module((2,), (1,), dtype), NATIVE))
    at_zero, elsewhere = np.arange(120).reshape(2, 1, 60).astype(dtype)
    got = machine["main"](tvm.runtime.tensor(at_zero), tvm.runtime.tensor(elsewhere)).numpy()
    np.testing.assert_array_equal(got, _expected(at_zero, elsewhere, (2,), (1,)))


def _scheduled(module: Any) -> Any:
    with as_target("native") as target:
        (kernel,) = (
            f for f in lower_to_kernels(module).functions.values() if isinstance(f, tirx.PrimFunc)
        )
        return Interleaving().apply(kernel, target, False)


@pytest.mark.parametrize(("strides", "first"), KERNELS)
def test_the_rule_applies(strides: tuple[int, ...], first: tuple[int, ...]) -> None:
    assert _scheduled(_module(strides, first)) is not None


def test_the_rule_leaves_kernels_with_too_many_phases() -> None:
    assert _scheduled(_module((8, 8), (0, 0))) is None


@pytest.mark.parametrize(
    ("phases", "dtype", "expected"),
    [(2, "float32", True), (4, "float32", True), (8, "float32", False), (2, "float64", False)],
)
def test_a_few_phases_of_float32_are_shuffled(phases: int, dtype: str, expected: bool) -> None:
    schedule = _scheduled(_module((phases,), (0,), dtype))
    assert ("T.Shuffle" in schedule.mod.script()) == expected


def test_a_kernel_that_writes_what_it_reads_computes_each_element_once() -> None:
    """In vectors, which overlap, some would be computed from their own results."""

    @T.prim_func(private=True, s_tir=True)  # type: ignore[untyped-decorator]
    def kernel(given: T.handle) -> None:
        y = T.match_buffer(given, (T.int64(11),))
        for i in range(T.int64(11)):
            with T.sblock("tripled"):
                v = T.axis.spatial(T.int64(11), i)
                y[v] = T.if_then_else(v % T.int64(2) == T.int64(0), y[v] + T.float32(1), y[v] * 3)

    with as_target("native") as target:
        scheduled = Interleaving().apply(kernel, target, False)
    assert scheduled is not None
    y = tvm.runtime.tensor(np.ones(11, np.float32))
    tvm.compile(scheduled.mod["main"].with_attr("global_symbol", "main"), "llvm")["main"](y)
    np.testing.assert_array_equal(y.numpy(), [2, 3] * 5 + [2])


def test_a_negative_divisor_is_no_period() -> None:
    model = parse("""m (float[n] x) => (int64[n] y) <int64 o = {0}, int64 l = {1}, int64 d = {-3}> {
        s = Shape (x) z = Squeeze (s) r = Range (o, z, l) y = Mod (r, d) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    got = machine["main"](tvm.runtime.tensor(np.ones(7, np.float32))).numpy()
    np.testing.assert_array_equal(got, np.arange(7) % -3)
