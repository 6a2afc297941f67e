"""Constant, ConstantOfShape and Range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

from .inputs import Load, check_reference, output_dims, random

CONSTANTS = {
    "value_float = 2.5": np.float32(2.5),
    "value_int = 7": np.int64(7),
    "value_floats = [1.5, 2.5]": np.array([1.5, 2.5], np.float32),
    "value_ints = [3, 4]": np.array([3, 4]),
    "value = double[2] {1.0, 2.0}": np.array([1, 2], np.float64),
    "value = bool {1}": np.array(True),
}


@pytest.mark.parametrize("attribute", CONSTANTS)
def test_constants_in_all_forms(imported: Load, attribute: str) -> None:
    want = np.asarray(CONSTANTS[attribute])
    kind = {"float32": "float", "float64": "double"}.get(str(want.dtype), want.dtype)
    shape = f"[{', '.join(map(str, want.shape))}]" if want.shape else ""
    model = imported(f"g () => ({kind}{shape} y) {{ y = Constant <{attribute}> () }}")
    (got,) = model.run()
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
def test_a_sparse_constant(imported: Load, indices: Any) -> None:
    values = helper.make_tensor("values", TensorProto.FLOAT, [2], [3.0, 4.0])
    places = np.array(indices)
    positions = helper.make_tensor("i", TensorProto.INT64, places.shape, places.reshape(-1))
    sparse = helper.make_sparse_tensor(values, positions, [2, 3])
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph([node], "g", [], [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (got,) = imported(model.SerializeToString()).run()
    np.testing.assert_array_equal(got, [[0, 3, 0], [0, 0, 4]])


def test_constant_of_a_shape_that_is_an_input(imported: Load) -> None:
    model = imported("g (int64[2] s) => (float[a, b] y) { y = ConstantOfShape(s) }")
    model.check(np.array([2, 3]))
    model.check(np.array([0, 3]))


@pytest.mark.parametrize("sizes", [(2, 3), (0, 3)])
def test_a_tensor_of_infinities(imported: Load, sizes: tuple[int, int]) -> None:
    """With constant sizes, and with those of the run; also the maximum of no elements."""
    model = imported("""g (float[n, 0] x, int64[2] s) => (float[2, 3] y, float[a, b] z, float[n] m)
        <int64[2] t = {2, 3}> {
        y = ConstantOfShape<value = float[1] {inf}>(t)
        z = ConstantOfShape<value = float[1] {nan}>(s) m = ReduceMax<axes = [1], keepdims = 0>(x) }""")
    model.check(np.zeros((3, 0), np.float32), np.array(sizes))


def test_tvm_cannot_lower_a_full_of_an_infinity() -> None:
    """Where this fails, TVM has mended it, and the converters can use relax.op.full."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        infinity = relax.const(np.float32(np.inf))
        builder.emit_func_output(builder.emit(relax.op.full((2, 3), infinity, "float32")))
    with pytest.raises(TypeError):
        relax.transform.LegalizeOps()(builder.get())


def test_the_length_of_a_range_is_symbolic(imported: Load) -> None:
    """The sum of a range and a tensor of its length has that length."""
    model = imported("""
    g (float[n, m] x) => (float[n] y, int64[k] z, int64[j] w) {
        zero = Constant <value_int = 0> ()
        one = Constant <value_int = 1> ()
        two = Constant <value_int = 2> ()
        back = Constant <value_int = -1> ()
        axis = Constant <value_ints = [1]> ()
        s = Shape(x) a = Gather(s, zero) b = Gather(s, one)
        r = Range(zero, a, one) f = Cast <to = 1> (r)
        total = ReduceSum <keepdims = 0> (x, axis)
        y = Add(f, total)
        z = Range(a, b, two)
        w = Range(b, zero, back)
    }""")
    assert output_dims(model) == ["n"]
    for shape in ((3, 8), (5, 2), (4, 4)):
        model.check(random(*shape))


def test_eye_like(imported: Load) -> None:
    model = imported("""
    <ir_version: 10, opset_import: ["" : 22]>
    g (int32[n, m] x) => (int32[n, m] y, double[n, m] z, bool[n, m] b) {
        y = EyeLike (x) z = EyeLike <dtype = 11, k = -1> (x) b = EyeLike <dtype = 9, k = 1> (x)
    }""")
    for shape in ((3, 4), (1, 1), (0, 2)):
        check_reference(model, np.zeros(shape, np.int32))


def test_mel_weight_matrix(imported: Load) -> None:
    model = imported("""
    g (int64 bins, int64 length, int64 rate, float low, float high) => (float[?, ?] y) {
        y = MelWeightMatrix (bins, length, rate, low, high)
    }""")
    for bins, length, rate, low, high in ((8, 16, 8192, 0, 4096), (20, 512, 16000, 80, 7600)):
        scalars = [np.array(value) for value in (bins, length, rate)]
        check_reference(model, *scalars, np.float32(low), np.float32(high))
    constant = imported("""
    g (float low) => (double[?, ?] y) <int64 b = {4}, int64 n = {9}, int32 r = {100}, float h = {50}> {
        y = MelWeightMatrix <output_datatype = 11> (b, n, r, low, h)
    }""")
    (got,) = constant.run(np.float32(0))
    assert (got.shape, got.dtype) == ((5, 4), np.float64)


@pytest.mark.parametrize("dtype", ["int64", "float"])
@pytest.mark.parametrize("step", ["", ', ""'])
def test_a_range_without_a_step(imported: Load, dtype: str, step: str) -> None:
    model = imported(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g ({dtype} a, {dtype} b) => ({dtype}[n] y) {{ y = com.microsoft.Range (a, b{step}) }}""")
    kind = np.int64 if dtype == "int64" else np.float32
    for first, limit in ((0, 9), (3, 4), (5, 5), (5, 2)):
        model.check(np.array(first, kind), np.array(limit, kind))


def test_a_range_between_sizes_without_a_step(imported: Load) -> None:
    model = imported("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[n, m] x) => (int64[n] y) {
        zero = Constant <value_int = 0> ()
        s = Shape(x) a = Gather(s, zero)
        y = com.microsoft.Range(zero, a)
    }""")
    assert output_dims(model) == ["n"]
    model.check(random(3, 8))


@pytest.mark.parametrize("dtype", ["int64", "float"])
def test_a_range_with_a_step_of_0(imported: Load, dtype: str) -> None:
    model = imported(
        f"g ({dtype} a, {dtype} b, {dtype} s) => ({dtype}[n] y) {{ y = Range(a, b, s) }}"
    )
    kind = np.int64 if dtype == "int64" else np.float32
    with pytest.raises(Exception, match="match_cast error"):
        model.run(*(np.array(number, kind) for number in (0, 9, 0)))
    model.check(*(np.array(number, kind) for number in (0, 9, 2)))
