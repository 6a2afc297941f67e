"""Products of transposed operands, against onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.legalization.transposed_operands import absorb_transpositions
from looplift.lowering.scheduling.pipeline import lower_to_kernels

from ....samples import one_of
from ...comparison import TARGETS, check, random, weight, with_weights
from ...compiled import NATIVE, virtual_machine

SIZES = [
    {"b": b, "n": n, "m": m}
    for b, n, m in ((1, 1, 1), (2, 7, 64), (1, 0, 5), (0, 2, 2), (1, 70, 33))
]
ABSORBED = {
    "keys": (
        "float[b, 3, n, 24] q, float[b, 3, m, 24] k",
        "t = Transpose <perm = [0, 1, 3, 2]> (k) y = MatMul (q, t)",
    ),
    "heads": (
        "float[b, n, 3, 24] q, float[b, m, 3, 24] k",
        """s = Transpose <perm = [0, 2, 1, 3]> (q) t = Transpose <perm = [0, 2, 3, 1]> (k)
        y = MatMul (s, t)""",
    ),
    "values": (
        "float[b, 3, n, m] p, float[b, m, 3, 64] v",
        "t = Transpose <perm = [0, 2, 1, 3]> (v) y = MatMul (p, t)",
    ),
    "odd values": (
        "float[b, 3, n, m] p, float[b, m, 3, 50] v",
        "t = Transpose <perm = [0, 2, 1, 3]> (v) y = MatMul (p, t)",
    ),
    "columns": (
        "float[b, m, n] q, float[b, m, 40] k",
        "t = Transpose <perm = [0, 2, 1]> (q) y = MatMul (t, k)",
    ),
    "scaled": (
        "float[b, n, 3, 24] q, float[b, 3, m, 24] k, float[1] c",
        """s = Transpose <perm = [0, 2, 1, 3]> (q) t = Transpose <perm = [0, 1, 3, 2]> (k)
        p = MatMul (s, t) y = Mul (p, c)""",
    ),
}
"""Inputs and nodes of models that have no transposition after the pass."""
KEPT = {
    "all rows of a stack": (
        "float[b, 16, n] x", "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, w)",
    ),
    "broadcast stacks": (
        "float[b, 3, n, 16] q, float[1, 3, m, 16] k",
        "t = Transpose <perm = [0, 1, 3, 2]> (k) y = MatMul (q, t)",
    ),
    "one row": (
        "float[b, 1, 16] q, float[b, m, 16] k",
        "t = Transpose <perm = [0, 2, 1]> (k) y = MatMul (q, t)",
    ),
    "another type": (
        "double[b, n, 16] q, double[b, m, 16] k",
        "t = Transpose <perm = [0, 2, 1]> (k) y = MatMul (q, t)",
    ),
    "two readers": (
        "float[b, n, 16] q, float[b, m, 16] k",
        """t = Transpose <perm = [0, 2, 1]> (k) p = MatMul (q, t) s = ReduceSum <keepdims = 0> (t)
        y = Add (p, s)""",
    ),
}  # fmt: skip
WEIGHTS = {"w": weight(16, 24)}


def transpositions(inputs: str, nodes: str) -> int:
    """The number of kernels that transpose."""
    model = with_weights(f"model ({inputs}) => (y) {{ {nodes} }}", WEIGHTS)
    with as_target("native"):
        module = lower_to_kernels(looplift.from_onnx(model))
    return sum("transpose" in variable.name_hint for variable in module.get_global_vars())


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Any:
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, request.param)
    yield
    configure(1, 0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", one_of(2, ABSORBED))
def test_products_read_what_is_transposed(name: str) -> None:
    inputs, nodes = ABSORBED[name]
    assert transpositions(inputs, nodes) == 0
    check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, SIZES)


@pytest.mark.parametrize(("depth", "target"), one_of(2, itertools.product([1, 15, 17], TARGETS)))
def test_keys_of_any_depth(depth: int, target: Any) -> None:
    """With fewer rows or columns than a vector, and one more, on processors with other vectors."""
    text = f"""model (float[b, 3, n, {depth}] q, float[b, 3, m, {depth}] k) => (y) {{
        t = Transpose <perm = [0, 1, 3, 2]> (k) y = MatMul (q, t) }}"""
    check(text, {}, [*SIZES, {"b": 1, "n": 3, "m": 31}], target)


@pytest.mark.parametrize("name", KEPT)
def test_other_transpositions_remain(name: str) -> None:
    assert transpositions(*KEPT[name]) == 1


@pytest.mark.parametrize("name", ["all rows of a stack", "two readers"])
def test_other_transpositions_are_right(name: str) -> None:
    inputs, nodes = KEPT[name]
    sizes = [size for size in SIZES if size["b"]]
    check(f"model ({inputs}) => (y) {{ {nodes} }}", WEIGHTS, sizes)


@pytest.mark.parametrize("name", ["values", "columns"])
def test_a_sum_of_no_products_is_zero(name: str) -> None:
    """onnxruntime leaves it undefined."""
    inputs, nodes = ABSORBED[name]
    model = with_weights(f"model ({inputs}) => (y) {{ {nodes} }}", {})
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    feed = [random(value, {"b": 2, "n": 3, "m": 0}) for value in model.graph.input]
    result = machine["main"](*map(tvm.runtime.tensor, feed)).numpy()
    assert result.size
    assert not result.any()


@pytest.mark.usefixtures("threads")
def test_large_products() -> None:
    """Large enough for all cores, with few rows and with many."""
    inputs, nodes = ABSORBED["heads"]
    sizes = [{"b": 1, "n": n, "m": m} for n, m in ((1, 5000), (300, 301))]
    check(f"model ({inputs}) => (y) {{ {nodes} }}", {}, sizes)


def test_a_transposition_in_an_earlier_block_stays() -> None:
    """What it reads is not visible in the block of the product."""
    bb = relax.BlockBuilder()
    n, m = (tirx.Var(name, "int64") for name in "nm")
    q = relax.Var("q", relax.TensorType([2, n, 16], "float32"))
    k = relax.Var("k", relax.TensorType([2, m, 16], "float32"))
    with bb.function("main", [q, k]):
        with bb.dataflow():
            positive = bb.emit(relax.op.nn.relu(k))
            turned = bb.emit_output(relax.op.permute_dims(positive, [0, 2, 1]))
        checked = bb.match_cast(q, q.ty)
        with bb.dataflow():
            product = bb.emit_output(relax.op.matmul(checked, turned))
        bb.emit_func_output(product)
    module = absorb_transpositions(bb.get())
    assert "permute_dims" in module.script()
    machine = virtual_machine(looplift.compile(module, NATIVE))
    rows, columns = weight(2, 3, 16), weight(2, 5, 16)
    got = machine["main"](tvm.runtime.tensor(rows), tvm.runtime.tensor(columns)).numpy()
    wanted = rows @ np.maximum(columns, 0).transpose(0, 2, 1)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
