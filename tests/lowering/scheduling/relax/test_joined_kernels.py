"""Kernels that compute a few numbers are called together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from looplift.lowering import emit
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.relax.joined_kernels import join_small_kernels

from ...compiled import compile_quickly, virtual_machine
from ...conftest import Imported, parse
from ...kernel_modules import calls_of

SIZES = (0, 1, 2, 5)


def _calls(model: Any) -> list[str]:
    """The names of the kernels that the main function calls."""
    with as_target("llvm"):
        return [call.args[0].name_hint for call in calls_of(lower_to_kernels(emit(parse(model))))]


PARTS = """m (float[n, 4] x, int64[2] bounds) => (float[k, 4] y) {
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    two = Constant <value = int64[1] {2}> ()
    first = Gather <axis = 0> (bounds, zero)
    step = Gather <axis = 0> (bounds, one)
    half = Mul (first, two)
    start = Sub (half, first)
    end = Add (start, step)
    part = Slice (x, start, end, zero)
    y = Neg (part)
}"""


def test_the_bounds_of_a_slice_are_computed_by_one_kernel() -> None:
    names = _calls(PARTS)
    assert len([name for name in names if name.startswith("joined")]) == 1
    # The others copy the part and negate it.
    assert len(names) == 3
    model = Imported(parse(PARTS))
    for rows in SIZES:
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        for bounds in ([0, 0], [1, 2], [-2, 1], [0, 9], [7, 1]):
            model.check(x, np.array(bounds))


@pytest.mark.parametrize("step", [0, 2])
def test_a_kernel_that_may_fail_stays_after_the_check(step: int) -> None:
    """A step of 0 is an error of the run, not a division that ends the process."""
    model = Imported(
        parse("m (int64 b, int64 s) => (int64[k] y) { a = Sub (b, b) y = Range (a, b, s) }")
    )
    feed = (np.array(9), np.array(step))
    if step:
        model.check(*feed)
    else:
        with pytest.raises(Exception, match="match_cast error"):
            model.run(*feed)


def _chain(count: int) -> str:
    """`count` numbers, each computed from the one before by operators that are not fused."""
    steps = [
        f"w{k} = Concat <axis = 0> (v{k}, v{k}) v{k + 1} = ReduceSum <keepdims = 1> (w{k})"
        for k in range(count)
    ]
    return f"m (float[1] v0) => (float[1] v{count}) {{ {' '.join(steps)} }}"


def test_long_chains_become_several_kernels() -> None:
    names = _calls(_chain(40))
    joined = [name for name in names if name.startswith("joined")]
    assert 2 <= len(joined) == len(names) <= 4
    Imported(parse(_chain(40))).check(np.array([2.0**-20], np.float32))


def test_large_kernels_between_small_ones_keep_their_own_calls() -> None:
    text = """m (float[64, 64] x, float[1] a) => (float[64, 64] y, float[1] b) {
        s = Sin (a) c = Concat <axis = 0> (s, a) d = ReduceSum <keepdims = 1> (c)
        h = Softmax (x)
        e = Concat <axis = 0> (d, a) b = ReduceSum <keepdims = 1> (e)
        y = Softmax <axis = 0> (h)
    }"""
    names = _calls(text)
    assert len([name for name in names if name.startswith("joined")]) == 1
    assert len(names) == 3
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    Imported(parse(text)).check(x, np.array([0.5], np.float32))


def test_a_size_that_a_kernel_is_given_and_that_is_computed_from_in_a_shape() -> None:
    model = Imported(
        parse("""m (float[n, 3] x) => (float[3] y) {
        nil = Constant <value = float[1, 3] {0, 0, 0}> ()
        zero = Constant <value = int64 {0}> ()
        last = Constant <value = int64 {-1}> ()
        longer = Concat <axis = 0> (nil, x)
        sums = CumSum (longer, zero)
        y = Gather <axis = 0> (sums, last)
    }""")
    )
    for rows in SIZES:
        model.check(np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32))


LOOP = """m (int64 n, float[t, 4] x) => (float[p, 4] y) {
    zero = Constant <value = int64[1] {0}> ()
    one = Constant <value = int64[1] {1}> ()
    none = Constant <value = bool {1}> ()
    y = Loop (n, none, x) <body = step (int64 i, bool c, float[a, 4] h) => (bool d, float[b, 4] g) {
        d = Identity (c)
        size = Shape <start = 0, end = 1> (h)
        rest = Slice (h, one, size, zero)
        g = Concat <axis = 0> (rest, rest)
    }>
}"""


def test_the_body_of_a_loop_whose_sizes_change() -> None:
    model = Imported(parse(LOOP))
    for rows in (1, 2, 3, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        for count in (0, 1, 3):
            model.check(np.array(count), x)


def _scalars(*, in_place: bool) -> tvm.IRModule:
    """`main` adds 1 to a tensor, doubles the sum, and writes 7 to the tensor in between."""
    source = """@T.prim_func(private=True, s_tir=True)
def kernel(x: T.Buffer((1,), "int64"), y: T.Buffer((1,), "int64")) -> None:
    for i in range(1):
        with T.sblock("k"):
            v = T.axis.spatial(1, i)
            y[v] = {}"""
    write = """@T.prim_func(private=True, s_tir=True)
def write(x: T.Buffer((1,), "int64")) -> None:
    for i in range(1):
        with T.sblock("w"):
            v = T.axis.spatial(1, i)
            x[v] = T.int64(7)"""
    bb = relax.BlockBuilder()
    kind = relax.TensorType([1], "int64")
    x = relax.Var("x", kind)
    add, double = (
        bb.add_func(tvm.script.from_source(source.format(value)), name)
        for name, value in (("add", "x[v] + T.int64(1)"), ("double", "x[v] * T.int64(2)"))
    )
    overwrite = bb.add_func(tvm.script.from_source(write), "write")
    with bb.function("main", [x], private=False):
        with bb.dataflow():
            first = bb.emit(relax.op.call_tir(add, [x], kind))
            if in_place:
                x = bb.emit(relax.op.call_tir_inplace(overwrite, [x], [0], kind))
            second = bb.emit(relax.op.call_tir(double, [first], kind))
            result = bb.emit_output(relax.op.call_tir(add, [second], kind))
            changed = bb.emit_output(relax.op.call_tir(double, [x], kind))
        bb.emit_func_output(relax.Tuple([result, changed]))
    return bb.get()


@pytest.mark.parametrize("in_place", [False, True])
def test_kernels_that_read_a_tensor_stay_before_a_write_to_it(in_place: bool) -> None:
    with as_target("llvm"):
        module = join_small_kernels(_scalars(in_place=in_place))
    names = [call.args[0].name_hint for call in calls_of(module)]
    assert len(names) == (2 if in_place else 1)
    relax.analysis.well_formed(module)
    machine = virtual_machine(compile_quickly(module))
    given = tvm.runtime.tensor(np.array([3]))
    result, changed = machine["main"](given)
    assert (result.numpy().item(), changed.numpy().item()) == (9, 14 if in_place else 6)
