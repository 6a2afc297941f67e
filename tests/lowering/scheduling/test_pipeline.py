"""The pipeline, the schedules it gives kernels, and `looplift.compile`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.kernels.math_functions import with_exact_functions, with_fast_math
from looplift.lowering.scheduling.kernels.nests import inlined, nests_of
from looplift.lowering.scheduling.kernels.schedule import schedule_kernel
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.relax.dataflow import split_blocks

from ...samples import one_of
from ..compiled import NATIVE, UNOPTIMIZED, virtual_machine
from ..conftest import Imported, parse
from ..kernel_modules import kernels_of
from .test_kernels import COUNTED, count, floats

Array = np.ndarray[Any, Any]

MODELS = {
    "product": ("float[16, 128] x, float[128, 512] w", "float[16, 512] y", "y = MatMul (x, w)"),
    "any rows": ("float[n, 128] x, float[128, 96] w", "float[n, 96] y", "y = MatMul (x, w)"),
    "all symbolic": ("float[n, k] x, float[k, m] w", "float[n, m] y", "y = MatMul (x, w)"),
    "odd": ("float[5, 7] x, float[7, 13] w", "float[5, 13] y", "y = MatMul (x, w)"),
    "narrow": ("float[12, 7] x, float[7, 2] w", "float[12, 2] y", "y = MatMul (x, w)"),
    "turned": (
        "float[16, 128] x, float[64, 128] w", "float[16, 64] y", "y = Gemm <transB = 1> (x, w)",
    ),
    "doubles": ("double[8, 16] x, double[16, 24] w", "double[8, 24] y", "y = MatMul (x, w)"),
    "integers": ("int32[8, 16] x, int32[16, 24] w", "int32[8, 24] y", "y = MatMul (x, w)"),
    "vector": ("float[64] x, float[64] w", "float y", "y = MatMul (x, w)"),
    "convolution": (
        "float[1, 16, n] x, float[32, 16, 5] w", "float[1, 32, k] y",
        "y = Conv <kernel_shape = [5], pads = [2, 2], strides = [2]> (x, w)",
    ),
    "plane": (
        "float[1, 8, 16, 16] x, float[8, 8, 3, 3] w", "float[1, 8, 16, 16] y",
        "y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)",
    ),
    "norm": (
        "float[64, 256] x", "float[64, 256] y",
        """mean = ReduceMean <axes = [-1]> (x)
        rest = Sub (x, mean)
        square = Mul (rest, rest)
        variance = ReduceMean <axes = [-1]> (square)
        deviation = Sqrt (variance)
        y = Div (rest, deviation)""",
    ),
    "sizes": (
        "float[n, m] x", "float[n] y",
        """columns = Shape <start = 1> (x)
        rows = Shape <end = 1> (x)
        number = Cast <to = 1> (columns)
        y = Expand (number, rows)""",
    ),
    "softmax": ("float[n, 48] x", "float[n, 48] y", "y = Softmax (x)"),
    "rows": ("float[32, 48] x", "float[48] y", "y = ReduceMax <axes = [0], keepdims = 0> (x)"),
    "all": ("float[32, 48] x", "float y", "y = ReduceSum <keepdims = 0> (x)"),
    "chain": (
        "float[n, m] x", "float[n, m] y",
        "a = Tanh (x) b = Sigmoid (a) c = Exp (b) d = Mul (c, c) y = Add (d, x)",
    ),
    "moved": (
        "float[4, 6, 8] x", "float[8, 24] y",
        """t = Transpose <perm = [2, 0, 1]> (x)
        s = Constant <value = int64[2] {8, 24}> ()
        y = Reshape (t, s)""",
    ),
    "broadcast": ("float[16] x, float[8, 16] w", "float[8, 16] y", "e = Exp (x) y = Mul (e, w)"),
}  # fmt: skip
"""Inputs, outputs and nodes."""
SIZES = ({"n": 1, "m": 1, "k": 1}, {"n": 33, "m": 20, "k": 48}, {"n": 64, "m": 16, "k": 5})


@pytest.mark.parametrize("name", one_of(2, MODELS))
def test_scheduled_kernels_compute_the_same(name: str, imported: Callable[..., Imported]) -> None:
    inputs, outputs, nodes = MODELS[name]
    model = imported(f"model ({inputs}) => ({outputs}) {{ {nodes} }}")
    machine = virtual_machine(looplift.compile(model.module, NATIVE))
    for sizes in SIZES:
        feed = [
            random_tensor(value, sizes, seed) for seed, value in enumerate(model.model.graph.input)
        ]
        names = [value.name for value in model.model.graph.input]
        (wanted,) = model.session.run(None, dict(zip(names, feed, strict=True)))
        got = machine["main"](*(tvm.runtime.tensor(value) for value in feed)).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "element"), [("Tanh", "float"), ("Tanh", "double"), ("Softplus", "float")]
)
def test_a_long_chain_of_functions(
    op: str, element: str, imported: Callable[..., Imported]
) -> None:
    """In one expression the first argument would occur 5 ** 14 times."""
    nodes = " ".join(f"t{i} = {op} (a{i}) a{i + 1} = Sub (t{i}, x)" for i in range(14))
    text = f"({element}[n] x) => ({element}[n] y) {{ a0 = Neg (x) {nodes} y = Identity (a14) }}"
    model = imported(f"model {text}")
    machine = virtual_machine(looplift.compile(model.module, UNOPTIMIZED))
    for size in (0, 1, 37):
        x = np.linspace(-3, 3, size).astype(np.float32 if element == "float" else np.float64)
        (wanted,) = model.session.run(None, {"x": x})
        got = machine["main"](tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def random_tensor(value: Any, sizes: dict[str, int], seed: int) -> Array:
    kind = value.type.tensor_type
    shape = [dim.dim_value or sizes[dim.dim_param] for dim in kind.shape.dim]
    content = np.random.default_rng(seed).standard_normal(shape)
    if kind.elem_type == 6:
        return (content * 9).astype(np.int32)
    return content.astype(np.float64 if kind.elem_type == 11 else np.float32)


PRODUCT = "model (float[16, 64] x, float[64, 128] w) => (float[16, 128] y) { y = MatMul (x, w) }"


def kernels(module: Any) -> list[Any]:
    return [
        function for function in module.functions.values() if isinstance(function, tirx.PrimFunc)
    ]


@pytest.mark.parametrize("size", [5, 20, 32])
def test_kernels_that_write_in_place(size: int, imported: Callable[..., Imported]) -> None:
    """Such a kernel must not compute an element twice: the second time it would read its result."""
    shape = f"float[{size}]"
    nodes = "a = Add (x, z) b = Mul (a, z) y = Add (b, z)"
    model = imported(f"model ({shape} x, {shape} z) => ({shape} y) {{ {nodes} }}")
    with tvm.target.Target("llvm"):
        module = relax.transform.DataflowUseInplaceCalls()(model.module)
    assert "call_tir_inplace" in module.script()
    machine = virtual_machine(looplift.compile(module, NATIVE))
    x, z = floats(size), floats(size, seed=1)
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(z)).numpy()
    np.testing.assert_allclose(got, (x + z) * z + z, rtol=1e-5)


ROWS = """<ir_version: 10, opset_import: ["" : 20]>
g (bool[A,B,C] x) => (bool[?,?,?] y) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] open = {-1}> {
  n = Shape<start=2>(x) s = Shape<start=0, end=2>(x) e = Concat<axis=0>(zero, s)
  none = ConstantOfShape<value=bool[1]{0}>(e)
  y = Loop(n, , none) <body = b (int64 i, bool ci, bool[?,?,?] r) => (bool co, bool[?,?,?] rn) {
    co = Identity(ci) k = Reshape(i, open) p = Slice(x, k, two, two) q = Cast<to=6>(p)
    t = ReduceSum<keepdims=0>(q, two) sh = Shape(t) z = ConstantOfShape<value=bool[1]{0}>(sh)
    u = Unsqueeze(z, zero) rn = Concat<axis=0>(r, u) }> }"""


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 0), (0, 1, 1)])
def test_sizes_are_computed_before_a_kernel_reads_them(shape: tuple[int, ...]) -> None:
    """The type of the inlined loop has a size of its own, where the loop has a computed one."""
    module = looplift.from_onnx(onnx.parser.parse_model(ROWS))
    machine = virtual_machine(looplift.compile(module, NATIVE))
    got = machine["main"](tvm.runtime.tensor(np.ones(shape, bool))).numpy()
    np.testing.assert_array_equal(got, np.zeros((shape[2], *shape[:2]), bool))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array(-1), np.array([[2, 0], [1, -3]])], ids=["0d", "2d"])
def test_gathers_print_no_warning(
    axis: int, indices: Array, capfd: pytest.CaptureFixture[str]
) -> None:
    """TVM would print for each that it "segfaults" for indices outside of the data."""
    dims = f"[{','.join(map(str, indices.shape))}]" if indices.ndim else ""
    sizes = ",".join("?" * (2 + indices.ndim))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,N,3] x, int64{dims} i) => (float[{sizes}] y) {{ y = Gather<axis={axis}>(x, i) }}""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    x = floats(3, 3, 3)
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(indices)).numpy()
    np.testing.assert_array_equal(got, np.take(x, indices, axis))
    assert "Fast mode" not in "".join(capfd.readouterr())


def test_scatters_print_no_warning(capfd: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        s (float[n, 3] x, int64[m, 3] i, float[m, 3] u) => (float[n, 3] y) {
            y = ScatterElements (x, i, u) }""")
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    given = floats(4, 3), np.array([[1, 0, 3]]), floats(1, 3)
    got = machine["main"](*map(tvm.runtime.tensor, given)).numpy()
    want = given[0].copy()
    np.put_along_axis(want, given[1], given[2], 0)
    np.testing.assert_array_equal(got, want)
    assert "pragma" not in "".join(capfd.readouterr())


def test_a_module_with_empty_constants_can_be_exported(
    imported: Callable[..., Imported], tmp_path: Path
) -> None:
    model = imported("""model (float[2, N] x, bool c) => (float[2, M] y, float[2, 0] z, float[2, ?] u)
      <float[2, 0] none = {}> {
        y = Concat<axis=1>(x, none) z = Identity(none)
        u = If(c) <then_branch = t () => (float[2, ?] a) { a = Identity(none) },
                   else_branch = e () => (float[2, ?] b) { b = Exp(x) }> }""")
    library = tmp_path / "module.so"
    looplift.compile(model.module).export_library(str(library))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    x = floats(2, 3)
    for condition, columns in ((True, 0), (False, 3)):
        y, z, u = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(np.array(condition)))
        np.testing.assert_array_equal(y.numpy(), x)
        assert (z.shape, u.shape) == ((2, 0), (2, columns))


def test_sizes_that_tvm_simplifies_to_and_fro() -> None:
    n = tirx.Var("n", "int64")
    quotient = tirx.floordiv(n + 1, 3)
    rest = tirx.max(n - quotient - 1, tirx.const(0, "int64"))
    least = tirx.min(tirx.const(1, "int64"), n) - tirx.min(tirx.const(0, "int64"), n)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([n], "float32"))
    with builder.function("main", [x]):
        size = quotient + rest + least
        made = builder.emit_te(lambda a: te.compute([size], lambda i: a[i % n]), x)
        builder.emit_func_output(made)
    machine = virtual_machine(looplift.compile(builder.get(), NATIVE))
    given = floats(5)
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_array_equal(got, given[np.arange(2 + 2 + 1) % 5])


def test_the_pipeline_has_a_name(imported: Callable[..., Imported]) -> None:
    model = imported(PRODUCT)
    compiled = tvm.compile(model.module, target="llvm", relax_pipeline="looplift")
    x, w = floats(16, 64), floats(64, 128, seed=1)
    machine = relax.VirtualMachine(compiled, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w)).numpy()
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-5)


def test_products_are_computed_in_vectors_and_registers(imported: Callable[..., Imported]) -> None:
    (kernel,) = kernels(relax.transform.LegalizeOps()(imported(PRODUCT).module))
    text = schedule_kernel(kernel).script()
    assert "T.vectorized" in text
    assert 'scope="local"' in text


@pytest.mark.parametrize(("choose", "expected"), [(tirx.Select, True), (tirx.if_then_else, False)])
def test_only_a_choice_that_evaluates_both_values_is_computed_in_vectors(
    choose: Any, expected: bool
) -> None:
    x = te.placeholder((9, 64), "float32")
    row = te.reduce_axis((0, 9))

    def total(column: Any) -> Any:
        return te.sum(choose(x[row, column] > 0, x[row, column], x[row, 0]), axis=row)

    kernel = te.create_prim_func([x, te.compute((64,), total)])
    assert ("T.vectorized" in schedule_kernel(kernel).script()) == expected


def test_a_kernel_with_a_schedule_is_left_alone(imported: Callable[..., Imported]) -> None:
    (kernel,) = kernels(relax.transform.LegalizeOps()(imported(PRODUCT).module))
    scheduled = schedule_kernel(kernel)
    assert schedule_kernel(scheduled).same_as(scheduled)


def test_a_kernel_without_blocks_is_left_alone() -> None:
    kernel = elementwise(lambda x: x + x, 16)
    assert schedule_kernel(kernel).same_as(kernel)


def test_work_is_not_repeated_for_every_reader(imported: Callable[..., Imported]) -> None:
    """exp of 16 numbers, read by 8 rows, stays a loop of its own."""
    inputs, outputs, nodes = MODELS["broadcast"]
    module = imported(f"model ({inputs}) => ({outputs}) {{ {nodes} }}").module
    passes = relax.transform
    fused = tvm.transform.Sequential(
        [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FuseOps(), passes.FuseTIR()]
    )(module)
    (kernel,) = kernels(fused)
    schedule = s_tir.Schedule(schedule_kernel(kernel))
    assert len(schedule.get_child_blocks(schedule.get_sblock("root"))) == 2


def test_every_kernel_keeps_its_noalias(imported: Callable[..., Imported]) -> None:
    """With a symbolic size, the last kernel by name is TVM's own and promises nothing."""
    inputs, outputs, nodes = MODELS["chain"]
    model = imported(f"model ({inputs}) => ({outputs}) {{ {nodes} }}")
    with tvm.target.Target("llvm"):
        lowered = relax.get_pipeline("looplift")(model.module)
    last = max(lowered.get_global_vars(), key=lambda variable: variable.name_hint)
    assert lowered[last].attrs["tirx.noalias"]
    assert last.name_hint == "zz_noalias"


@pytest.mark.parametrize(
    ("function", "reference"),
    [(ib.exp, np.exp), (ib.tanh, np.tanh), (ib.sigmoid, lambda x: 1 / (1 + np.exp(-x)))],
    ids=["exp", "tanh", "sigmoid"],
)
def test_fast_math_is_as_precise_as_float32(
    function: Callable[[Any], Any], reference: Callable[[Array], Array]
) -> None:
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 88.72, 88.73, -87.5, -103.0, -104.0, -1e30]
    x = np.concatenate([np.linspace(-120, 120, 4084), edges]).astype(np.float32)
    kernel = with_fast_math(elementwise(function, len(x)))
    assert not any(name in kernel.script() for name in ("T.exp", "T.tanh", "T.sigmoid"))
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), target="llvm")
    output = tvm.runtime.tensor(np.zeros_like(x))
    compiled["main"](tvm.runtime.tensor(x), output)
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=2e-7, atol=2e-38)


@pytest.mark.parametrize(
    ("function", "reference"), [(ib.log, np.log), (ib.log1p, np.log1p)], ids=["log", "log1p"]
)
def test_fast_logarithms_are_as_precise_as_float32(
    function: Callable[[Any], Any], reference: Callable[[Array], Array]
) -> None:
    edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, -0.5, 1e-45, 1e-39, 3.4e38, -1e-9]
    near_one = np.float32(1) + np.arange(-1000, 1000, dtype=np.float32) * np.float32(2**-23)
    spread = np.geomspace(1e-44, 3e38, 4096 - len(edges) - len(near_one))
    x = np.concatenate([edges, near_one, spread]).astype(np.float32)
    kernel = with_fast_math(elementwise(function, len(x)))
    assert "T.log" not in kernel.script()
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), target="llvm")
    output = tvm.runtime.tensor(np.zeros_like(x))
    compiled["main"](tvm.runtime.tensor(x), output)
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=3e-7)


@pytest.mark.parametrize(("function", "reference"), [(ib.sin, np.sin), (ib.cos, np.cos)])
def test_fast_sines_are_as_precise_as_float32(
    function: Callable[[Any], Any], reference: Callable[[Array], Array]
) -> None:
    edges = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        1e-40,
        np.pi,
        -np.pi / 2,
        1e5,
        1e7,
        -1e9,
        12345678.0,
    ]
    turns = np.arange(-1000, 1000) * (np.pi / 2)
    spread = np.geomspace(1e-6, 1e7, 2088)
    x = np.concatenate([edges, turns, spread]).astype(np.float32)[:4096]
    kernel = with_fast_math(elementwise(function, len(x)))
    assert not any(name in kernel.script() for name in ("T.sin", "T.cos"))
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), target="llvm")
    output = tvm.runtime.tensor(np.zeros_like(x))
    compiled["main"](tvm.runtime.tensor(x), output)
    with np.errstate(all="ignore"):
        wanted = reference(x.astype(np.float64)).astype(np.float32)
    got = output.numpy()
    np.testing.assert_allclose(got, wanted, rtol=4e-7, atol=1e-13)
    assert np.array_equal(np.signbit(got[x == 0]), np.signbit(wanted[x == 0]))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0, 2.5, -1.0])
def test_small_powers_are_products(exponent: float) -> None:
    x = np.linspace(-3, 9, 64).astype(np.float32)
    x[:4] = np.nan, np.inf, -np.inf, -0.0
    kernel = with_fast_math(elementwise(lambda x: ib.pow(x, tirx.const(exponent, "float32")), 64))
    assert ("T.pow" in kernel.script()) is (exponent not in (2, 3, 4))
    compiled = tvm.compile(tvm.IRModule({"main": kernel}), target="llvm")
    output = tvm.runtime.tensor(np.zeros_like(x))
    compiled["main"](tvm.runtime.tensor(x), output)
    with np.errstate(all="ignore"):
        wanted = (x.astype(np.float64) ** exponent).astype(np.float32)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=3e-7)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 5.0, 6.0, 0.0, -1.0, -2.0, 0.5, 2.5, -0.5])
def test_exact_powers(exponent: float) -> None:
    """Kernels for GPUs have them, whose own powers of negative numbers are NaN."""
    x = np.linspace(-3, 4, 64).astype(np.float32)
    x[:6] = np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-20
    source = elementwise(lambda x: ib.pow(x, tirx.const(exponent, "float32")), len(x))
    kernel = with_exact_functions(source)
    assert "T.pow(x[" not in kernel.script()
    output = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(tvm.IRModule({"main": kernel}), "llvm")["main"](tvm.runtime.tensor(x), output)
    with np.errstate(all="ignore"):
        exponents = np.full(len(x), exponent)  # NumPy computes other functions for single ones
        wanted = np.power(x.astype(np.float64), exponents).astype(np.float32)
    np.testing.assert_allclose(output.numpy(), wanted, rtol=3e-7)
    has_sign = np.signbit(output.numpy())[~np.isnan(wanted)]
    assert np.array_equal(has_sign, np.signbit(wanted)[~np.isnan(wanted)])


def test_sines_of_huge_numbers_are_sines() -> None:
    x = np.geomspace(1e12, 3e38, 64).astype(np.float32)
    compiled = tvm.compile(tvm.IRModule({"main": with_fast_math(elementwise(ib.sin, 64))}), "llvm")
    output = tvm.runtime.tensor(np.zeros_like(x))
    compiled["main"](tvm.runtime.tensor(x), output)
    assert np.abs(output.numpy()).max() <= 1


def elementwise(function: Callable[[Any], Any], size: int) -> tirx.PrimFunc:
    """A kernel of vectors of 16, which no pass has seen."""
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main", "tirx.noalias": True})
        source, target = (ib.arg(name, ib.buffer((size,), "float32")) for name in ("x", "y"))
        with ib.serial(size // 16) as step, ib.vectorized(16) as lane:
            ib.buffer_store(target, function(source[step * 16 + lane]), [step * 16 + lane])
    return builder.get()


RUN = """
import sys
import numpy as np
import tvm
from tvm import relax

library, feed, output = sys.argv[1:]
machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
values = np.load(feed)
results = machine["main"](*(tvm.runtime.tensor(values[name]) for name in values.files))
np.savez(output, *(result.numpy() for result in results))
assert "looplift" not in sys.modules
"""


@pytest.mark.parametrize("with_pipeline", [True, False])
def test_libraries_run_without_looplift(
    with_pipeline: bool, tmp_path: Path, imported: Callable[..., Imported]
) -> None:
    model = imported(COUNTED)
    compiled = (
        looplift.compile(model.module)
        if with_pipeline
        else tvm.compile(model.module, target="llvm")
    )
    compiled.export_library(str(tmp_path / "loop.so"))
    feed = (count(4), floats(3), floats(3, seed=1))
    np.savez(tmp_path / "feed.npz", *feed)
    arguments = [str(tmp_path / name) for name in ("loop.so", "feed.npz", "output.npz")]
    subprocess.run([sys.executable, "-c", RUN, *arguments], check=True, cwd=tmp_path)
    got = np.load(tmp_path / "output.npz")
    for name, wanted in zip(got.files, model.run(*feed), strict=True):
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6)


def test_an_unknown_target_is_refused(imported: Callable[..., Imported]) -> None:
    with pytest.raises(looplift.LoopliftError, match="does not know the target 'nonsense'"):
        looplift.compile(imported(PRODUCT).module, "nonsense")
    with pytest.raises(looplift.LoopliftError, match="Perhaps 'haswell' is meant"):
        looplift.compile(imported(PRODUCT).module, {"kind": "llvm", "mcpu": "haswel"})
    with pytest.raises(looplift.LoopliftError, match="takes an IRModule, not str"):
        looplift.compile("model.onnx")


def test_importing_looplift_does_not_import_tvm() -> None:
    check = "import sys, looplift; looplift.compile; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_sizes_are_defined_between_dataflow_blocks(imported: Callable[..., Imported]) -> None:
    """What needs sizes only, like the range, would be moved to before they are defined."""
    model = imported("""
    places (float[n] x) => (float[k] y) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        axis = Constant <value_ints = [0]> ()
        scaled = Mul (x, x)
        found = NonZero (scaled)
        counts = Shape <start = 1> (found)
        count = Squeeze (counts, axis)
        places = Range (zero, count, one)
        numbers = Cast <to = 1> (places)
        chosen = Squeeze (found, axis)
        values = Gather (scaled, chosen)
        y = Mul (numbers, values)
    }""")
    module = split_blocks(tvm.IRModule(dict(model.module.functions_items())))
    relax.analysis.well_formed(module)
    for block in module["main"].body.blocks:
        is_dataflow = isinstance(block, relax.DataflowBlock)
        assert all(isinstance(b, relax.MatchCast) != is_dataflow for b in block.bindings)
    machine = relax.VirtualMachine(looplift.compile(model.module), tvm.cpu())
    x = np.array([0, 2, 0, 3, 0, 1], np.float32)
    assert machine["main"](tvm.runtime.tensor(x)).numpy().tolist() == [0, 9, 2]


def test_sums_of_kernels_without_a_rule_become_registers(
    imported: Callable[..., Imported],
) -> None:
    """A schedule keeps them in an array of all results, which is compacted."""
    inputs, outputs, nodes = MODELS["doubles"]
    model = imported(f"model ({inputs}) => ({outputs}) {{ {nodes} }}")
    with tvm.target.Target("llvm"):
        lowered = relax.get_pipeline("looplift")(model.module)
    sizes: list[int] = []

    def visit(block: Any) -> None:
        for buffer in block.alloc_buffers:
            sizes.append(int(np.prod([int(size) for size in buffer.shape])))

    for kernel in lowered.functions.values():
        if isinstance(kernel, tirx.PrimFunc):
            tvm_ffi.structural_walk(kernel.body, (s_tir.SBlock, visit))
    assert sizes
    assert max(sizes) < 8 * 24


RECURRENCE = """model (float[T, B, 8] x, float[1, 64, 8] w, float[1, 64, 16] r)
    => (float[T, 1, B, 16] y) { y = LSTM <hidden_size = 16> (x, w, r) }"""


def test_compiles_by_name_and_under_instruments(imported: Callable[..., Imported]) -> None:
    model = imported(RECURRENCE)
    by_name = tvm.compile(model.module, "llvm", relax_pipeline="looplift")
    timing = tvm.ir.instrument.PassTimingInstrument()
    with tvm.transform.PassContext(instruments=[timing]):
        watched = looplift.compile(model.module, "llvm")
        assert "looplift.kernel_pipeline" in timing.render()
    inputs = [np.full(shape, 0.1, np.float32) for shape in ((3, 2, 8), (1, 64, 8), (1, 64, 16))]
    (expected,) = model.session.run(None, dict(zip("xwr", inputs)))
    for executable in (by_name, watched):
        given = virtual_machine(executable)["main"](*map(tvm.runtime.tensor, inputs))
        np.testing.assert_allclose(given.numpy(), expected, rtol=1e-5)


def test_compiles_a_recurrence_in_a_loop(imported: Callable[..., Imported]) -> None:
    """The mark of compacted kernels stays when a loop is inlined."""
    model = imported("""model (float[N, T, B, 8] x, float[1, 64, 8] w, float[1, 64, 16] r, int64 n)
        => (float[N, T, 1, B, 16] y) {
        y = Loop (n, "") <body = b (int64 i, bool c) => (bool d, float[T, 1, B, 16] z) {
            d = Identity (c) row = Gather (x, i)
            z = LSTM <hidden_size = 16, direction = "reverse"> (row, w, r) }> }""")
    x, w, r = (np.full(s, 0.1, np.float32) for s in ((2, 3, 2, 8), (1, 64, 8), (1, 64, 16)))
    (expected,) = model.session.run(None, {"x": x, "w": w, "r": r, "n": np.array(2)})
    machine = virtual_machine(looplift.compile(model.module, NATIVE))
    given = machine["main"](*map(tvm.runtime.tensor, (x, w, r, np.array(2))))
    np.testing.assert_allclose(given.numpy(), expected, rtol=1e-5)


def test_a_rectifier_keeps_nan(imported: Callable[..., Imported]) -> None:
    """As in onnxruntime, alone and after a product."""
    model = imported("""model (float[n, 4] x, float[4, 4] w) => (float[n, 4] y, float[n, 4] z) {
        y = Relu (x) p = MatMul (x, w) z = Relu (p) }""")
    machine = virtual_machine(looplift.compile(model.module, NATIVE))
    w = np.eye(4, dtype=np.float32)
    for rows in (1, 9, 40):
        x = np.resize(np.array([np.nan, -1, 2, np.inf, -np.inf, -0.0, 0], np.float32), (rows, 4))
        expected = model.session.run(None, {"x": x, "w": w})
        given = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(w))
        for right, result in zip(expected, given, strict=True):
            np.testing.assert_array_equal(result.numpy(), right)


def test_inlining_that_adds_nothing() -> None:
    """Three functions of functions are beyond the limit, but they are in one block already."""
    x = te.placeholder((8,), "float32", name="x")
    copy = te.compute((8,), lambda i: x[i], name="copy")
    mish = te.compute((8,), lambda i: te.tanh(te.log(te.exp(copy[i]) + 1.0)), name="mish")
    final = te.compute((8,), lambda i: mish[i] + x[i], name="final")
    assert _blocks(x, final) == ["final"]
    deeper = te.compute((8,), lambda i: te.tanh(mish[i]), name="deeper")
    assert _blocks(x, deeper) == ["mish", "deeper"]


def _blocks(*tensors: Any) -> list[str]:
    nests = nests_of(inlined(te.create_prim_func(tensors)))
    assert nests is not None
    return [nest.block.name_hint for nest in nests]


def test_a_long_sum_becomes_several_kernels() -> None:
    names = [f"x{number}" for number in range(70)]
    text = f"g ({', '.join(f'float[n] {name}' for name in names)}) => (float[n] y)"

    def most_parameters(module: tvm.IRModule) -> int:
        return max(len(kernel.params) for kernel in kernels_of(module))

    module = looplift.from_onnx(parse(f"{text} {{ y = Sum ({', '.join(names)}) }}"))
    with as_target("native"):
        assert most_parameters(lower_to_kernels(module)) == 66
        with tvm.transform.PassContext(config={"relax.FuseOps.max_depth": 32}):
            assert most_parameters(lower_to_kernels(module)) == 34
    main = virtual_machine(looplift.compile(module))["main"]
    numbers = np.arange(70, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    got = main(*map(tvm.runtime.tensor, numbers)).numpy()
    np.testing.assert_array_equal(got, numbers.sum(0))
