"""Kernels that read along another axis than they write, against onnxruntime."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.injective.transposition import Transposition
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check, with_weights

SIZES = [
    {"b": b, "n": n, "m": m}
    for b, n, m in ((1, 1, 1), (2, 0, 5), (0, 3, 3), (3, 7, 64), (1, 16, 33), (2, 65, 257))
]
CASES = {
    "plain": ("float[b, n, m] x", "y = Transpose <perm = [0, 2, 1]> (x)"),
    "keys": ("float[b, 3, n, 24] x", "y = Transpose <perm = [0, 1, 3, 2]> (x)"),
    "outermost": ("float[b, n, 5, m] x", "y = Transpose <perm = [3, 1, 2, 0]> (x)"),
    "fused": (
        "float[b, n, m] x, float[m, n] z",
        "t = Transpose <perm = [0, 2, 1]> (x) s = Add (t, z) y = Sigmoid (s)",
    ),
    "read twice": (
        "float[b, n, m] x, float[b, m, n] z",
        """t = Transpose <perm = [0, 2, 1]> (x) s = Sigmoid (t) p = Mul (t, s) y = Add (p, z)""",
    ),
    "triangle": ("float[n, n] x", "t = Transpose (x) y = Trilu (t)"),
    "static": ("float[37, 21] x", "y = Transpose (x)"),
}
"""Inputs and nodes that the rule takes."""
OTHERS = {
    "the last axis stays": ("float[b, n, 4, m] x", "y = Transpose <perm = [0, 2, 1, 3]> (x)"),
    "two are transposed": (
        "float[b, n, m] x, float[b, n, m] z",
        """s = Transpose <perm = [0, 2, 1]> (x) t = Transpose <perm = [0, 2, 1]> (z)
        y = Add (s, t)""",
    ),
    "whole numbers": ("int32[n, m] x", "y = Transpose (x)"),
    "a mask": ("bool[b, n, m] x", "t = Cast <to = 1> (x) y = Transpose <perm = [0, 2, 1]> (t)"),
    "selects by a mask": (
        "bool[b, n, m] x, float[b, m, n] z",
        "t = Transpose <perm = [0, 2, 1]> (x) n = Neg (z) y = Where (t, z, n)",
    ),
}


def taken(inputs: str, nodes: str) -> int:
    """The number of kernels that the rule takes."""
    target = as_target("native")
    model = with_weights(f"model ({inputs}) => (y) {{ {nodes} }}", {})
    with target:
        module = lower_to_kernels(looplift.from_onnx(model))
        functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
        return sum(Transposition().apply(f, target, False) is not None for f in functions)


@pytest.mark.parametrize("name", CASES)
def test_any_shape(name: str) -> None:
    inputs, nodes = CASES[name]
    assert taken(inputs, nodes) == 1
    check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, SIZES)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels(name: str) -> None:
    inputs, nodes = OTHERS[name]
    assert taken(inputs, nodes) == 0
    if "int32" not in inputs:
        check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, SIZES)


@pytest.mark.parametrize("target", one_of(2, TARGETS[1:]), ids=lambda target: target["mcpu"])
def test_other_processors(target: object) -> None:
    inputs, nodes = CASES["fused"]
    check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, SIZES, target)


def test_two_threads_compute_the_same() -> None:
    inputs, nodes = CASES["fused"]
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, 2)
    try:
        sizes = [{"b": 2, "n": 301, "m": 703}, {"b": 1, "n": 1, "m": 1 << 18}]
        check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, sizes)
    finally:
        configure(1, 0)
