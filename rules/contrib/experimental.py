"""Decomposes experimental operators, which ONNX dropped and onnxruntime still runs before opset 10.

y = Affine<alpha, beta>(x)              ->   y = alpha * x + beta
y = Scale<scale>(x)                     ->   y = scale * x
y = ScaledTanh<alpha, beta>(x)          ->   y = alpha * Tanh(beta * x)
y = ParametricSoftplus<alpha, beta>(x)  ->   y = alpha * Softplus(beta * x)
y = ImageScaler<scale, bias>(x)         ->   y = scale * x + bias, one bias for each channel
y = Crop<border, scale>(x)              ->   y = Slice(x) along the last two axes

Converters from Core ML wrote them, for style transfer and preprocessing of images. They are
specified in onnxruntime's `contrib_defs.cc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper

from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor
from .checks import need_type, number

_INNER = {"ScaledTanh": "Tanh", "ParametricSoftplus": "Softplus"}
"""The function of an operator with a factor inside and one outside."""


@dataclass(frozen=True)
class AffineTerms:
    """The factors and summands of an elementwise operator; None where there is none."""

    dtype: int
    inside: float | None = None
    """The factor of the operand of the function."""
    outside: float | None = None
    """The factor of the result."""
    summands: np.ndarray | None = None


class DecomposeAffine(Rule[AffineTerms]):
    """Decomposes Affine, ImageScaler, ParametricSoftplus, Scale and ScaledTanh."""

    root = ("Affine", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
    promise = Promise(
        rounds="a product and a sum may be rounded together",
        always_accepts="images of another rank than 4, or with other numbers of channels than `bias`",
    )
    fires = """<ir_version: 3, opset_import: ["" : 7]>
      g (float[N,3,H,W] x) => (float[N,3,H,W] y) {
      y = ImageScaler<scale = 0.5, bias = [1.0, 2.0, 3.0]>(x) }"""
    spares = {
        "is not known": """<ir_version: 3, opset_import: ["" : 7, "com.microsoft" : 1]>
      g (float[3,3] x) => (float[3,3] y) { h = com.microsoft.Inverse(x)
      y = Affine<alpha = 0.5>(h) }""",
    }

    def match(self, m: Match) -> AffineTerms:
        dtype = need_type(m, m.node.inputs[0])
        attributes = m.node.attrs
        match m.node.op:
            case "Affine":
                summand = np.array(attributes.get("beta", 0.0))
                return AffineTerms(dtype, outside=attributes.get("alpha", 1.0), summands=summand)
            case "Scale":
                return AffineTerms(dtype, outside=attributes.get("scale", 1.0))
            case "ImageScaler":
                summands = np.reshape(_attribute(m, "bias"), [-1, 1, 1])
                return AffineTerms(dtype, outside=attributes.get("scale", 1.0), summands=summands)
            case _:
                inside, outside = (float(_attribute(m, name)) for name in ("beta", "alpha"))
                return AffineTerms(dtype, inside, outside)

    def apply(self, patch: Patch, found: AffineTerms) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        y = _scaled(emit, node.inputs[0], found.inside, found.dtype)
        if node.op in _INNER:
            y = emit(_INNER[node.op], y)
        y = _scaled(emit, y, found.outside, found.dtype)
        if found.summands is not None:
            dtype = helper.tensor_dtype_to_np_dtype(found.dtype)
            y = emit("Add", y, emit.constant(found.summands.astype(dtype)))
        patch.replace_node(node, [y])
        patch.decompose_operator()


def _scaled(emit: Builder, x: Tensor, factor: float | None, dtype: int) -> Tensor:
    return x if factor is None else emit("Mul", x, number(emit, factor, dtype))


def _attribute(m: Match, name: str) -> Any:
    """An attribute without a default. Raises Miss where the node does not have it."""
    return m.need(m.node.attrs.get(name), "it lacks its attribute {}", name)


class DecomposeCrop(Rule[dict[int, slice]]):
    """Decomposes Crop into a Slice for each of the last two axes."""

    root = "Crop"
    promise = Promise(
        always_accepts="images that are smaller than what is cut off",
    )
    fires = """<ir_version: 3, opset_import: ["" : 7]>
      g (float[N,3,9,8] x) => (float[N,3,4,4] y) { y = Crop<border = [1, 2, 3, 3]>(x) }"""
    spares = {
        "is not known": """<ir_version: 3, opset_import: ["" : 7, "com.microsoft" : 1]>
      g (float[1,1,3,3] x) => (float[1,1,1,1] y) { h = com.microsoft.Inverse(x)
      y = Crop<border = [1, 1, 1, 1]>(h) }""",
    }

    def match(self, m: Match) -> dict[int, slice]:
        x = m.node.inputs[0]
        m.need(m.facts.rank(x) == 4, "{} is not known to have 4 axes", x, at=x)
        border, sizes = m.node.attrs.get("border", ()), m.node.attrs.get("scale", ())
        m.need(len(border) == 4 and min(border) >= 0, "`border` is not 4 sizes")
        m.need(len(sizes) in (0, 2) and min(sizes, default=0) >= 0, "`scale` is not 2 sizes")
        left, top, right, bottom = border
        ends = [start + n for start, n in zip((top, left), sizes)] or [
            -cut if cut else None for cut in (bottom, right)
        ]
        return {2: slice(top, ends[0], 1), 3: slice(left, ends[1], 1)}

    def apply(self, patch: Patch, found: dict[int, slice]) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        y = node.inputs[0]
        for axis, part in found.items():
            y = emit.slice(y, axis, part)
        patch.replace_node(node, [y])
        patch.decompose_operator()
