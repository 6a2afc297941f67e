"""Batching rules: every operator computes the same for all iterations at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift import rewrite

from ...equivalence import ops, optimized_session, outcome, rewritten, session
from ...rewrite.fact_oracle import Feeds
from ...samples import one_of
from ...small_models import model, parse

SIZES = Feeds(sizes=(1, 2, 7))
"""Lengths of the scanned axis; onnxruntime refuses a Scan over an empty one."""
COUNTS = Feeds(sizes=(7, 0, 1), values={"n": [0, 1, 2, 7]})

ELEMENTWISE = {
    "unary": "r = Exp(x)",
    "cast": "k = Cast<to=7>(x) r = Cast<to=1>(k)",
    "constant": "r = Div(x, scalar)",
    "vector": "r = Add(x, v4)",
    "higher rank": "r = Mul(x, w324)",
    "lower rank": "r = Sub(v4, x)",
    "two slices": "r = Max(x, z, v4)",
    "two ranks": "a = ReduceSum<keepdims=0>(x, first) r = Pow(x, a) ",
    "where": "c = Greater(x, scalar) r = Where(c, x, v4)",
    "clip": "r = Clip(x, scalar)",
    "prelu": "r = PRelu(x, v4)",
}
PRODUCTS = {
    "weight": "r = MatMul(x, w45)",
    "weight on the left": "r = MatMul(w32, y)",
    "two batched matrices": "t = Transpose<perm=[1,0]>(x) r = MatMul(x, t)",
    "vector of weights": "r = MatMul(x, v4)",
    "vector": "u = Squeeze(last, first) r = MatMul(u, w45)",
    "matrix and vector": "u = Squeeze(last, first) r = MatMul(w54, u)",
    "two vectors": "u = Squeeze(last, first) r = MatMul(u, v4)",
    "weight vector and vector": "u = Squeeze(last, first) r = MatMul(v4, u)",
    "stack of weights": "r = MatMul(x, w245)",
    "pairs of matrices": "q = Unsqueeze(x, second) r = MatMul(q, w245)",
    "stack and vector": "u = Squeeze(last, first) r = MatMul(u, w245)",
    "stack times vector": "u = Squeeze(last, first) r = MatMul(w254, u)",
    "vector and matrix": "u = Squeeze(last, first) t = Transpose(x) r = MatMul(u, t)",
    "matrix and its vector": "u = Squeeze(last, first) r = MatMul(x, u)",
    "vector with itself": "u = Squeeze(last, first) r = MatMul(u, u)",
    "vector on the left": "r = MatMul(v2, y)",
    "gemm": "r = Gemm(x, w45, v5)",
    "gemm transposed": "r = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w54, v5)",
    "gemm of two batched matrices": "r = Gemm<transA=1>(x, y)",
    "gemm without bias": "r = Gemm<beta=0.0>(x, w45, v5)",
    "gemm with a batched bias": "u = Squeeze(last, first) r = Gemm(x, w44, u)",
    "einsum": 'r = Einsum<equation="ab,bc->ac">(x, w45)',
    "einsum of a vector and a matrix": 'u = Squeeze(last, first) r = Einsum<equation="b,ab->a">(u, x)',
    "einsum without arrow": 'r = Einsum<equation="ab,b">(x, v4)',
}
LAYOUT = {
    "transpose": "r = Transpose(x)",
    "transpose back": "q = Unsqueeze(x, second) r = Transpose<perm=[2,0,1]>(q)",
    "squeeze": "r = Squeeze(last, first)",
    "squeeze a negative axis": "q = Unsqueeze(x, minus1) a = Abs(q) r = Squeeze(a, minus1)",
    "squeeze all": "r = Squeeze(last)",
    "flatten": "r = Flatten<axis=0>(x)",
    "reshape": "r = Reshape(x, shape81)",
    "reshape with a copied size": "r = Reshape(x, shape0)",
    "reshape with an inferred size": "r = Reshape(x, rest)",
    "slice": "r = Slice(x, first, second, second)",
    "slice a negative axis": "r = Slice(x, first, second, minus1)",
    "slice without axes": "r = Slice(x, first, second)",
    "slice by int32": "r = Slice(x, first32, second32, second32)",
    "slice by int32 without axes": "r = Slice(x, first32, second32)",
    "slice backwards": "r = Slice(x, minus1, lowest, minus1, minus1)",
    "concat": "r = Concat<axis=-1>(x, x)",
    "concat with a constant": "r = Concat<axis=1>(x, w23)",
    "split": "a, b = Split<axis=-1, num_outputs=2>(x) r = Mul(a, b)",
    "split by sizes": "a, b = Split<axis=1>(x, sizes) r = Concat<axis=1>(b, a)",
    "gather": "r = Gather<axis=-1>(x, pick)",
    "gather at batched indices": "k = Cast<to=7>(last) m = Clip(k, zero, one) r = Gather(w23, m)",
    "gather another axis at batched indices": "k = Cast<to=7>(last) m = Clip(k, zero, one) r = Gather<axis=1>(w23, m)",
    "gather at positions of its own": "k = Cast<to=7>(last) m = Clip(k, lowest_one, one) r = Gather(x, m)",
    "gather another axis at positions of its own": "k = Cast<to=6>(x) m = Clip(k, zero32, one32) r = Gather<axis=1>(x, m)",
    "gather one of its own": "k = ReduceMax<keepdims=0>(last) j = Cast<to=7>(k) m = Clip(j, zero, one) r = Gather<axis=-1>(x, m)",
    "gather elements": "k = Cast<to=7>(x) m = Clip(k, zero, one) r = GatherElements(x, m)",
    "expand": "r = Expand(x, shape324)",
    "expand to a lower rank": "r = Expand(x, one1)",
    "tile": "r = Tile(x, twice)",
    "pad": "r = Pad(x, pads)",
    "pad reflecting": 'r = Pad<mode="reflect">(x, pads)',
    "trilu": "r = Trilu<upper=0>(x)",
    "shape": "s = Shape(x) e = Gather(s, one) f = Cast<to=1>(e) r = Mul(x, f)",
    "part of a shape": "s = Shape<start=-1>(x) f = Cast<to=1>(s) r = Mul(x, f)",
    "size": "s = Size(x) f = Cast<to=1>(s) r = Mul(x, f)",
    "size of a scalar": "u = ReduceSum<keepdims=0>(x) s = Size(u) f = Cast<to=1>(s) r = Mul(x, f)",
}
AXES = {
    "reduce": "r = ReduceSum<keepdims=0>(x, second)",
    "reduce a negative axis": "r = ReduceMean<keepdims=1>(x, minus1)",
    "reduce all": "r = ReduceMax<keepdims=0>(x)",
    "reduce nothing": "r = ReduceSum<noop_with_empty_axes=1>(x, none)",
    "reduce scalars": "a = ReduceMax<keepdims=0>(x) b = ReduceSum(a) r = ReduceProd(b)",
    "softmax": "r = Softmax(x)",
    "softmax of rows": "r = LogSoftmax<axis=0>(x)",
    "hardmax": "r = Hardmax(x)",
    "argmax": "k = ArgMax<axis=-1, keepdims=0>(x) r = Cast<to=1>(k)",
    "cumsum": "r = CumSum<reverse=1>(x, one)",
    "topk": "r, k = TopK(x, second)",
    "layer norm": "r = LayerNormalization(x, v4, v4)",
    "one hot": "k = Cast<to=7>(last) m = Clip(k, zero, one) r = OneHot(m, three, offon)",
}
IMAGES = {
    "conv": "q = Unsqueeze(x, second) r = Conv<pads=[1,1]>(q, w313)",
    "pool": "q = Unsqueeze(x, second) r = MaxPool<kernel_shape=[2]>(q)",
    "norm": "r = BatchNormalization(x, v4, v4, v4, p4)",
    "global": "q = Unsqueeze(x, second) r = GlobalAveragePool(q)",
}
ALL = {**ELEMENTWISE, **PRODUCTS, **LAYOUT, **AXES, **IMAGES}


def _numbers(count: int) -> str:
    return ", ".join(f"{(7 * k % 11 - 5) / 8}" for k in range(count))


CONSTANTS = f"""float scalar = {{0.5}}, float[4] v4 = {{{_numbers(4)}}}, float[2] v2 = {{{_numbers(2)}}},
    float[5] v5 = {{{_numbers(5)}}}, float[4] p4 = {{0.5, 1, 2, 3}}, float[2,3] w23 = {{{_numbers(6)}}}, float[3,2] w32 = {{{_numbers(6)}}},
    float[4,5] w45 = {{{_numbers(20)}}}, float[5,4] w54 = {{{_numbers(20)}}}, float[4,4] w44 = {{{_numbers(16)}}},
    float[3,2,4] w324 = {{{_numbers(24)}}}, float[2,4,5] w245 = {{{_numbers(40)}}},
    float[2,5,4] w254 = {{{_numbers(40)}}}, float[3,1,3] w313 = {{{_numbers(9)}}},
    int64[0] none = {{}}, int64[1] first = {{0}}, int64[1] second = {{1}}, int64[1] minus1 = {{-1}}, int64[1] one1 = {{1}},
    int32[1] first32 = {{0}}, int32[1] second32 = {{1}},
    int64[1] lowest = {{-100}}, int64 zero = {{0}}, int64 one = {{1}}, int64 three = {{3}}, int64 lowest_one = {{-1}}, int32 zero32 = {{0}}, int32 one32 = {{1}}, int64[2] pick = {{2, 0}},
    int64[2] shape81 = {{8, 1}}, int64[3] shape0 = {{0, 2, 2}}, int64[2] rest = {{-1, 2}}, int64[2] sizes = {{1, 3}},
    int64[3] shape324 = {{3, 2, 4}}, int64[2] twice = {{2, 1}}, int64[4] pads = {{1, 0, 0, 2}}, float[2] offon = {{0, 1}}"""


def map_text(work: str, loop: bool) -> str:
    """A map over slices x, z [2,4], y [2,4] and last [1,4] of one sequence."""
    head = f"float[T,2,4] xs, int64 n) => (r_all) <bool true = {{1}}, {CONSTANTS}>"
    slices = "z = Neg(x) y = Abs(x) last = Slice(x, first, second, first)"
    if loop:
        return f"""g ({head} {{ r_all = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {{
            co = Identity(ci) x = Gather(xs, i) {slices} {work} }}> }}"""
    return f"""g ({head} {{ r_all = Scan <num_scan_inputs=1, body = b (float[2,4] x) => (r) {{
        {slices} {work} }}> (xs) }}"""


@pytest.mark.parametrize("work", ALL.values(), ids=ALL)
def test_map(work: str) -> None:
    scan = parse(map_text(work, loop=False), opset=18)
    assert not ops(rewritten(scan, SIZES, 1e-5).model).keys() & {"Scan", "Loop"}


_MAY_FAIL = {
    "weight on the left", "stack times vector", "vector on the left", "pad reflecting",
    "reshape with an inferred size", "stack and vector", "stack of weights",
}  # fmt: skip


@pytest.mark.parametrize("name", one_of(2, ALL))
def test_empty_map(name: str) -> None:
    loop = parse(map_text(ALL[name], loop=True), opset=18)
    result = rewritten(loop, COUNTS, 1e-5).model
    if name not in _MAY_FAIL:
        assert "Loop" not in ops(result)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"])
def test_reductions_of_single_elements(op: str) -> None:
    """Without axes, onnxruntime reduces each element by itself, which changes it."""
    work = f"a = Abs(x) b = {op}<noop_with_empty_axes=1>(a, none) c = Neg(b) r = Exp(c)"
    rewritten(parse(map_text(work, loop=True), opset=18), COUNTS, 1e-5)


_FAILING = {
    "index out of range": ("int64[2] k", [0, 9], "r = Gather<axis=1>(x, k)"),
    "sizes of a split": ("int64[2] k", [1, 1], "r, rest = Split<axis=1>(x, k)"),
    "negative repeats": ("int64[2] k", [-1, 1], "r = Tile(x, k)"),
    "bound that is not a scalar": ("float[K] k", [0, 1], "r = Clip(x, k)"),
    "division by zero": ("int64[K] k", [0], "c = Cast<to=7>(x) d = Div(c, k) r = Cast<to=1>(d)"),
    "modulo zero": ("int64[K] k", [0], "c = Cast<to=7>(x) d = Mod(c, k) r = Cast<to=1>(d)"),
    "channels": ("float[K] k", [1, 1, 1], "r = BatchNormalization(x, k, k, k, k)"),
    "group norm": (
        "float[4] k", [1, 1, 1, 1], "q = Unsqueeze(x, last) r = GroupNormalization<num_groups=2>(q, k, k)"
    ),
    "fused product": ("float[2] k", [1, 1], "t = Transpose(x) r = MatMul(t, k)"),
    "fused gemm": ("float[2,1] k", [[1], [1]], "r = Gemm<transA=1>(x, k)"),
}  # fmt: skip


@pytest.mark.parametrize(("operand", "value", "work"), _FAILING.values(), ids=_FAILING)
def test_hoisted_operators_do_not_fail_on_an_empty_stack(
    operand: str, value: Any, work: str
) -> None:
    """An operator that onnxruntime refuses even for an empty stack stays in the loop."""
    model = parse(
        f"""g (float[T,2,4] xs, int64 n, {operand}) => (r_all) <bool true = {{1}}, int64[1] last = {{-1}}> {{
        r_all = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {{
            co = Identity(ci) x = Gather(xs, i) {work} }}> }}""",
        opset=21,
    )
    kind = np.float32 if operand.startswith("float") else np.int64
    feed = {"xs": np.ones((5, 2, 4), np.float32), "n": np.array(0), "k": np.array(value, kind)}
    assert outcome(optimized_session(model), feed) is not None
    result = rewrite(model)
    assert result.report.defects == []
    for runnable in (session(result.model), optimized_session(result.model)):
        assert outcome(runnable, feed) is not None


ATTENTION = """g (float[T,2,4] xs, float[2,S,4] memory, int64 n) => (float[N,2,4] ys)
    <bool true = {1}, int64[1] row = {1}> {
    ys = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, float[2,4] y) {
        co = Identity(ci) x = Gather(xs, i) q = Unsqueeze(x, row)
        keys = Transpose<perm=[0, 2, 1]>(memory) scores = MatMul(q, keys)
        weights = Softmax<axis=-1>(scores) found = MatMul(weights, memory) y = Squeeze(found, row) }> }"""


def test_attention_over_a_memory_of_unknown_length() -> None:
    """The products pair the matrices of two stacks, also where there are none."""
    result = rewritten(parse(ATTENTION, opset=18), COUNTS, 1e-5).model
    assert "Loop" not in ops(result)


def test_a_product_with_each_matrix_of_a_stack_stays_in_a_loop_that_may_not_run() -> None:
    """onnxruntime cannot multiply no vectors by a stack of matrices."""
    model = parse(
        """g (float[T,1,4] xs, float[S,4,5] w, int64 n) => (float[N,S,1,5] ys) <bool true = {1}> {
        ys = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, float[S,1,5] y) {
            co = Identity(ci) x = Gather(xs, i) y = MatMul(x, w) }> }""",
        opset=18,
    )
    result = rewritten(model, COUNTS, 1e-5).model
    assert "Loop" in ops(result)


def test_transposed_slices_of_a_loop_that_may_not_run_stay() -> None:
    model = parse("""g (float[T,4,3] xs, float[4,2] w) => (r_all) <int64 first = {0}, bool true = {1}> {
        turned = Transpose<perm=[0,2,1]>(xs) sizes = Shape(xs) n = Gather(sizes, first)
        r_all = Loop (n, true) <body = b (int64 i, bool ci) => (bool co, r) {
            co = Identity(ci) x = Gather(turned, i) r = MatMul(x, w) }> }""")
    feed = {"xs": np.ones((0, 4, 3), np.float32), "w": np.ones((4, 2), np.float32)}
    assert outcome(optimized_session(rewrite(model).model), feed) is not None


RECURRENT = {
    "GRU": (3, "", "y, f", "h0"),
    "LSTM": (4, "", "y, f, c", "h0, c0"),
    "RNN": (1, "", "y, f", "h0"),
    "LSTM both ways": (4, 'direction="bidirectional"', "y, f, c", "h0, c0"),
    "GRU in reverse": (3, 'direction="reverse", linear_before_reset=1', "y, f", "h0"),
}


def _recurrent(
    name: str, lens: str, initial: str, results: str, rows: str = "B"
) -> onnx.ModelProto:
    """An operator over slice i of x [K, T, B, 2]; `initial` may name slices."""
    gates, attributes, outputs, states = RECURRENT[name]
    ways = 2 if "bidirectional" in attributes else 1
    rng = np.random.default_rng(gates)
    shapes = {"w": (ways, 3 * gates, 2), "r": (ways, 3 * gates, 3), "b": (ways, 6 * gates)}
    weights = {k: rng.normal(size=s).astype(np.float32) * 0.5 for k, s in shapes.items()}
    start = {"none": "", "invariant": states, "slices": states.replace("0", "i")}[initial]
    kept = [name for name in ("y", "f", "c") if name in results and name in outputs]
    outputs = ", ".join(n if n in kept else "" for n in outputs.split(", ")).rstrip(", ")
    sizes = {"y": f"T,{ways},{rows},3", "f": f"{ways},{rows},3", "c": f"{ways},{rows},3"}
    text = f"""g (float[K,T,{rows},2] x, float[{ways},{rows},3] h0, float[{ways},{rows},3] c0,
        float[K,{ways},{rows},3] hs, float[K,{ways},{rows},3] cs, int32[{rows}] lens0, int32[K,{rows}] lenss)
        => ({", ".join(f"float[K,{sizes[n]}] all_{n}" for n in kept)}) {{
      {", ".join(f"all_{n}" for n in kept)} = Scan <num_scan_inputs=4,
        body = b (float[T,{rows},2] xi, float[{ways},{rows},3] hi, float[{ways},{rows},3] ci, int32[{rows}] lensi)
            => ({", ".join(f"float[{sizes[n]}] {n}1" for n in kept)}) {{
          {outputs} = {name.split()[0]}<hidden_size=3{"," if attributes else ""} {attributes}>
            (xi, w, r, b, {lens}, {start}) {" ".join(f"{n}1 = Identity({n})" for n in kept)} }}>
        (x, hs, cs, lenss) }}"""
    return model(text.replace(", , )", ")").replace(", )", ")"), 18, 8, **weights)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize(
    ("lens", "initial", "results"),
    [
        ("", "none", "y"),
        ("", "invariant", "y, f, c"),
        ("", "slices", "f"),
        ("lens0", "slices", "f, c"),
        ("lensi", "invariant", "y"),
    ],
)
def test_recurrent_operators(name: str, lens: str, initial: str, results: str) -> None:
    kept = [n for n in results.split(", ") if n in RECURRENT[name][2]]
    proto = _recurrent(name, lens, initial, ", ".join(kept))
    lengths = {"lens0": [np.array([2, 1], np.int32)]} if lens == "lens0" else {}
    if lens == "lensi":
        lengths = {"lenss": [np.array([[2, 1], [1, 2], [2, 2]], np.int32)]}
    feeds = Feeds(sizes=(1, 2, 3), values=lengths, fixed={"B": 2, "T": 2, "K": 3} if lens else {})
    counts = ops(rewritten(proto, feeds, 1e-5).model)
    assert "Scan" not in counts
    assert counts[name.split()[0]] == 1


def test_recurrent_operators_of_a_loop_that_may_not_run_stay() -> None:
    """onnxruntime's LSTM and GRU end the process for a batch of no rows."""
    text = """g (float[K,T,B,2] x, int64 n) => (float[K,1,B,3] f) <bool true = {1}> {
      f = Loop (n, true) <body = b (int64 i, bool go) => (bool on, float[1,B,3] h1) {
        on = Identity(go) xi = Gather(x, i) y, h = GRU<hidden_size=3>(xi, w, r) h1 = Neg(h) }> }"""
    weights = {"w": np.ones((1, 9, 2), np.float32), "r": np.ones((1, 9, 3), np.float32)}
    assert ops(rewrite(model(text, 18, 8, **weights)).model)["Loop"] == 1


def test_recurrent_operators_with_other_weights_in_each_iteration_stay() -> None:
    text = """g (float[K,T,B,2] x, float[K,1,9,2] ws) => (float[K,1,B,3] f) {
      f = Scan <num_scan_inputs=2, body = b (float[T,B,2] xi, float[1,9,2] w) => (float[1,B,3] h1) {
        y, h = GRU<hidden_size=3>(xi, w, r) h1 = Identity(h) }> (x, ws) }"""
    weights = {"r": np.ones((1, 9, 3), np.float32)}
    assert ops(rewrite(model(text, 18, 8, **weights)).model)["Scan"] == 1
