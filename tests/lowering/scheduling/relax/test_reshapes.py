"""Reshapes of unknown sizes: the virtual machine makes a view where the order is kept."""

from __future__ import annotations

import pytest

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ...comparison import (
    check,
    weight,
    with_weights,
)


def test_a_reshape_to_a_product_of_computed_sizes_is_a_view() -> None:
    text = """model (float[b, 4, h, w] x) => (y) {
        p = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, f)
        s = Constant <value_ints = [0, 6, -1]> () q = Reshape (p, s) y = Softmax (q) }"""
    weights = {"f": weight(6, 4, 3, 3)}
    check(text, weights, [{"b": b, "h": h, "w": w} for b, h, w in ((1, 1, 1), (2, 8, 7))])
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
    assert "R.reshape" in module.script()


@pytest.mark.parametrize("stride", [1, 8])
def test_a_reshape_to_a_multiple_of_a_computed_size_is_a_view(stride: int) -> None:
    """Of (n + 1) * 3 elements, which TVM writes as n * 3 + 3, and back."""
    text = f"""model (float[b, 4, n] x) => (y) {{
        p = Conv <pads = [1, 1], strides = [{stride}]> (x, f)
        s = Constant <value_ints = [0, 2, -1]> () q = Reshape (p, s) r = Softmax (q)
        t = Constant <value_ints = [0, 6, -1]> () u = Reshape (r, t) y = Softmax (u) }}"""
    weights = {"f": weight(6, 4, 2)}
    check(text, weights, [{"b": b, "n": n} for b, n in ((1, 1), (2, 8), (1, 23))])
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, weights)))
    assert module["main"].script().count("R.reshape") == 2


def test_a_reshape_that_joins_axes_of_unknown_sizes_is_a_view() -> None:
    text = """model (float[b, c, d, e] x) => (y) {
        s = Shape (x) i = Constant <value_ints = [0, 1]> () j = Constant <value_ints = [2, 3]> ()
        outer = Gather (s, i) inner = Gather (s, j)
        p = ReduceProd (outer) q = ReduceProd (inner) t = Concat <axis = 0> (p, q)
        r = Reshape (x, t) y = Softmax (r) }"""
    check(text, {}, [{"b": 2, "c": 3, "d": 4, "e": 5}, {"b": 1, "c": 1, "d": 1, "e": 1}])
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, {})))
    assert module["main"].script().count("R.reshape") == 1


def test_any_reshape_is_a_view_where_several_sizes_are_unknown() -> None:
    """The equality of the counts is known from the operator, not from the kernel."""
    text = """model (float[b, c, d] x) => (y) {
        one = Constant <value_ints = [1]> () end = Constant <value_ints = [99]> ()
        part = Slice (x, one, end, one) s = Shape (part) k = Constant <value_ints = [0, 2, 1]> ()
        t = Gather (s, k) r = Reshape <allowzero = 1> (part, t) y = Softmax (r) }"""
    sizes = ((2, 3, 4), (1, 2, 1), (0, 3, 4), (2, 1, 4))
    check(text, {}, [{"b": b, "c": c, "d": d} for b, c, d in sizes])
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, {})))
    assert module["main"].script().count("R.reshape") == 1


@pytest.mark.parametrize("perm", [[0, 2, 1], [1, 0, 2], [2, 1, 0]])
def test_a_transposition_whose_axes_are_joined_is_a_copy(perm: list[int]) -> None:
    text = f"""model (float[b, c, d] x) => (y) {{
        e = Exp (x) p = Transpose <perm = {perm}> (e)
        s = Constant <value_ints = [-1]> () q = Reshape (p, s) y = Softmax (q) }}"""
    check(text, {}, [{"b": 2, "c": 3, "d": 4}, {"b": 1, "c": 5, "d": 1}])


def test_an_empty_result_is_not_reshaped() -> None:
    """A size of 0 in `relax.reshape` stands for the size of the input on that axis."""
    text = """model (float[n, 3] x) => (y) {
        z = Constant <value = float[0] {}> ()
        shape = Shape <start = 0, end = 1> (x)
        zero = Constant <value = int64[1] {0}> ()
        sizes = Concat <axis = 0> (shape, zero)
        e = Expand (z, sizes)
        y = Concat <axis = 1> (x, e) }"""
    check(text, {}, [{"n": n} for n in (1, 5)])
