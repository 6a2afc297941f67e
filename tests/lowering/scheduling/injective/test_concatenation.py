"""Concatenations, alone and before elementwise operators, against onnxruntime."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import tvm

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.injective.concatenation import Concatenation
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check, taken_by, weight, with_weights
from ...compiled import NATIVE, virtual_machine
from ...kernel_modules import kernels_of

SIZES = [
    {"b": b, "h": h, "w": w}
    for b, h, w in ((1, 1, 1), (2, 0, 5), (0, 3, 3), (2, 5, 7), (1, 41, 33), (3, 1, 90))
]
PARTS = "float[b, 3, h, w] x, float[b, 2, h, w] z, float[b, 4, h, w] u"
CASES = {
    "alone": (PARTS, "y = Concat <axis = 1> (x, z, u)"),
    "of two": ("float[b, 3, h, w] x, float[b, 1, h, w] z", "y = Concat <axis = 1> (x, z)"),
    "normalized": (
        PARTS, "c = Concat <axis = 1> (x, z, u) m = Mul (c, f) a = Add (m, g) y = Relu (a)"
    ),
    "read twice": (PARTS, "c = Concat <axis = 1> (x, z, u) s = Sigmoid (c) y = Mul (c, s)"),
    "another tensor": (
        f"{PARTS}, float[b, 9, h, w] r", "c = Concat <axis = 1> (x, z, u) y = Add (c, r)"
    ),
    "along the last axis": (
        "float[b, h, 3] x, float[b, h, w] z", "c = Concat <axis = 2> (x, z) y = Neg (c)"
    ),
    "along the last axis, three": (
        "float[b, h, 3] x, float[b, h, w] z, float[b, h, 1] u",
        "c = Concat <axis = 2> (z, x, u) y = Exp (c)",
    ),
    "along the first axis": (
        "float[h, 7, w] x, float[b, 7, w] z", "c = Concat <axis = 0> (x, z) y = Neg (c)"
    ),
}  # fmt: skip
"""Inputs and nodes that the rule takes."""
OTHERS = {
    "of a reshaped tensor": (
        "float[b, 2, 4, h, w] x, float[b, 3, h, w] z",
        """s = Shape (x) a = Constant <value_ints = [0]> () d = Constant <value_ints = [3]> ()
        e = Constant <value_ints = [1]> () f = Constant <value_ints = [5]> ()
        n = Slice (s, a, e) hw = Slice (s, d, f) eight = Constant <value_ints = [8]> ()
        t = Concat <axis = 0> (n, eight, hw) r = Reshape <allowzero = 1> (x, t) k = Neg (z)
        c = Concat <axis = 1> (r, k) y = Sigmoid (c)""",
    ),
    "whole numbers": (
        "float[b, 3, h, w] x, float[b, 2, h, w] z",
        "i = Cast <to = 6> (x) j = Cast <to = 6> (z) y = Concat <axis = 1> (i, j)",
    ),
}  # fmt: skip
WEIGHTS = {"f": weight(9, 1, 1), "g": weight(9, 1, 1)}


@pytest.mark.parametrize("name", CASES)
def test_any_shape(name: str) -> None:
    inputs, nodes = CASES[name]
    text = f"model ({inputs}) => (y) {{ {nodes} }}"
    assert taken_by(Concatenation(), text, WEIGHTS)
    check(text, WEIGHTS, SIZES)


@pytest.mark.parametrize("name", OTHERS)
def test_other_kernels(name: str) -> None:
    inputs, nodes = OTHERS[name]
    text = f"model ({inputs}) => (y) {{ {nodes} }}"
    assert not taken_by(Concatenation(), text, {})
    check(text, {}, SIZES)


@pytest.mark.parametrize("target", one_of(2, TARGETS[1:]), ids=lambda target: target["mcpu"])
def test_other_processors(target: object) -> None:
    inputs, nodes = CASES["normalized"]
    check(f"model ({inputs}) => (y) {{ {nodes} }}", WEIGHTS, SIZES, target)


def test_many_tensors_become_several_kernels() -> None:
    inputs = [f"x{number}" for number in range(70)]
    params = ", ".join(f"float[b, {1 + k % 3}] {name}" for k, name in enumerate(inputs))
    text = f"""model ({params}) => (y) {{
        c = Concat <axis = 1> ({", ".join(inputs)}) y = Neg (c) }}"""
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(with_weights(text, {})))
    # Two of 32 tensors, one of six, and one of these.
    counts = sorted(len(kernel.params) - 1 for kernel in kernels_of(module))
    assert counts == [3, 6, 32, 32]
    check(text, {}, [{"b": b} for b in (0, 1, 3)])


@pytest.mark.parametrize("columns", [1, 5, 15, 17])
def test_nothing_is_read_beyond_an_operand(columns: int) -> None:
    """The memory of an operand may end with a page, and the next page may not be readable."""
    text = """model (float[b, h, w] x, float[b, h, v] z) => (y) {
        c = Concat <axis = 2> (z, x) y = Relu (c) }"""
    module = looplift.from_onnx(with_weights(text, {}))
    main = virtual_machine(looplift.compile(module, NATIVE))["main"]
    x, z = (np.ones((16, 1, size), np.float32) for size in (columns, 16))
    page = mmap.PAGESIZE
    room = -(-x.nbytes // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + room), page, 0) == 0
    at_end = np.frombuffer(memory, np.float32, count=room // 4)[-x.size :].reshape(x.shape)
    at_end[...] = x
    got = main(tvm.runtime.from_dlpack(at_end), tvm.runtime.tensor(z)).numpy()
    np.testing.assert_array_equal(got, np.ones((16, 1, columns + 16), np.float32))


@pytest.mark.parametrize(
    "value",
    [
        "T.if_then_else(18 <= vj, z[vi, vj - 18], y[vi, vj]) * T.float32(2)",
        "T.if_then_else(18 <= vj, z[vi, vj - 18], x[vi, vj]) * y[vi, vj]",
    ],
)
def test_a_kernel_that_reads_what_it_writes_is_left_alone(value: str) -> None:
    kernel = tvm.script.from_source(f"""@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((3, 18), "float32"), z: T.Buffer((3, 5), "float32"),
           y: T.Buffer((3, 23), "float32")) -> None:
    for i, j in T.grid(3, 23):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = {value}""")
    with as_target("native") as target:
        assert Concatenation().apply(kernel, target, False) is None
