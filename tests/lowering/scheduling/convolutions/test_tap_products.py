"""Convolutions of images that are small at run time, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as ib

import looplift
from looplift.lowering.scheduling.convolutions.tap_products import GATHER, length_of_run

from ....samples import one_of
from ...comparison import TARGETS, check, weight, with_weights
from ...compiled import NATIVE, virtual_machine

SIZES = [(1, 1), (7, 1), (1, 7), (2, 2), (3, 4), (12, 1), (1, 13), (5, 5), (30, 41)]
LENGTHS = [1, 2, 3, 7, 12, 13, 24, 25, 200]
BATCHES = [1, 3]

PLANES: dict[str, tuple[str, tuple[int, ...], int]] = {
    "Winograd": ("pads = [1, 1, 1, 1]", (64, 40, 3, 3), 40),
    "Winograd, odd channels": ("pads = [1, 1, 1, 1]", (50, 33, 3, 3), 33),
    "Winograd, padding at one end": ("pads = [2, 0, 0, 2]", (64, 32, 3, 3), 32),
    "panels of channels": ("pads = [1, 1, 1, 1], strides = [2, 2]", (64, 30, 3, 3), 30),
    "dilation": ("pads = [2, 2, 2, 2], dilations = [2, 2]", (64, 30, 3, 3), 30),
    "stride in one axis": ("pads = [0, 2, 1, 2], strides = [3, 1]", (64, 9, 2, 5), 9),
    "groups": ("pads = [1, 1, 1, 1], group = 2", (64, 20, 3, 3), 40),
    "vectors of positions": ("pads = [1, 1, 1, 1]", (20, 24, 3, 3), 24),
    "vectors of positions, groups": ("pads = [2, 1, 2, 1], group = 3", (15, 4, 5, 3), 12),
    "shared by cores": ("pads = [1, 1, 1, 1]", (256, 256, 3, 3), 256),
    "panels, shared by cores": ("pads = [1, 1, 1, 1], strides = [2, 2]", (1184, 100, 3, 3), 100),
    "far padding": ("pads = [4, 4, 4, 4], dilations = [4, 4], strides = [2, 3]", (64, 8, 3, 3), 8),
}
LINES: dict[str, tuple[str, tuple[int, ...], int]] = {
    "stride": ("pads = [1, 1], strides = [2]", (64, 40, 3), 40),
    "many taps": ("pads = [5, 5]", (30, 24, 11), 24),
    "dilation": ("pads = [6, 6], dilations = [6]", (70, 17, 3), 17),
    "groups": ("pads = [1, 2], group = 4", (40, 6, 4), 24),
    "shared by cores": ("pads = [1, 1]", (700, 520, 3), 520),
    "only padding": ("pads = [5, 0], strides = [9]", (30, 24, 2), 24),
}


def model_of(inputs: str, attributes: str) -> str:
    return f"""model (float[{inputs}] x) => (y) {{
        p = Conv <{attributes}> (x, f, c) q = Sigmoid (p) y = Mul (p, q) }}"""


@pytest.mark.parametrize("name", one_of(4, PLANES))
def test_planes(name: str) -> None:
    attributes, shape, channels = PLANES[name]
    feeds = [{"b": b, "h": h, "w": w} for b in BATCHES for h, w in SIZES]
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    check(model_of(f"b, {channels}, h, w", attributes), weights, feeds)


@pytest.mark.parametrize("name", one_of(3, LINES))
def test_lines(name: str) -> None:
    attributes, shape, channels = LINES[name]
    feeds = [{"b": b, "n": n} for b in BATCHES for n in LENGTHS]
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    check(model_of(f"b, {channels}, n", attributes), weights, feeds)


SMALL = ["Winograd", "panels of channels", "vectors of positions"]
"""A case of each rule."""


@pytest.mark.parametrize(("sizes", "gathers"), [("h, w", True), ("2, 2", False)])
@pytest.mark.parametrize("name", one_of(3, SMALL))
def test_taps_are_gathered_for_unknown_sizes(name: str, sizes: str, gathers: bool) -> None:
    attributes, shape, channels = PLANES[name]
    text = model_of(f"1, {channels}, {sizes}", attributes)
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    executable = looplift.compile(looplift.from_onnx(with_weights(text, weights)), "native")
    (library,) = (part for part in executable.mod.imports if part.kind == "llvm")
    assert (GATHER in library.inspect_source("ll")) == gathers


@pytest.mark.parametrize("name", one_of(3, SMALL))
def test_an_image_without_positions(name: str) -> None:
    """Onnxruntime refuses it."""
    attributes, shape, channels = PLANES[name]
    text = model_of(f"1, {channels}, h, w", attributes)
    model = with_weights(text, {"f": weight(*shape), "c": weight(shape[0])})
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    for height, width in ((12, 0), (400, 0), (0, 400)):
        x = tvm.runtime.tensor(np.zeros((1, channels, height, width), np.float32))
        sizes = machine["main"](x).numpy().shape
        assert sizes[:2] == (1, shape[0])
        assert 0 in sizes


@pytest.mark.parametrize("target", one_of(2, TARGETS[1:]), ids=["AVX2", "SSE"])
@pytest.mark.parametrize("name", one_of(3, SMALL))
def test_other_processors(name: str, target: Any) -> None:
    attributes, shape, channels = PLANES[name]
    feeds = [{"b": 2, "h": h, "w": w} for h, w in SIZES]
    weights = {"f": weight(*shape), "c": weight(shape[0])}
    check(model_of(f"b, {channels}, h, w", attributes), weights, feeds, target)


def test_one_known_size() -> None:
    weights = {"f": weight(64, 40, 3, 3), "c": weight(64)}
    text = model_of("1, 40, h, 1", "pads = [1, 1, 1, 1]")
    check(text, weights, [{"h": h} for h in (1, 2, 7, 12, 13, 100)])


@pytest.mark.parametrize("name", one_of(2, SMALL))
def test_nan_reaches_the_outputs_that_read_it(name: str) -> None:
    attributes, shape, channels = PLANES[name]
    model = with_weights(
        f"model (float[1, {channels}, h, w] x) => (y) {{ y = Conv <{attributes}> (x, f) }}",
        {"f": weight(*shape)},
    )
    machine = virtual_machine(looplift.compile(looplift.from_onnx(model), NATIVE))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, channels, 3, 4)).astype(np.float32)
    x[0, 5, 2, 3] = np.nan
    (want,) = session.run(None, {"x": x})
    given = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(np.isnan(given), np.isnan(want))


@pytest.mark.parametrize(
    ("taps", "longest", "runs"),
    [
        ([1, 2], 2, [2]),
        ([1, 4, 7], 3, [1, 1, 1]),
        ([0, 1, 3, 4, 5], 5, [2, 3]),
        ([3, 4], 1, [1, 1]),
    ],
)
def test_taps_that_follow_each_other_are_a_run(
    taps: list[int], longest: int, runs: list[int]
) -> None:
    with IRBuilder() as builder, ib.prim_func(s_tir=True):
        ib.func_attr({"global_symbol": "main", "tirx.noalias": True})
        used, found = (
            ib.match_buffer(ib.arg(name, ib.handle()), (length,), "int64")
            for name, length in (("used", len(taps) + 1), ("found", 1))
        )
        begin = ib.arg("begin", ib.int64())
        length = ib.alloc_buffer((1,), "int64")
        most = tirx.min(len(taps) - begin, longest)
        ib.buffer_store(found, length_of_run(used, begin, most, length), [0])
    function = tvm.compile(builder.get(), "llvm")["main"]
    listed, found = (tvm.runtime.tensor(np.array(v, np.int64)) for v in ([*taps, len(taps)], [0]))
    begin, lengths = 0, []
    while begin < len(taps):
        function(listed, found, begin)
        lengths.append(int(found.numpy()[0]))
        begin += lengths[-1]
    assert lengths == runs
