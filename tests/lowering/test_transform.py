"""Imported modules under TVM's own passes, and the passes of `looplift.transform`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import dlight

from looplift.lowering import emit
from looplift.lowering.operators.recurrent_mark import RecurrentOperator
from looplift.transform import SCHEDULE_RULES, FuseLoops, InlineLoops, LowerRecurrent

from ..samples import one_of
from .compiled import compile_quickly, virtual_machine
from .conftest import parse
from .kernel_modules import kernels_of

WHILE = """g (float[n] x, float limit) => (float[n] y) {
  t = Constant <value = bool {1}> ()
  y = Loop ("", t, x) <body = b (int64 i, bool ci, float[n] a) => (bool co, float[n] sum) {
    sum = Add (a, x) total = ReduceSum <keepdims = 0> (sum) co = Less (total, limit) }> }"""
ROWS = """g (int64 n, float[m] s, float[m] c) => (float[m] y, float[k, m] rows) {
  y, rows = Loop (n, "", s) <body = b (int64 i, bool ci, float[m] a)
    => (bool co, float[m] sum, float[m] row) {
    co = Identity (ci) sum = Add (a, c) row = Mul (sum, c) }> }"""
LOOP_IN_IF = """g (bool c, float[m] x, int64 n) => (float[m] y) {
  y = If (c) <
    then_branch = t () => (float[m] a) {
      a = Loop (n, c, x) <body = b (int64 i, bool ci, float[m] p) => (bool co, float[m] q) {
        co = Identity (ci) e = Exp (p) q = Add (e, x) }> },
    else_branch = e () => (float[m] b) { b = Neg (x) }> }"""
SCAN = """g (float[m] s, float[t, m] xs) => (float[m] y, float[t, m] ys) {
  y, ys = Scan <num_scan_inputs = 1, body = b (float[m] p, float[m] x)
    => (float[m] q, float[m] r) { q = Add (p, x) r = Tanh (q) }> (s, xs) }"""
SELECTIVE = """g (float[b, 16] s, float[t, b, 1] xs, float[16] a) => (float[b, 16] y, float[t, b] sums) {
  n = Shape <start = 0, end = 1> (xs)
  count = Squeeze (n)
  y, sums = Loop (count, "", s) <body = b (int64 i, bool ci, float[b, 16] p)
    => (bool co, float[b, 16] q, float[b] row) {
    co = Identity (ci) x = Gather (xs, i) u = Mul (x, a) e = Exp (u) v = Mul (p, e) q = Add (v, x)
    w = Mul (q, a) axis = Constant <value_ints = [1]> () row = ReduceSum <keepdims = 0> (w, axis) }>
  }"""
GRU = """g (float[t, b, 2] x, int32[b] lengths) => (float[t, 2, b, 3] y, float[2, b, 3] h)
  <float[2, 9, 2] w, float[2, 9, 3] r> {
  y, h = GRU <hidden_size = 3, direction = "bidirectional"> (x, w, r, "", lengths) }"""

Array = np.ndarray[Any, Any]
_RANDOM = np.random.default_rng(7)


def _floats(*shape: int) -> Array:
    return (_RANDOM.standard_normal(shape) * 0.5).astype(np.float32)


INPUTS: dict[str, list[Array]] = {
    SELECTIVE: [_floats(3, 16), _floats(5, 3, 1), _floats(16)],
    WHILE: [np.ones(3, np.float32), np.array(20, np.float32)],
    ROWS: [np.array(5), _floats(3), _floats(3)],
    LOOP_IN_IF: [np.array(True), _floats(3), np.array(3)],
    SCAN: [_floats(3), _floats(5, 3)],
    GRU: [_floats(5, 2, 2), np.array([5, 3], np.int32)],
}
NAMES = {WHILE: "while", ROWS: "rows", LOOP_IN_IF: "loop in if", SCAN: "scan", GRU: "gru"}


def _model(text: str) -> onnx.ModelProto:
    if text != GRU:
        return parse(text)
    model = parse(
        text.replace("<float[2, 9, 2] w, float[2, 9, 3] r>", "").replace(
            "int32[b] lengths)", "int32[b] lengths, float[2, 9, 2] w, float[2, 9, 3] r)"
        )
    )
    weights = [("w", np.linspace(-1, 1, 36)), ("r", np.linspace(1, -1, 54))]
    for (name, content), shape in zip(weights, [(2, 9, 2), (2, 9, 3)], strict=True):
        array = content.reshape(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[2:]
    return model


@cache
def _imported(text: str) -> Any:
    return emit(_model(text))


@cache
def _wanted(text: str) -> list[Array]:
    model = _model(text)
    names = [value.name for value in model.graph.input]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: list[Array] = session.run(None, dict(zip(names, INPUTS[text], strict=True)))
    return found


def _check(module: Any, text: str, tolerance: float = 1e-5, more: tuple[Any, ...] = ()) -> None:
    """Compiled by TVM's default pipeline, the module computes what onnxruntime does."""
    machine = virtual_machine(compile_quickly(module))
    results = machine["main"](*(tvm.runtime.tensor(value) for value in INPUTS[text]), *more)
    results = [results] if hasattr(results, "numpy") else list(results)
    for got, want in zip(results, _wanted(text), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=tolerance, atol=tolerance)


each_model = pytest.mark.parametrize("text", INPUTS, ids=NAMES.get)

PASSES: dict[str, Callable[[], Any]] = {
    "ToMixedPrecision": relax.transform.ToMixedPrecision,
    "InlinePrivateFunctions": relax.transform.InlinePrivateFunctions,
    "EliminateCommonSubexpr": relax.transform.EliminateCommonSubexpr,
    "LiftTransformParams": relax.transform.LiftTransformParams,
    "BundleModelParams": relax.transform.BundleModelParams,
    "LambdaLift": relax.transform.LambdaLift,
    "zero": lambda: relax.get_pipeline("zero"),
}


@pytest.mark.parametrize(
    ("text", "name"),
    one_of(3, itertools.product(INPUTS, PASSES)),
    ids=lambda key: NAMES.get(key, key),
)
def test_passes_of_tvm_keep_the_results(text: str, name: str) -> None:
    with tvm.target.Target("llvm"):
        module = PASSES[name]()(_imported(text))
    no_weights = (tvm.runtime.convert([]),) if name == "BundleModelParams" else ()
    _check(module, text, 2e-2 if name == "ToMixedPrecision" else 1e-5, no_weights)


@each_model
def test_printed_modules_parse_back(text: str) -> None:
    module = _imported(text)
    back = tvm.script.from_source(module.script(show_meta=True))
    assert tvm_ffi.structural_equal(back, module)


TARGETS = [
    {"kind": "llvm", "mcpu": "haswell"},
    {"kind": "llvm", "mcpu": "skylake-avx512"},
    {"kind": "c"},
    {"kind": "cuda", "arch": "sm_80"},
]


@each_model
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.get("mcpu", target["kind"]))
def test_an_import_does_not_depend_on_the_target(text: str, target: dict[str, str]) -> None:
    with tvm.target.Target(target):
        module = emit(_model(text))
    assert tvm_ffi.structural_equal(module, _imported(text))


def _functions(module: Any) -> set[str]:
    return {
        variable.name_hint
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }


@pytest.mark.parametrize("text", [ROWS, SCAN], ids=NAMES.get)
def test_a_loop_becomes_one_kernel(text: str) -> None:
    with tvm.target.Target("llvm"):
        module = InlineLoops()(FuseLoops()(_imported(text)))
    assert _functions(module) == {"main"}
    assert "loop_kernel" in {variable.name_hint for variable in module.get_global_vars()}
    _check(module, text)


def test_the_body_of_a_loop_is_computed_in_vectors() -> None:
    """Also one of open sizes that has scalars, beside which TVM refuses a step of the schedule."""
    with tvm.target.Target("llvm"):
        module = InlineLoops()(FuseLoops()(_imported(SELECTIVE)))
    (text,) = (f.script() for v, f in module.functions_items() if v.name_hint == "loop_kernel")
    assert text.count("T.vectorized") >= 2
    # Only what is summed up is stored: all before the carried value is one pass.
    assert text.count("alloc_buffer((b, T.int64(16))") == 1
    _check(module, SELECTIVE)


@pytest.mark.parametrize("target", TARGETS[-2:], ids=lambda target: target["kind"])
def test_a_loop_stays_where_llvm_does_not_compile(target: dict[str, str]) -> None:
    with tvm.target.Target(target):
        module = FuseLoops()(_imported(ROWS))
    assert tvm_ffi.structural_equal(module, _imported(ROWS))


def test_what_calls_itself_is_not_inlined() -> None:
    module = InlineLoops()(_imported(WHILE))
    assert _functions(module) == {"main", "y_iteration", "y_next", "y_repeat"}
    _check(module, WHILE)


def test_a_recurrence_is_marked_and_becomes_kernels() -> None:
    marked = [f for f in _imported(GRU).functions.values() if RecurrentOperator.of(f)]
    operators = [operator.operator for f in marked if (operator := RecurrentOperator.of(f))]
    assert operators == ["GRU"]
    with tvm.target.Target("llvm"):
        module = LowerRecurrent()(_imported(GRU))
    assert _functions(module) == {"main"}
    assert "gru_recurrence" in {variable.name_hint for variable in module.get_global_vars()}
    _check(module, GRU)


def test_a_recurrence_stays_for_c_source() -> None:
    with tvm.target.Target("c"):
        module = LowerRecurrent()(_imported(GRU))
    assert tvm_ffi.structural_equal(module, _imported(GRU))


@pytest.mark.parametrize("target", ["llvm", {"kind": "llvm", "mcpu": "haswell"}])
def test_the_schedule_rules_of_any_module(target: Any) -> None:
    """Kernels that TVM's pipeline compiles get what they call."""
    module = tvm.script.from_source("""
@I.ir_module
class Attention:
    @R.function
    def main(
        x: R.Tensor(("n", 70), "float32"), w: R.Tensor((70, 50), "float32")
    ) -> R.Tensor(("n", 50), "float32"):
        with R.dataflow():
            p = R.matmul(x, w)
            y = R.nn.softmax(p)
            R.output(y)
        return y
""")
    passes = relax.transform
    with tvm.target.Target(target) as found:
        module = tvm.transform.Sequential(
            [passes.LegalizeOps(), dlight.ApplyDefaultSchedule(*SCHEDULE_RULES)]
        )(module)
        machine = virtual_machine(tvm.compile(module, found))
    assert all(f.attrs["tirx.is_scheduled"] for f in kernels_of(module))
    generator = np.random.default_rng(0)
    w = generator.standard_normal((70, 50), dtype=np.float32)
    for rows in (1, 5, 40):
        x = generator.standard_normal((rows, 70), dtype=np.float32)
        exponentials = np.exp(x @ w - (x @ w).max(1, keepdims=True))
        want = exponentials / exponentials.sum(1, keepdims=True)
        got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_the_passes_are_an_attribute_of_the_package() -> None:
    command = "import looplift; print(looplift.transform.FuseLoops().info.name)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.stdout.strip() == "looplift.FuseLoops", done.stderr
