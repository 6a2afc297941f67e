"""An If becomes two private functions, one of which is called."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

Load = Callable[..., Any]


def random(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


CAPTURES = """
g (float[n, 4] x, bool c) => (float[n, 4] y, float[n, 4] z) {
    a = Exp(x)
    y, z = If (c) <
        then_branch = t () => (float[n, 4] t1, float[n, 4] t2) { t1 = Add(a, x) t2 = Neg(a) },
        else_branch = e () => (float[n, 4] e1, float[n, 4] e2) { e1 = Mul(a, x) e2 = Identity(x) }
    >
}
"""


def test_branches_are_functions_of_what_they_capture(imported: Load) -> None:
    functions = imported(CAPTURES).functions()
    assert sorted(functions) == ["main", "y_else", "y_then"]
    assert [len(functions[name].params) for name in ("y_then", "y_else")] == [2, 2]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_several_outputs_and_a_symbolic_size(imported: Load, taken: bool, rows: int) -> None:
    imported(CAPTURES).check(random(rows, 4), taken)


@pytest.mark.parametrize("value", [[True], [False], [[True]]])
def test_a_condition_may_be_any_tensor_of_one_element(imported: Load, value: Any) -> None:
    dims = ", ".join("1" * np.ndim(value))
    model = imported(f"""
    g (float[2] x, bool[{dims}] c) => (float[2] y) {{
        y = If (c) <
            then_branch = t () => (float[2] a) {{ a = Neg(x) }},
            else_branch = e () => (float[2] b) {{ b = Exp(x) }}
        >
    }}""")
    model.check(random(2), np.array(value))


NESTED = """
g (float[n, 2] x, bool c, bool d) => (float[m, 2] y) {
    outer = Exp(x)
    y = If (c) <
        then_branch = t () => (float[m, 2] ty) {
            local = Concat <axis = 0> (outer, x)
            ty = If (d) <
                then_branch = tt () => (float[p, 2] a) { a = Concat <axis = 0> (local, x) },
                else_branch = te () => (float[q, 2] b) { b = Add(local, local) }
            >
        },
        else_branch = e () => (float[n, 2] z) { z = Neg(x) }
    >
}
"""


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_nested_ifs_capture_through_both_levels(imported: Load, outer: bool, inner: bool) -> None:
    model = imported(NESTED)
    model.check(random(2, 2), outer, inner)
    model.check(random(5, 2), outer, inner)


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_constants_and_copies(imported: Load, taken: bool) -> None:
    model = imported("""
    g (float[2] x, bool c) => (float[2] p, float[2] q, float[2] r) <float[2] w = {5, 6}> {
        p, q, r = If (c) <
            then_branch = t () => (float[2] a, float[2] own, float[2] k) <float[2] own = {1, 2}> {
                a = Identity(x)
                k = Constant <value = float[2] {3, 4}> ()
            },
            else_branch = e () => (float[2] d, float[2] e, float[2] f) {
                d = Identity(w) e = Identity(x) f = Identity(x)
            }
        >
    }""")
    model.check(random(2), taken)


@pytest.mark.filterwarnings("ignore:.*is not an output of any node")
def test_branches_without_nodes(imported: Load) -> None:
    """The outputs are values of outside. ONNX's checker objects, and onnxruntime refuses."""
    model = imported("""
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {5, 6}> {
        y = If (c) <
            then_branch = t () => (float[2] x) { },
            else_branch = e () => (float[2] w) { }
        >
    }""")
    np.testing.assert_array_equal(model.run(random(2), True), [random(2)])
    np.testing.assert_array_equal(model.run(random(2), False), [[5, 6]])


@pytest.mark.parametrize("taken", [True, False])
def test_equal_names_in_both_branches_and_outside(imported: Load, taken: bool) -> None:
    model = imported("""
    g (float[2] x, bool c) => (float[2] y, float[2] a) {
        a = Abs(x)
        y = If (c) <
            then_branch = t () => (float[2] r) { s = Exp(a) r = Neg(s) },
            else_branch = e () => (float[2] r) { s = Neg(a) r = Exp(s) }
        >
    }""")
    model.check(random(2), taken)


def test_what_is_known_of_a_size_survives_the_join(imported: Load) -> None:
    """Equal dimensions stay, others become symbols that later operators can work with."""
    model = imported("""
    g (float[n, 4] x, bool c) => (float[4] y) {
        v = If (c) <
            then_branch = t () => (float[p, 4] a) { a = Concat <axis = 0> (x, x) },
            else_branch = e () => (float[n, 4] b) { b = Exp(x) }
        >
        axes = Constant <value_ints = [0]> ()
        s = ReduceSum <keepdims = 0> (v, axes)
        m = ReduceMax <axes = [0], keepdims = 0> (v)
        y = Add(s, m)
    }""")
    for taken in (True, False):
        model.check(random(3, 4), taken)
        model.check(random(1, 4), taken)
    assert "ndim" not in str(model.module["main"].ret_ty)


def test_a_size_that_only_a_branch_knows(imported: Load) -> None:
    model = imported("""
    g (float[n] x, bool c) => (float[k] y) {
        v = If (c) <
            then_branch = t () => (float[p] a) {
                zero = Constant <value_float = 0.0> ()
                is_positive = Greater(x, zero)
                a = Compress(x, is_positive)
            },
            else_branch = e () => (float[n] b) { b = Exp(x) }
        >
        y = Mul(v, v)
    }""")
    for taken in (True, False):
        model.check(np.array([1, -2, 3, -4], np.float32), taken)


def test_captured_sizes_travel_as_sizes(imported: Load) -> None:
    """A branch reads a Shape and a scalar taken from it, of a tensor that it does not read."""
    model = imported("""
    g (float[n, m] x, float[k] z, bool c) => (float[r, s] y) {
        shape = Shape(x)
        one = Constant <value_int = 1> ()
        columns = Gather(shape, one)
        y = If (c) <
            then_branch = t () => (float[n, m] a) { a = ConstantOfShape(shape) },
            else_branch = e () => (float[1, q] b) {
                axis = Constant <value_ints = [0]> ()
                two = Constant <value_int = 2> ()
                double = Mul(columns, two)
                vector = Unsqueeze(double, axis)
                ones = Unsqueeze(one, axis)
                target = Concat <axis = 0> (ones, vector)
                b = ConstantOfShape(target)
            }
        >
    }""")
    for taken in (True, False):
        model.check(random(2, 3), random(1), taken)


def test_captured_sizes_in_a_narrower_type(imported: Load) -> None:
    model = imported("""
    g (float[n, m] x, bool c) => (int32[2] y) {
        shape = Shape(x)
        narrow = Cast <to = 6> (shape)
        y = If (c) <
            then_branch = t () => (int32[2] a) { a = Identity(narrow) },
            else_branch = e () => (int32[2] b) { b = Neg(narrow) }
        >
    }""")
    for taken in (True, False):
        model.check(random(2, 3), taken)


@pytest.mark.parametrize("taken", [True, False])
def test_sizes_as_outputs_become_tensors(imported: Load, taken: bool) -> None:
    model = imported("""
    g (float[n, m] x, bool c) => (int64[2] y, int64 z) {
        zero = Constant <value_int = 0> ()
        y, z = If (c) <
            then_branch = t () => (int64[2] a, int64 s) { a = Shape(x) s = Gather(a, zero) },
            else_branch = e () => (int64[2] b, int64 u) {
                b = Constant <value_ints = [7, 8]> () u = Size(x)
            }
        >
    }""")
    model.check(random(2, 3), taken)


def test_the_taken_branch_of_a_known_condition_is_emitted_in_place(imported: Load) -> None:
    model = imported("""
    g (float[n, 4] x) => (float[m] y) {
        shape = Shape(x)
        axis = Constant <value_ints = [1]> ()
        size = Gather(shape, axis)
        four = Constant <value_ints = [4]> ()
        c = Equal(size, four)
        y = If (c) <
            then_branch = t () => (float[n] a) { a = ReduceMax <axes = [1], keepdims = 0> (x) },
            else_branch = e () => (float[4] b) { b = ReduceMax <axes = [0], keepdims = 0> (x) }
        >
    }""")
    assert list(model.functions()) == ["main"]
    model.check(random(3, 4))


def test_a_comparison_of_sizes_is_decided_at_run_time(imported: Load) -> None:
    """The sizes are written differently, which does not mean that they differ."""
    model = imported("""
    g (float[n] x, float[m] z) => (float[k] y) {
        zero = Constant <value_int = 0> ()
        sx = Shape(x)
        sz = Shape(z)
        a = Gather(sx, zero)
        b = Gather(sz, zero)
        c = Equal(a, b)
        y = If (c) <
            then_branch = t () => (float[n] p) { p = Neg(x) },
            else_branch = e () => (float[m] q) { q = Exp(z) }
        >
    }""")
    model.check(random(3), random(3))
    model.check(random(3), random(2))


def test_weights_that_are_parameters_reach_the_branches(imported: Load) -> None:
    """Reshape needs its shape while importing: it is found though it is a branch's parameter."""
    model = imported(
        """
        g (float[2, 3] x, bool c) => (float[3, 2] y)
        <int64[2] shape = {3, 2}, float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
            y = If (c) <
                then_branch = t () => (float[3, 2] a) { r = Reshape(x, shape) a = Add(r, w) },
                else_branch = e () => (float[3, 2] b) { b = Neg(w) }
            >
        }""",
        keep_params_in_input=True,
    )
    attributes = model.module["main"].attrs
    assert attributes["num_input"] == 2
    weights = [weight.numpy() for weight in attributes["params"]]
    x = random(2, 3)
    (y,) = model.run(x, True, *weights)
    np.testing.assert_allclose(y, x.reshape(3, 2) + weights[1])


GUARDED_DIVISION = """
g (int32[3] x, int32[3] d) => (int32[3] y) {
    zero = Constant <value = int32 {0}> ()
    least = ReduceMin <keepdims = 0> (d)
    c = Greater(least, zero)
    y = If (c) <
        then_branch = t () => (int32[3] a) { a = Div(x, d) },
        else_branch = e () => (int32[3] b) { b = Identity(x) }
    >
}
"""
GUARDED_GATHER = """
g (float[n] x, int64[1] i) => (float[1] y) {
    zero = Constant <value_ints = [0]> ()
    size = Shape(x)
    inside = Less(i, size)
    c = Squeeze(inside, zero)
    y = If (c) <
        then_branch = t () => (float[1] a) { a = Gather(x, i) },
        else_branch = e () => (float[1] b) { b = Gather(x, zero) }
    >
}
"""


@pytest.mark.parametrize("divisors", [[1, 2, 3], [1, 0, 3]])
def test_a_division_that_is_guarded_does_not_run(imported: Load, divisors: list[int]) -> None:
    """Run all the same, a division by zero would kill the process."""
    imported(GUARDED_DIVISION).check(np.array([7, 8, 9], np.int32), np.array(divisors, np.int32))


@pytest.mark.parametrize("index", [2, 1 << 40])
def test_a_gather_that_is_guarded_does_not_run(imported: Load, index: int) -> None:
    imported(GUARDED_GATHER).check(random(3), np.array([index]))


def products(count: int) -> str:
    """A model whose one branch multiplies matrices and whose other branch does nothing."""
    nodes = [f"p{i + 1} = MatMul(p{i}, x)" for i in range(1, count)]
    return f"""
    g (float[160, 160] x, bool c) => (float[160, 160] y) {{
        y = If (c) <
            then_branch = t () => (float[160, 160] p{count}) {{
                p1 = MatMul(x, x) {" ".join(nodes)}
            }},
            else_branch = e () => (float[160, 160] same) {{ same = Identity(x) }}
        >
    }}"""


def test_a_branch_that_is_not_taken_costs_nothing(imported: Load) -> None:
    machine = imported(products(30)).machine
    x = tvm.runtime.tensor(random(160, 160) / 160)

    def seconds(taken: bool) -> float:
        flag = tvm.runtime.tensor(np.array(taken))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            machine["main"](x, flag)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(False) < 0.02 * seconds(True)


def test_operators_before_and_after_an_if_are_fused(imported: Load) -> None:
    model = imported("""
    g (float[n, 4] x, bool c) => (float[n, 4] y) {
        a1 = Exp(x) a2 = Neg(a1) a3 = Sigmoid(a2)
        b = If (c) <
            then_branch = t () => (float[n, 4] t3) { t1 = Abs(a3) t2 = Exp(t1) t3 = Neg(t2) },
            else_branch = e () => (float[n, 4] e2) { e1 = Tanh(a3) e2 = Exp(e1) }
        >
        c1 = Tanh(b) c2 = Neg(c1) y = Exp(c2)
    }""")
    assert kernels(model.module) == {"main": 2, "b_then": 1, "b_else": 1}
    for taken in (True, False):
        model.check(random(3, 4), taken)


def kernels(module: Any) -> dict[str, int]:
    """How many kernels each function calls after fusion."""
    fused = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )(module)
    counts = {}
    for variable, function in fused.functions_items():
        if isinstance(function, relax.Function):
            calls: list[Any] = []
            relax.analysis.post_order_visit(function, calls.append)
            counts[variable.name_hint] = sum(is_kernel_call(call) for call in calls)
    return counts


def is_kernel_call(expression: Any) -> bool:
    return isinstance(expression, relax.Call) and expression.op == tvm.ir.Op.get("relax.call_tir")
