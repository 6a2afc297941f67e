"""The choice of layouts for images between kernels, and the sizes that it estimates."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax, tirx

from looplift.lowering.compile import as_target
from looplift.lowering.scheduling.layouts.image_layout import choose_image_layouts
from looplift.lowering.scheduling.relax.usual_sizes import estimate, estimated_elements, usual_sizes

WEIGHTS = np.ones((32, 64, 1, 1), np.float32)


BEFORE = """
@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def permute(
        x: T.Buffer((2, 8, 9, 64), "float32"), y: T.Buffer((2, 64, 8, 9), "float32")
    ) -> None:
        for n, c, h, w in T.grid(2, 64, 8, 9):
            with T.sblock("permute"):
                vn, vc, vh, vw = T.axis.remap("SSSS", [n, c, h, w])
                y[vn, vc, vh, vw] = x[vn, vh, vw, vc]

    @T.prim_func(private=True, s_tir=True)
    def convolution(
        x: T.Buffer((2, 64, 8, 9), "float32"),
        f: T.Buffer((32, 64, 1, 1), "float32"),
        y: T.Buffer((2, 32, 8, 9), "float32"),
    ) -> None:
        for n, c, h, w, k in T.grid(2, 32, 8, 9, 64):
            with T.sblock("convolution"):
                vn, vc, vh, vw, vk = T.axis.remap("SSSSR", [n, c, h, w, k])
                with T.init():
                    y[vn, vc, vh, vw] = T.float32(0)
                y[vn, vc, vh, vw] = y[vn, vc, vh, vw] + x[vn, vk, vh, vw] * f[vc, vk, 0, 0]

    @R.function
    def main(
        x: R.Tensor((2, 8, 9, 64), "float32"), f: R.Tensor((32, 64, 1, 1), "float32")
    ) -> R.Tensor((2, 32, 8, 9), "float32"):
        cls = Before
        with R.dataflow():
            p = R.call_tir(cls.permute, (x,), out_ty=R.Tensor((2, 64, 8, 9), "float32"))
            y = R.call_tir(cls.convolution, (p, f), out_ty=R.Tensor((2, 32, 8, 9), "float32"))
            R.output(y)
        return y
"""
"""A convolution of a single tap on a transposed image; `f` becomes a constant."""


EXPECTED = """
@I.ir_module
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def permute_last(
        x: T.Buffer((2, 8, 9, 64), "float32"), y: T.Buffer((2, 8, 9, 64), "float32")
    ) -> None:
        for n, h, w, c in T.grid(2, 8, 9, 64):
            with T.sblock("permute"):
                vn, vh, vw, vc = T.axis.remap("SSSS", [n, h, w, c])
                y[vn, vh, vw, vc] = x[vn, vh, vw, vc]

    @T.prim_func(private=True, s_tir=True)
    def convolution_last(
        x: T.Buffer((2, 8, 9, 64), "float32"),
        f: T.Buffer((32, 64, 1, 1), "float32"),
        y: T.Buffer((2, 8, 9, 32), "float32"),
    ) -> None:
        for n, h, w, c, k in T.grid(2, 8, 9, 32, 64):
            with T.sblock("convolution"):
                vn, vh, vw, vc, vk = T.axis.remap("SSSSR", [n, h, w, c, k])
                with T.init():
                    y[vn, vh, vw, vc] = T.float32(0)
                y[vn, vh, vw, vc] = y[vn, vh, vw, vc] + x[vn, vh, vw, vk] * f[vc, vk, 0, 0]

    @R.function
    def main(
        x: R.Tensor((2, 8, 9, 64), "float32"), f: R.Tensor((32, 64, 1, 1), "float32")
    ) -> R.Tensor((2, 32, 8, 9), "float32"):
        cls = Expected
        with R.dataflow():
            p = R.call_tir(cls.permute_last, (x,), out_ty=R.Tensor((2, 8, 9, 64), "float32"))
            q = R.call_tir(cls.convolution_last, (p, f), out_ty=R.Tensor((2, 8, 9, 32), "float32"))
            y = R.permute_dims(q, [0, 3, 1, 2])
            R.output(y)
        return y
"""
"""The image between the kernels has channels last; the result of the function does not."""


def with_weights(text: str) -> tvm.IRModule:
    module = tvm.script.from_source(text)
    return relax.transform.BindParams("main", {"f": WEIGHTS})(module)


def chosen(module: tvm.IRModule) -> tvm.IRModule:
    with as_target("native"):
        return choose_image_layouts(module)


def test_a_convolution_reads_the_image_that_was_transposed() -> None:
    expected = relax.transform.LegalizeOps()(with_weights(EXPECTED))
    ir.assert_structural_equal(chosen(with_weights(BEFORE)), expected)


def test_weights_that_are_no_constants_keep_the_layout() -> None:
    module = tvm.script.from_source(BEFORE)
    ir.assert_structural_equal(chosen(module), module)


def test_sizes_are_estimated_from_others() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    assert estimate(tirx.floordiv(n + 3, 2) * m, {n: 5, m: 7}) == 28
    assert estimate(n, {}) == 224
    assert estimate(tirx.floordiv(m, n), {n: 0, m: 7}) == 224
    assert estimated_elements([n, m - 9], {n: 5, m: 7}) == 0
    assert estimated_elements([n, m], {n: 5, m: 7}) == 35


def test_sizes_that_a_function_computes() -> None:
    module = tvm.script.from_source("""
@I.ir_module
class Halves:
    @R.function
    def main(x: R.Tensor(("n",), "float32")) -> R.Tensor(ndim=1, dtype="float32"):
        n, m = T.int64(), T.int64()
        s = R.call_pure_packed("copy", R.shape([n // 2]), ty_args=[R.Shape(ndim=1)])
        _ = R.match_cast(s, R.Shape([m]))
        y = R.zeros(R.shape([m]), "float32")
        return y
""")
    found = usual_sizes(module["main"].body)
    assert {variable.name: size for variable, size in found.items()} == {"m": 112}
