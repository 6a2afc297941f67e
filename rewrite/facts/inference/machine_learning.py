"""Ensembles of decision trees, operators of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from ...symbolic import Dim
from ..fact import Fact
from .registry import NodeContext, register


@register("ai.onnx.ml::TreeEnsembleRegressor")
def tree_ensemble_regressor(ctx: NodeContext) -> Sequence[Fact]:
    """A float32 for each row and target."""
    return [_rows_of(ctx, TensorProto.FLOAT, ctx.attr("n_targets", 1))]


@register("ai.onnx.ml::TreeEnsemble")
def tree_ensemble(ctx: NodeContext) -> Sequence[Fact]:
    """A number of the type of the data for each row and target."""
    return [_rows_of(ctx, ctx.fact(0).dtype, ctx.attr("n_targets", 1))]


@register("ai.onnx.ml::TreeEnsembleClassifier")
def tree_ensemble_classifier(ctx: NodeContext) -> Sequence[Fact]:
    """A label for each row, and a float32 for each row and label."""
    strings, numbers = (ctx.attr(f"classlabels_{kind}", ()) for kind in ("strings", "int64s"))
    if not strings and not numbers:
        return [Fact() for _ in ctx.node.outputs]
    scores = _rows_of(ctx, TensorProto.FLOAT, len(strings or numbers))
    label = TensorProto.STRING if strings else TensorProto.INT64
    rows = None if scores.shape is None else scores.shape[:1]
    return [Fact(label, rows), scores][: len(ctx.node.outputs)]


def _rows_of(ctx: NodeContext, dtype: int, count: int) -> Fact:
    """So many numbers for each row of the data, which is one row if it is a vector."""
    shape = ctx.shape(0)
    if shape is None or len(shape) not in (1, 2):
        return Fact(dtype)
    rows: Dim = shape[0] if len(shape) == 2 else 1
    return Fact(dtype, (rows, count))
