"""Facts of operators of ai.onnx.ml hold on onnxruntime."""

from __future__ import annotations

from ...fact_cases import Case, cases

TREE = """nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
    nodes_values = [0.0, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0]"""


def _leaves(kind: str) -> str:
    return f"""{kind}_treeids = [0, 0], {kind}_nodeids = [1, 2], {kind}_ids = [0, 1],
        {kind}_weights = [0.5, 0.25]"""


OPERATORS = {
    "TreeEnsembleRegressor": Case(
        f"""g (float[N,3] x) => (y) {{
        y = ai.onnx.ml.TreeEnsembleRegressor<{TREE}, {_leaves("target")}, n_targets = 2>(x) }}""",
        {"y": "(N, 2)"},
        sizes=(1, 2),
    ),
    "TreeEnsembleClassifier": Case(
        f"""g (float[N,3] x) => (y, z) {{
        y, z = ai.onnx.ml.TreeEnsembleClassifier
            <{TREE}, {_leaves("class")}, classlabels_int64s = [4, 5, 6]>(x) }}""",
        {"y": "(N,)", "z": "(N, 3)"},
        sizes=(1, 2),
    ),
    "TreeEnsemble": Case(
        """g (double[N,3] x) => (y) {
        y = ai.onnx.ml.TreeEnsemble<tree_roots = [0], n_targets = 2, nodes_featureids = [1],
            nodes_modes = uint8[1] {0}, nodes_splits = double[1] {0.5},
            nodes_truenodeids = [0], nodes_trueleafs = [1],
            nodes_falsenodeids = [1], nodes_falseleafs = [1],
            leaf_targetids = [0, 1], leaf_weights = double[2] {1, 2}>(x) }""",
        {"y": "(N, 2)"},
        sizes=(1, 2),
    ),
    "strings": Case(
        f"""g (float[N,3] x) => (z) {{
        y, z = ai.onnx.ml.TreeEnsembleClassifier
            <{TREE}, {_leaves("class")}, classlabels_strings = ["a", "b"]>(x) }}""",
        {"y": "(N,)", "z": "(N, 2)"},
        sizes=(1, 2),
    ),
}  # fmt: skip


@cases(OPERATORS)
def test_operator(case: Case) -> None:
    case.check()
