"""LSTM, GRU and RNN in whole modules: node cases, versions, pipelines, export, branches."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from tvm import relax

import looplift
from looplift.lowering.emit import emit
from looplift.lowering.operators.recurrent_operator import recurrent
from looplift.lowering.operators.registry import ConverterContext
from looplift.lowering.tvm_onnx import InputList
from looplift.transform import LowerRecurrent

from ...node_cases import node_cases
from ...samples import one_of
from ..compiled import Array, Compiled, Feed

LAYER = """
<ir_version: 8, opset_import: ["" : 14]>
layer (float[n, b, 3] x, float[1, 20, 3] w, float[1, 20, 5] r, int32[b] lengths,
       float[1, b, 5] h, float[1, b, 5] c) => (float[n, 1, b, 5] y, float[1, b, 5] last)
{
    y, last = LSTM <hidden_size = 5, direction = "reverse"> (x, w, r, "", lengths, h, c)
}
"""

BRANCHES = """
<ir_version: 8, opset_import: ["" : 14]>
branches (bool forward, float[n, b, 3] x, float[1, 15, 3] w, float[1, 15, 5] r)
    => (float[n, 1, b, 5] y)
{
    doubled = Add (x, x)
    y = If (forward) <
        then_branch = ahead () => (float[n, 1, b, 5] a) {
            a = GRU <hidden_size = 5> (doubled, w, r)
        },
        else_branch = back () => (float[n, 1, b, 5] z) {
            z = GRU <hidden_size = 5, direction = "reverse", linear_before_reset = 1> (x, w, r)
        }
    >
}
"""

UNKNOWN_SIZES = """
<ir_version: 8, opset_import: ["" : 14]>
layer (float[?, ?, ?] x, float[?, ?, 3] w, float[?, ?, ?] r, float[?, ?] bias, float[?, ?, ?] h)
    => (float[?, ?, ?, ?] y, float[?, ?, ?] last)
{
    y, last = GRU <hidden_size = 5> (x, w, r, bias, "", h)
}
"""

STACK = """
<ir_version: 8, opset_import: ["" : 14]>
stack (float[n, b, 5] x, float[1, 20, 5] w, float[1, 20, 5] r) => (float[n, b, 5] y)
<int64[1] one = {1}>
{
    a = LSTM <hidden_size = 5> (x, w, r)
    b1 = Squeeze (a, one)
    c = LSTM <hidden_size = 5> (b1, w, r)
    y = Squeeze (c, one)
}
"""


def random_feed(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], seed: int = 0
) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.standard_normal(shapes[i.name]).astype("float32") * np.float32(0.4)
        for i in model.graph.input
        if i.name in shapes
    }


def layer_feed(steps: int, batch: int) -> dict[str, Array]:
    state = (1, batch, 5)
    shapes = {"x": (steps, batch, 3), "w": (1, 20, 3), "r": (1, 20, 5), "h": state, "c": state}
    feed = random_feed(onnx.parser.parse_model(LAYER), shapes)
    rng = np.random.default_rng(steps)
    return {**feed, "lengths": rng.integers(0, steps + 1, batch).astype("int32")}


def onnxruntime_outputs(model: onnx.ModelProto, feed: Feed) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    outputs: list[Array] = session.run(None, dict(feed))
    return outputs


def assert_equal(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


CASES = node_cases("LSTM", "GRU", "RNN")


def test_there_are_as_many_cases_as_onnx_ships() -> None:
    assert len(CASES) == 18


@pytest.mark.parametrize("case", one_of(4, CASES), ids=lambda case: str(case.name))
def test_node_case(case: Any) -> None:
    compiled = Compiled(case.model)
    for inputs, outputs in case.data_sets:
        assert_equal(compiled(dict(zip(compiled.inputs, inputs, strict=True))), outputs)


@pytest.mark.parametrize("version", [1, 3, 7, 22])
def test_every_version_of_the_operators(version: int) -> None:
    """onnxruntime runs the newest version; old ones ask for Y by `output_sequence`."""
    old = "output_sequence = 1, " if version < 7 else ""
    text = f"""
    <ir_version: 8, opset_import: ["" : {version}]>
    three (float[n, b, 3] x, float[1, 20, 3] w4, float[1, 20, 5] r4, float[1, 15, 3] w3,
           float[1, 15, 5] r3, float[1, 5, 3] w1, float[1, 5, 5] r1)
        => (float[n, 1, b, 5] y4, float[n, 1, b, 5] y3, float[1, b, 5] last, float[n, 1, b, 5] y1)
    {{
        y4 = LSTM <{old} hidden_size = 5> (x, w4, r4)
        y3, last = GRU <{old} hidden_size = 5, direction = "forward"> (x, w3, r3)
        y1 = RNN <{old} hidden_size = 5> (x, w1, r1)
    }}
    """
    model = onnx.parser.parse_model(text)
    today = onnx.parser.parse_model(text.replace(old, "").replace(f": {version}]", ": 14]"))
    shapes = {"x": (4, 2, 3)}
    for gates in (4, 3, 1):
        shapes |= {f"w{gates}": (1, gates * 5, 3), f"r{gates}": (1, gates * 5, 5)}
    module, present = emit(model), emit(today)
    tvm.ir.assert_structural_equal(module, present)
    if version == 22:
        feed = random_feed(model, shapes)
        assert_equal(Compiled(model, module)(feed), onnxruntime_outputs(today, feed))


@pytest.fixture(scope="module")
def layer() -> Compiled:
    return Compiled(onnx.parser.parse_model(LAYER))


@pytest.mark.parametrize("size", [(1, 1), (7, 1), (4, 3)])
def test_one_module_for_all_lengths_and_batches(layer: Compiled, size: tuple[int, int]) -> None:
    feed = layer_feed(*size)
    assert_equal(layer(feed), onnxruntime_outputs(onnx.parser.parse_model(LAYER), feed))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_length_out_of_range_is_an_error(layer: Compiled, wrong: int) -> None:
    feed = layer_feed(4, 2)
    feed["lengths"] = np.array([4, wrong], "int32")
    with pytest.raises(RuntimeError, match="sequence_lens must lie between 0 and"):
        layer(feed)


def test_sizes_unknown_to_the_model_are_checked_at_run_time() -> None:
    model = onnx.parser.parse_model(UNKNOWN_SIZES)
    shapes = {"x": (4, 2, 3), "w": (1, 15, 3), "r": (1, 15, 5), "bias": (1, 30), "h": (1, 2, 5)}
    feed = random_feed(model, shapes)
    compiled = Compiled(model)
    assert_equal(compiled(feed), onnxruntime_outputs(model, feed))
    with pytest.raises(Exception, match=r"[Mm]atch"):
        compiled({**feed, "h": np.zeros((1, 3, 5), "float32")})


def test_shape_unknown_to_relax() -> None:
    """As after an If whose branches have different shapes."""
    model = onnx.parser.parse_model(STACK)
    feed = random_feed(model, {"x": (6, 2, 5), "w": (1, 20, 5), "r": (1, 20, 5)})
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=3))
    w, r = (relax.const(feed[name]) for name in ("w", "r"))
    with bb.function("main", [x]):
        with bb.dataflow():
            inputs = InputList([x, w, r])
            ctx = ConverterContext(bb, "LSTM", inputs, {"hidden_size": 5})
            outputs = bb.emit_output(recurrent(ctx))
        bb.emit_func_output(outputs)
    machine = relax.VirtualMachine(tvm.compile(bb.get(), tvm.target.Target("llvm")), tvm.cpu())
    twice = onnxruntime_outputs(model, feed)[0]
    once = machine["main"](tvm.runtime.tensor(feed["x"]))[0].numpy()[:, 0]
    again = machine["main"](tvm.runtime.tensor(once))[0].numpy()[:, 0]
    assert_equal([again], [twice])


def test_equal_layers_share_their_kernels() -> None:
    model = onnx.parser.parse_model(STACK)
    module = emit(model)
    with tvm.target.Target("llvm"):
        lowered = LowerRecurrent()(module)
    kernels = [v for v in lowered.get_global_vars() if "recurrence" in v.name_hint]
    assert len(kernels) == 1
    feed = random_feed(model, {"x": (6, 2, 5), "w": (1, 20, 5), "r": (1, 20, 5)})
    assert_equal(Compiled(model, module)(feed), onnxruntime_outputs(model, feed))


def test_in_branches_of_an_if() -> None:
    model = onnx.parser.parse_model(BRANCHES)
    compiled = Compiled(model)
    for forward in (True, False):
        feed = random_feed(model, {"x": (5, 2, 3), "w": (1, 15, 3), "r": (1, 15, 5)})
        feed["forward"] = np.array(forward)
        assert_equal(compiled(feed), onnxruntime_outputs(model, feed))


def decomposed(module: Any) -> Any:
    return relax.transform.DecomposeOpsForInference()(module)


def fused(module: Any) -> Any:
    return relax.get_pipeline("zero")(decomposed(module))


@pytest.mark.parametrize("transform", [decomposed, fused])
def test_after_other_passes(transform: Any) -> None:
    model = onnx.parser.parse_model(LAYER)
    feed = layer_feed(5, 2)
    compiled = Compiled(model, transform(emit(model)))
    assert_equal(compiled(feed), onnxruntime_outputs(model, feed))


def test_the_pipeline_of_the_target() -> None:
    model = onnx.parser.parse_model(LAYER)
    feed = layer_feed(5, 2)
    pipeline = relax.get_default_pipeline(tvm.target.Target("llvm"))
    compiled = Compiled(model, relax_pipeline=pipeline)
    assert_equal(compiled(feed), onnxruntime_outputs(model, feed))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_c_source_of_a_layer_compiles(tmp_path: Path) -> None:
    """The kernel has vectors, for which C has no types; the operator in plain Relax has none."""
    model = onnx.parser.parse_model(LAYER)
    feed = layer_feed(5, 2)
    library = str(tmp_path / "layer.so")
    looplift.compile(emit(model), "c").export_library(library)
    machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(feed[i.name]) for i in model.graph.input))
    assert_equal([result.numpy() for result in results], onnxruntime_outputs(model, feed))


RUN_LIBRARY = """
import sys
import numpy, tvm
from tvm import relax
library, inputs, outputs = sys.argv[1:]
machine = relax.VirtualMachine(tvm.runtime.load_module(library), tvm.cpu())
arrays = numpy.load(inputs)
result = machine["main"](*[tvm.runtime.tensor(arrays[name]) for name in arrays.files])
numpy.savez(outputs, *[r.numpy() for r in result])
assert not [name for name in sys.modules if name.startswith("looplift")]
"""


def test_exported_library_in_a_fresh_process(layer: Compiled, tmp_path: Path) -> None:
    library, inputs, outputs = (tmp_path / n for n in ("layer.so", "inputs.npz", "outputs.npz"))
    layer.executable.export_library(str(library))
    feed = layer_feed(6, 3)
    np.savez(inputs, **{name: feed[name] for name in layer.inputs})  # type: ignore[arg-type]
    command = [sys.executable, "-c", RUN_LIBRARY, str(library), str(inputs), str(outputs)]
    subprocess.run(command, check=True, timeout=120)
    results = np.load(outputs)
    assert_equal([results[name] for name in results.files], layer(feed))
