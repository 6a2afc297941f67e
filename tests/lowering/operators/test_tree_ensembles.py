"""Ensembles of decision trees against onnxruntime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from looplift.rewrite.errors import UnsupportedError

from ...samples import one_of
from .inputs import Load

Array = np.ndarray[Any, Any]
FEATURES = 5
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
THRESHOLDS = np.array([-1, -0.5, 0, 0.5, 1])
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]


def _nodes(
    rng: Any, targets: Sequence[Sequence[int]], modes: Sequence[str], least: float
) -> dict[str, list[Any]]:
    """Random trees, one for each element of `targets`: each leaf has weights for these results.

    Weights are between `least` and 1.
    """
    columns: dict[str, list[Any]] = {name: [] for name in (*_OF_NODES, *_OF_LEAVES)}

    def add(tree: int, depth: int) -> int:
        number = len([t for t in columns["nodes_treeids"] if t == tree])
        is_leaf = depth == 0 or (depth < 3 and rng.random() < 0.3)
        row = [tree, number, 0, 0.0, "LEAF", 0, 0, 0]
        if not is_leaf:
            mode = str(rng.choice(modes))
            row[2:5] = [int(rng.integers(FEATURES)), float(rng.choice(THRESHOLDS)), mode]
            row[7] = int(rng.integers(2))
        for name, value in zip(_OF_NODES, row):
            columns[name].append(value)
        if is_leaf:
            for target in targets[tree]:
                entry = [tree, number, target, float(rng.uniform(least, 1))]
                for name, value in zip(_OF_LEAVES, entry):
                    columns[name].append(value)
            return number
        place = len(columns["nodes_treeids"]) - 1
        columns["nodes_truenodeids"][place] = add(tree, depth - 1)
        columns["nodes_falsenodeids"][place] = add(tree, depth - 1)
        return number

    for tree in range(len(targets)):
        add(tree, 4)
    return columns


_OF_NODES = tuple(
    f"nodes_{name}"
    for name in (
        "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
        "missing_value_tracks_true",
    )
)  # fmt: skip
_OF_LEAVES = ("leaf_treeids", "leaf_nodeids", "leaf_ids", "leaf_weights")


def _model(
    op: str, columns: dict[str, Any], *, dtype: int = TensorProto.FLOAT, opset: int = 1,
    rank: int = 2, **attributes: Any,
) -> bytes:  # fmt: skip
    """A model of one node, for rows of unknown number."""
    kind = "class" if op == "TreeEnsembleClassifier" else "target"
    given = {name.replace("leaf_", f"{kind}_"): value for name, value in columns.items()}
    outputs = ["label", "scores"] if kind == "class" else ["y"]
    node = helper.make_node(op, ["x"], outputs, domain="ai.onnx.ml", **given, **attributes)
    shape: list[Any] = ["n", FEATURES] if rank == 2 else [FEATURES]
    x = helper.make_tensor_value_info("x", dtype, shape)
    types = {"label": TensorProto.INT64, "scores": TensorProto.FLOAT, "y": TensorProto.FLOAT}
    results = [helper.make_tensor_value_info(name, types[name], None) for name in outputs]
    graph = helper.make_graph([node], "g", [x], results)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", opset)]
    serialized: bytes = helper.make_model(
        graph, opset_imports=imports, ir_version=8
    ).SerializeToString()
    return serialized


def _rows(rng: Any, count: int, dtype: Any = np.float32) -> Array:
    """Rows with thresholds, numbers next to them, NaN and infinities."""
    near = np.nextafter(THRESHOLDS.astype(dtype), dtype(2))
    usual = [*THRESHOLDS, *near, -0.0, np.nan, np.inf, -np.inf]
    rows = rng.choice(np.array(usual, dtype), (count, FEATURES))
    others = rng.normal(size=rows.shape)
    mixed: Array = np.where(rng.random(rows.shape) < 0.3, others, rows).astype(dtype)
    return mixed


def _check(model: Any, dtype: Any = np.float32) -> None:
    rng = np.random.default_rng(5)
    for count in (70, 1, 0):
        model.check(_rows(rng, count, dtype))


@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [MODES])
def test_modes_and_missing_values(imported: Load, modes: list[str]) -> None:
    columns = _nodes(np.random.default_rng(1), [[0]] * 8, modes, -1)
    _check(imported(_model("TreeEnsembleRegressor", columns, n_targets=1)))
    del columns["nodes_missing_value_tracks_true"]
    _check(imported(_model("TreeEnsembleRegressor", columns, n_targets=1)))


@pytest.mark.parametrize(
    ("aggregate", "transform", "count", "has_base"),
    one_of(2, list(itertools.product(["SUM", "AVERAGE", "MIN", "MAX"], TRANSFORMS, [1, 3], [False, True]))),
)  # fmt: skip
def test_regressions(
    imported: Load, aggregate: str, transform: str, count: int, has_base: bool
) -> None:
    """Weights are positive, so that PROBIT is defined."""
    every = list(range(count))
    columns = _nodes(np.random.default_rng(2), [every] * 3, MODES, 0.01)
    if transform == "PROBIT":
        columns["leaf_weights"] = [weight / 8 for weight in columns["leaf_weights"]]
    base: dict[str, Any] = {"base_values": [0.1, 0.05, 0.2][:count]} if has_base else {}
    model = _model(
        "TreeEnsembleRegressor", columns, n_targets=count, aggregate_function=aggregate,
        post_transform=transform, **base,
    )  # fmt: skip
    _check(imported(model))


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
def test_targets_that_some_leaves_have_no_weight_for(imported: Load, aggregate: str) -> None:
    columns = _nodes(np.random.default_rng(3), [[0, 2], [2], [0], []], MODES, -1)
    attributes: dict[str, Any] = {"n_targets": 4, "aggregate_function": aggregate}
    _check(imported(_model("TreeEnsembleRegressor", columns, **attributes)))


def test_a_target_without_weights(imported: Load) -> None:
    columns = _nodes(np.random.default_rng(3), [[0, 2], [2]], MODES, -1)
    attributes: dict[str, Any] = {
        "n_targets": 3,
        "aggregate_function": "MAX",
        "base_values": [1.0, 2.0, 3.0],
    }
    _check(imported(_model("TreeEnsembleRegressor", columns, **attributes)))


@pytest.mark.parametrize("op", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_numbers_of_double_precision(imported: Load, op: str) -> None:
    """Thresholds of double precision tell neighbours of a float32 apart."""
    columns: dict[str, Any] = _nodes(np.random.default_rng(4), [[0], [1], [2]] * 3, MODES, -1)
    labels: dict[str, Any] = {"classlabels_int64s": [4, 5, 6]}
    more = labels if op == "TreeEnsembleClassifier" else {"n_targets": 3}
    plain = _model(op, columns, dtype=TensorProto.DOUBLE, **more)
    _check(imported(plain), np.float64)
    for name in ("nodes_values", "leaf_weights"):
        numbers = np.array(columns.pop(name), np.float64) + 1e-12
        columns[f"{name}_as_tensor"] = numpy_helper.from_array(numbers, name)
    _check(imported(_model(op, columns, dtype=TensorProto.DOUBLE, opset=3, **more)), np.float64)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("base", [[], [0.1, -0.3, 0.2, 0.1]])
def test_several_labels(imported: Load, transform: str, base: list[float]) -> None:
    """Scores for PROBIT are between 0 and 1, and not near one half, where it is not exact."""
    least = 0.01 if transform == "PROBIT" else -1
    columns = _nodes(np.random.default_rng(6), [[0], [1, 2], [3], [0, 3]], MODES, least)
    if transform == "PROBIT":
        columns["leaf_weights"] = [weight / 4 for weight in columns["leaf_weights"]]
        base = [abs(number) / 8 for number in base]
    attributes: dict[str, Any] = {"classlabels_int64s": [7, 3, -1, 2], "post_transform": transform}
    if base:
        attributes["base_values"] = base
    _check(imported(_model("TreeEnsembleClassifier", columns, **attributes)))


def test_a_label_without_weights_is_not_chosen(imported: Load) -> None:
    """Unless there are base values."""
    columns = _nodes(np.random.default_rng(7), [[0], [2], [0, 2]], MODES, -1)
    columns["leaf_weights"] = [-abs(weight) for weight in columns["leaf_weights"]]
    labels = [7, 3, 2]
    _check(imported(_model("TreeEnsembleClassifier", columns, classlabels_int64s=labels)))
    attributes: dict[str, Any] = {"classlabels_int64s": labels, "base_values": [0.1, 0.2, 0.3]}
    _check(imported(_model("TreeEnsembleClassifier", columns, **attributes)))


@pytest.mark.parametrize("transform", TRANSFORMS[:-1])
@pytest.mark.parametrize("base", [[], [0.2]])
@pytest.mark.parametrize("least", [0.01, -1])
def test_two_labels_with_one_score(
    imported: Load, transform: str, base: list[float], least: float
) -> None:
    """Scores are those of the second label. Negative weights change what they must exceed."""
    columns = _nodes(np.random.default_rng(8), [[0]] * 3, MODES, least)
    columns["leaf_weights"] = [weight / 3 for weight in columns["leaf_weights"]]
    attributes: dict[str, Any] = {"classlabels_int64s": [7, 3], "post_transform": transform}
    if base:
        attributes["base_values"] = base
    _check(imported(_model("TreeEnsembleClassifier", columns, **attributes)))


@pytest.mark.parametrize("transform", TRANSFORMS[:-1])
@pytest.mark.parametrize("targets", [[[1]] * 3, [[0, 1]] * 3])
@pytest.mark.parametrize("least", [0.01, -1])
def test_two_labels_with_weights_for_the_second(
    imported: Load, transform: str, targets: list[list[int]], least: float
) -> None:
    """onnxruntime gives the labels 1 and 0, whatever they are, if both have weights."""
    columns = _nodes(np.random.default_rng(9), targets, MODES, least)
    attributes: dict[str, Any] = {"classlabels_int64s": [7, 3], "post_transform": transform}
    _check(imported(_model("TreeEnsembleClassifier", columns, **attributes)))


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.INT32])
def test_rows_of_integers(imported: Load, dtype: int) -> None:
    columns = _nodes(np.random.default_rng(10), [[0], [1], [2]], MODES, -1)
    model = imported(
        _model("TreeEnsembleClassifier", columns, dtype=dtype, classlabels_int64s=[0, 1, 2])
    )
    for count in (20, 1):
        rows = np.random.default_rng(0).integers(-2, 3, (count, FEATURES))
        model.check(rows.astype(helper.tensor_dtype_to_np_dtype(dtype)))


def test_a_vector_is_one_row(imported: Load) -> None:
    """onnxruntime refuses trees that compare another feature than the first."""
    x = np.arange(FEATURES, dtype=np.float32) - 2
    imported(_model("TreeEnsembleRegressor", STUMP, rank=1, n_targets=2)).check(x)
    labels: dict[str, Any] = {"classlabels_int64s": [4, 5]}
    imported(_model("TreeEnsembleClassifier", STUMP, rank=1, **labels)).check(x)


def test_a_tree_of_one_leaf(imported: Load) -> None:
    columns: dict[str, Any] = {name: [0] for name in (*_OF_NODES, *_OF_LEAVES)}
    columns |= {"nodes_values": [0.0], "nodes_modes": ["LEAF"], "leaf_weights": [0.5]}
    _check(imported(_model("TreeEnsembleRegressor", columns, n_targets=1)))


# --- TreeEnsemble ---


def _separate(mode: int, dtype: Any, **attributes: Any) -> bytes:
    """Two trees: a branch on feature 1 above one on feature 2, and a branch with one leaf."""
    sets = np.array([0.5, 1, np.nan, -1, np.nan, 0, np.nan], dtype)
    given: dict[str, Any] = {
        "nodes_featureids": [1, 2, 0],
        "nodes_modes": np.array([mode, mode, mode], np.uint8),
        "nodes_splits": np.array([0.5, -0.5, 0], dtype),
        "nodes_truenodeids": [0, 1, 3],
        "nodes_trueleafs": [1, 1, 1],
        "nodes_falsenodeids": [1, 2, 3],
        "nodes_falseleafs": [0, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0],
        "leaf_targetids": [0, 1, 0, 1],
        "leaf_weights": np.array([0.5, -0.25, 1, 2], dtype),
        "tree_roots": [0, 2],
        "n_targets": 2,
        **({"membership_values": sets} if mode == len(MODES) else {}),
    }
    made = {
        name: numpy_helper.from_array(value, name) if isinstance(value, np.ndarray) else value
        for name, value in {**given, **attributes}.items()
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **made)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [
        helper.make_tensor_value_info(name, kind, ["n", FEATURES if name == "x" else 2])
        for name in "xy"
    ]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 5)]
    serialized: bytes = helper.make_model(
        graph, opset_imports=imports, ir_version=10
    ).SerializeToString()
    return serialized


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", range(len(MODES)))
def test_tree_ensemble(imported: Load, mode: int, dtype: Any) -> None:
    _check(imported(_separate(mode, dtype)), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_membership(imported: Load, dtype: Any) -> None:
    """onnxruntime rounds numbers towards 0 before it looks for them in a set of integers."""
    model = imported(_separate(len(MODES), dtype))
    numbers = np.array([-2, -1, 0, 0.5, 1, 2, np.nan], dtype)
    for count in (70, 1, 0):
        model.check(np.random.default_rng(0).choice(numbers, (count, FEATURES)))
    (result,) = model.run(np.full((1, FEATURES), -1.3, dtype))
    np.testing.assert_array_equal(result, [[1, 2]])


@pytest.mark.parametrize("attributes", [{"aggregate_function": a} for a in (0, 2, 3)])
def test_aggregates_of_tree_ensemble(imported: Load, attributes: dict[str, int]) -> None:
    given = {**attributes, "leaf_targetids": [0, 0, 0, 0], "n_targets": 1}
    _check(imported(_separate(0, np.float32, **given)))


def test_softmax_zero_of_tree_ensemble(imported: Load) -> None:
    _check(imported(_separate(0, np.float32, post_transform=3)))


@pytest.mark.parametrize("transform", [1, 2])
def test_transformations_with_two_meanings(imported: Load, transform: int) -> None:
    with pytest.raises(UnsupportedError, match="understand differently"):
        imported(_separate(0, np.float32, post_transform=transform))


# --- refusals ---

STUMP: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [0, 0, 0],
    "nodes_values": [0.0, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "leaf_treeids": [0, 0],
    "leaf_nodeids": [1, 2],
    "leaf_ids": [0, 0],
    "leaf_weights": [0.5, 0.25],
}


@pytest.mark.parametrize(
    ("columns", "attributes", "reason"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, {}, "below itself"),
        ({"nodes_truenodeids": [5, 0, 0]}, {}, "does not exist"),
        ({"nodes_nodeids": [0, 1, 1]}, {}, "the same number"),
        ({"nodes_featureids": [FEATURES, 0, 0]}, {}, f"needs size {FEATURES + 1}"),
        ({"nodes_featureids": [-1, 0, 0]}, {}, "feature -1"),
        ({"nodes_values": [0.0]}, {}, "the same length"),
        ({"leaf_ids": [0]}, {}, "the same length"),
        ({"leaf_ids": [0, 3]}, {}, "a weight for result 3 of 1"),
        ({"leaf_nodeids": [1, 1]}, {}, "several weights"),
        ({"leaf_ids": [0, 1]}, {"n_targets": 2, "aggregate_function": "MIN"}, "no weight"),
        ({}, {"base_values": [1.0, 2.0]}, "2 base values for 1 target"),
        ({}, {"aggregate_function": "MEDIAN"}, "MEDIAN"),
        ({}, {"post_transform": "CUBE"}, "CUBE"),
    ],
)
def test_regressions_that_are_refused(
    imported: Load, columns: dict[str, Any], attributes: dict[str, Any], reason: str
) -> None:
    attributes = {"n_targets": 1, **attributes}
    with pytest.raises(UnsupportedError, match=reason):
        imported(_model("TreeEnsembleRegressor", {**STUMP, **columns}, **attributes))


@pytest.mark.parametrize(
    ("columns", "attributes", "reason"),
    [
        ({}, {"classlabels_strings": ["a", "b"]}, "strings"),
        ({}, {"classlabels_int64s": [1]}, "one label"),
        ({}, {"classlabels_int64s": [1, 2], "base_values": [0.1, 0.2]}, "2 base values"),
        ({}, {"classlabels_int64s": [1, 2], "post_transform": "PROBIT"}, "PROBIT"),
        ({"leaf_ids": [0, 1]}, {"classlabels_int64s": [1, 2]}, "second label"),
        ({"leaf_ids": [0, 1]}, {"classlabels_int64s": [1, 2, 3]}, "no weight for some label"),
        (
            {"leaf_ids": [1, 1]},
            {"classlabels_int64s": [1, 2], "base_values": [0.1]},
            "the second with weights",
        ),
    ],
)
def test_classifications_that_are_refused(
    imported: Load, columns: dict[str, Any], attributes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        imported(_model("TreeEnsembleClassifier", {**STUMP, **columns}, **attributes))


def test_rows_with_too_few_features(imported: Load) -> None:
    """A run whose rows lack a feature fails instead of reading other memory."""
    columns = {**STUMP, "nodes_featureids": [3, 0, 0]}
    model = onnx.load_model_from_string(_model("TreeEnsembleRegressor", columns, n_targets=1))
    dim = model.graph.input[0].type.tensor_type.shape.dim[1]
    dim.ClearField("dim_value")
    dim.dim_param = "m"
    module = imported(model.SerializeToString())
    module.check(np.zeros((3, 4), np.float32))
    with pytest.raises(Exception, match="mismatch"):
        module.run(np.zeros((3, 3), np.float32))


def test_scores_that_are_no_numbers(imported: Load) -> None:
    """No memory outside of the labels is read, whatever the best of them is."""
    infinite = [float("inf"), float("-inf")]
    columns = {
        **{name: value * 2 for name, value in STUMP.items()},
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "leaf_treeids": [0, 0, 1, 1] * 3,
        "leaf_nodeids": [1, 2] * 6,
        "leaf_ids": [0] * 4 + [1] * 4 + [2] * 4,
        "leaf_weights": [infinite[0]] * 2 + [infinite[1]] * 2,
    }
    columns["leaf_weights"] = columns["leaf_weights"] * 3
    model = imported(_model("TreeEnsembleClassifier", columns, classlabels_int64s=[7, 8, 9]))
    label, scores = model.run(np.zeros((9, FEATURES), np.float32))
    assert np.isin(label, [7, 8, 9]).all()
    assert np.isnan(scores).all()
