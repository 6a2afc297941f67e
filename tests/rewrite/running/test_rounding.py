"""Differences that rounding errors of the inputs explain do not count; all others do."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from looplift import Match, Rule
from looplift.debug.check import EQUAL, UNSTABLE, check
from looplift.debug.verify_commits import verify_commits
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Phase
from looplift.rewrite.graph.ir import Tensor
from looplift.rewrite.running.compare import Tolerances
from looplift.rewrite.running.rounding import changes_by_rounding, distance
from looplift.rewrite.running.runtime import Feed, SerializedModel, Session
from looplift.rewrite.running.verify import verify

from ...small_models import model


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        (np.array([1, 2], "float32"), np.array([1, 4], "float32"), 2.0),
        (np.array([np.nan, np.inf], "float32"), np.array([np.nan, np.inf], "float32"), 0.0),
        (np.array([np.nan], "float32"), np.array([0], "float32"), np.inf),
        (np.array([np.inf], "float32"), np.array([1e30], "float32"), np.inf),
        (np.array([3], "int64"), np.array([3], "int64"), 0.0),
        (np.array([3], "int64"), np.array([4], "int64"), np.inf),
        (np.array([1], "float32"), np.array([1], "float64"), np.inf),
        (np.zeros(2), np.zeros(3), np.inf),
        ([np.zeros(2), np.zeros(3)], [np.zeros(2), np.ones(3)], 1.0),
        ([np.zeros(2)], [], np.inf),
        (None, None, 0.0),
    ],
)
def test_distance(expected: Any, actual: Any, found: float) -> None:
    assert distance(expected, actual) == found


def _changes(text: str, x: Any) -> list[float]:
    session = Session(SerializedModel(model(text)))
    feed: Feed = {"x": np.asarray(x)}
    return changes_by_rounding(session, feed, session.run(feed), Tolerances("float32"))


def test_changes_by_rounding() -> None:
    identity = "g (float[N] x) => (float[N] y) { y = Identity(x) }"
    small = _changes(identity, np.array([0.1, 100.5], "float32"))[0]
    assert 0 < small <= 1.01e-4
    assert _changes(identity, np.array([0, 1, -3, np.inf, np.nan], "float32")) == [0.0]
    half = "g (float16[N] x) => (float16[N] y) { y = Identity(x) }"
    assert _changes(half, np.full(50, 1.5, np.float16))[0] > 0
    ints = "g (int64[N] x) => (int64[N] y) { y = Identity(x) }"
    assert _changes(ints, np.array([7], "int64")) == [0.0]


def test_a_run_that_rounding_errors_make_fail() -> None:
    text = """g (float[N] x) => (float[M] y) {
        n = Size(x) h = ReduceMax<keepdims = 0>(x) f = Floor(h) i = Cast<to = 7>(f)
        k = Add(n, i) one = Constant<value_ints = [1]>() shape = Reshape(k, one)
        y = Reshape(x, shape) }"""
    assert _changes(text, np.nextafter(np.array([1.0], "float32"), np.float32(0))) == [np.inf]


SINE = "g (float[N] x) => (float[N] y, float[N] z) { a = Mul(x, c) BODY y = Sin(b) z = Neg(x) }"
"""With a large factor, rounding errors decide over all of y."""


def _pair(factor: float, after: str = SINE) -> list[onnx.ModelProto]:
    bodies = ("b = Mul(a, d)", "e = Mul(d, c) b = Mul(x, e)")
    constants = {"c": np.float32(factor), "d": np.float32(0.7)}
    texts = (SINE.replace("BODY", bodies[0]), after.replace("BODY", bodies[1]))
    return [model(text, **constants) for text in texts]


def test_runs_that_depend_on_rounding_errors_do_not_count() -> None:
    assert verify(*_pair(3.0)).verified
    found = verify(*_pair(1e7))
    assert not found.differences
    assert {"N": 8} not in found.sizes
    assert "`y` differs" in " ".join(found.notes())
    assert "rounding errors of the inputs change it as much" in " ".join(found.notes())


def test_a_model_of_which_no_run_counts_is_not_verified() -> None:
    found = verify(*_pair(1e7), sizes={"N": [40]})
    assert (found.verified, found.differences, found.rejected) == (False, [], False)
    assert str(found).startswith("not verified: `y` differs at N=40, which does not count")


@pytest.mark.parametrize(
    "after",
    [
        SINE.replace("Neg(x)", "Abs(x)"),
        SINE.replace("y = Sin(b)", "s = Sin(b) y = Cast<to = 11>(s)").replace(
            "float[N] y", "double[N] y"
        ),
        SINE.replace("y = Sin(b)", "s = Sin(b) u = Constant<value_ints = [0]>() y = Unsqueeze(s, u)")
        .replace("float[N] y", "float[K,N] y"),
    ],
    ids=["another output", "another type", "another rank"],
)  # fmt: skip
def test_other_differences_of_these_runs_count(after: str) -> None:
    assert verify(*_pair(1e7, after), sizes={"N": [40]}).differences


def test_a_small_difference_of_a_stable_model_counts() -> None:
    before = "g (float[N] x) => (float[N] y) { y = Gelu(x) }"
    after = 'g (float[N] x) => (float[N] y) { y = Gelu<approximate = "tanh">(x) }'
    assert verify(model(before, opset=20), model(after, opset=20)).differences


class _TanhToDiv(Rule[Tensor]):
    """tanh x = sinh x / cosh x, which rounds differently."""

    root = "Tanh"

    def match(self, m: Match) -> Tensor:
        return m.node.inputs[0]

    def apply(self, patch: Patch, number: Tensor) -> None:
        op = patch.builder(number)
        patch.replace_node(patch.root, [op("Div", op("Sinh", number), op("Cosh", number))])
        patch.toward_normal_form()


def test_the_commands_leave_such_runs_out() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Tanh(x) b = Mul(a, c) y = Sin(b) }"
    tangent = Phase("tangent", (_TanhToDiv,), "Other roundings.")
    for factor, counts in ((3.0, True), (1e7, False)):
        request = Request.of(model(text, c=np.float32(factor)), phases=[tangent])
        checked = check(request, sizes={"N": [40]}, with_tvm=False, with_latency=False)
        assert checked.status == 0
        found = {verdict for run in checked.runs for verdict in run.verdicts.values()}
        assert found == {EQUAL if counts else UNSTABLE}
        commits = verify_commits(request, sizes={"N": [40]})
        assert commits.bad is None
        assert (commits.cases > 0) is counts
        assert commits.reason.startswith("" if counts else "`y` differs at N=40, which does not")
