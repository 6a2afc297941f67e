"""Decomposes normalisations of com.microsoft, with the sum or lookup of embeddings before them.

y = SkipLayerNormalization(x, skip, gamma, beta)
 -> y = LayerNormalization(Add(x, skip), gamma, beta)                       since opset 17

y = SkipSimplifiedLayerNormalization(x, skip, gamma)
 -> s = Add(x, skip)  y = s / Sqrt(ReduceMean(s * s) + epsilon) * gamma
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from ...rewrite import symbolic
from ...rewrite.engine.builder import Builder
from ...rewrite.engine.patch import Patch
from ...rewrite.engine.promise import Promise
from ...rewrite.engine.rule import Match, Rule
from ...rewrite.graph.ir import Tensor, optional
from .checks import HALF, need_type, need_unread, number

_STANDARD_LAYER_NORMALIZATION = 17
"""The first opset that has LayerNormalization."""


@dataclass(frozen=True)
class Normalization:
    """The parameters of a normalisation along the last axis."""

    dtype: int
    epsilon: float


class DecomposeSkipLayerNormalization(Rule[Normalization]):
    """Decomposes SkipLayerNormalization into an Add and a LayerNormalization."""

    root = "com.microsoft.SkipLayerNormalization"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="the mean of a large number may overflow",
        always_accepts="operands that broadcast to each other",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,8] x, float[B,S,8] skip, float[8] gamma, float[8] beta, float[8] bias)
        => (float[B,S,8] y, float[B,S,8] sum) {
      y, mean, deviation, sum = com.microsoft.SkipLayerNormalization<epsilon = 0.001>
        (x, skip, gamma, beta, bias) }"""
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (float[B,S,8] x, float[8] gamma) => (float[B,S,8] y) {
      h = com.microsoft.Trilu(x) y = com.microsoft.SkipLayerNormalization(h, x, gamma) }""",
    }

    def match(self, m: Match) -> Normalization:
        need_unread(m, 1, 2)
        _need_narrow_skip(m)
        epsilon = m.node.attrs.get("epsilon", 1e-12)
        return Normalization(need_type(m, m.node.inputs[0]), epsilon)

    def apply(self, patch: Patch, found: Normalization) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        total = _sum(emit, node.inputs[0], node.inputs[1], optional(node.inputs, 4))
        y = layer_normalization(emit, total, node.inputs[2], optional(node.inputs, 3), found)
        patch.replace_node(node, [y, None, None, total])
        patch.decompose_operator()


class DecomposeRmsNormalization(Rule[Normalization]):
    """Decomposes SimplifiedLayerNormalization, with and without an addition before it."""

    root = ("com.microsoft.SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization")
    promise = Promise(
        rounds="sums in another order",
        always_accepts="operands that broadcast to each other",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[B,S,8] x, float[B,S,8] skip, float[8] gamma)
        => (float[B,S,8] y, float[B,S,8] sum) {
      y, mean, deviation, sum = com.microsoft.SkipSimplifiedLayerNormalization(x, skip, gamma) }"""
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (float[B,S,8] x, float[8] gamma) => (float[B,S,8] y) {
      h = com.microsoft.Trilu(x)
      y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(h, x, gamma) }""",
    }

    def match(self, m: Match) -> Normalization:
        skips = m.node.op.startswith("Skip")
        need_unread(m, *((1, 2) if skips else (1,)))
        if skips:
            _need_narrow_skip(m)
        rank, axis = m.facts.rank(m.node.inputs[0]), m.node.attrs.get("axis", -1)
        m.need(axis in (-1, (rank or 0) - 1), "it normalises along several axes")
        epsilon = m.node.attrs.get("epsilon", 1e-12 if skips else 1e-5)
        return Normalization(need_type(m, m.node.inputs[0]), epsilon)

    def apply(self, patch: Patch, found: Normalization) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        if node.op.startswith("Skip"):
            total = _sum(emit, node.inputs[0], node.inputs[1], optional(node.inputs, 3))
            y = _rms_normalization(emit, total, node.inputs[2], found)
            patch.replace_node(node, [y, None, None, total])
        else:
            y = _rms_normalization(emit, node.inputs[0], node.inputs[1], found)
            patch.replace_node(node, [y, None])
        patch.decompose_operator()


class DecomposeEmbedLayerNormalization(Rule[Normalization]):
    """Decomposes EmbedLayerNormalization into Gathers, Adds and a LayerNormalization."""

    root = "com.microsoft.EmbedLayerNormalization"
    promise = Promise(
        rounds="sums in another order",
        nonfinite="the mean of a large number may overflow",
        always_accepts="indices that count from the end, and operands that broadcast",
    )
    fires = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (int32[B,S] mask, float[9,8] words, float[7,8] places, float[8] gamma, float[8] beta)
        => (float[B,S,8] y, int32[B] count, float[B,S,8] sum) <int32 zero = {0}> {
      ids = Mul(mask, zero)
      y, count, sum = com.microsoft.EmbedLayerNormalization
        (ids, , words, places, , gamma, beta, mask) }"""
    spares = {
        "is not known": """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
      g (int32[B,S] ids, float[9,8] w, float[7,8] places, float[8] gamma, float[8] beta)
        => (float[B,S,8] y) { words = com.microsoft.Trilu(w)
      y, count = com.microsoft.EmbedLayerNormalization(ids, , words, places, , gamma, beta) }""",
    }

    def match(self, m: Match) -> Normalization:
        return Normalization(
            need_type(m, m.node.inputs[2]), float(m.node.attrs.get("epsilon", 1e-12))
        )

    def apply(self, patch: Patch, found: Normalization) -> None:
        node = patch.root
        emit = patch.builder(node.outputs[0])
        ids, segments, words, places, segment_table, gamma, beta = node.inputs[:7]
        positions = optional(node.inputs, 8)
        if positions is None:
            positions = first_positions(emit, ids)
        positions = of_nonempty(emit, ids, positions)
        total = emit("Gather", words, ids, axis=0)
        total = emit("Add", total, emit("Gather", places, positions, axis=0))
        if segment_table.name:
            row = segments if segments.name else emit.scalar(0)  # as in onnxruntime
            total = emit("Add", total, emit("Gather", segment_table, row, axis=0))
        y = layer_normalization(emit, total, gamma, beta, found)
        patch.replace_node(node, [y, read_mask_index(patch, emit), total])
        patch.decompose_operator()


def first_positions(emit: Builder, ids: Tensor) -> Tensor:
    """0, 1 … for each row of the identifiers."""
    length = emit.squeeze(emit.shape(ids, 1, 2), [0])
    return emit("Range", emit.scalar(0), length, emit.scalar(1))


def of_nonempty(emit: Builder, ids: Tensor, positions: Tensor) -> Tensor:
    """The positions, or none if the batch is empty.

    An empty batch reads no row of the table, which may have fewer rows than positions.
    """
    shape = emit.patch.facts.shape(ids)
    if shape and symbolic.positive(shape[0]):
        return positions
    return emit("Expand", positions, emit("Shape", ids))


def read_mask_index(patch: Patch, emit: Builder) -> Tensor | None:
    """The second result of an EmbedLayerNormalization, if something reads it."""
    node = patch.root
    if len(node.outputs) < 2 or not patch.index.use_count(node.outputs[1]):
        return None
    return _mask_index(emit, node.inputs[0], optional(node.inputs, 7))


def _mask_index(emit: Builder, ids: Tensor, mask: Tensor | None) -> Tensor:
    """How many elements of each row of the mask are 1, as int32; 0 without a mask."""
    if mask is None:
        rows = emit("Cast", emit.slice(ids, 1, slice(0, 0, 1)), to=TensorProto.INT32)
    else:
        one = number(emit, 1, TensorProto.INT32)
        rows = emit("Cast", emit("Equal", mask, one), to=TensorProto.INT32)
    return emit.reduce("ReduceSum", rows, [1], 0)


def _need_narrow_skip(m: Match) -> None:
    """Raises Miss if an Add may give the sum more elements than the input has.

    The operator gives it the shape of the input, but does not check every size of `skip`.
    """
    x, skip = m.node.inputs[:2]
    sizes = zip((m.facts.shape(x) or ())[::-1], (m.facts.shape(skip) or ())[::-1])
    fits = all(
        not isinstance(other, int) or other == 1 or symbolic.eq(size, other)
        for size, other in sizes
    )
    m.need(fits, "{} has more elements than {} may have", skip, x)


def _sum(emit: Builder, x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    """In onnxruntime's order: the bias is the last summand, which large ones may absorb."""
    total = emit("Add", x, skip)
    return total if bias is None else emit("Add", total, bias)


def layer_normalization(
    emit: Builder, x: Tensor, gamma: Tensor, beta: Tensor | None, found: Normalization
) -> Tensor:
    """Normalises along the last axis (ONNX operator specification, LayerNormalization)."""
    if emit.patch.opset >= _STANDARD_LAYER_NORMALIZATION:
        operands = [x, gamma] if beta is None else [x, gamma, beta]
        return emit("LayerNormalization", *operands, axis=-1, epsilon=found.epsilon)
    wide = _widened(emit, x, found.dtype)
    centred = emit("Sub", wide, emit.reduce("ReduceMean", wide, [-1], 1))
    y = emit("Mul", _scaled(emit, centred, found), gamma)
    return y if beta is None else emit("Add", y, beta)


def _rms_normalization(emit: Builder, x: Tensor, gamma: Tensor, found: Normalization) -> Tensor:
    wide = _widened(emit, x, found.dtype)
    return emit("Mul", _scaled(emit, wide, found), gamma)


def _widened(emit: Builder, x: Tensor, dtype: int) -> Tensor:
    return emit("Cast", x, to=TensorProto.FLOAT) if dtype in HALF else x


def _scaled(emit: Builder, wide: Tensor, found: Normalization) -> Tensor:
    """Divides by the root of the mean square along the last axis; returns the type of the node."""
    half = found.dtype in HALF
    mean = emit.reduce("ReduceMean", emit("Mul", wide, wide), [-1], 1)
    epsilon = number(emit, found.epsilon, TensorProto.FLOAT if half else found.dtype)
    y = emit("Div", wide, emit("Sqrt", emit("Add", mean, epsilon)))
    return emit("Cast", y, to=found.dtype) if half else y
