"""Modules for a GPU: built anywhere, and run where there is one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import looplift
from looplift.lowering import emit
from looplift.lowering.scheduling.gpu import drop_unit_reductions, sum_along_last_axis
from looplift.lowering.scheduling.pipeline import lower_to_kernels
from looplift.transform import LowerRecurrent

from ...samples import one_of
from ..comparison import weight
from ..compiled import Feed
from ..conftest import parse
from .test_kernels import CONDITIONAL, COUNTED, REDUCTIONS, SYMBOLIC

LAYER = """
layer (float[n, b, 3] x, float[1, 20, 3] w, float[1, 20, 5] r, int32[b] lengths)
    => (float[n, 1, b, 5] y, float[1, b, 5] last)
{
    y, last = LSTM <hidden_size = 5> (x, w, r, "", lengths)
}"""
OPERATORS = """
<ir_version: 8, opset_import: ["" : 18]>
operators (float[1, 1, n] scores, int64[1] most)
    => (float[1, 1, m] best, float[1, 1, 1] peak, int64[1, 1, 1] place,
        float16[1, 1, n] narrow, float[1, 1, p] pooled)
{
    best, places = TopK (scores, most)
    last = Constant <value_ints = [2]> ()
    peak = ReduceMax (scores, last)
    place = ArgMin <axis = 2> (scores)
    half = Cast <to = 10> (scores)
    narrow = Softmax (half)
    pooled = LpPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (scores)
}"""
SUMS = """
<ir_version: 8, opset_import: ["" : 17]>
sums (float[b, n, 3] x) => (float[b, n, 3] sums, float[b, n, 3] before, float[b, n, 3] after)
{
    axis = Constant <value = int64 {1}> ()
    sums = CumSum (x, axis)
    before = CumSum <exclusive = 1> (x, axis)
    after = CumSum <reverse = 1> (x, axis)
}"""
WEIGHTS = """
<ir_version: 8, opset_import: ["" : 17]>
weights (float[b, 1, t] x, float[1, 1, 3] taps, float[1] bias, float[b, 8, t] z, float[16, 8, 1] w,
         float[16, 1, 1] v, float[16] of_v)
    => (float[b, 1, u] halved, float[b, 16, t] y, float[b, 16, 1] mean, float[b, 0, t] none,
        float[b, 16, t] point)
{
    start = Constant <value_ints = [8]> ()
    channels = Constant <value_ints = [1]> ()
    halved = Conv <strides = [2], pads = [1, 1]> (x, taps, bias)
    product = Conv (z, w)
    y = HardSwish (product)
    mean = GlobalAveragePool (y)
    rest = Slice (z, start, start, channels)
    none = Exp (rest)
    point = Conv (x, v, of_v)
}"""
DOMAINS = """
<ir_version: 8, opset_import: ["" : 17]>
domains (float[b, t] x, float[b, t] exponent) => (float[b, t] cube, float[b, t] y, float[b, t] z)
{
    three = Constant <value_float = 3.0> ()
    many = Constant <value_float = 3000.0> ()
    cube = Pow (x, three)
    y = Pow (x, exponent)
    turns = Mul (x, many)
    sine = Sin (turns)
    cosine = Cos (turns)
    z = Sub (sine, cosine)
}"""
REGIONS = """
<ir_version: 8, opset_import: ["" : 17]>
regions (float[b, c, h, w] x, float[k, 4] boxes, int64[k] images, float[b, 2, d, h, w] z,
         float[2, 3, 2, 2, 2] f)
    => (float[k, c, 2, 2] parts, float mean, float[b, 3, p, q, r] volumes, float[k, 4] scattered)
{
    last = Constant <value_ints = [-1]> ()
    rows = Unsqueeze (images, last)
    scattered = ScatterND (boxes, rows, boxes)
    parts = RoiAlign <output_height = 2, output_width = 2> (x, boxes, images)
    mean = ReduceMean <keepdims = 0> (x)
    volumes = ConvTranspose (z, f)
}"""
PRODUCT = """
<ir_version: 8, opset_import: ["" : 17]>
product (float[b, t, n] x, float[b, n, 32] y, float[b, t, 32] z)
    => (float[b, t, 32] sum, float[b, s, 32] joined,
        float[b, t, 0] turned)
{
    product = MatMul (x, y)
    sum = Add (product, z)
    start = Constant <value_ints = [0]> ()
    axis = Constant <value_ints = [1]> ()
    none = Slice (z, start, start, axis)
    joined = Concat <axis = 1> (none, sum)
    first = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [30]> ()
    columns = Constant <value_ints = [2]> ()
    back = Constant <value_ints = [-1]> ()
    turned = Slice (sum, first, last, columns, back)
}"""
ARITHMETIC = """
<ir_version: 8, opset_import: ["" : 17]>
arithmetic (uint8[n] a, uint8[n] b, double[n] x, float16[n] h)
    => (uint8[n] half, bool[n] is_less, double[n] y, int64[1, m] positions)
{
    one = Constant <value: tensor = uint8[1] one {1}> ()
    sum = Add (a, b)
    half = BitShift <direction = "RIGHT"> (sum, one)
    double = BitShift <direction = "LEFT"> (a, one)
    is_less = Less (double, b)
    small = Constant <value: tensor = double small {1e-18}> ()
    large = Constant <value: tensor = double large {1e18}> ()
    scaled = Mul (x, small)
    y = Mul (scaled, large)
    positions = NonZero (h)
}"""
MODELS = {
    "arithmetic": ARITHMETIC,
    "counted": COUNTED,
    "conditional": CONDITIONAL,
    "scan": SYMBOLIC,
    "reductions": REDUCTIONS,
    "operators": OPERATORS,
    "layer": LAYER.replace(', "", lengths', "").replace(", int32[b] lengths", ""),
    "lengths": LAYER,
    "sums": SUMS,
    "weights": WEIGHTS,
    "domains": DOMAINS,
    "regions": REGIONS,
    "product": PRODUCT,
    "product of no columns": PRODUCT,
}
FEEDS: dict[str, Feed] = {
    "arithmetic": {
        "a": np.array([200, 255, 1], np.uint8),
        "b": np.array([100, 255, 2], np.uint8),
        "x": np.array([1, -2.5, 3]),
        "h": np.array([-0.0, 6e-8, np.nan], np.float16),
    },
    "counted": {"n": np.array(5), "a": weight(3), "b": weight(3)},
    "conditional": {"n": np.array(9), "start": np.array(True), "s0": np.array(3, np.float32)},
    "scan": {"xs": weight(7, 2, 4), "s0": weight(2, 4), "w": weight(4, 4)},
    "reductions": {"n": np.array(3), "a": weight(2, 3, 32)},
    "operators": {"scores": weight(1, 1, 9), "most": np.array([4])},
    "layer": {"x": weight(6, 2, 3), "w": weight(1, 20, 3), "r": weight(1, 20, 5)},
    "sums": {"x": weight(2, 5, 3)},
    "weights": {
        "x": weight(2, 1, 8),
        "taps": weight(1, 1, 3),
        "bias": weight(1),
        "z": weight(2, 8, 8),
        "w": weight(16, 8, 1),
        "v": weight(16, 1, 1),
        "of_v": weight(16),
    },
    "regions": {
        "x": weight(2, 3, 8, 8),
        "boxes": np.array([[0, 0, 4, 4], [1, 2, 7, 5]], np.float32),
        "images": np.array([1, 0]),
        "z": weight(2, 2, 3, 8, 8),
        "f": weight(2, 3, 2, 2, 2),
    },
    "domains": {
        "x": np.array([[-2, -1.5, -0.5, 0, 3]], np.float32),
        "exponent": np.array([[5, 4, -1, 2, 0.5]], np.float32),
    },
}
FEEDS |= {
    name: {"x": weight(2, 9, n), "y": weight(2, n, 32), "z": weight(2, 9, 32)}
    for name, n in [("product", 7), ("product of no columns", 0)]
}
FEEDS["lengths"] = {**FEEDS["layer"], "lengths": np.array([2, 6], np.int32)}


ON_THE_HOST = ("shape_func", "compute_symbolic_expr")
"""The names of functions that compute sizes."""


def test_sums_are_moved_to_the_last_axis() -> None:
    model = parse(SUMS)
    module = sum_along_last_axis(looplift.from_onnx(model))
    text = "".join(function.script() for function in module.functions.values())
    assert (
        re.findall(r"R.cumsum\(.*?(axis=\d).*?(exclusive=\w+)", text)
        == [("axis=2", "exclusive=False")] * 3
    )
    machine = relax.VirtualMachine(looplift.compile(module, "native"), tvm.cpu())
    x = FEEDS["sums"]["x"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for got, want in zip(
        machine["main"](tvm.runtime.tensor(x)), session.run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_reductions_over_one_element_are_dropped() -> None:
    with gpu():
        kernels = lower_to_kernels(looplift.from_onnx(parse(WEIGHTS)))
        before = reductions(kernels)
        after = reductions(drop_unit_reductions(kernels))
    assert (len(before), len(after)) == (4, 3)
    assert after < before


def test_what_had_a_reduction_over_one_element_is_right() -> None:
    model = parse(WEIGHTS)
    with tvm.target.Target("llvm"):
        module = drop_unit_reductions(lower_to_kernels(looplift.from_onnx(model)))
    machine = relax.VirtualMachine(looplift.compile(module), tvm.cpu())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wants = session.run(None, dict(FEEDS["weights"]))
    given = [tvm.runtime.tensor(FEEDS["weights"][one.name]) for one in model.graph.input]
    for got, want in zip(machine["main"](*given), wants, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def reductions(module: tvm.IRModule) -> set[str]:
    """The names of kernels with a reduction."""
    return {
        name.name_hint
        for name, kernel in module.functions_items()
        if isinstance(kernel, tirx.PrimFunc) and "T.init()" in kernel.script()
    }


def gpu(arch: str = "sm_80") -> tvm.target.Target:
    return tvm.target.Target({"kind": "cuda", "arch": arch}, host={"kind": "llvm"})


def imported(model: onnx.ModelProto) -> Any:
    with gpu():
        return emit(model)


@pytest.mark.parametrize("name", one_of(3, MODELS))
def test_every_kernel_runs_on_the_gpu(name: str) -> None:
    """What has no threads would be compiled for the host, which cannot read a GPU's memory."""
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(MODELS[name])))
    kernels = {
        variable.name_hint: function.script()
        for variable, function in lowered.functions_items()
        if isinstance(function, tirx.PrimFunc) and not variable.name_hint.startswith(ON_THE_HOST)
    }
    assert kernels
    assert [name for name, text in kernels.items() if "threadIdx.x" not in text] == []


@pytest.mark.parametrize("name", one_of(3, MODELS))
def test_cuda_code_is_generated(name: str) -> None:
    assert "cuda" in kinds(looplift.compile(imported(parse(MODELS[name])), gpu()).mod)


def test_sines_need_no_float64_where_there_is_none() -> None:
    target = tvm.target.Target({"kind": "metal"}, host={"kind": "llvm"})
    module = looplift.from_onnx(parse(DOMAINS))
    assert "metal" in kinds(looplift.compile(module, target).mod)


def test_no_value_is_selected_by_a_vector() -> None:
    """The CUDA compiler refuses TVM's code for a vectorised Select."""
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(PRODUCT)))
    text = "".join(kernel.script() for kernel in lowered.functions.values())
    assert "T.vectorized" in text
    assert "T.Select" not in text


def test_bytes_wrap_around_and_constants_keep_their_digits() -> None:
    """C++ would compute with integers of 32 bits, and TVM prints 15 decimal places."""
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(ARITHMETIC)))
    text = "".join(kernel.script() for kernel in lowered.functions.values())
    assert 'T.Cast("uint8", T.Cast("uint32", a[v0]) + T.Cast("uint32", b[v0]))' in text
    assert 'T.Cast("uint8", T.Cast("uint32", a[v0]) << T.Cast("uint32", ' in text
    assert 'T.reinterpret("float64", ' in text
    assert "T.float64(1000000000000000000" in text


def test_bytes_wrap_around_on_other_gpus() -> None:
    target = tvm.target.Target({"kind": "metal"}, host={"kind": "llvm"})
    model = parse("""g (uint8[n] a, uint8[n] b) => (uint8[n] y) {
        difference = Sub (a, b) product = Mul (difference, a) y = Div (product, b) }""")
    with target:
        lowered = relax.get_pipeline("looplift")(imported(model))
    text = "".join(kernel.script() for kernel in lowered.functions.values())
    assert re.search(
        r'T\.Cast\("uint8", T\.Cast\("uint32", a\[\w+\]\) - T\.Cast\("uint32", b', text
    )
    assert re.search(
        r'T\.Cast\("uint8", T\.Cast\("uint32", T\.Cast\(.*\) \* T\.Cast\("uint32", a', text
    )


def test_weights_with_any_name_are_parameters_of_kernels() -> None:
    """C++ declares them by their names."""
    model = parse(PRODUCT)
    for node in model.graph.node:
        node.input[:] = ["113" if name == "y" else name for name in node.input]
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight(2, 7, 32), "113"))
    module = looplift.from_onnx(model, keep_params_in_input=True)
    assert "113" in [param.name for param in module["main"].params]
    with gpu():
        lowered = relax.get_pipeline("looplift")(module)
    kernels = [f for f in lowered.functions.values() if isinstance(f, tirx.PrimFunc)]
    names = {param.name for kernel in kernels for param in kernel.params}
    assert "v113" in names
    assert "113" not in names


def test_a_kernel_without_results_does_nothing() -> None:
    """Even if it has a tensor of its own, which no schedule for GPUs would take."""
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(PRODUCT)))
    kernels = {variable.name_hint: kernel for variable, kernel in lowered.functions_items()}
    (turned,) = [kernel for name, kernel in kernels.items() if "flip" in name]
    stores: list[Any] = []
    tvm_ffi.structural_walk(turned.body, (tirx.BufferStore, stores.append))
    assert stores == []


@pytest.mark.parametrize("model", [PRODUCT, SUMS, REGIONS], ids=["product", "sums", "regions"])
def test_no_block_is_launched_where_a_grid_has_none(model: str) -> None:
    with gpu():
        lowered = relax.get_pipeline("looplift")(imported(parse(model)))
    kernels = [one for one in lowered.functions.values() if isinstance(one, tirx.PrimFunc)]
    grids = [grid for kernel in kernels for grid in symbolic_grids(kernel.body)]
    launches = [loop for kernel in kernels for loop in launch_loops(kernel.body)]
    launched = [grid for loop in launches for grid in symbolic_grids(loop.body)]
    assert launched
    assert len(launched) == len(grids)
    for loop in launches:
        assert str(loop.extent).startswith("T.min(")


def launch_loops(body: Any) -> list[tirx.For]:
    """The loops around launches, at most one around each."""
    return [loop for loop in loops_of(body) if loop.loop_var.name == "launch"]


def symbolic_grids(body: Any) -> list[tirx.For]:
    bound = [loop for loop in loops_of(body) if loop.thread_binding is not None]
    grids = [loop for loop in bound if loop.thread_binding.thread_tag.startswith("blockIdx")]
    return [grid for grid in grids if not isinstance(grid.extent, tirx.IntImm)]


def loops_of(body: Any) -> list[tirx.For]:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, found.append))
    return found


def kinds(module: Any) -> set[str]:
    """The kinds of a compiled module and of those inside it."""
    return {module.kind}.union(*(kinds(inner) for inner in module.imports))


@pytest.mark.skipif(not tvm.cuda().exist, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_computes_what_onnxruntime_does(name: str) -> None:
    model = parse(MODELS[name])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wants = session.run(None, dict(FEEDS[name]))
    target = gpu("sm_" + tvm.cuda().compute_version.replace(".", ""))
    machine = relax.VirtualMachine(looplift.compile(looplift.from_onnx(model), target), tvm.cuda())
    given = [tvm.runtime.tensor(FEEDS[name][one.name], tvm.cuda()) for one in model.graph.input]
    gots = machine["main"](*given)
    for got, want in zip(gots if len(wants) > 1 else [gots], wants, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("processor", [{"kind": "llvm"}, {"kind": "llvm", "mcpu": "x86-64"}])
def test_kernels_of_a_cpu_are_refused(processor: dict[str, str]) -> None:
    with tvm.target.Target(processor):
        module = LowerRecurrent()(emit(parse(MODELS["layer"])))
    with pytest.raises(looplift.UnsupportedError, match="for a CPU"):
        looplift.compile(module, gpu())
