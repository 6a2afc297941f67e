"""Loops on TVM and on onnxruntime, with one thread each.

    python benchmarks/loops_vs_ort.py [--target native] [--rounds 9] [--most 10000]

Times are medians of calls that take turns in one process. looplift is faster where the ratio is
below 1. A loop is one kernel if the shapes in its body never change, otherwise functions
that the virtual machine runs. Models are rewritten only where they are marked so;
elsewhere the loop of the file is measured. `most` bounds the trip counts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ["TVM_NUM_THREADS"] = "1"  # TVM reads it when it is imported.

import numpy as np
import onnx
import onnx.parser
import tvm
from harness import alternate, report, session
from onnx import numpy_helper
from tvm import relax

import looplift
from looplift.lowering import emit
from looplift.lowering.compile import as_target
from looplift.lowering.forms import Form
from looplift.lowering.scheduling.pipeline import looplift_pipeline

Array = np.ndarray[Any, Any]
COLUMNS, HIDDEN = 64, 128
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
CELL = """
    sums = Add (from_state, b)
    gates = Add (sums, from_input)
    i0, o0, f0, g0 = Split <axis = 1> (gates)
    i = Sigmoid (i0)
    o = Sigmoid (o0)
    f = Sigmoid (f0)
    g = Tanh (g0)
    kept = Mul (f, c)
    new = Mul (i, g)
    c1 = Add (kept, new)
    squashed = Tanh (c1)
    h1 = Mul (o, squashed)
"""
STATE = f"float[1, {HIDDEN}]"
CELL_SCAN = f"""
cell_scan ({STATE} h0, {STATE} c0, float[n, 1, {COLUMNS}] xs)
    => ({STATE} hn, {STATE} cn, float[n, 1, {HIDDEN}] ys)
{{
    hn, cn, ys = Scan <num_scan_inputs = 1, body = cell (
        {STATE} h, {STATE} c, float[1, {COLUMNS}] x) => ({STATE} h1, {STATE} c1, {STATE} y
    ) {{
        from_input = MatMul (x, W)
        from_state = MatMul (h, R)
        {CELL}
        y = Identity (h1)
    }}> (h0, c0, xs)
}}"""
CELL_LOOP = f"""
cell_loop (int64 n, {STATE} h0, {STATE} c0) => ({STATE} hn, {STATE} cn)
<float[1] from_input = {{0.0}}>
{{
    yes = Constant <value = bool {{1}}> ()
    hn, cn = Loop (n, yes, h0, c0) <body = cell (
        int64 step, bool go, {STATE} h, {STATE} c) => (bool goes, {STATE} h1, {STATE} c1
    ) {{
        goes = Identity (go)
        from_state = MatMul (h, R)
        {CELL}
    }}>
}}"""
SCALAR_SCAN = """
scalar_scan (float s0, float[n] xs) => (float sn, float[n] ys)
{
    sn, ys = Scan <num_scan_inputs = 1, body = add (float s, float x) => (float s1, float y) {
        half = Constant <value = float {0.5}> ()
        decayed = Mul (s, half)
        s1 = Add (decayed, x)
        y = Identity (s1)
    }> (s0, xs)
}"""
SCALAR_LOOP = """
scalar_loop (int64 n, float s0) => (float sn)
{
    yes = Constant <value = bool {1}> ()
    sn = Loop (n, yes, s0) <body = add (int64 step, bool go, float s) => (bool goes, float s1) {
        goes = Identity (go)
        one = Constant <value = float {1.0}> ()
        s1 = Add (s, one)
    }>
}"""
WHILE = """
while (float[4] s0, float most) => (float[4] sn)
{
    yes = Constant <value = bool {1}> ()
    zero = Constant <value = int64 {0}> ()
    sn = Loop ("", yes, s0) <body = add (int64 step, bool go, float[4] s) => (bool goes, float[4] s1) {
        one = Constant <value = float {1.0}> ()
        s1 = Add (s, one)
        first = Gather (s1, zero)
        goes = Less (first, most)
    }>
}"""  # noqa: E501

CHANNELS, STATES = 16, 8
SELECTIVE_SCAN = f"""
selective_scan (float[b, t, {CHANNELS}] x) => (float[b, t2, {CHANNELS}] y)
{{
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    last = Constant <value_ints = [-1]> ()
    end = Constant <value_ints = [9223372036854775807]> ()
    second = Constant <value_int = 1> ()
    yes = Constant <value = bool {{1}}> ()
    parts = Constant <value_ints = [1, {STATES}, {STATES}]> ()
    sizes = Constant <value_ints = [{CHANNELS}, {STATES}]> ()
    projected = MatMul (x, projection)
    step0, into, out_of = Split <axis = 2> (projected, parts)
    step1 = MatMul (step0, step_kernel)
    step2 = Softplus (step1)
    step = Unsqueeze (step2, last)
    speeds = Exp (decay_logarithms)
    decay = Neg (speeds)
    rates = Mul (step, decay)
    decays = Exp (rates)
    axis2 = Constant <value_ints = [2]> ()
    wide_into = Unsqueeze (into, axis2)
    weighted = Mul (step, wide_into)
    wide_x = Unsqueeze (x, last)
    inputs = Mul (weighted, wide_x)
    x_shape = Shape (x)
    batch = Gather (x_shape, zero)
    state_shape = Concat <axis = 0> (batch, sizes)
    start = ConstantOfShape (state_shape)
    none = SequenceEmpty ()
    steps = Gather (x_shape, second)
    final, rows = Loop (steps, yes, start, none) <body = advance (
        int64 i, bool go, float[b, {CHANNELS}, {STATES}] h, seq(float[b, {CHANNELS}]) before
    ) => (bool goes, float[b, {CHANNELS}, {STATES}] h1, seq(float[b, {CHANNELS}]) after) {{
        goes = Identity (yes)
        all_decays = Slice (decays, zero, end, zero)
        decay_i = Gather <axis = 1> (all_decays, i)
        kept = Mul (decay_i, h)
        all_inputs = Slice (inputs, zero, end, zero)
        input_i = Gather <axis = 1> (all_inputs, i)
        h1 = Add (kept, input_i)
        all_out_of = Slice (out_of, zero, end, zero)
        out_of_i = Gather <axis = 1> (all_out_of, i)
        wide_out_of = Unsqueeze (out_of_i, one)
        products = Mul (h1, wide_out_of)
        row = ReduceSum <keepdims = 0> (products, last)
        after = SequenceInsert (before, row)
    }}>
    scanned = ConcatFromSequence <axis = 1, new_axis = 1> (rows)
    skipped = Mul (x, skip)
    y = Add (scanned, skipped)
}}"""
"""The state-space layer of Mamba (https://arxiv.org/abs/2312.00752) as TorchScript exports it."""


@dataclass(frozen=True)
class Case:
    """A model and the trip counts to run it with."""

    name: str
    text: str
    form: str
    steps: tuple[int, ...]
    feed: Any
    """From a number of iterations to inputs."""
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_rewritten: bool = False
    """Whether the module is made of the rewritten model; onnxruntime always runs the original."""

    def model(self) -> onnx.ModelProto:
        """The model with random weights."""
        rng = np.random.default_rng(0)
        model = onnx.parser.parse_model(HEADER + self.text)
        for name, shape in self.weights.items():
            content = (rng.standard_normal(shape) * 0.1).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(content, name))
        return model


def zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def cases() -> Iterator[Case]:
    gates = 4 * HIDDEN
    weights = {"R": (HIDDEN, gates), "b": (1, gates)}
    state = {"h0": zeros(1, HIDDEN), "c0": zeros(1, HIDDEN)}
    yield Case(
        "Scan, LSTM cell", CELL_SCAN, "kernel", (10, 100, 1000),
        lambda n: {**state, "xs": np.ones((n, 1, COLUMNS), np.float32)},
        {**weights, "W": (COLUMNS, gates)},
    )  # fmt: skip
    yield Case(
        "Loop, LSTM cell", CELL_LOOP, "kernel", (10, 100, 1000),
        lambda n: {"n": np.array(n), **state}, weights,
    )  # fmt: skip
    yield Case(
        "Scan, scalar", SCALAR_SCAN, "kernel", (100, 1000, 10_000),
        lambda n: {"s0": zeros(), "xs": np.ones(n, np.float32)},
    )  # fmt: skip
    yield Case(
        "Loop, scalar", SCALAR_LOOP, "kernel", (100, 1000, 10_000),
        lambda n: {"n": np.array(n), "s0": zeros()},
    )  # fmt: skip
    for form in ("kernel", "functions"):
        yield Case(
            "while", WHILE, form, (100, 1000, 10_000),
            lambda n: {"s0": zeros(4), "most": np.array(n, np.float32)},
        )  # fmt: skip
    yield Case(
        "Mamba's scan", SELECTIVE_SCAN, "kernel", (10, 100, 1000),
        lambda n: {"x": np.ones((1, n, CHANNELS), np.float32)}, is_rewritten=True,
        weights={
            "projection": (CHANNELS, 1 + 2 * STATES), "step_kernel": (1, CHANNELS),
            "decay_logarithms": (CHANNELS, STATES), "skip": (CHANNELS,),
        },
    )  # fmt: skip


def measure(case: Case, target: str, rounds: int, most: int) -> Iterator[dict[str, Any]]:
    """One row for each trip count."""
    model = case.model()
    to_emit = looplift.rewrite(model).model if case.is_rewritten else model
    forms: list[Form] = []
    module = emit(to_emit, on_form=forms.append)
    if case.form == "kernel":
        assert all(form.is_kernel for form in forms), f"{case.name} is no kernel"
    pipeline = looplift_pipeline(fuse_loops=case.form == "kernel")
    executable = tvm.compile(module, target=as_target(target), relax_pipeline=pipeline)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    oracle = session(model)
    for steps in sorted({min(steps, most) for steps in case.steps}):
        feed = case.feed(steps)
        inputs = [tvm.runtime.tensor(value) for value in feed.values()]
        wanted, got = oracle.run(None, feed), machine["main"](*inputs)
        for a, b in zip(wanted, [got] if len(wanted) == 1 else got, strict=True):
            np.testing.assert_allclose(b.numpy(), a, rtol=1e-5, atol=1e-5)
        times = alternate(
            {
                "onnxruntime": partial(oracle.run, None, feed),
                "TVM": partial(machine["main"], *inputs),
            },
            rounds,
        )
        yield {
            "loop": case.name,
            "as": f"rewritten, {case.form}" if case.is_rewritten else case.form,
            "iterations": steps,
            "onnxruntime, us/it": 1e6 * times["onnxruntime"] / steps,
            "TVM, us/it": 1e6 * times["TVM"] / steps,
            "ratio": times["TVM"] / times["onnxruntime"],
        }


def main() -> None:
    """Measures and reports."""
    parser = argparse.ArgumentParser(description="Compare loops with onnxruntime.")
    parser.add_argument("--target", default="native")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=10_000)
    arguments = parser.parse_args()
    given = arguments.target, arguments.rounds, arguments.most
    rows = [row for case in cases() for row in measure(case, *given)]
    report("loops_vs_ort", f"Loops, batch 1, hidden {HIDDEN}, target {arguments.target}", rows)


if __name__ == "__main__":
    main()
