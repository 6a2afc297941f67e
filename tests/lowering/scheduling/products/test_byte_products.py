"""Products of bytes beside onnxruntime: exact for every size, type and zero point."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper

import looplift
from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.lowering.scheduling.products.byte_products import ByteProduct

from ....samples import one_of
from ...comparison import TARGETS, Array
from ...compiled import NATIVE, virtual_machine
from ...conftest import parse

SIZES = (0, 1, 2, 13, 40)
Feeds = Sequence[dict[str, int]]


def bytes_of(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(sum(shape))
    return generator.integers(limits.min, limits.max + 1, shape).astype(dtype)


def random(value: onnx.ValueInfoProto, given: dict[str, int]) -> Array:
    kind = value.type.tensor_type
    shape = [dim.dim_value or given[dim.dim_param] for dim in kind.shape.dim]
    if kind.elem_type == onnx.TensorProto.FLOAT:
        return np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return bytes_of(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), *shape)


def model_of(text: str, weights: dict[str, Array]) -> onnx.ModelProto:
    model = parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in weights.items()
    )
    return model


def check(text: str, weights: dict[str, Array], sizes: Feeds, target: Any = NATIVE) -> None:
    """Compiles a model and compares all bits with onnxruntime's."""
    model = model_of(text, weights)
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), target))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in sizes:
        feed = {value.name: random(value, given) for value in model.graph.input}
        got = machine["main"](*(tvm.runtime.tensor(value) for value in feed.values())).numpy()
        (want,) = session.run(None, feed)
        np.testing.assert_array_equal(got, want, err_msg=str(given))
        assert got.dtype == want.dtype


@pytest.mark.parametrize(
    ("left", "right", "target"),
    one_of(5, itertools.product(["uint8", "int8"], ["uint8", "int8"], TARGETS)),
)
def test_matrix_products(left: str, right: str, target: Any) -> None:
    """Of every combination of types, with a depth that words do not divide, and zero points."""
    text = f"""model ({left}[m, 37] x, {left} zx) => (int32[m, 50] y) {{
        y = MatMulInteger (x, w, zx, zw) }}"""
    weights = {"w": bytes_of(right, 37, 50), "zw": np.array(9, right)}
    check(text, weights, [{"m": m} for m in SIZES], target)


@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_products_of_stacks_that_are_no_constants(left: str) -> None:
    text = f"""model ({left}[b, m, k] x, {left}[b, k, n] w) => (int32[b, m, n] y) {{
        y = MatMulInteger (x, w) }}"""
    sizes = [
        {"b": b, "m": m, "k": k, "n": n}
        for b, m, k, n in (
            (1, 1, 1, 1),
            (2, 13, 7, 40),
            (3, 30, 64, 33),
            (0, 2, 4, 8),
        )
    ]
    check(text, {}, sizes)


def test_a_sum_of_no_products_is_zero() -> None:
    """onnxruntime returns memory that nothing wrote."""
    text = "model (uint8[m, k] x, int8[k, n] w) => (int32[m, n] y) { y = MatMulInteger (x, w) }"
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model_of(text, {})), NATIVE))
    empty = (np.zeros((5, 0), np.uint8), np.zeros((0, 3), np.int8))
    got = machine["main"](*map(tvm.runtime.tensor, empty)).numpy()
    np.testing.assert_array_equal(got, np.zeros((5, 3), np.int32))


EMPTY: dict[str, tuple[str, dict[str, Array], tuple[int, ...], tuple[int, ...]]] = {
    "stack of no rows": (
        "model (uint8[a, b, m, 5] x) => (int32[a, b, m, 7] y) { y = MatMulInteger (x, w) }",
        {"w": bytes_of(np.int8, 5, 7)},
        (2, 3, 0, 5),
        (2, 3, 0, 7),
    ),
    "empty stack": (
        "model (uint8[a, b, m, 5] x) => (int32[a, b, m, 7] y) { y = MatMulInteger (x, w) }",
        {"w": bytes_of(np.int8, 5, 7)},
        (2, 0, 3, 5),
        (2, 0, 3, 7),
    ),
    "images of no columns": (
        """model (uint8[b, 4, h, w] x) => (int32[b, 8, p, q] y) {
           y = ConvInteger <strides = [2, 2]> (x, f) }""",
        {"f": bytes_of(np.int8, 8, 4, 1, 1)},
        (1, 4, 5, 0),
        (1, 8, 3, 0),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_rows_and_no_columns(name: str) -> None:
    text, weights, given, wanted = EMPTY[name]
    machine = virtual_machine(
        looplift.compile(looplift.from_onnx(model_of(text, weights)), "native")
    )
    assert machine["main"](tvm.runtime.tensor(np.zeros(given, np.uint8))).shape == wanted


def test_products_of_one_factor() -> None:
    text = "model (uint8[m, 1] x) => (int32[m, 5] y) { y = MatMulInteger (x, w) }"
    check(text, {"w": bytes_of(np.int8, 1, 5)}, [{"m": m} for m in SIZES])


def test_a_zero_point_for_each_column() -> None:
    text = "model (uint8[m, 20] x) => (int32[m, 35] y) { y = MatMulInteger (x, w, zx, zw) }"
    weights = {
        "w": bytes_of(np.int8, 20, 35),
        "zx": np.array(200, np.uint8),
        "zw": bytes_of(np.int8, 35),
    }
    check(text, weights, [{"m": m} for m in SIZES])


def test_the_largest_sums() -> None:
    """The largest sums that bytes have: an instruction that saturates would be wrong."""
    text = "model (uint8[m, 4096] x) => (int32[m, 32] y) { y = MatMulInteger (x, w) }"
    model = model_of(text, {"w": np.full((4096, 32), -128, np.int8)})
    for target in TARGETS:
        machine = virtual_machine(looplift.compile(looplift.from_onnx(model), target))
        x = tvm.runtime.tensor(np.full((3, 4096), 255, np.uint8))
        assert (machine["main"](x).numpy() == -128 * 255 * 4096).all()


CONVOLUTIONS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "1x1": ("h, w", "", (24, 16, 1, 1)),
    "padded": ("h, w", "pads = [1, 1, 1, 1]", (24, 16, 3, 3)),
    "strided": ("h, w", "pads = [1, 0, 1, 1], strides = [2, 2]", (20, 16, 3, 3)),
    "dilated": ("h, w", "pads = [2, 1, 2, 1], dilations = [2, 1]", (5, 16, 5, 3)),
    "groups": ("h, w", "pads = [1, 1, 1, 1], group = 2", (12, 8, 3, 3)),
    "depthwise": ("h, w", "pads = [1, 1, 1, 1], group = 16", (16, 1, 3, 3)),
    "wide depthwise": ("h, w", "pads = [8, 8, 8, 8], group = 16", (16, 1, 17, 17)),
    "same": ("h, w", 'auto_pad = "SAME_UPPER", strides = [2, 2]', (9, 16, 3, 3)),
    "lines": ("h", "pads = [2, 2]", (20, 16, 5)),
    "strided lines": ("h", "pads = [2, 1], strides = [2]", (20, 16, 4)),
}


@pytest.mark.parametrize(
    ("name", "right"), one_of(5, itertools.product(CONVOLUTIONS, ["uint8", "int8"]))
)
def test_convolutions(name: str, right: str) -> None:
    """They are padded with the zero point of the data."""
    dims, attributes, shape = CONVOLUTIONS[name]
    places = "p, q" if "," in dims else "p"
    text = f"""model (uint8[b, 16, {dims}] x, uint8 zx) => (int32[b, c, {places}] y) {{
        y = ConvInteger <kernel_shape = [{", ".join(map(str, shape[2:]))}]
            {f", {attributes}" if attributes else ""}> (x, w, zx, zw) }}"""
    zero = 131 if right == "uint8" else 0
    weights = {"w": bytes_of(right, *shape), "zw": np.array(zero, right)}
    sizes = [{"b": b, "h": h, "w": h + 2} for b, h in ((1, 5), (2, 14), (1, 33), (0, 7))]
    check(text, weights, sizes)


@pytest.mark.parametrize(
    ("name", "target"),
    one_of(3, itertools.product(["padded", "strided"], TARGETS[1:])),
)
def test_convolutions_for_other_processors(name: str, target: Any) -> None:
    dims, attributes, shape = CONVOLUTIONS[name]
    text = f"""model (uint8[b, 16, {dims}] x) => (int32[b, c, p, q] y) {{
        y = ConvInteger <{attributes}> (x, w) }}"""
    weights = {"w": bytes_of(np.int8, *shape)}
    check(text, weights, [{"b": 2, "h": h, "w": h} for h in (5, 33)], target)


def test_a_convolution_is_requantised() -> None:
    """The scales and the bias follow the product in the same kernel."""
    text = """model (uint8[b, 16, h, w] x) => (uint8[b, 24, h, w] y) {
        y = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, f, t, zf, u, z, c) }"""
    weights = {
        "f": bytes_of(np.int8, 24, 16, 3, 3),
        "s": np.array(0.25, np.float32),
        "z": np.array(128, np.uint8),
        "t": np.linspace(0.5, 1, 24).astype(np.float32),
        "zf": np.zeros(24, np.int8),
        "u": np.array(1000, np.float32),
        "c": bytes_of(np.int8, 24).astype(np.int32),
    }
    check(text, weights, [{"b": 1, "h": 9, "w": 30}, {"b": 2, "h": 1, "w": 1}])
    kernels = lowered(text, weights)
    assert any("conv2d" in name and "round" in name for name in kernels)


def lowered(text: str, weights: dict[str, Array]) -> dict[str, Any]:
    """The kernels of a model before rules schedule them."""
    with as_target("native") as target:
        module = lower_to_kernels(looplift.from_onnx(model_of(text, weights)))
        rule = ByteProduct()
        return {
            variable.name_hint: rule.apply(kernel, target, False)
            for variable, kernel in module.functions_items()
            if isinstance(kernel, tvm.tirx.PrimFunc)
        }


def test_the_zero_point_of_a_run_follows_the_product() -> None:
    """What DynamicQuantizeLinear computes does not keep the rule from the product."""
    text = """model (float[n, 64] x) => (float[n, 40] y) {
        q, s, z = DynamicQuantizeLinear (x)
        i = MatMulInteger (q, w, z) c = Cast <to = 1> (i) y = Mul (c, s) }"""
    kernels = lowered(text, {"w": bytes_of(np.int8, 64, 40)})
    assert any("matmul" in name and schedule is not None for name, schedule in kernels.items())


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ({"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512vnni"]}, "vpdpbusd"),
        ({"kind": "llvm", "mcpu": "x86-64-v4"}, "vpmaddwd\t%zmm"),
        ({"kind": "llvm", "mcpu": "alderlake"}, "vpdpbusd"),
        ({"kind": "llvm", "mcpu": "haswell"}, "vpmaddwd"),
        ({"kind": "llvm", "mcpu": "x86-64"}, "pmaddwd"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "smlal"),
    ],
    ids=["avx512vnni", "avx512", "avxvnni", "avx2", "sse2", "neon"],
)
def test_instructions(target: Any, instruction: str) -> None:
    text = "model (uint8[n, 16] x) => (int32[n, 40] y) { y = MatMulInteger (x, w) }"
    model = model_of(text, {"w": bytes_of(np.int8, 16, 40)})
    compiled = looplift.compile(looplift.from_onnx(model), tvm.target.Target(target))
    assembly = compiled.mod.imports[0].inspect_source("asm")
    assert instruction in assembly
