"""Ensembles of decision trees: TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper
from tvm import relax, tirx

from ...rewrite.errors import UnsupportedError
from ..kernel_call import call_kernel
from ..values import Value
from .broadcasting import ZERO, dims_of, require_size
from .decision_trees import Branch, Leaf, Trees, scored, tabulated, trees_of_nodes
from .registry import ConverterContext, converts
from .tree_kernel import TreeKernel

Array = npt.NDArray[Any]


@converts("ai.onnx.ml::TreeEnsembleRegressor")
def tree_ensemble_regressor(ctx: ConverterContext) -> Value:
    """TreeEnsembleRegressor, float32 of shape [n, targets].

    See https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleRegressor.html.
    """
    data, dtype = _features(ctx)
    trees = _trees(ctx, "target", dtype)
    scores = _aggregated(
        ctx, data, trees, ctx.attr("n_targets", 1), ctx.attr("aggregate_function", "SUM"),
        _numbers(ctx, "base_values", dtype),
    )  # fmt: skip
    result = _transformed(ctx, scores, ctx.attr("post_transform", "NONE"))
    return ctx.cast(result, "float32")


@converts("ai.onnx.ml::TreeEnsemble")
def tree_ensemble(ctx: ConverterContext) -> Value:
    """TreeEnsemble, see https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html."""
    data, dtype = _features(ctx)
    aggregate = _named(ctx, "aggregate_function", 1, ("AVERAGE", "SUM", "MIN", "MAX"))
    transform = _named(ctx, "post_transform", 0, _TRANSFORMS)
    if transform in ("SOFTMAX", "LOGISTIC"):
        raise UnsupportedError(
            "`post_transform` is 1 or 2, which ONNX and onnxruntime understand differently"
        )
    trees = _separate_trees(ctx, dtype)
    no_base = np.zeros(0, dtype)
    scores = _aggregated(ctx, data, trees, ctx.attr("n_targets", 1), aggregate, no_base)
    return ctx.cast(_transformed(ctx, scores, transform), str(ctx.inputs[0].ty.dtype))


@converts("ai.onnx.ml::TreeEnsembleClassifier")
def tree_ensemble_classifier(ctx: ConverterContext) -> Value:
    """TreeEnsembleClassifier: the label of each row, and the scores of all labels.

    Two labels may share one score. What onnxruntime computes for two labels is not the label with
    the higher score: it decides by the sign of the second one, or by one half. See
    https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsembleClassifier.html.
    """
    labels = np.asarray(ctx.attr("classlabels_int64s", ()), "int64")
    if not labels.size:
        raise UnsupportedError("the labels are strings, and TVM has no tensors of strings")
    if labels.size == 1:
        raise UnsupportedError("there is one label only")
    data, dtype = _features(ctx)
    trees, base = _trees(ctx, "class", dtype), _numbers(ctx, "base_values", dtype)
    if labels.size == 2:
        label, scores = _of_two(ctx, data, trees, labels, base)
    else:
        label, scores = _of_many(ctx, data, trees, labels, base)
    return relax.Tuple([label, ctx.bb.emit(ctx.cast(scores, "float32"))])


_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""What scores become, in the order of the numbers of TreeEnsemble."""
_MODES = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
    "BRANCH_MEMBER",
)
"""The modes of nodes, in the order of the numbers of TreeEnsemble."""


# --- operands ---


def _features(ctx: ConverterContext) -> tuple[Value, str]:
    """The rows [n, features], and the type that they are compared in."""
    data = ctx.inputs[0]
    if len(dims_of(data, "data")) == 1:
        data = ctx.bb.normalize(relax.op.expand_dims(data, 0))
    if len(dims_of(data, "data")) != 2:
        raise UnsupportedError(f"the data has {len(dims_of(data, 'data'))} axes, not 1 or 2")
    dtype = "float64" if str(data.ty.dtype) == "float64" else "float32"
    return ctx.cast(data, dtype), dtype


def _numbers(ctx: ConverterContext, name: str, dtype: str) -> Array:
    """An attribute of numbers, which newer versions have as a tensor; empty if there is none."""
    tensor = ctx.attrs.get(f"{name}_as_tensor")
    given = ctx.attr(name, ()) if tensor is None else numpy_helper.to_array(tensor).ravel()
    # Numbers of older versions are float32.
    return np.asarray(given, "float32" if tensor is None else None).astype(dtype)


def _named(ctx: ConverterContext, name: str, default: int, names: Sequence[str]) -> str:
    number: int = ctx.attr(name, default)
    if not 0 <= number < len(names):
        raise UnsupportedError(f"`{name}` is {number}, not one of 0 to {len(names) - 1}")
    return names[number]


def _trees(ctx: ConverterContext, kind: str, dtype: str) -> Trees:
    """The trees of TreeEnsembleRegressor and TreeEnsembleClassifier.

    The attributes of the weights of leaves start with `kind`.
    """
    columns = [list(ctx.attr(f"nodes_{name}", ())) for name in _COLUMNS]
    modes = [mode.decode() for mode in ctx.attr("nodes_modes", ())]
    thresholds = _numbers(ctx, "nodes_values", dtype)
    missing = list(ctx.attr("nodes_missing_value_tracks_true", ())) or [0] * len(modes)
    _need_equal_lengths("nodes", modes, thresholds, missing, *columns)
    nodes = [
        (
            tree,
            number,
            None if mode == "LEAF" else Branch(feature, at, mode, lost == 1, then, other),
        )
        for tree, number, feature, then, other, mode, at, lost in zip(
            *columns, modes, thresholds, missing
        )
    ]
    weights: dict[tuple[int, int], list[Any]] = {}
    of_leaves = [ctx.attr(f"{kind}_{name}", ()) for name in ("treeids", "nodeids", "ids")]
    numbers = _numbers(ctx, f"{kind}_weights", dtype)
    _need_equal_lengths("leaves", numbers, *of_leaves)
    for tree, number, target, weight in zip(*of_leaves, numbers):
        weights.setdefault((tree, number), []).append((target, weight))
    return trees_of_nodes(nodes, weights)


_COLUMNS = ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")


def _need_equal_lengths(name: str, *columns: Any) -> None:
    if len(set(map(len, columns))) > 1:
        raise UnsupportedError(f"the attributes of the {name} do not have the same length")


def _separate_trees(ctx: ConverterContext, dtype: str) -> Trees:
    """The trees of TreeEnsemble, whose leaves are numbered apart from the branches."""

    def array(name: str) -> Array:
        return np.asarray(numpy_helper.to_array(ctx.attrs[name])).ravel()

    splits, weights = (array(name).astype(dtype) for name in ("nodes_splits", "leaf_weights"))
    modes = [_MODES[mode] if mode < len(_MODES) else str(mode) for mode in array("nodes_modes")]
    sets = iter(_members(array("membership_values")) if "membership_values" in ctx.attrs else ())
    columns = [list(ctx.attrs[f"nodes_{name}"]) for name in _SEPARATE_COLUMNS]
    missing = list(ctx.attr("nodes_missing_value_tracks_true", ())) or [0] * len(modes)
    _need_equal_lengths("nodes", modes, splits, missing, *columns)
    targets, roots = ctx.attrs["leaf_targetids"], list(ctx.attrs["tree_roots"])
    _need_equal_lengths("leaves", targets, weights)

    def place(number: int, is_leaf: int) -> int:
        """The position of a branch, or of a leaf, which are after all branches."""
        if not 0 <= number < len(weights if is_leaf else modes):
            raise UnsupportedError("a branch leads to a node that does not exist")
        return number + len(modes) if is_leaf else number

    nodes: list[Branch | Leaf] = [
        Branch(
            feature, next(sets, ()) if mode == "BRANCH_MEMBER" else at, mode, lost == 1,
            place(then, then_leaf), place(other, other_leaf),
        )
        for feature, then, then_leaf, other, other_leaf, mode, at, lost in zip(
            *columns, modes, splits, missing
        )
    ]  # fmt: skip
    nodes += [Leaf(((target, weight),)) for target, weight in zip(targets, weights)]
    return Trees(nodes, [place(root, False) for root in roots])


_SEPARATE_COLUMNS = ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")


def _members(values: Array) -> list[Array]:
    """The sets of BRANCH_MEMBER, which end with NaN."""
    ends = np.flatnonzero(np.isnan(values))
    starts = [0, *(ends + 1)]
    return [values[start:end] for start, end in zip(starts, ends)]


# --- scores ---


def _aggregated(
    ctx: ConverterContext, data: Value, trees: Trees, count: int, aggregate: str, base: Array
) -> Value:
    """The results [n, count] of a regression before the transformation."""
    if aggregate not in ("SUM", "AVERAGE", "MIN", "MAX"):
        raise UnsupportedError(f"`aggregate_function` is {aggregate}")
    if count < 1:
        raise UnsupportedError(f"there are {count} targets")
    always, sometimes = scored(trees, count)
    is_sum = aggregate in ("SUM", "AVERAGE")
    if not is_sum and sometimes:
        raise UnsupportedError(
            f"some rows have no weight for target {min(sometimes)}, and `aggregate_function` is "
            f"{aggregate}"
        )
    if len(base) not in (0, count):
        raise UnsupportedError(f"there are {len(base)} base values for {count} targets")
    scores = _walked(ctx, data, trees, count, "SUM" if is_sum else aggregate)
    dtype = str(scores.ty.dtype)
    if aggregate == "AVERAGE":
        scores = ctx.apply("Div", scores, relax.const(len(trees.roots), dtype))
    scores = _with_base(ctx, scores, base)
    if is_sum or len(always) == count:
        return scores
    return ctx.bb.emit(relax.op.where(_among(always, count), scores, relax.const(0, dtype)))


def _among(results: set[int], count: int) -> Value:
    """Which of so many results are among these, [1, count]."""
    return relax.const(np.isin(np.arange(count), list(results)).reshape(1, -1), "bool")


def _with_base(ctx: ConverterContext, scores: Value, base: Array) -> Value:
    """The scores [n, k] with a number added to those of each result."""
    if not len(base):
        return scores
    return ctx.apply("Add", scores, relax.const(base.reshape(1, -1), str(scores.ty.dtype)))


def _walked(ctx: ConverterContext, data: Value, trees: Trees, count: int, combine: str) -> Value:
    """The weights of the leaves that each row reaches, combined: [n, count]."""
    if not trees.roots:
        raise UnsupportedError("there are no trees")
    if count == 1 and any(len(node.weights) > 1 for node in trees.nodes if isinstance(node, Leaf)):
        raise UnsupportedError("a leaf has several weights for one result")
    rows, width = dims_of(data, "data")
    least = tirx.IntImm("int64", trees.features())
    data = require_size(ctx.bb, data, 1, width + tirx.max(least - width, ZERO))
    dtype = str(data.ty.dtype)
    table, roots = tabulated(trees, dtype)
    arrays = [roots, *table.arrays()]
    how = TreeKernel(dtype, count, [array.shape for array in arrays], table.has_missing, combine)
    operands = [relax.const(array, str(array.dtype)) for array in arrays]
    types = [relax.TensorType([rows, count], dtype)]
    (scores,) = call_kernel(ctx.bb, "trees", how.build(), [data, *operands], types)
    return scores


# --- classes ---


def _of_many(
    ctx: ConverterContext, data: Value, trees: Trees, labels: Array, base: Array
) -> tuple[Value, Value]:
    """Labels [n] and scores [n, labels]: the label with the highest score that a row has."""
    count = len(labels)
    always, sometimes = scored(trees, count)
    if len(base) not in (0, count):
        raise UnsupportedError(f"there are {len(base)} base values for {count} labels")
    if not len(base) and (sometimes or not always):
        raise UnsupportedError("some rows have no weight for some label")
    scores = _with_base(ctx, _walked(ctx, data, trees, count, "SUM"), base)
    candidates = scores
    if not len(base) and len(always) < count:
        least = relax.const(-np.inf, str(scores.ty.dtype))
        candidates = ctx.bb.emit(relax.op.where(_among(always, count), scores, least))
    best = ctx.apply("ArgMax", candidates, axis=-1, keepdims=0)
    label = ctx.bb.emit(relax.op.take(relax.const(labels, "int64"), best, 0, mode="clip"))
    return label, _transformed(ctx, scores, ctx.attr("post_transform", "NONE"))


def _of_two(
    ctx: ConverterContext, data: Value, trees: Trees, labels: Array, base: Array
) -> tuple[Value, Value]:
    """Labels [n] and scores [n, 2], as onnxruntime computes them."""
    always, sometimes = scored(trees, 2)
    used = always | sometimes
    if used == {0}:
        return _of_shared_score(ctx, data, trees, labels, base)
    if len(base):
        raise UnsupportedError("there are base values for two labels, the second with weights")
    if 1 not in always:
        raise UnsupportedError("some rows have no weight for the second label")
    scores = _walked(ctx, data, trees, 2, "SUM")
    second = ctx.bb.emit(relax.op.take(scores, relax.const(1, "int64"), 1, mode="clip"))
    if used == {1}:
        label = _decided(ctx, second, labels, _limit(trees))
    else:
        label = _decided(ctx, second, np.array([0, 1]), 0.0)
    return label, _transformed(ctx, scores, ctx.attr("post_transform", "NONE"))


def _of_shared_score(
    ctx: ConverterContext, data: Value, trees: Trees, labels: Array, base: Array
) -> tuple[Value, Value]:
    """Labels and scores where the score s of a row is that of the second label.

    That of the first is 1 - s if all weights are positive, and else -s.
    """
    transform = ctx.attr("post_transform", "NONE")
    if len(base) > 1 or transform == "PROBIT":
        raise UnsupportedError(
            f"two labels share one score, with {len(base)} base values and `post_transform` "
            f"{transform}"
        )
    score = _with_base(ctx, _walked(ctx, data, trees, 1, "SUM"), base)
    limit = _limit(trees)
    label = _decided(ctx, ctx.bb.emit(relax.op.squeeze(score, [1])), labels, limit)
    one = relax.const(1, str(score.ty.dtype))
    if transform == "LOGISTIC":
        pair = [ctx.apply("Sigmoid", part) for part in (ctx.apply("Neg", score), score)]
    else:
        first = ctx.apply("Sub", one, score) if limit else ctx.apply("Neg", score)
        pair = [first, score]
    return label, ctx.apply("Concat", *pair, axis=1)


def _limit(trees: Trees) -> float:
    """What a score must exceed for the second label."""
    leaves = [node for node in trees.nodes if isinstance(node, Leaf)]
    is_positive = all(weight >= 0 for leaf in leaves for _, weight in leaf.weights)
    return 0.5 if is_positive else 0.0


def _decided(ctx: ConverterContext, scores: Value, labels: Array, limit: float) -> Value:
    """The second label where a score [n] is more than the limit, and else the first."""
    is_second = ctx.bb.emit(relax.op.greater(scores, relax.const(limit, str(scores.ty.dtype))))
    first, second = (relax.const(int(label), "int64") for label in labels)
    return ctx.bb.emit(relax.op.where(is_second, second, first))


# --- transformations ---


def _transformed(ctx: ConverterContext, scores: Value, name: str) -> Value:
    """Scores [n, k] after `post_transform`; single ones stay, except for PROBIT."""
    is_single = int(dims_of(scores, "scores")[1]) == 1
    if name not in _TRANSFORMS:
        raise UnsupportedError(f"`post_transform` is {name}, not one of {', '.join(_TRANSFORMS)}")
    if name == "PROBIT":
        return _probit(ctx, ctx.cast(scores, "float32"))
    if is_single or name == "NONE":
        return scores
    if name == "LOGISTIC":
        return ctx.apply("Sigmoid", scores)
    if name == "SOFTMAX":
        return ctx.apply("Softmax", scores, axis=-1)
    return _softmax_zero(ctx, scores)


_ALMOST_ZERO = 1e-7


def _softmax_zero(ctx: ConverterContext, scores: Value) -> Value:
    """Softmax, but scores of almost 0 stay so: onnxruntime scales them like the others."""
    dtype = str(scores.ty.dtype)
    most = ctx.apply("ReduceMax", scores, relax.const([1]), keepdims=1)
    powers = ctx.apply("Exp", ctx.apply("Sub", scores, most))
    scaled = ctx.apply("Mul", scores, ctx.apply("Exp", ctx.apply("Neg", most)))
    limit = relax.const(_ALMOST_ZERO, dtype)
    is_zero = ctx.bb.emit(relax.op.less_equal(ctx.apply("Abs", scores), limit))
    parts = ctx.bb.emit(relax.op.where(is_zero, scaled, powers))
    counted = ctx.bb.emit(relax.op.where(is_zero, relax.const(0, dtype), powers))
    return ctx.apply("Div", parts, ctx.apply("ReduceSum", counted, relax.const([1]), keepdims=1))


def _probit(ctx: ConverterContext, scores: Value) -> Value:
    """√2 times the inverse error function of 2s - 1, by the approximation of onnxruntime.

    See https://en.wikipedia.org/wiki/Error_function#Approximation_with_elementary_functions.
    """

    def number(value: float) -> Value:
        return relax.const(np.float32(value))

    moved = ctx.apply("Sub", ctx.apply("Mul", scores, number(2)), number(1))
    log = ctx.apply(
        "Log",
        ctx.apply("Mul", ctx.apply("Sub", number(1), moved), ctx.apply("Add", number(1), moved)),
    )
    half = ctx.apply("Add", number(2 / (3.14159 * 0.147)), ctx.apply("Mul", number(0.5), log))
    rest = ctx.apply("Mul", number(1 / 0.147), log)
    root = ctx.apply("Sqrt", ctx.apply("Sub", ctx.apply("Mul", half, half), rest))
    size = ctx.apply("Sqrt", ctx.apply("Sub", root, half))
    is_negative = ctx.bb.emit(relax.op.less(moved, number(0)))
    sign = ctx.bb.emit(relax.op.where(is_negative, number(-(2**0.5)), number(2**0.5)))
    return ctx.apply("Mul", sign, size)
