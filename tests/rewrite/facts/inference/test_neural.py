"""Facts of products, convolutions, pools, resizes and recurrent operators hold on onnxruntime."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ....samples import one_of
from ...fact_cases import Case, cases

PRODUCTS = {
    "matrices": Case("g (float[N,3] x, float[3,M] w) => (y) { y = MatMul(x, w) }", {"y": "(N, M)"}),
    "batches": Case(
        "g (float[N,1,2,3] x, float[M,3,4] w) => (y) { y = MatMul(x, w) }", {"y": "(N, M, 2, 4)"}
    ),
    "vector_left": Case("g (float[3] x, float[N,3,4] w) => (y) { y = MatMul(x, w) }", {"y": "(N, 4)"}),
    "vector_right": Case("g (float[N,2,3] x, float[3] w) => (y) { y = MatMul(x, w) }", {"y": "(N, 2)"}),
    "vectors": Case("g (float[N] x, float[N] w) => (y) { y = MatMul(x, w) }", {"y": "()"}),
    "open_batches": Case("g (float[N,2,3] x, float[M,3,4] w) => (y) { y = MatMul(x, w) }"),
    "integers": Case(
        "g (uint8[N,3] x, uint8[3,M] w) => (y) { y = MatMulInteger(x, w) }", {"y": "(N, M)"}
    ),
    "gemm": Case(
        """g (float[N,3] x, float[3,M] w, float[1] b) => (a, c, d) { a = Gemm(x, w, b)
        t = Transpose(x) c = Gemm<transA=1>(t, w) u = Transpose(w) d = Gemm<transB=1>(x, u) }""",
        {"a": "(N, M)", "c": "(N, M)", "d": "(N, M)"},
    ),
    "gemm_of_open_rank": Case(
        "g (float[6] x, int64[R] t, float[3,M] w) => (y) { a = Reshape(x, t) y = Gemm(a, w) }",
        {"y": "(None, M)"},
        values={"t": [[2, 3], [6]]},
    ),
    "einsum": Case(
        'g (float[N,3] x, float[3,M] w) => (y) { y = Einsum<equation = "ij,jk->ki">(x, w) }'
    ),
    "quantized": Case(
        """g (float[N,3] x) => (y, z) <float s = {0.5}, uint8 o = {7}> { y = QuantizeLinear(x, s, o)
        z = DequantizeLinear(y, s, o) }""",
        {"y": "(N, 3)", "z": "(N, 3)"},
    ),
}  # fmt: skip


@cases(PRODUCTS)
def test_product(case: Case) -> None:
    case.check()


def _attributes(**given: object) -> str:
    return ", ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in given.items())


_WINDOWS: list[dict[str, Any]] = [
    {"strides": [s], "dilations": [d], "pads": [*p]}
    for s, d, p in itertools.product((1, 2, 3), (1, 2), ((0, 0), (1, 2)))
]
_AUTOMATIC: list[dict[str, Any]] = [
    {"strides": [s], "auto_pad": kind}
    for s, kind in itertools.product((1, 2, 3), ("SAME_UPPER", "SAME_LOWER", "VALID"))
]


@pytest.mark.parametrize("given", one_of(2, _WINDOWS + _AUTOMATIC), ids=lambda g: _attributes(**g))
def test_windows(given: dict[str, Any]) -> None:
    """Convolutions and pools over an axis of open length, down to less than a window."""
    same = _attributes(**given)
    nodes = {
        "a": f"Conv<{same}>(x, w)",
        "b": f"MaxPool<kernel_shape=[3], {same}>(x)",
        "c": f"AveragePool<kernel_shape=[3], {same}>(x)",
        "d": f"MaxPool<kernel_shape=[3], ceil_mode=1, {same}>(x)",
        "e": f"ConvTranspose<{same}>(x, v)",
    }
    for name, node in nodes.items():
        text = f"""g (float[N,2,L] x, float[3,2,3] w, float[2,3,3] v) => ({name}) {{
            {name} = {node} }}"""
        Case(text, sizes=(0, 1, 2, 3, 4, 5, 6, 7)).check()


@pytest.mark.parametrize("length", range(1, 9))
def test_windows_over_a_number(length: int) -> None:
    """With known lengths, rounding up takes part too."""
    nodes, outputs = [], []
    for place, given in enumerate(_WINDOWS + _AUTOMATIC):
        same = _attributes(**given)
        reach = 1 + 2 * max(given.get("dilations", [1]))
        if length + sum(given.get("pads", [])) < reach:
            continue
        for mode in (0, 1):
            for op in ("MaxPool", "AveragePool", "LpPool"):
                name = f"{op}_{place}_{mode}"
                nodes.append(f"{name} = {op}<kernel_shape=[3], ceil_mode={mode}, {same}>(x)")
                outputs.append(name)
        nodes.append(f"Conv_{place} = Conv<{same}>(x, w)")
        outputs.append(f"Conv_{place}")
    text = f"g (float[1,2,L] x, float[3,2,3] w) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}"
    Case(text, dims={"L": length}).check()


CONVOLUTIONS = {
    "groups": Case(
        "g (float[N,4,8,L] x, float[6,2,3,1] w) => (y) { y = Conv<group=2, pads=[1,0,1,0]>(x, w) }",
        {"y": "(N, 6, 8, L)"},
        sizes=(1, 2, 7),
    ),
    "same": Case(
        'g (float[N,1,L] x, float[1,1,3] w) => (y) { y = Conv<auto_pad="SAME_UPPER", strides=[2]>(x, w) }',
        {"y": "(N, 1, (L + 1) // 2)"},
        sizes=(1, 2, 7),
    ),
    "strided": Case(
        "g (float[N,1,L] x, float[1,1,3] w) => (y) { y = Conv<strides=[2], pads=[1,1]>(x, w) }",
        {"y": "(N, 1, (L + 1) // 2)"},
        sizes=(1, 2, 7),
    ),
    "rank_of_the_weight": Case(
        "g (float[6] x, int64[R] t, float[4,1,2] w) => (y) { a = Reshape(x, t) y = Conv(a, w) }",
        {"y": "(None, 4, None)"},
        values={"t": [[1, 1, 6], [6], [1, 6]]},
        sizes=(1, 2, 3),
    ),
    "integers": Case(
        "g (uint8[N,1,L] x, uint8[1,1,3] w) => (y) { y = ConvInteger(x, w) }",
        {"y": "(N, 1, L - 2)"},
        sizes=(3, 7),
    ),
    "transposed": Case(
        """g (float[N,2,L] x, float[2,3,3] w) => (y) {
        y = ConvTranspose<strides=[2], pads=[1,0], output_padding=[1], group=2>(x, w) }""",
        {"y": "(N, 6, 2 * L + 1)"},
        sizes=(1, 2, 7),
    ),
    "transposed_to_a_size": Case(
        "g (float[N,2,L] x, float[2,3,3] w) => (y) { y = ConvTranspose<output_shape=[9], strides=[2]>(x, w) }",
        {"y": "(N, 3, None)"},
        sizes=(4,),
    ),
    "transposed_same": Case(
        'g (float[N,2,L] x, float[2,3,3] w) => (y) { y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2]>(x, w) }',
        {"y": "(N, 3, None)"},
        sizes=(1, 2, 7),
    ),
    "pool_with_places": Case(
        "g (float[N,2,L] x) => (y, i) { y, i = MaxPool<kernel_shape=[2]>(x) }",
        sizes=(1, 2, 7),
    ),
    "global": Case(
        """g (float[N,2,L,M] x) => (a, b, c) { a = GlobalAveragePool(x) b = GlobalMaxPool(x)
        c = GlobalLpPool(x) }""",
        {"a": "(N, 2, 1, 1)", "b": "(N, 2, 1, 1)"},
        sizes=(1, 2, 7),
    ),
}  # fmt: skip


@cases(CONVOLUTIONS)
def test_convolution(case: Case) -> None:
    case.check()


NORMALIZATIONS = {
    "batch": Case(
        """g (float[N,3,L] x, float[3] s) => (y) { y = BatchNormalization(x, s, s, s, s) }""",
        {"y": "(N, 3, L)"},
    ),
    "batch_in_training": Case(
        """g (float[N,3,L] x, float[3] s) => (y, m, v) {
        y, m, v = BatchNormalization<training_mode=1>(x, s, s, s, s) }""",
        {"y": "(N, 3, L)", "m": "(3,)"},
        sizes=(1, 2, 7),
    ),
    "layer": Case(
        """g (float[N,3,4] x, float[4] s) => (y, m, d) { y, m, d = LayerNormalization(x, s) }""",
        {"y": "(N, 3, 4)", "m": "(N, 3, 1)"},
        sizes=(1, 2, 7),
    ),
    "layer_of_axis": Case(
        """g (float[N,3,4] x, float[3,4] s) => (y, m) { y, m = LayerNormalization<axis=1>(x, s) }""",
        {"m": "(N, 1, 1)"},
        sizes=(1, 2, 7),
    ),
    "group": Case(
        "g (float[N,4,L] x, float[4] s) => (y) { y = GroupNormalization<num_groups=2>(x, s, s) }",
        {"y": "(N, 4, L)"},
        sizes=(1, 2, 7),
    ),
    "dropout": Case("g (float[N] x) => (y, m) { y, m = Dropout(x) }", {"m": "(N,)"}),
    "dropout_at_opset_8": Case("g (float[N] x) => (y, m) { y, m = Dropout(x) }", opset=8),
    "dropout_at_opset_10": Case("g (float[N] x) => (y, m) { y, m = Dropout(x) }", opset=10),
}  # fmt: skip


@cases(NORMALIZATIONS)
def test_normalization(case: Case) -> None:
    case.check()


def _recurrent(op: str, gates: int, direction: str, knows: dict[str, str]) -> Case:
    ways = 2 if direction == "bidirectional" else 1
    results = "y, h, c" if op == "LSTM" else "y, h"
    return Case(
        f"""g (float[T,B,3] x) => ({results}) <int64[3] ws = {{{ways}, {gates * 2}, 3}},
        int64[3] rs = {{{ways}, {gates * 2}, 2}}> {{ w = ConstantOfShape(ws) r = ConstantOfShape(rs)
        {results} = {op}<hidden_size=2, direction="{direction}">(x, w, r) }}""",
        knows,
        sizes=(1, 2, 7),  # onnxruntime ends its process for an empty batch
    )


RECURRENT = {
    f"{op}_{way}": _recurrent(op, gates, way, {"y": f"(T, {ways}, B, 2)", "h": f"({ways}, B, 2)"})
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    for way, ways in (("forward", 1), ("reverse", 1), ("bidirectional", 2))
}


@cases(RECURRENT)
def test_recurrent(case: Case) -> None:
    case.check()


_RESIZE = (
    'Resize<mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric">'
)

RESIZES = {
    "double": Case(
        f"g (float[N,1,L] x) => (y) <float[3] s = {{1, 1, 2}}> {{ y = {_RESIZE}(x, , s) }}",
        {"y": "(N, 1, 2 * L)"},
        sizes=(1, 2, 7),
    ),
    "half": Case(
        f"g (float[N,1,L] x) => (y) <float[3] s = {{1, 1, 0.5}}> {{ y = {_RESIZE}(x, , s) }}",
        sizes=(2, 5, 7),
    ),
    "sizes": Case(
        f"g (float[N,1,L] x) => (y) <int64[3] s = {{1, 1, 9}}> {{ y = {_RESIZE}(x, , , s) }}",
        {"y": "(1, 1, 9)"},
        sizes=(1,),
    ),
    "sizes_of_dims": Case(
        f"""g (float[N,1,L] x, float[M] z) => (y) <int64[2] a = {{0, 1}}> {{ d = Shape(x)
        b = Gather(d, a) m = Shape(z) s = Concat<axis=0>(b, m) y = {_RESIZE}(x, , , s) }}""",
        {"y": "(N, 1, M)"},
        sizes=(1, 2, 7),
    ),
    "run_time_scales": Case(
        f"g (float[1,1,L] x, float[3] s) => (y) {{ y = {_RESIZE}(x, , s) }}",
        values={"s": [[1, 1, 2.0], [1, 1, 1.3]]},
        sizes=(1, 2, 7),
    ),
    "axes": Case(
        'g (float[N,1,L] x) => (y) <float[1] s = {2}> { y = Resize<axes=[2], mode="nearest">(x, , s) }',
        sizes=(1, 2, 7),
    ),
    "keep_aspect": Case(
        """g (float[1,1,4,6] x) => (y) <int64[2] s = {8, 8}> {
        y = Resize<axes=[2,3], keep_aspect_ratio_policy="not_larger", mode="nearest">(x, , , s) }"""
    ),
    "opset_10": Case(
        'g (float[N,1,L] x) => (y) <float[3] s = {1, 1, 2}> { y = Resize<mode="nearest">(x, s) }',
        {"y": "(N, 1, 2 * L)"},
        opset=10,
        sizes=(1, 2, 7),
    ),
    "upsample": Case(
        'g (float[1,1,N,L] x) => (y) <float[4] s = {1, 1, 2, 3}> { y = Upsample<mode="nearest">(x, s) }',
        {"y": "(1, 1, 2 * N, 3 * L)"},
        opset=9,
        sizes=(1, 2, 7),
    ),
    "upsample_attribute": Case(
        'g (float[1,1,N,L] x) => (y) { y = Upsample<mode="nearest", scales=[1.0,1.0,2.0,3.0]>(x) }',
        opset=7,
        sizes=(1, 2, 7),
    ),
}  # fmt: skip


@cases(RESIZES)
def test_resize(case: Case) -> None:
    case.check()


@pytest.mark.parametrize("tenths", range(3, 30, 2))
def test_resize_of_a_number_by_a_fraction(tenths: int) -> None:
    """The product of size and scale is rounded to single precision before it is cut off."""
    lengths = range(1, 31)
    nodes = " ".join(
        f"x{i} = RandomNormal<shape=[1,1,{i}]>() y{i} = {_RESIZE}(x{i}, , s)" for i in lengths
    )
    outputs = ", ".join(f"y{i}" for i in lengths)
    text = f"g () => ({outputs}) <float[3] s = {{1, 1, {tenths / 10}}}> {{ {nodes} }}"
    Case(text).check()


SUPPRESSIONS = {
    "any": Case(
        """g (float[B,N,4] x, float[B,L,N] s) => (y) <int64[1] m = {9}, float[1] t = {0.5}> {
        y = NonMaxSuppression(x, s, m, t) }""",
        {"y": "(None, 3)"},
    ),
    "none": Case(
        """g (float[1,N,4] x, float[1,1,N] s) => (y)
        <int64[1] z = {0}, int64[1] o = {1}, int64[1] two = {2}, int64[1] m = {9}> {
        a = Slice(x, z, z, o) b = Slice(s, z, z, two) y = NonMaxSuppression(a, b, m) }""",
        {"y": "(0, 3)"},
    ),
}


@cases(SUPPRESSIONS)
def test_suppression(case: Case) -> None:
    case.check()


NEWER = {
    "swish": Case("g (float[N,3] x) => (y) { y = Swish(x) }", {"y": "(N, 3)"}, opset=24),
    "root_mean_square": Case(
        "g (float[N,3] x, float[3] s) => (y) { y = RMSNormalization(x, s) }",
        {"y": "(N, 3)"},
        opset=23,
    ),
    "running_product": Case(
        "g (float[N,3] x) => (y) <int64 a = {0}> { y = CumProd(x, a) }", {"y": "(N, 3)"}, opset=26
    ),
    "cache": Case(
        """g (float[N,2,8,3] x, float[N,2,1,3] u, int64[N] i) => (y) {
        y = TensorScatter(x, u, i) }""",
        {"y": "(N, 2, 8, 3)"},
        opset=24,
    ),
}
"""Operators of newer opsets."""


@cases(NEWER)
def test_newer_operator(case: Case) -> None:
    try:
        case.check()
    except Exception as error:
        if "ONNXRuntimeError" not in str(error):
            raise
        pytest.skip(f"this onnxruntime has no kernel: {str(error)[:80]}")
