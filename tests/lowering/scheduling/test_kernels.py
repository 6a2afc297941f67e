"""Loops and Scans as one kernel: what they compute, and why some are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from tvm import relax

import looplift
from looplift.lowering import emit
from looplift.lowering.forms import Form
from looplift.lowering.transform import FuseLoops

from ...samples import one_of
from ..conftest import Imported, parse

Array = np.ndarray[Any, Any]

YES = "yes = Constant <value = bool {1}> ()"
COUNTED = f"""
loop (int64 n, float[3] a, float[3] b) => (float[3] x, float[3] y, float[k, 3] rows)
{{
    {YES}
    x, y, rows = Loop (n, yes, a, b) <body = step (int64 i, bool go, float[3] p, float[3] q)
        => (bool goes, float[3] swapped, float[3] sum, float[3] row)
    {{
        goes = Identity (go)
        sum = Add (p, q)
        swapped = Identity (q)
        row = Identity (sum)
    }}>
}}"""
CONDITIONAL = """
loop (int64 n, bool start, float s0) => (float s, int64 last)
{
    zero = Constant <value = int64 {0}> ()
    s, last = Loop (n, start, s0, zero) <body = step (int64 i, bool go, float p, int64 before)
        => (bool goes, float q, int64 now)
    {
        two = Constant <value = float {2.0}> ()
        most = Constant <value = float {100.0}> ()
        q = Mul (p, two)
        goes = Less (q, most)
        now = Identity (i)
    }>
}"""
ENDLESS = """
loop (float s0) => (float s)
{
    s = Loop ("", "", s0) <body = step (int64 i, bool go, float p) => (bool goes, float q) {
        two = Constant <value = float {2.0}> ()
        most = Constant <value = float {100.0}> ()
        q = Mul (p, two)
        goes = Less (q, most)
    }>
}"""
NEVER = """
loop (int64 n, float[3] a) => (float[3] x, float[k, 3] rows)
{
    no = Constant <value = bool {0}> ()
    x, rows = Loop (n, no, a) <body = step (int64 i, bool go, float[3] p)
        => (bool goes, float[3] q, float[3] row)
    {
        goes = Constant <value = bool {1}> ()
        q = Add (p, p)
        row = Exp (p)
    }>
}"""
MAYBE = """
loop (int64[1] n, bool[1] start, float[3] a) => (float[3] x, float[k, 3] rows)
{
    x, rows = Loop (n, start, a) <body = step (int64[1] i, bool[1] go, float[3] p)
        => (bool[1] goes, float[3] q, float[3] row)
    {
        goes = Identity (go)
        number = Cast <to = 1> (i)
        q = Add (p, number)
        row = Add (p, p)
    }>
}"""
CAPTURES = f"""
loop (int64 n, float[m, 4] xs, float[4] s0, float[4] w) => (float[4] s, float[4] kept, float[k, 4] ys)
{{
    {YES}
    s, kept, ys = Loop (n, yes, s0, w) <body = step (int64 i, bool go, float[4] p, float[4] same)
        => (bool goes, float[4] q, float[4] still, float[4] y)
    {{
        goes = Identity (go)
        x = Gather <axis = 0> (xs, i)
        scaled = Mul (x, same)
        q = Add (p, scaled)
        still = Identity (same)
        y = Identity (w)
    }}>
}}"""
AXES = """
scan (float[2, n] xs, float[n, 3] zs, float[2] s0) => (float[2] s, float[2, n] ys, float[n, 3] us)
{
    s, ys, us = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0],
        scan_input_directions = [1, 0], scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
        body = step (float[2] p, float[2] x, float[3] z) => (float[2] q, float[2] y, float[3] u) {
            q = Add (p, x)
            y = Mul (q, x)
            u = Exp (z)
        }> (s0, xs, zs)
}"""
SYMBOLIC = """
scan (float[n, b, 4] xs, float[b, 4] s0, float[4, 4] w) => (float[b, 4] s, float[n, b, 4] ys)
{
    s, ys = Scan <num_scan_inputs = 1, body = step (float[b, 4] p, float[b, 4] x)
        => (float[b, 4] q, float[b, 4] y)
    {
        product = MatMul (p, w)
        sum = Add (product, x)
        q = Tanh (sum)
        y = Mul (q, x)
    }> (s0, xs)
}"""
TYPES = f"""
loop (int64 n, double[3] a, int32[2] b, bool d, float16[4] e)
    => (double[3] a1, int32[2] b1, bool d1, float16[4] e1, int64[k] numbers)
{{
    {YES}
    a1, b1, d1, e1, numbers = Loop (n, yes, a, b, d, e) <body = step (
        int64 i, bool go, double[3] p, int32[2] q, bool r, float16[4] s
    ) => (bool goes, double[3] p1, int32[2] q1, bool r1, float16[4] s1, int64 number) {{
        goes = Identity (go)
        p1 = Add (p, p)
        q1 = Mul (q, q)
        r1 = Not (r)
        s1 = Add (s, s)
        one = Constant <value = int64 {{1}}> ()
        number = Add (i, one)
    }}>
}}"""
REDUCTIONS = f"""
loop (int64 n, float[2, 3, 32] a) => (float[2, 3, 32] x, float[k, 6] ys)
{{
    {YES}
    x, ys = Loop (n, yes, a) <body = step (int64 i, bool go, float[2, 3, 32] p)
        => (bool goes, float[2, 3, 32] q, float[6] y)
    {{
        goes = Identity (go)
        weights = Softmax <axis = -1> (p)
        turned = Transpose <perm = [0, 2, 1]> (weights)
        square = MatMul (weights, turned)
        mixed = MatMul (square, weights)
        q = Add (mixed, p)
        mean = ReduceMean <axes = [-1], keepdims = 0> (q)
        all = Constant <value = int64[1] {{-1}}> ()
        y = Reshape (mean, all)
    }}>
}}"""


def floats(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def count(number: int) -> Array:
    return np.array(number, np.int64)


OWN_KERNELS = """
loop (int64 n, float[4] a) => (float[4] x, float[k, 2] rows)
{
    x, rows = Loop (n, "", a) <body = step (int64 i, bool go, float[4] p)
        => (bool goes, float[4] q, float[2] row)
        <int64[1] two = {2}, int64 four = {4}, int64[2] single = {1, 1}>
    {
        goes = Identity (go)
        row, order = TopK (p, two)
        sum = ReduceSum <keepdims = 1> (row)
        place = Mod (i, four)
        at = Reshape (place, single)
        q = ScatterND (p, at, sum)
    }>
}"""
"""Kernels that are written for symbols, at sizes that are known."""

FEEDS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "counted": (COUNTED, [(count(n), floats(3), floats(3, seed=1)) for n in (0, 1, 2, 5)]),
    "negative": (COUNTED, [(count(-3), floats(3), floats(3, seed=1))]),
    "conditional": (
        CONDITIONAL,
        [
            (count(n), np.array(start), np.array(first, np.float32))
            for n in (0, 3, 100)
            for start in (True, False)
            for first in (1.0, 99.0, 1000.0)
        ],
    ),
    "endless": (ENDLESS, [(np.array(first, np.float32),) for first in (1.0, 99.0, 1000.0)]),
    "never": (NEVER, [(count(n), floats(3)) for n in (0, 1, 4)]),
    "maybe": (
        MAYBE,
        [(np.array([n]), np.array([s]), floats(3)) for n in (0, 1, 4) for s in (True, False)],
    ),
    "captures": (
        CAPTURES,
        [(count(n), floats(m, 4), floats(4), floats(4, seed=2)) for n, m in ((0, 3), (3, 3), (5, 9))],
    ),
    "axes": (AXES, [(floats(2, n), floats(n, 3), floats(2)) for n in (1, 2, 5)]),
    "symbolic": (
        SYMBOLIC,
        [(floats(n, b, 4), floats(b, 4), floats(4, 4)) for n, b in ((1, 1), (2, 3), (5, 2))],
    ),
    "types": (
        TYPES,
        [
            (
                count(n), floats(3).astype(np.float64), np.array([2, -1], np.int32),
                np.array(True), floats(4).astype(np.float16),
            )
            for n in (0, 1, 3)
        ],
    ),
    "reductions": (REDUCTIONS, [(count(n), floats(2, 3, 32) / 4) for n in (0, 1, 4)]),
    "own kernels": (OWN_KERNELS, [(count(n), floats(4)) for n in (0, 1, 7)]),
}  # fmt: skip


def has_kernel(module: Any) -> bool:
    """Whether a loop of a module becomes a kernel."""
    with tvm.target.Target("llvm"):
        fused = FuseLoops()(module)
    return any("loop_kernel" in variable.name_hint for variable in fused.get_global_vars())


@pytest.mark.parametrize("name", one_of(2, FEEDS))
def test_computes_what_onnxruntime_computes(name: str, imported: Callable[..., Imported]) -> None:
    text, feeds = FEEDS[name]
    model = imported(text)
    assert has_kernel(model.module)
    for feed in feeds:
        model.check(*feed)


@pytest.mark.parametrize("name", one_of(3, FEEDS))
def test_computes_the_same_with_the_pipeline(name: str, imported: Callable[..., Imported]) -> None:
    text, feeds = FEEDS[name]
    model = imported(text)
    machine = relax.VirtualMachine(looplift.compile(model.module, "native"), tvm.cpu())
    for feed in feeds:
        got = machine["main"](*(tvm.runtime.tensor(value) for value in feed))
        single = len(model.model.graph.output) == 1
        for output, wanted in zip([got] if single else got, model.run(*feed), strict=True):
            np.testing.assert_allclose(output.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_million_iterations(imported: Callable[..., Imported]) -> None:
    model = imported(COUNTED)
    zero = np.zeros(3, np.float32)
    *states, rows = model.run(count(1_000_000), zero, zero)
    assert rows.shape == (1_000_000, 3)
    assert not any(state.any() for state in states)


def test_zero_rows_have_the_shape_of_a_row(imported: Callable[..., Imported]) -> None:
    rows = imported(COUNTED).run(count(0), floats(3), floats(3))[2]
    assert rows.shape == (0, 3)


def test_scan_inputs_of_different_lengths_are_refused(imported: Callable[..., Imported]) -> None:
    with pytest.raises(Exception, match=r"(?i)shape|match"):
        imported(AXES).run(floats(2, 4), floats(3, 3), floats(2))


BRANCH = """
    big = ReduceMax <keepdims = 0> (p)
    zero = Constant <value = float {0.0}> ()
    grows = Less (big, zero)
    q = If (grows) <
        then_branch = yes () => (float[3] r) { r = Add (p, p) },
        else_branch = no () => (float[3] t) { t = Mul (p, p) }
    >
"""
WHILE_ROWS = f"""
loop (int64 n, float[3] a) => (float[3] x, float[k, 3] rows)
{{
    {YES}
    x, rows = Loop (n, yes, a) <body = step (int64 i, bool go, float[3] p)
        => (bool goes, float[3] q, float[3] row)
    {{
        most = Constant <value = int64 {{3}}> ()
        goes = Less (i, most)
        q = Add (p, p)
        row = Identity (q)
    }}>
}}"""
REFUSED = {
    "an If, a loop or a layer in its body is a function, 'sum_then'": COUNTED.replace(
        "sum = Add (p, q)", "SUM"
    ).replace("SUM", BRANCH.replace("q =", "sum =")),
    "a condition decides how many slices its scan outputs have": WHILE_ROWS,
    "the carried value 'p' changes its shape or type": """
loop (int64 n, float[m] a) => (float[k] x)
{
    x = Loop (n, "", a) <body = step (int64 i, bool go, float[m] p) => (bool goes, float[k] q) {
        goes = Identity (go)
        q = Concat <axis = 0> (p, p)
    }>
}""",
    "its body computes with sizes that none of the tensors it reads has": """
loop (int64 n, float[a, b] table, float[a] s0) => (float[a] s)
{
    s = Loop (n, "", s0) <body = step (int64 i, bool go, float[a] p) => (bool goes, float[a] q) {
        goes = Identity (go)
        shape = Shape <start = 1> (table)
        columns = Cast <to = 1> (shape)
        q = Add (p, columns)
    }>
}""",
    "its body calls relax.topk, which is not a loop nest": """
loop (int64 n, float[4, 2] a) => (float[4, 2] x)
{
    x = Loop (n, "", a) <
        body = step (int64 i, bool go, float[4, 2] p) => (bool goes, float[4, 2] q) {
        goes = Identity (go)
        four = Constant <value = int64[1] {4}> ()
        q, order = TopK <axis = 0> (p, four)
    }>
}""",
}


CONVOLUTION = """
loop (int64 n, float[b, CHANNELS, h, w] a, float[CHANNELS, CHANNELS, 3, 3] k) => (float[b, CHANNELS, h, w] x)
{
    x = Loop (n, "", a) <body = step (int64 i, bool go, float[b, CHANNELS, h, w] p)
        => (bool goes, float[b, CHANNELS, h, w] q)
    {
        goes = Identity (go)
        q = Conv <pads = [1, 1, 1, 1]> (p, k)
    }>
}"""


@pytest.mark.parametrize(
    ("channels", "size", "is_fused"),
    [
        (2, "h", True),
        (8, "h", False),
        (8, "12", True),
        (64, "12", False),
        (2, "80", True),
    ],
)
def test_large_convolutions_have_kernels_of_their_own(
    channels: int, size: str, is_fused: bool, imported: Callable[..., Imported]
) -> None:
    text = CONVOLUTION.replace("CHANNELS", str(channels)).replace("h, w", f"{size}, {size}")
    model = imported(text)
    assert has_kernel(model.module) == is_fused
    edge = 5 if size == "h" else int(size)
    for batch, trips in ((1, 0), (2, 3)):
        weights = floats(channels, channels, 3, 3) / 8
        model.check(count(trips), floats(batch, channels, edge, edge), weights)


PRODUCT = """
loop (float[t, b, 4] x, float[b, K] a, float[K, K] w, float[4, K] u) => (float[b, K] y, float[t, b, K] ys)
{
    y, ys = Scan <num_scan_inputs = 1, body = step (float[b, K] p, float[b, 4] part)
        => (float[b, K] q, float[b, K] row)
    {
        old = MatMul (p, w)
        new = MatMul (part, u)
        sum = Add (old, new)
        q = Sin (sum)
        row = Identity (q)
    }> (a, x)
}"""


@pytest.mark.parametrize(("width", "has_choice"), [(16, False), (128, True)])
def test_many_rows_are_multiplied_outside_of_the_kernel(
    width: int, has_choice: bool, imported: Callable[..., Imported]
) -> None:
    model = imported(PRODUCT.replace("K", str(width)))
    assert has_kernel(model.module)
    with tvm.target.Target("llvm"):
        fused = FuseLoops()(model.module)
    relax.analysis.well_formed(fused)
    names = {variable.name_hint for variable in fused.get_global_vars()}
    assert ("y_iterations" in names) == has_choice
    for batch, length in ((1, 3), (16, 2), (17, 2), (40, 1)):
        weights = floats(width, width) / width, floats(4, width) / 4
        model.check(floats(length, batch, 4), floats(batch, width), *weights)


@pytest.mark.parametrize("reason", REFUSED)
def test_says_why_there_is_no_kernel(reason: str) -> None:
    assert forms(parse(REFUSED[reason])) == [reason]


@pytest.mark.parametrize("text", REFUSED.values())
def test_what_is_no_kernel_is_right_all_the_same(
    text: str, imported: Callable[..., Imported]
) -> None:
    model = imported(text)
    assert not has_kernel(model.module)
    shapes = [
        [dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim]
        for value in model.model.graph.input[1:]
    ]
    for n in (1, 2, 5):
        model.check(count(n), *(floats(*shape) for shape in shapes))


def test_there_are_no_kernels_for_a_gpu() -> None:
    with tvm.target.Target({"kind": "cuda", "arch": "sm_80"}):
        assert forms(parse(COUNTED)) == ["kernels with a loop inside are for CPUs"]
    assert forms(parse(COUNTED)) == [""]


def forms(model: onnx.ModelProto) -> Sequence[str]:
    """Why the loops of a model are no kernels; empty for one that is."""
    found: list[Form] = []
    emit(model, on_form=found.append)
    return [form.reason for form in found]


def test_float_outputs_agree_with_onnxruntime_after_many_steps() -> None:
    """tanh and matrix products in a kernel stay as close as onnxruntime's own optimizations."""
    model = parse(SYMBOLIC)
    feed = {"xs": floats(500, 16, 4), "s0": floats(16, 4), "w": floats(4, 4)}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model), "native"), tvm.cpu())
    got = machine["main"](*(tvm.runtime.tensor(value) for value in feed.values()))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-5)
