"""Weights as parameters: those that decide shapes keep their values, all others can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tvm import relax

from looplift import UnsupportedError
from looplift.lowering import emit
from looplift.lowering.values import as_int

from ..node_cases import all_node_cases
from .conftest import parse
from .operators.inputs import random

Load = Callable[..., Any]
HEADER = '<ir_version: 10, opset_import: ["" : 23]>\n'
SHAPES = {
    "AffineGrid": """g (float[1, 2, 3] x) => (float[1, 4, 5, 2] y) <int64[4] s = {1, 1, 4, 5}> {
        y = AffineGrid (x, s) }""",
    "CenterCropPad": """g (float[3, 9] x) => (float[2, 4] y) <int64[2] s = {2, 4}> {
        y = CenterCropPad (x, s) }""",
    "Col2Im": """g (float[1, 5, 5] x) => (float[1, 1, 5, 5] y)
        <int64[2] s = {5, 5}, int64[2] b = {1, 5}> { y = Col2Im (x, s, b) }""",
    "DFT": """g (float[1, 8, 4, 1] x) => (float[1, 6, 4, 2] y) <int64 n = {6}, int64 a = {1}> {
        y = DFT (x, n, a) }""",
    "Dropout": """g (float[4] x) => (float[4] y) <float r = {0.5}, bool t = {0}> {
        y = Dropout (x, r, t) }""",
    "MaxUnpool": """g (float[1, 1, 2] x, int64[1, 1, 2] i) => (float[1, 1, 5] y)
        <int64[3] s = {1, 1, 5}> { y = MaxUnpool <kernel_shape = [2], strides = [2]> (x, i, s) }""",
    "MelWeightMatrix": """g (float low, float high) => (float[9, 8] y)
        <int64 b = {8}, int64 n = {16}, int64 r = {8192}> {
        y = MelWeightMatrix (b, n, r, low, high) }""",
    "STFT": """g (float[1, 128, 1] x) => (float[1, 15, 9, 2] y) <int64 s = {8}, int64 n = {16}> {
        y = STFT (x, s, , n) }""",
}


@pytest.mark.parametrize("op_type", SHAPES)
def test_what_decides_shapes_keeps_its_value(op_type: str) -> None:
    module = emit(parse(HEADER + SHAPES[op_type]), keep_params_in_input=True)
    assert_same_shapes(module, emit(parse(HEADER + SHAPES[op_type])))
    if op_type == "Dropout":  # which would otherwise check in each run that it drops nothing
        assert {variable.name_hint for variable in module.get_global_vars()} == {"main"}


def test_all_other_weights_can_be_replaced(imported: Load) -> None:
    text = """
    g (float[2, 3] x, int64[2] i{inputs}) =>
      (float[2, 3] power, float[2, 5] padded, float[2, 3] product, float[2, 4] hot)
      <int64[4] amounts = {{0, 1, 0, 1}}, int64 depth = {{4}}{weights}> {{
        power = Pow (x, exponent)
        padded = Pad (x, amounts, fill)
        product = CumProd (x, axis)
        hot = OneHot (i, depth, pair)
    }}"""
    header = '<ir_version: 13, opset_import: ["" : 26]>'
    kinds = {"exponent": "float", "fill": "float", "axis": "int64", "pair": "float[2]"}
    first = {"exponent": "{2}", "fill": "{0}", "axis": "{0}", "pair": "{0, 1}"}
    weights = "".join(f", {kind} {name} = {first[name]}" for name, kind in kinds.items())
    inputs = "".join(f", {kind} {name}" for name, kind in kinds.items())
    kept = imported(header + text.format(inputs="", weights=weights), keep_params_in_input=True)
    plain = imported(header + text.format(inputs=inputs, weights=""))
    x, i = np.abs(random(2, 3)), np.array([3, 1])
    others = [np.float32(3), np.float32(7), np.int64(1), np.array([5, 6], np.float32)]
    fixed = [np.array([0, 1, 0, 1]), np.array(4)]
    for got, want in zip(kept.run(x, i, *fixed, *others), plain.run(x, i, *others), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert_same_shapes(kept.module, plain.module)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_every_operator_has_the_same_shapes_with_weights_as_parameters() -> None:
    """ONNX's cases of each operator, with all inputs but the first, or all, as weights."""
    different, count = [], 0
    for case, model in _cases_with_weights():
        try:
            wanted = output_shapes(emit(model))
        except UnsupportedError:
            continue
        count += 1
        if output_shapes(emit(model, keep_params_in_input=True)) != wanted:
            different.append(case)
    assert different == []
    assert count > 300


def _cases_with_weights() -> Iterator[tuple[str, onnx.ModelProto]]:
    """One case for each operator and the inputs it is given, by name."""
    seen = set()
    for case in all_node_cases():
        (node, *others), sets = case.model.graph.node, case.data_sets
        if others or not sets or not all(isinstance(value, np.ndarray) for value in sets[0][0]):
            continue
        form = node.op_type, tuple(map(bool, node.input))
        if form in seen:
            continue
        seen.add(form)
        for first in range(min(2, len(sets[0][0]))):
            yield case.name, _with_weights(case.model, sets[0][0], first)


def _with_weights(model: onnx.ModelProto, values: list[Any], first: int) -> onnx.ModelProto:
    """The model with the inputs from `first` on as initializers."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for info, value in zip(model.graph.input[first:], values[first:], strict=True):
        changed.graph.initializer.append(numpy_helper.from_array(value, info.name))
    del changed.graph.input[first:]
    return changed


def assert_same_shapes(got: Any, wanted: Any) -> None:
    assert output_shapes(got) == output_shapes(wanted)


def output_shapes(module: Any) -> list[list[int | None] | None]:
    """The shapes of the outputs of `main`, with None for a size or rank that is not known."""
    kind = module["main"].ret_ty
    fields = kind.fields if isinstance(kind, relax.TupleType) else [kind]
    return [
        [as_int(size) for size in field.shape.values]
        if isinstance(field, relax.TensorType) and isinstance(field.shape, relax.ShapeExpr)
        else None
        for field in fields
    ]
