"""Tensors share memory, also those of sizes that are known at run time only."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from looplift.lowering.scheduling.pipeline import looplift_pipeline
from looplift.lowering.scheduling.relax.memory_plan import plan_memory

from ...conftest import Imported, parse

# Reductions along the last axis stay kernels of their own, so each `Softmax` allocates a tensor.
MODELS = {
    "chain": (
        "float[n, 8] x", "float[n, 8] y",
        """a = Softmax (x)
        wide = Concat <axis = 1> (a, a, a)
        b = Softmax (wide)
        c = Slice (b, zero, eight, axes)
        d = Softmax (c)
        e = Exp (d)
        y = Softmax (e)""",
    ),
    "needed later": (
        "float[n, 8] x", "float[n, 8] y",
        "a = Softmax (x)\nb = Softmax (a)\nc = Softmax (b)\nd = Softmax (c)\ny = Add (d, a)",
    ),
    "under another shape": (
        "float[n, 8] x", "float[n, 8] y",
        """a = Softmax (x)
        flat = Reshape (a, minus)
        b = Softmax (a)
        c = Softmax (b)
        d = Softmax (c)
        other = Reshape (d, minus)
        sum = Add (flat, other)
        y = Reshape (sum, rows)""",
    ),
    "returned": (
        "float[n, 8] x", "float[n, 8] y, float[n, 8] a, float[n, 8] c",
        "a = Softmax (x)\nb = Softmax (a)\nc = Softmax (b)\nd = Softmax (c)\ny = Softmax (d)",
    ),
    "in a branch": (
        "float[n, 8] x, bool flag", "float[n, 8] y",
        """a = Softmax (x)
        b = Softmax (a)
        c = Softmax (b)
        d = If (flag) <
            then_branch = t () => (float[n, 8] p) { p = Identity (a) },
            else_branch = e () => (float[n, 8] q) { q = Softmax (c) }
        >
        f = Softmax (d)
        g = Softmax (f)
        y = Add (g, d)""",
    ),
    "two sizes": (
        "float[n, 8] x, float[m, 8] z", "float[n, 8] y, float[m, 8] w",
        """a = Softmax (x)
        b = Softmax (z)
        c = Softmax (a)
        d = Softmax (b)
        e = Softmax (c)
        f = Softmax (d)
        y = Softmax (e)
        w = Softmax (f)""",
    ),
}  # fmt: skip
CONSTANTS = """zero = Constant <value = int64[2] {0, 0}> ()
eight = Constant <value = int64[2] {1000, 8}> ()
axes = Constant <value = int64[2] {0, 1}> ()
minus = Constant <value = int64[1] {-1}> ()
rows = Constant <value = int64[2] {-1, 8}> ()
"""


@pytest.mark.parametrize("name", MODELS)
def test_results_stay_right(name: str) -> None:
    inputs, outputs, body = MODELS[name]
    model = Imported(parse(f"m ({inputs}) => ({outputs}) {{\n{CONSTANTS}{body}\n}}"))
    random = np.random.default_rng(0)
    for size in (0, 1, 3, 70):
        x = random.standard_normal((size, 8)).astype(np.float32)
        other = {"in a branch": [np.array(size % 2 == 1)], "two sizes": [x[:1] + 1]}
        model.check(x, *other.get(name, []))


def _module(steps: int, returned: tuple[int, ...]) -> tvm.IRModule:
    """`main` applies softmax and appends its input, so many times, and returns some of the results."""
    bb = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 8], "float32"))
    with bb.function("main", [x], private=False):
        with bb.dataflow():
            values: list[Any] = [x]
            for _ in range(steps):
                softened = bb.emit(relax.op.nn.softmax(values[-1]))
                values.append(bb.emit(relax.op.concat([softened, x], axis=1)))
            outputs = [bb.emit_output(values[number]) for number in returned]
            result = bb.emit_output(relax.Tuple(outputs)) if len(outputs) > 1 else outputs[0]
        bb.emit_func_output(result)
    return bb.get()


def _allocations(module: tvm.IRModule) -> tuple[int, int, int]:
    """How many storages there are, tensors in them, and tensors in memory of their own."""
    found = dict.fromkeys(
        ("relax.memory.alloc_storage", "relax.memory.alloc_tensor", "relax.builtin.alloc_tensor"), 0
    )

    def visit(call: Any) -> None:
        name = getattr(call.op, "name", "")
        if name in found:
            found[name] += 1

    tvm_ffi.structural_walk(module["main"].body, (tvm.ir.Call, visit))
    storages, inside, own = found.values()
    return storages, inside, own


def _planned(module: tvm.IRModule) -> tvm.IRModule:
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
    ]
    with tvm.target.Target("llvm"):
        return plan_memory(tvm.transform.Sequential(passes)(module))


def test_tensors_of_multiples_of_a_size_share_memory() -> None:
    storages, inside, own = _allocations(_planned(_module(4, (4,))))
    assert (storages, inside, own) == (2, 7, 1)


def test_tensors_of_different_unknown_sizes_share_memory() -> None:
    bb = relax.BlockBuilder()
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    params = [
        relax.Var(name, relax.TensorType([size, 8], "float32"))
        for name, size in (("x", n), ("z", m))
    ]
    with bb.function("main", params, private=False):
        with bb.dataflow():
            results = []
            for value in params:
                for _ in range(4):
                    value = bb.emit(relax.op.nn.softmax(value))
                results.append(bb.emit(relax.op.sum(value, axis=[0])))
            result = bb.emit_output(relax.op.add(*results))
        bb.emit_func_output(result)
    planned = _planned(bb.get())
    storages, inside, _ = _allocations(planned)
    # Two for the rows, and two for the sums; in those of the rows, tensors of one shape are one.
    assert (storages, inside) == (4, 6)


def test_a_size_that_is_not_known_yet_gets_memory_of_its_own() -> None:
    text = """m (float[n, 8] x) => (float[k, 8] y) {
        zero = Constant <value_int = 0> () half = Constant <value_float = 0.0> ()
        a = Softmax (x) b = Softmax (a) c = Softmax (b)
        first = Gather <axis = 1> (x, zero) flags = Greater (first, half)
        d = Compress <axis = 0> (c, flags) e = Softmax (d) f = Softmax (e) y = Softmax (f) }"""
    model = Imported(parse(text))
    random = np.random.default_rng(1)
    for size in (1, 3, 70):
        model.check(random.standard_normal((size, 8)).astype(np.float32))


def test_what_is_returned_has_memory_of_its_own() -> None:
    assert _allocations(_planned(_module(4, (1, 2, 3, 4))))[2] == 4


def test_a_storage_holds_the_largest_of_its_tensors() -> None:
    """Also if that comes first."""
    bb = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 32], "float64"))
    with bb.function("main", [x], private=False):
        with bb.dataflow():
            value = bb.emit(relax.op.nn.softmax(bb.emit(relax.op.nn.softmax(x))))
            for width in (16, 8):
                part = relax.op.strided_slice(value, [1], [0], [width], assume_inbound=True)
                value = bb.emit(relax.op.nn.softmax(bb.emit(part)))
            result = bb.emit_output(relax.op.nn.softmax(value))
        bb.emit_func_output(result)
    planned = _planned(bb.get())
    storages, inside, _ = _allocations(planned)
    assert (storages, inside) == (2, 6)
    sizes = re.findall(r"alloc_storage\(R\.shape\(\[(.*?)\]\)", planned["main"].script())
    assert sizes == ["256 * n", "256 * n"]


def test_storage_is_not_much_larger_than_its_tensors() -> None:
    bb = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 1024], "float32"))
    with bb.function("main", [x], private=False):
        with bb.dataflow():
            value = bb.emit(relax.op.nn.softmax(x))
            for _ in range(2):
                value = bb.emit(relax.op.sum(value, axis=[1], keepdims=True))
            result = bb.emit_output(relax.op.nn.softmax(value))
        bb.emit_func_output(result)
    assert _allocations(_planned(bb.get()))[:2] == (3, 3)


def test_the_pipeline_plans_memory() -> None:
    with tvm.target.Target("llvm"):
        compiled = looplift_pipeline()(_module(4, (4,)))
    text = compiled["main"].script()
    assert text.count("alloc_storage") < text.count("alloc_tensor")
