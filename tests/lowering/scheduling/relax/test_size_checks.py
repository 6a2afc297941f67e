"""Inputs that are too small for a model fail with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm

import looplift
from looplift.rewrite.errors import UnsupportedError

from ....samples import one_of
from ...comparison import weight, with_weights
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse


def _machine(text: str, **weights: Any) -> Any:
    model = with_weights(text, weights)
    return virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))


def _run(machine: Any, *shape: int) -> Any:
    return machine["main"](tvm.runtime.tensor(np.ones(shape, np.float32)))


WINDOWS = {
    "convolution": ("Conv (x, f)", "h - 4"),
    "strides": ("Conv <strides = [2]> (x, f)", "(h - 5) // 2 + 1"),
    "pooling": ("MaxPool <kernel_shape = [5]> (x)", "h - 4"),
    "transposed convolution": ("ConvTranspose <pads = [6, 6]> (x, f)", "h - 8"),
}


@pytest.mark.parametrize("name", one_of(2, WINDOWS))
def test_a_window_larger_than_its_input(name: str) -> None:
    node, size = WINDOWS[name]
    machine = _machine(f"m (float[b, 3, h] x) => (y) {{ y = {node} }}", f=weight(3, 3, 5))
    for height in (1, 2):
        with pytest.raises(ValueError, match="An input is too small") as raised:
            _run(machine, 1, 3, height)
        assert str(raised.value).endswith(size)
    assert _run(machine, 1, 3, 40).shape[2] > 0


@pytest.mark.parametrize(
    ("node", "size"),
    [
        ("Conv (x, f)", -2),
        ("MaxPool <kernel_shape = [5]> (x)", -2),
        ("ConvTranspose <pads = [4, 4]> (x, f)", -2),
    ],
)
def test_a_window_that_is_always_larger_than_its_input(node: str, size: int) -> None:
    model = with_weights(
        f"m (float[b, 3, 2] x) => (y) {{ [windows] y = {node} }}", {"f": weight(3, 3, 5)}
    )
    wanted = f"the negative size {size} along axis 2"
    with pytest.raises(UnsupportedError, match=wanted) as raised:
        looplift.from_onnx(model)
    assert "'windows'" in raised.value.where


@pytest.mark.parametrize(
    "node",
    ["Conv (x, f)", "MaxPool <kernel_shape = [5]> (x)", "Pad (x, cut)"],
)
def test_a_branch_that_always_fails(node: str) -> None:
    """It fails when a run takes it: TVM cannot compile its sizes, which are negative."""
    model = with_weights(
        f"""m (float[1, 3, 2] x, bool c) => (y) {{
            y = If (c) <
                then_branch = t () => (p) {{ w = {node} p = Relu (w) }},
                else_branch = e () => (q) {{ q = Relu (x) }}> }}""",
        {"f": weight(3, 3, 5), "cut": np.array([0, 0, -3, 0, 0, 0])},
    )
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = tvm.runtime.tensor(np.ones((1, 3, 2), np.float32))
    assert machine["main"](x, tvm.runtime.tensor(np.array(False))).shape == (1, 3, 2)
    with pytest.raises(RuntimeError, match="match_cast error"):
        machine["main"](x, tvm.runtime.tensor(np.array(True)))


def test_a_body_that_always_fails() -> None:
    model = with_weights(
        """m (float[1, 3, 2] x, int64 n) => (float[1, 3, 2] y, float[k, 1, 3, p] rows) {
            y, rows = Loop (n, , x) <
                body = step (int64 i, bool c, float[1, 3, 2] s) => (bool d, float[1, 3, 2] u, float[1, 3, p] r) {
                    d = Identity (c) u = Tanh (s) r = Conv (s, f) }> }""",
        {"f": weight(3, 3, 5)},
    )
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = tvm.runtime.tensor(np.ones((1, 3, 2), np.float32))
    assert machine["main"](x, tvm.runtime.tensor(np.array(0)))[0].shape == (1, 3, 2)
    with pytest.raises(RuntimeError, match="match_cast error"):
        machine["main"](x, tvm.runtime.tensor(np.array(1)))


@pytest.mark.parametrize("node", ["Conv (x, f)", "ConvTranspose <pads = [4, 4]> (x, f)"])
def test_a_convolution_without_positions(node: str) -> None:
    machine = _machine(f"m (float[b, 3, 4] x) => (y) {{ y = {node} }}", f=weight(3, 3, 5))
    assert _run(machine, 2, 3, 4).shape == (2, 3, 0)


def test_a_window_after_another() -> None:
    text = "m (float[1, 3, h] x) => (y) { a = Conv (x, f) y = Conv <strides = [2]> (a, f) }"
    machine = _machine(text, f=weight(3, 3, 5))
    with pytest.raises(ValueError, match=r"negative size \(h - 9\) // 2 \+ 1"):
        _run(machine, 1, 3, 6)
    assert _run(machine, 1, 3, 9).shape == (1, 3, 1)


def test_results_without_elements_are_allowed() -> None:
    machine = _machine("m (float[1, 3, h] x) => (y) { y = Conv (x, f) }", f=weight(3, 3, 5))
    assert _run(machine, 1, 3, 4).shape == (1, 3, 0)


def test_a_branch_that_does_not_run_may_need_a_larger_input() -> None:
    model = parse("""m (float[1, 3, h] x, bool c) => (float[1, 3, k] y) {
        y = If (c) <
            then_branch = t () => (float[1, 3, k] p) { p = Conv (x, f) },
            else_branch = e () => (float[1, 3, k] q) { q = Relu (x) }> }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight(3, 3, 5), "f"))
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = tvm.runtime.tensor(np.ones((1, 3, 2), np.float32))
    chosen = machine["main"](x, tvm.runtime.tensor(np.array(False)))
    assert chosen.shape == (1, 3, 2)


def test_sizes_that_cannot_be_negative_are_not_checked() -> None:
    text = "m (float[b, 3, h] x) => (y) { y = Conv <pads = [2, 2], strides = [2]> (x, f) }"
    model = with_weights(text, {"f": weight(3, 3, 5)})
    executable = looplift.compile(looplift.from_onnx(model), "native")
    (library,) = (part for part in executable.mod.imports if part.kind == "llvm")
    assert "check_sizes" not in library.inspect_source("ll")
