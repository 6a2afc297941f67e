"""Kernels that differ only in numbers are compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax, tirx

import looplift
from looplift.lowering.scheduling import pipeline
from looplift.lowering.scheduling.kernels.emission import WRITTEN_BY_RULE
from looplift.lowering.scheduling.kernels.nests import substituted
from looplift.lowering.scheduling.relax.kernel_merging import merge_kernels

from ...compiled import NATIVE, Array, virtual_machine
from ...conftest import parse
from ...kernel_modules import calls_of, kernel_of, kernels_of, module_of, results_of

CONVOLUTIONS = """g (float[n, 64, l] x) => (float[n, 96, l] y, float[n, 128, l] z) {
    a = Conv <pads = [1, 1]> (x, f)
    b = Conv <pads = [3, 3]> (a, g)
    y = Conv <pads = [2, 2], dilations = [2]> (b, h)
    z = Conv <pads = [6, 6], dilations = [3]> (b, i)
}"""
"""Convolutions of different channels, taps and padding; the last two are dilated."""
WEIGHTS = {"f": (128, 64, 3), "g": (64, 128, 7), "h": (96, 64, 3), "i": (128, 64, 5)}


def _model(text: str, weights: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    model = parse(text)
    generator = np.random.default_rng(0)
    for name, shape in weights.items():
        value = 0.1 * generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def test_convolutions_share_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: list[list[tirx.PrimFunc]] = []

    def record(module: tvm.IRModule) -> tvm.IRModule:
        merged = merge_kernels(module)
        for each in (module, merged):
            functions = each.functions.values()
            kernels.append([f for f in functions if WRITTEN_BY_RULE in (f.attrs or {})])
        return merged

    monkeypatch.setattr(pipeline, "merge_kernels", record)
    model = _model(CONVOLUTIONS, WEIGHTS)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    before, after = kernels
    assert len(before) == 4
    assert len(after) == 2
    session = onnxruntime.InferenceSession(model.SerializeToString())
    generator = np.random.default_rng(1)
    for batch, length in [(1, 50), (3, 1), (2, 700), (0, 9)]:
        x = generator.standard_normal((batch, 64, length)).astype(np.float32)
        expected = session.run(None, {"x": x})
        found = machine["main"](tvm.runtime.tensor(x))
        for value, right in zip(found, expected, strict=True):
            _assert_close(value.numpy(), right)


def _assert_close(found: Array, right: Array) -> None:
    scale = max(1.0, float(np.abs(right).max(initial=0)))
    np.testing.assert_allclose(found / scale, right / scale, rtol=0, atol=2e-6)


KERNELS = {
    "plain": """
        for i, j in T.grid(n, T.int64({columns})):
            y[i, j] = x[i, j] + T.int64({step})""",
    "vectors": """
        for i in range(n):
            for j in T.vectorized(T.int64({columns})):
                y[i, j] = x[i, j] + T.int64({step})""",
    "quotients": """
        for i in range(n * T.int64({columns})):
            y[i // T.int64({columns}), i % T.int64({columns})] = (
                x[i // T.int64({columns}), i % T.int64({columns})] + T.int64({step})
            )""",
    "truncated quotients": """
        for i in range(n * T.int64({columns})):
            y[T.truncdiv(i, T.int64({columns})), T.truncmod(i, T.int64({columns}))] = (
                x[T.truncdiv(i, T.int64({columns})), T.truncmod(i, T.int64({columns}))]
                + T.int64({step})
            )""",
    "outer quotient": """
        for i in range(n * T.int64({columns}) // T.int64({columns})):
            for j in range(T.int64({columns})):
                y[i, j] = x[i, j] + T.int64({step})""",
    "scratch": """
        for i in range(n):
            row = T.alloc_buffer((T.int64({room}),), "int64")
            for j in range(T.int64({columns})):
                row[j] = x[i, j] + T.int64({step})
            for j in range(T.int64({columns})):
                y[i, j] = row[j]""",
    "scratch of a block": """
        for i in range(n):
            with T.sblock("row"):
                T.reads()
                T.writes()
                row = T.sblock_alloc_buffer((T.int64({room}),), "int64")
                for j in range(T.int64({columns})):
                    row[j] = x[i, j] + T.int64({step})
                for j in range(T.int64({columns})):
                    y[i, j] = row[j]""",
    "reversed": """
        for i, j in T.grid(n, T.int64({columns})):
            y[i, T.int64({last}) - j] = x[i, T.int64({last}) - j] + T.int64({step})""",
}
"""Bodies of kernels for `y[i, j] = x[i, j] + step`."""


def _kernel(columns: int, step: int, kind: str = "plain", **attributes: Any) -> tirx.PrimFunc:
    """A kernel as a rule could have written it."""
    sizes = {"columns": columns, "step": step, "room": columns + step, "last": columns - 1}
    return kernel_of(
        columns, KERNELS[kind].format(**sizes), **{WRITTEN_BY_RULE: True, **attributes}
    )


@pytest.mark.parametrize(
    ("kind", "sizes", "left"),
    [
        ("plain", [(8, 3), (16, 3), (8, 5)], 1),
        ("vectors", [(8, 3), (16, 3), (8, 5)], 2),
        ("quotients", [(8, 3), (16, 3), (8, 5)], 2),
        ("truncated quotients", [(8, 3), (16, 3), (8, 5)], 2),
        ("outer quotient", [(8, 3), (16, 3), (8, 5)], 1),
        ("scratch", [(8, 3), (16, 3), (8, 3)], 2),
        ("scratch", [(1000, 3), (2000, 4), (8, 3)], 3),
        ("scratch", [(1000, 3), (2000, 4)], 1),
        ("scratch of a block", [(8, 3), (16, 3), (8, 3)], 2),
        ("reversed", [(8, 3), (16, 3), (8, 5)], 1),
    ],
)
def test_numbers_become_arguments_where_the_code_allows_it(
    kind: str, sizes: list[tuple[int, int]], left: int
) -> None:
    module = module_of(*(_kernel(*size, kind) for size in sizes))
    merged = merge_kernels(module)
    assert len(kernels_of(merged)) == left
    columns = [c for c, _ in sizes]
    for found, c, (_, step) in zip(results_of(merged, columns), columns, sizes, strict=True):
        np.testing.assert_array_equal(found, np.arange(2 * c).reshape(2, c) + step)
    relax.analysis.well_formed(merged)


def test_a_merged_kernel_with_its_numbers_is_the_original() -> None:
    sizes = [(8, 3), (16, 3), (4, 5)]
    module = module_of(*(_kernel(*size) for size in sizes))
    merged = merge_kernels(module)
    for before, after in zip(calls_of(module), calls_of(merged), strict=True):
        kernel = merged[after.args[0]]
        (_, *numbers), (source, *params, target) = after.args[1].fields, kernel.params
        values = dict(zip(params, numbers, strict=True))
        known = substituted(tirx.PrimFunc([source, target], kernel.body), values)
        assert tvm_ffi.structural_equal(known.body, module[before.args[0]].body, True)


def test_equal_numbers_become_one_argument_or_none() -> None:
    merged = merge_kernels(module_of(_kernel(8, 3), _kernel(16, 3)))
    assert [list(map(int, call.args[1].fields[1:])) for call in calls_of(merged)] == [[8], [16]]


def test_kernels_of_different_attributes_or_code_stay_apart() -> None:
    marked = _kernel(16, 3, color="red")
    assert len(kernels_of(merge_kernels(module_of(_kernel(8, 3), marked)))) == 2
    vectors = _kernel(16, 3, "vectors")
    assert len(kernels_of(merge_kernels(module_of(_kernel(8, 3), vectors)))) == 2


def test_kernels_of_no_rule_stay_as_they_are() -> None:
    kernels = [_kernel(c, 3).without_attr(WRITTEN_BY_RULE) for c in (8, 16)]
    module = module_of(*kernels)
    assert merge_kernels(module).same_as(module)


def test_kernels_that_are_used_otherwise_stay_as_they_are() -> None:
    module = module_of(_kernel(8, 3), _kernel(16, 3))
    variable = calls_of(module)[1].args[0]
    x = relax.Var("x", relax.TensorType([2, 16], "int64"))
    call = relax.op.call_tir_inplace(variable, [x], [0], x.ty)
    with_other_use = relax.BlockBuilder(module)
    with with_other_use.function("again", [x], private=False):
        with_other_use.emit_func_output(with_other_use.emit(call))
    assert len(kernels_of(merge_kernels(with_other_use.get()))) == 2


def test_kernels_that_rules_made_equal_become_one() -> None:
    """They differed before a rule wrote them anew, and the one that is kept is one of them."""
    builder = relax.BlockBuilder()
    kernels = [builder.add_func(_kernel(8, step), f"kernel_{step}") for step in (3, 4)]
    for name, kernel in zip(("main", "again"), kernels, strict=True):
        x = relax.Var("x", relax.TensorType([2, 8], "int64"))
        with builder.function(name, [x], private=False):
            builder.emit_func_output(builder.emit(relax.op.call_tir(kernel, [x], x.ty)))
    module = builder.get()
    module[kernels[1]] = module[kernels[0]]
    merged = merge_kernels(module)
    assert len(kernels_of(merged)) == 1
    relax.analysis.well_formed(merged)


def test_a_dilation_does_not_matter_for_a_single_tap() -> None:
    text = """g (float[n, 8, l] x) => (float[n, 8, l] y) {
        a = Conv <dilations = [1]> (x, f) y = Conv <dilations = [2]> (a, g) }"""
    model = _model(text, {"f": (8, 8, 1), "g": (8, 8, 1)})
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = np.random.default_rng(1).standard_normal((2, 8, 5)).astype(np.float32)
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = machine["main"](tvm.runtime.tensor(x)).numpy()
    _assert_close(found, right)


def test_public_kernels_stay_as_they_are() -> None:
    kernels = [_kernel(c, 3, global_symbol=f"kernel_{c}") for c in (8, 16)]
    module = module_of(*kernels)
    assert merge_kernels(module).same_as(module)
