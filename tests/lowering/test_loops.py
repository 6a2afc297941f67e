"""Loop in its general form: functions that repeat one iteration."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import looplift

from .compiled import compile_quickly, virtual_machine
from .conftest import parse

Load = Callable[..., Any]

COUNTS = (0, 1, 7, 8, 9, 65)
"""Around the numbers of iterations that the lower levels reach."""


def rows(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


# --- Trip count and condition --------------------------------------------------------------------

FIRST = {
    "absent": "",
    "given": "first",
    "always": "yes",
}
NEXT = {
    "handed on": "c2 = Identity(c)",
    "constant": "c2 = Constant <value = bool {1}> ()",
    "computed": "c2 = Less(j2, limit)",
}


@pytest.mark.parametrize("following", NEXT)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("trip", ["m", "", "endless"])
def test_trip_count_and_condition(stock: Load, trip: str, first: str, following: str) -> None:
    if trip != "m" and following != "computed":
        pytest.skip("it would never end")
    model = stock(f"""
    g (int64 m, bool first, int64 limit, float[2] x) => (float[2] y, int64 k, float[?, 2] r)
    <bool yes = {{1}}, int64 endless = {{9223372036854775807}}, int64 zero = {{0}}> {{
        y, k, r = Loop ({trip}, {FIRST[first]}, x, zero) <
            body = b (int64 i, bool c, float[2] s, int64 j)
                => (bool c2, float[2] s2, int64 j2, float[2] t)
            <int64 one = {{1}}> {{
                j2 = Add(j, one)
                s2 = Add(s, x)
                {NEXT[following]}
                t = Neg(s2)
            }}
        >
    }}""")
    for m in (0, 1, 9):
        for limit in (0, 1, 20):
            for holds in (True, False):
                model.check(np.int64(m), np.array(holds), np.int64(limit), rows(2))


COUNTED = """
g (int64 m, float[n, 2] x) => (float[n, 2] y, int64[k] counts) {
    y, counts = Loop (m, , x) <
        body = b (int64 i, bool c, float[n, 2] s) => (bool c2, float[n, 2] s2, int64 i2) {
            f = Cast <to = 1> (i)
            s2 = Add(s, f)
            i2 = Identity(i)
            c2 = Identity(c)
        }
    >
}
"""


@pytest.mark.parametrize("count", COUNTS)
def test_any_number_of_iterations(stock: Load, count: int) -> None:
    stock(COUNTED).check(np.int64(count), rows(3, 2))


def test_a_negative_trip_count_is_none(stock: Load) -> None:
    state, counts = stock(COUNTED).run(np.int64(-3), rows(3, 2))
    np.testing.assert_array_equal(state, rows(3, 2))
    assert counts.shape == (0,)


def test_the_depth_of_calls_is_bounded(stock: Load) -> None:
    machine = stock(COUNTED).machine
    arguments = [tvm.runtime.tensor(x) for x in (np.array(100_000), np.zeros((1, 2), np.float32))]
    results: list[Any] = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: results.extend(machine["main"](*arguments)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    np.testing.assert_array_equal(results[1].numpy(), np.arange(100_000))


def test_numbers_and_conditions_of_one_element(stock: Load) -> None:
    model = stock("""
    g (int64[1] m, bool[1] first, float[2] x) => (float[2] y) {
        y = Loop (m, first, x) <
            body = b (int64[1] i, bool[1] c, float[2] s) => (bool[1] c2, float[2] s2) {
                f = Cast <to = 1> (i)
                s2 = Add(s, f)
                c2 = Identity(c)
            }
        >
    }""")
    for count in (0, 3):
        model.check(np.array([count]), np.array([True]), rows(2))
    model.check(np.array([3]), np.array([False]), rows(2))


# --- States --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "code", "update"),
    [
        ("bool", 9, "Not(s)"),
        ("int32", 6, "Add(s, s)"),
        ("int64", 7, "Mul(s, s)"),
        ("float16", 10, "Add(s, s)"),
        ("double", 11, "Exp(s)"),
    ],
)
def test_types_of_states(stock: Load, dtype: str, code: int, update: str) -> None:
    model = stock(f"""
    g (int64 m, float[3] x) => ({dtype}[3] y, {dtype}[k, 3] r) {{
        x0 = Cast <to = {code}> (x)
        y, r = Loop (m, , x0) <
            body = b (int64 i, bool c, {dtype}[3] s) => (bool c2, {dtype}[3] s2, {dtype}[3] t) {{
                s2 = {update}
                t = Identity(s2)
                c2 = Identity(c)
            }}
        >
    }}""")
    for count in (0, 3):
        model.check(np.int64(count), np.array([0, 1, -1], np.float32))


def test_states_that_change_places(stock: Load) -> None:
    """Nothing is overwritten while it is still to be read."""
    model = stock("""
    g (int64 m, float[2] x, float[2] y) => (float[2] a, float[2] b, float[2] d) {
        a, b, d = Loop (m, , x, y, y) <
            body = l (int64 i, bool c, float[2] s, float[2] t, float[2] u)
                => (bool c2, float[2] t2, float[2] s2, float[2] u2) {
                t2 = Identity(t)
                s2 = Identity(s)
                u2 = Add(u, s)
                c2 = Identity(c)
            }
        >
    }""")
    for count in (0, 1, 2, 5):
        model.check(np.int64(count), rows(2), -rows(2))


GROWS = """
g (int64 m, float[n, 2] x) => (float[p, 2] y, float[q, 2] z, float[2] sum) {
    y, z = Loop (m, , x, x) <
        body = b (int64 i, bool c, float[u, 2] s, float[v, 2] t)
            => (bool c2, float[a, 2] s2, float[b, 2] t2) {
            s2 = Concat <axis = 0> (s, x)
            both = Add(s, t)
            t2 = Concat <axis = 0> (both, x)
            c2 = Identity(c)
        }
    >
    axes = Constant <value_ints = [0]> ()
    sum = ReduceSum <keepdims = 0> (y, axes)
}
"""


def test_states_that_grow_together(stock: Load) -> None:
    """Their common size is one symbol, so that adding them needs no broadcasting."""
    model = stock(GROWS)
    for count in (0, 1, 4):
        model.check(np.int64(count), rows(3, 2))
    assert not any("expand" in variable.name_hint for variable in model.module.get_global_vars())


def test_a_size_that_each_iteration_decides(stock: Load) -> None:
    model = stock("""
    g (int64 m, float[n] x) => (float[p] y, int64[k] sizes) {
        y, sizes = Loop (m, , x) <
            body = b (int64 i, bool c, float[u] s) => (bool c2, float[v] s2, int64 size)
            <float half = {0.5}> {
                f = Cast <to = 1> (i)
                scaled = Mul(s, half)
                above = Greater(scaled, f)
                s2 = Compress(scaled, above)
                size = Size(s2)
                c2 = Identity(c)
            }
        >
    }""")
    for count in (0, 1, 3):
        model.check(np.int64(count), np.abs(rows(20)) * 8)


def test_attempts_leave_no_functions(stock: Load) -> None:
    names = stock(GROWS).functions()
    assert [name for name in names if "iteration" in name] == ["y_iteration"]


def test_captures_and_inputs_stay_as_they_are(stock: Load) -> None:
    model = stock(COUNTED)
    x = tvm.runtime.tensor(rows(3, 2))
    for _ in range(2):
        model.machine["main"](tvm.runtime.tensor(np.array(5)), x)
    np.testing.assert_array_equal(x.numpy(), rows(3, 2))


# --- Scan outputs --------------------------------------------------------------------------------


def test_rows_of_no_iteration_have_their_shape_and_type(stock: Load) -> None:
    model = stock("""
    g (int64 m, bool first, float[n, 2] x) => (float[n, 2] y, float16[k, n, 2] r, bool[k, 3] t) {
        y, r, t = Loop (m, first, x) <
            body = b (int64 i, bool c, float[n, 2] s)
                => (bool c2, float[n, 2] s2, float16[n, 2] row, bool[3] flags)
            <bool[3] flag = {1, 0, 1}> {
                s2 = Add(s, x)
                row = Cast <to = 10> (s2)
                flags = Not(flag)
                c2 = Identity(c)
            }
        >
    }""")
    for count, first in ((0, True), (4, False), (2, True)):
        _, r, t = model.run(np.int64(count), np.array(first), rows(3, 2))
        done = count if first else 0
        assert (r.dtype, r.shape) == (np.float16, (done, 3, 2))
        assert (t.dtype, t.shape) == (np.bool_, (done, 3))


WHILE = """
g (int64 limit, float[n] x) => (int64 k, float[r, s] wide, int64[t] numbers) <int64 zero = {0}> {
    k, wide, numbers = Loop (, , zero) <
        body = b (int64 i, bool c, int64 j) => (bool c2, int64 j2, float[u] row, int64 number)
        <int64 one = {1}, float none = {0}> {
            j2 = Add(j, one)
            c2 = Less(j2, limit)
            f = Cast <to = 1> (j2)
            above = Greater(x, none)
            kept = Compress(x, above)
            row = Mul(kept, f)
            number = Identity(j)
        }
    >
}
"""


@pytest.mark.parametrize("limit", [1, 15, 16, 17, 100])
def test_rows_of_unknown_number_and_size(stock: Load, limit: int) -> None:
    stock(WHILE).check(np.int64(limit), rows(6))


def test_rows_of_different_sizes_are_an_error(stock: Load) -> None:
    model = stock("""
    g (int64 m, float[n] x) => (float[k, r] rows) <bool yes = {1}> {
        rows = Loop (m, yes) <
            body = b (int64 i, bool c) => (bool c2, float[u] row) <int64[1] start = {0}> {
                end = Unsqueeze(i, start)
                row = Slice(x, start, end)
                c2 = Identity(c)
            }
        >
    }""")
    with pytest.raises(RuntimeError, match="match_cast"):
        model.run(np.int64(3), rows(5))


def test_outputs_that_nobody_wants(stock: Load) -> None:
    model = stock("""
    g (int64 m, float[2] x) => (float[k, 2] r) {
        , , r = Loop (m, , x) <
            body = b (int64 i, bool c, float[2] s)
                => (bool c2, float[2] s2, int64 number, float[2] t) {
                s2 = Add(s, x)
                number = Identity(i)
                t = Neg(s2)
                c2 = Identity(c)
            }
        >
    }""")
    # onnxruntime does not take a Loop that leaves out outputs.
    (stacked,) = model.run(np.int64(3), rows(2))
    wanted = [-rows(2) * (number + 2) for number in range(3)]
    np.testing.assert_allclose(stacked, wanted, rtol=1e-6)


# --- Nesting -------------------------------------------------------------------------------------


def test_loops_and_branches_in_loops(stock: Load) -> None:
    model = stock("""
    g (int64 m, int64 n, float[2] x) => (float[2] y, float[a, b, 2] r) {
        y, r = Loop (m, , x) <
            body = outer (int64 i, bool c, float[2] s) => (bool c2, float[2] s2, float[d, 2] t) {
                u, t = Loop (n, , s) <
                    body = inner (int64 j, bool e, float[2] v)
                        => (bool e2, float[2] v2, float[2] w) {
                        is_later = Less(i, j)
                        v2 = If (is_later) <
                            then_branch = p () => (float[2] v3) { v3 = Add(v, x) },
                            else_branch = q () => (float[2] v4) { v4 = Mul(v, s) }
                        >
                        w = Identity(v2)
                        e2 = Identity(e)
                    }
                >
                s2 = Add(u, x)
                c2 = Identity(c)
            }
        >
    }""")
    for m, n in ((0, 2), (2, 0), (3, 4)):
        model.check(np.int64(m), np.int64(n), rows(2))


@pytest.mark.parametrize("taken", [True, False])
def test_a_loop_in_a_branch(stock: Load, taken: bool) -> None:
    model = stock("""
    g (int64 m, bool c, float[n] x) => (float[p] y) {
        y = If (c) <
            then_branch = t () => (float[p1] a) {
                a = Loop (m, , x) <
                    body = b (int64 i, bool d, float[u] s) => (bool d2, float[v] s2) {
                        s2 = Concat <axis = 0> (s, x)
                        d2 = Identity(d)
                    }
                >
            },
            else_branch = e () => (float[n] z) { z = Neg(x) }
        >
    }""")
    model.check(np.int64(3), np.array(taken), rows(4))


def test_equal_loops_of_a_function(stock: Load) -> None:
    model = stock("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (int64 m, float[2] x, float[2] y) => (float[2] z) {
        a = local.repeat(m, x)
        b = local.repeat(m, y)
        z = Sub(a, b)
    }
    <domain: "local", opset_import: ["" : 17]> repeat (n, v) => (w) {
        w = Loop (n, , v) <
            body = b (int64 i, bool c, float[2] s) => (bool c2, float[2] s2) {
                s2 = Add(s, v)
                c2 = Identity(c)
            }
        >
    }""")
    for count in (0, 4):
        model.check(np.int64(count), rows(2), np.ones(2, np.float32))


def test_a_stack_without_elements() -> None:
    """A kernel whose results have no elements, which TVM knows, has no schedule."""
    module = looplift.from_onnx(
        parse("""g (float[T, 3] x, float[0, 3] z, float[3] s0, int64 n, int64 m) => (float[?, ?, 3] y) {
        y = Loop (m, "") <body = outer (int64 k, bool e) => (bool f, float[?, 3] r) {
            f = Identity (e)
            s, r = Loop (n, "", s0) <body = inner (int64 i, bool c, float[3] t)
                => (bool d, float[3] u, float[3] v) {
                d = Identity (c) a = Gather (x, i) b = Gather (z, i)
                p = Mul (a, t) u = Add (p, b) v = Identity (u) }> }> }""")
    )
    machine = virtual_machine(compile_quickly(module, relax_pipeline="looplift"))
    inputs = (rows(4, 3), rows(0, 3), rows(3), np.array(0), np.array(2))
    y = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    assert y.shape == (2, 0, 3)


def test_halves_side_by_side_in_a_loop(imported: Load) -> None:
    """The sizes of slices from the start are known in the loop where the module is inlined, too."""
    model = imported("""g (float[A, B] s0, int64 m) => (float[C, D] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
        y = Loop (m, "", s0) <body = b (int64 i, bool c, float[?, ?] s) => (bool d, float[?, ?] t) {
            d = Identity (c) p = Slice (s, zero, one, zero) q = Slice (s, one, two, zero)
            t = Concat <axis = -1> (p, q) }> }""")
    model.check(rows(2, 3), np.int64(0))
    model.check(rows(2, 3), np.int64(1))


# --- The module alone ----------------------------------------------------------------------------

ALONE = """
import sys, numpy as np, tvm
from tvm import relax
assert "looplift" not in sys.modules
machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
state, counts = machine["main"](
    tvm.runtime.tensor(np.array(100)), tvm.runtime.tensor(np.zeros((3, 2), "float32"))
)
assert (state.numpy() == 4950).all() and (counts.numpy() == np.arange(100)).all()
"""


def test_an_exported_library_runs_without_looplift(stock: Load, tmp_path: Path) -> None:
    library = tmp_path / "loop.so"
    tvm.compile(stock(COUNTED).module, target="llvm").export_library(str(library))
    subprocess.run([sys.executable, "-c", ALONE, str(library)], check=True, cwd=tmp_path)


@pytest.mark.parametrize("name", ["20", "in", "x:0", "/h"])
def test_a_loop_is_printed_as_python(name: str) -> None:
    """Whatever the model calls the loop and its carried values."""
    model = parse(COUNTED)
    loop = model.graph.node[0]
    loop.name = f"/{name}"
    body = loop.attribute[0].g
    body.input[0].name = f"{name}.1"
    body.input[2].name = name
    for node in body.node:
        node.input[:] = [{"s": name, "i": f"{name}.1"}.get(each, each) for each in node.input]
    compile(looplift.from_onnx(model).script(), "module.py", "exec")
