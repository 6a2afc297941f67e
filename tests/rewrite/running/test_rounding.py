"""Differences that rounding errors of the inputs explain do not count; all others do."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from looplift import Match, Rule
from looplift.debug.check import EQUAL, UNSTABLE, check, render
from looplift.debug.verify_commits import verify_commits
from looplift.request import Settings
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.engine.rule import Phase
from looplift.rewrite.graph.ir import Tensor
from looplift.rewrite.running import verify as verifying
from looplift.rewrite.running.branches import BranchRecorder, RecordingSession
from looplift.rewrite.running.cases import Case
from looplift.rewrite.running.compare import Tolerances
from looplift.rewrite.running.rounding import is_explained, nearby_outputs, rounded_versions
from looplift.rewrite.running.runtime import Feed, IsolatedSession, SerializedModel, Session
from looplift.rewrite.running.verify import Candidate, verify

from ...small_models import model


def floats(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def ints(values: Any) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("expected", "actual", "nearby", "explained"),
    [
        (floats([1, 2]), floats([1, 4]), [floats([1, 1.5])], True),
        (floats([1, 2]), floats([1, 4.1]), [floats([1, 1.5])], False),
        (floats([1, 2]), floats([3, 2]), [floats([1, 1e9])], False),  # another element is unstable
        (floats([np.nan, 1]), floats([np.nan, 1]), [], True),
        (floats([np.nan]), floats([0]), [floats([0])], True),
        (floats([np.nan]), floats([0]), [floats([np.nan])], False),
        (ints([3, 4]), ints([4, 3]), [ints([4, 3])], True),
        (ints([3, 4]), ints([4, 3]), [ints([4, 4])], False),
        (ints([3]), ints([-300]), [ints([4])], False),
        (floats([1]), np.array([2.0]), [floats([9])], False),
        (floats([1]), floats([[1]]), [floats([9])], False),
        (floats([1]), floats([1, 2]), [floats([1, 3])], True),
        (floats([1]), floats([1, 2]), [floats([1, 3, 4])], False),
        (
            [floats([1]), floats([2])],
            [floats([1]), floats([3])],
            [[floats([1]), floats([3])]],
            True,
        ),
        (
            [floats([1]), floats([2])],
            [floats([1]), floats([3])],
            [[floats([5]), floats([2])]],
            False,
        ),
        ([floats([1])], [], [[]], True),
        ([floats([1])], [], [[floats([1])]], False),
        (np.array(["a"]), np.array(["b"]), [np.array(["c"])], True),
        (np.array(["a"]), np.array(["b"]), [np.array(["a"])], False),
        (floats([1]), floats([2]), [], False),
        (None, floats([2]), [floats([2])], False),
    ],
)
def test_what_rounding_errors_explain(
    expected: Any, actual: Any, nearby: list[Any], explained: bool
) -> None:
    assert is_explained(expected, actual, nearby, Tolerances("float32")) is explained


def _nearby(text: str, x: Any) -> list[Any]:
    feed: Feed = {"x": np.asarray(x)}
    session = Session(SerializedModel(model(text)))
    runs = nearby_outputs(session, feed, Tolerances("float32"), seconds=60.0)
    return [outputs[0] for outputs in runs]


def test_nearby_outputs() -> None:
    text = "g (KIND[N] x) => (KIND[N] y) { y = Identity(x) }"
    given = np.array([0.1, 100.5], np.float32)
    changed = _nearby(text.replace("KIND", "float"), given)
    assert len(changed) == 16
    assert all(0 < np.abs(each / given - 1).max() <= 1.2e-6 for each in changed)
    whole = np.array([0, 1, -3, np.inf, np.nan], np.float32)
    assert all(
        np.array_equal(each, whole, equal_nan=True)
        for each in _nearby(text.replace("KIND", "float"), whole)
    )
    for kind, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        half = np.full(50, 1.5, dtype)
        assert all((each != half).any() for each in _nearby(text.replace("KIND", kind), half))
    seven = np.array([7], np.int64)
    assert all(each == 7 for each in _nearby(text.replace("KIND", "int64"), seven))


def test_nearby_runs_that_fail_explain_nothing() -> None:
    text = """g (float[N] x) => (float[M] y) {
        n = Size(x) h = ReduceMax<keepdims = 0>(x) f = Floor(h) i = Cast<to = 7>(f)
        k = Add(n, i) one = Constant<value_ints = [1]>() shape = Reshape(k, one)
        y = Reshape(x, shape) }"""
    assert 0 < len(_nearby(text, np.array([0.9999999], np.float32))) < 16


def test_versions_of_a_model() -> None:
    """Weights differ by a rounding error; those without a fraction may be counts or flags."""
    text = "g (int64[N] k) => (float[N] y, float[N] z) { x = Cast<to = 1>(k) y = Mul(x, c) z = Mul(x, d) }"
    proto = model(text, c=np.float32(0.7), d=np.float32(3))
    found: list[Any] = [
        version.run({"k": ints([1, 5])}) for version in rounded_versions(proto, seconds=60.0)
    ]
    assert len(found) == 4
    assert np.array_equal(found[0][0], floats([0.7, 3.5]))
    assert len({float(y[0]) for y, _ in found}) > 1
    assert all(0 <= abs(y / floats([0.7, 3.5]) - 1).max() <= 3e-7 for y, _ in found)
    assert all(np.array_equal(z, floats([3, 15])) for _, z in found)


QUANTISED = """g (float[N,4] x) => (float[N,4] y) <uint8 o = {0}> {
    q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o) m = Softmax(d)
    r = QuantizeLinear(m, t, o) y = DequantizeLinear(r, t, o) }"""


def test_what_onnxruntimes_optimizer_changes_does_not_count() -> None:
    """It computes the softmax of quantised numbers as one operator, from a table."""
    proto = model(QUANTISED, s=np.float32(0.04), t=np.float32(1 / 255))
    feed: Feed = {"x": floats(np.random.default_rng(0).uniform(0, 10, (200, 4)))}
    original = Session(SerializedModel(proto))
    plain = Session(SerializedModel(proto), optimizes=False)
    expected: list[Any] = original.run(feed)
    case = Case(feed, expected, {"N": 200}, 0.1)
    candidate = Candidate.of(proto, original, plain, Tolerances("float32"))
    assert (expected[0] != plain.run(feed)[0]).any()
    assert candidate.compare_run(case, 60.0).unstable == ["y"]
    wrong = Session(SerializedModel(model(QUANTISED, s=np.float32(0.03), t=np.float32(1 / 255))))
    assert (
        Candidate.of(proto, original, wrong, Tolerances("float32"))
        .compare_run(case, 60.0)
        .differences
    )


SINE = "g (float[N] x) => (float[N] y, float[N] z) { a = Mul(x, c) BODY y = Sin(b) z = Neg(x) }"
"""With a large factor, rounding errors determine every element of y."""


def _sines(factor: float, after: str = SINE) -> list[tuple[str, dict[str, Any]]]:
    bodies = ("b = Mul(a, d)", "e = Mul(d, c) b = Mul(x, e)")
    constants = {"c": np.float32(factor), "d": np.float32(0.7)}
    texts = (SINE.replace("BODY", bodies[0]), after.replace("BODY", bodies[1]))
    return [(text, constants) for text in texts]


def _pair(factor: float, after: str = SINE) -> list[onnx.ModelProto]:
    return [model(text, **constants) for text, constants in _sines(factor, after)]


def test_runs_that_depend_on_rounding_errors_do_not_count() -> None:
    assert verify(*_pair(3.0)).verified
    found = verify(*_pair(1e7))
    assert not found.differences
    assert {"N": 8} not in found.sizes
    assert "`y` differs" in " ".join(found.notes())
    assert "rounding errors in the inputs or weights, or" in " ".join(found.notes())


def test_rounding_errors_of_weights_count_where_no_input_is_a_float() -> None:
    integers = [
        model(
            text.replace("float[N] x", "int64[N] k").replace("{ a", "{ x = Cast<to = 1>(k) a"),
            **constants,
        )
        for text, constants in _sines(12345.678e3)
    ]
    found = verify(*integers)
    assert not found.differences
    assert "`y` differs" in " ".join(found.notes())
    wrong = [SINE.replace("BODY", f"b = {op}(a, d)") for op in ("Mul", "Add")]
    assert verify(*(model(each, c=np.float32(3), d=np.float32(0.7)) for each in wrong)).differences


def test_other_sizes_are_not_explained_by_weights() -> None:
    """A rounding error of the scale changes the size, but the rewrite may not."""
    text = "g (float[1,1,H] x) => (float[1,1,K] y) { y = Resize(x, empty, scales) }"
    before, after = (
        model(text, empty=floats([]), scales=floats([1, 1, scale])) for scale in (1.5, 1.4999999)
    )
    assert verify(before, after).differences


def test_a_model_without_weights_has_one_version() -> None:
    proto = model("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    assert len(list(rounded_versions(proto, seconds=60.0))) == 1
    assert not list(rounded_versions(proto, seconds=0.0))


def test_runs_of_empty_inputs_alone_verify_nothing() -> None:
    found = verify(*_pair(1e7), sizes={"N": [0, 40]})
    assert (found.verified, found.differences, found.compared) == (False, [], 0)
    assert set(found.unstable) == {"y"}
    assert verify(*_pair(3.0), sizes={"N": [0, 40]}).verified


def test_unstable_runs_are_not_tried_again_without_the_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The original also refuses some inputs, as it does where the optimizer fails."""
    head = (
        "g (float[N] x, float[M] w) => (float[N] y) { k = Add(x, w) a = Mul(k, c) BODY y = Sin(b) }"
    )
    factors = {"c": np.float32(1e7), "d": np.float32(0.7)}
    bodies = ("b = Mul(a, d)", "e = Mul(d, c) b = Mul(k, e)")
    before, after = (model(head.replace("BODY", body), **factors) for body in bodies)
    tried: list[bool] = []
    compared = verifying._Pair.compare

    def recorded(pair: verifying._Pair, optimizes: bool) -> verifying.Verification:
        tried.append(optimizes)
        return compared(pair, optimizes)

    monkeypatch.setattr(verifying._Pair, "compare", recorded)
    found = verify(before, after, sizes={"N": [40], "M": [40, 39]})
    assert found.refused
    assert (found.verified, found.differences) == (False, [])
    assert found.reason.startswith("`y` differs at N=40")
    assert tried == [True]


def test_nearby_runs_end_in_time() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Identity(x) }"
    session = Session(SerializedModel(model(text)))
    feed: Feed = {"x": np.array([0.1], np.float32)}
    assert list(nearby_outputs(session, feed, Tolerances("float32"), seconds=0.0)) == []


def test_branches_of_runs_with_nearby_inputs_do_not_count() -> None:
    recorder = BranchRecorder({"If": "c"})
    session = IsolatedSession(SerializedModel(model("g (bool c) => (bool c2) { c2 = Not(c) }")))
    with closing(session):
        recording = RecordingSession(session, recorder, 1)
        recording.unrecorded().run({"c": np.array(True)})
        assert recorder.seen == {}
        recording.run({"c": np.array(True)})
        assert recorder.seen == {"c": {True}}


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


PHASES = (Phase("tangent", (_TanhToDiv,), "Other roundings."),)


def test_the_commands_leave_such_runs_out() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Tanh(x) b = Mul(a, c) y = Sin(b) }"
    settings = Settings(rules=(__name__,))
    for factor, counts in ((3.0, True), (1e7, False)):
        proto = model(text, c=np.float32(factor))
        checked = check(proto, settings, sizes={"N": [40]}, with_tvm=False, with_latency=False)
        assert checked.status == (0 if counts else 2)
        shown = " ".join(str(part) for part in render(checked, "m"))
        assert ("`y` differs at N=40" in shown) is not counts
        found = {verdict for run in checked.runs for verdict in run.verdicts.values()}
        assert found == {EQUAL if counts else UNSTABLE}
        commits = verify_commits(settings.request(proto), sizes={"N": [40]})
        assert commits.bad is None
        assert (commits.cases > 0) is counts
        assert (commits.reason == "") is counts
