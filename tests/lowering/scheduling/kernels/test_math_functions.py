"""Functions of arguments that are constants, which only TVM's simplifier sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...conftest import Imported

FUNCTIONS = ("Exp", "Sigmoid", "Tanh", "Erf", "Log", "Sin", "Cos", "Asin", "Acos", "Atan")


def test_functions_of_differences_of_equal_operands(imported: Callable[..., Imported]) -> None:
    """In a loop that is unrolled, as those of short axes are."""
    nodes = " ".join(f"y{k} = {name}(u)" for k, name in enumerate(FUNCTIONS))
    results = ", ".join(f"float[3] y{k}" for k in range(len(FUNCTIONS)))
    model = imported(f"g (float[3] x) => ({results}) {{ u = Sub(x, x) {nodes} }}")
    model.check(np.array([1, -2, 3], np.float32))


def test_a_function_of_a_constant_in_a_loop(imported: Callable[..., Imported]) -> None:
    model = imported("""
        g (float[3] x, float limit) => (float[3] z, float[K, 3] y) {
            go = Constant<value = bool {1}>()
            z, y = Loop ("", go, x) <body = b (int64 i, bool d, float[3] s)
                => (bool e, float[3] t, float[3] q) {
                u = Sub(s, s) t = Add(s, s) q = Sigmoid(u)
                r = ReduceSum<keepdims = 0>(t) e = Less(r, limit) }> }""")
    model.check(np.array([1, 2, 3], np.float32), np.float32(100))
