from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from looplift import Match, Phase, Rule
from looplift.debug import cut_outs as cutting
from looplift.debug import reference_runs
from looplift.debug import verify_commits as verifying
from looplift.debug.batch_runner import BatchRunner, CompletedRuns
from looplift.debug.reference_runs import ReferenceRuns, trip_count_inputs
from looplift.debug.verify_commits import render, verify_commits
from looplift.plugins import all_phases
from looplift.request import Request
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.running.cases import Case
from looplift.rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
)
from looplift.rewrite.running.verify import Candidate, RunComparison

from ..fuzz.cases import make_case

LOOP = """g (float[2] x, int64 m, bool c) => (float[2] y) {
    near = Identity(x)
    y = If (c) <
        then_branch = t () => (float[2] a) {
            a = Loop (m, , near) <body = b (int64 i, bool go, float[2] s) => (bool on, float[2] n) {
                on = Identity(go) n = Sin(s)
            }>
        },
        else_branch = e () => (float[2] b) { b = Neg(near) }
    >
}"""


def model(text: str = LOOP) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


class SinIsCos(Rule[Node]):
    """Replaces a Sin by a Cos, which is wrong."""

    root = "Sin"

    def match(self, m: Match) -> Node:
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], patch.node("Cos", found.inputs, found.outputs)[0])
        patch.remove(found)
        patch.toward_normal_form()


class SinIsNeg(SinIsCos):
    """Replaces a Sin by a Neg, which is wrong."""

    def apply(self, patch: Patch, found: Node) -> None:
        patch.replace(found.outputs[0], patch.node("Neg", found.inputs, found.outputs)[0])
        patch.remove(found)
        patch.toward_normal_form()


class AbsOfNeg(SinIsCos):
    """Replaces Abs(x) by Abs(-x), once for each Abs."""

    root = "Abs"

    def match(self, m: Match) -> Node:
        before = m.index.producer(m.node.inputs[0])
        m.need(before is None or before.op != "Neg", "it was done")
        return m.node

    def apply(self, patch: Patch, found: Node) -> None:
        negated = patch.node("Neg", found.inputs, found.inputs)
        patch.replace(found.outputs[0], patch.node("Abs", negated, found.outputs)[0])
        patch.remove(found)
        patch.toward_normal_form()


SIN_IS_NEG = (Phase("wrong", (SinIsNeg,), "Wrong."),)
ABS_HAS_NEGS = (Phase("right", (AbsOfNeg,), "Right."),)
WRONG = (*all_phases(), Phase("wrong", (SinIsCos,), "Wrong."))


def test_a_good_rewrite() -> None:
    found = verify_commits(Request.of(model()))
    assert found.bad is None
    assert found.status == 0
    assert found.checked == found.commits + 1
    assert found.coverage == {"If of `y`": "True, False"}


def test_coverage_counts_iterations_of_a_loop_that_ends_by_its_condition() -> None:
    text = """g (float[2] x, float limit) => (float[2] y, float[N, 2] rows)
        <int64 many = {9223372036854775807}, bool yes = {1}, float one = {1}, float low = {0}> {
        y, unused, rows = Loop (many, yes, x, low) <
            body = b (int64 i, bool go, float[2] s, float k) => (bool on, float[2] n, float next, float[2] row) {
                n = Sin(s) row = Identity(n) next = Add(k, one) on = Less(next, limit)
            }
        >
        iterations_0 = Neg(y)
    }"""
    asserted = Assertions.of(inputs={"limit": np.float32(3)})
    with ReferenceRuns(Request.of(model(text), asserted)) as reference:
        assert reference.coverage() == {"Loop of `y`": "3 iterations"}
    found = render(verify_commits(Request.of(model(text), asserted)), "model")
    assert "Loop of `y`: ran with 3 iterations" in map(str, found)


def test_a_branch_that_never_ran_is_noted() -> None:
    found = verify_commits(Request.of(model(), Assertions.of(inputs={"m": 2})))
    assert found.branch_notes == []
    text = (
        LOOP.replace("float[2]", "float[N]")
        .replace("bool c)", "bool d)")
        .replace(
            "near = Identity(x)",
            "near = Identity(x) size = Size(x) k = Constant<value_int = 5>() c = Equal(size, k)",
        )
    )
    found = verify_commits(Request.of(model(text)))
    (note,) = found.branch_notes
    assert note.startswith("no run took then_branch of If of `y`")
    assert note in map(str, render(found, "m"))
    assert verify_commits(Request.of(model(text)), sizes={"N": [4, 5]}).branch_notes == []


def test_trip_counts() -> None:
    assert trip_count_inputs(model()) == ["m"]
    with ReferenceRuns(Request.of(model())) as trials:
        counts = {int(np.asarray(case.feed["m"])) for case in trials.cases}
    assert counts >= {0, 1, 2, 7}


def test_the_first_bad_step() -> None:
    calls: list[tuple[int, int]] = []
    found = verify_commits(Request.of(model(), phases=WRONG), progress=lambda *n: calls.append(n))
    bad = found.bad
    assert bad is not None
    assert (bad.rule, bad.phase, bad.number) == ("SinIsCos", "wrong", found.commits)
    assert Path(bad.file).name == "test_verify_commits.py"
    assert bad.place == "body of Loop of `a`, in then_branch of If of `y`"
    assert (bad.tensor, bad.output) == ("y", "y")
    assert bad.expected is not None
    assert bad.actual is not None
    assert abs(bad.expected - bad.actual) > 1e-3
    assert "n" in bad.touched
    assert found.status == 1
    assert calls[-1] == (found.commits, found.commits)


def test_the_first_tensor_that_differs() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) b = Sin(a) d = Neg(b) y = Tanh(d) }"
    bad = verify_commits(Request.of(model(text), phases=WRONG)).bad
    assert bad is not None
    assert (bad.tensor, bad.output) == ("b", "y")
    assert bad.sizes["N"] > 0


class _Fragile(BatchRunner):
    """Simulates an optimizer of onnxruntime that crashes on a Neg."""

    failure: type[ExecutionError] = ProcessCrashed

    def outputs(self, packed: SerializedModel, optimizes: bool) -> CompletedRuns:
        if optimizes and b"Neg" in packed.source:
            raise self.failure("its process was ended by SIGSEGV")
        return super().outputs(packed, optimizes)


class _Failing(_Fragile):
    """Simulates an optimizer that turns a Neg into an operator that fails."""

    failure = ExecutionError


@pytest.mark.parametrize("runner", [_Fragile, _Failing])
def test_an_optimizer_that_crashes_is_not_a_bad_commit(
    runner: type[BatchRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Abs(x) b = Sin(a) y = Tanh(b) }"
    monkeypatch.setattr(reference_runs, "BatchRunner", runner)
    for phases, bad in ((ABS_HAS_NEGS, False), (SIN_IS_NEG, True)):
        found = verify_commits(Request.of(model(text), phases=phases))
        assert (found.bad is not None) == bad
        assert found.status == 1
        assert (found.commits in found.crashes) == (not bad)
        shown = " ".join(str(part) for part in render(found, "m"))
        assert ("optimizer fails: its process was ended by SIGSEGV" in shown) == (not bad)


def test_an_optimizer_that_crashes_is_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_runs, "BatchRunner", _Fragile)
    abs_nodes = " ".join(f"a{k + 1} = Abs(a{k})" for k in range(12))
    text = f"g (float[2] x) => (float[2] y) {{ a0 = Identity(x) {abs_nodes} y = Sin(a12) }}"
    found = verify_commits(Request.of(model(text), phases=ABS_HAS_NEGS))
    assert found.bad is None
    assert list(found.crashes) == [1, 3, 6, 11, 12]
    assert sorted([*found.crashes, *found.not_optimized]) == list(range(1, found.commits + 1))
    listed = json.loads(json.dumps(found.as_json()))["not_optimized"]
    assert listed == [2, 4, 5, 7, 8, 9, 10]
    shown = " ".join(str(part) for part in render(found, "m"))
    assert (
        "after commits 1 to 12, the model runs with graph optimizations off, which were tried after 5"
        in shown
    )


class _FragileSession(IsolatedSession):
    """Simulates an optimizer that crashes on the original."""

    def __init__(self, packed: SerializedModel, *, optimizes: bool = True) -> None:
        if optimizes:
            raise ProcessCrashed("its process was ended by SIGSEGV")
        super().__init__(packed, optimizes=optimizes)


def test_an_optimizer_that_crashes_over_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_runs, "IsolatedSession", _FragileSession)
    for phases, bad in ((None, False), (WRONG, True)):
        found = verify_commits(Request.of(model(), phases=phases))
        assert (found.bad is not None) == bad
        assert found.status == int(bad)
        shown = " ".join(str(part) for part in render(found, "m"))
        assert "compared with graph optimizations off" in shown
        assert "fails on the original: its process was ended by SIGSEGV" in shown


class _EndsOverEmptyInputs(BatchRunner):
    """Simulates an LSTM in onnxruntime, which ends the process of all runs."""

    def outputs(self, packed: SerializedModel, optimizes: bool) -> CompletedRuns:
        raise ProcessCrashed("its process was ended by SIGFPE")


def test_versions_that_end_on_an_empty_input_are_run_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_runs, "BatchRunner", _EndsOverEmptyInputs)
    text = "g (float[N] x) => (float[N] y) { a = Identity(x) y = Sin(a) }"
    for phases, bad in ((None, False), (WRONG, True)):
        found = verify_commits(Request.of(model(text), phases=phases))
        assert "N=0" in found.sizes
        assert (found.bad is not None) == bad
        assert found.crashes == {}


def crash_below(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates versions of a model that end their process on inputs of smaller sizes."""
    compare_run = Candidate.compare_run

    def crashing(self: Candidate, case: Case, seconds: float) -> RunComparison:
        found = compare_run(self, case, seconds)
        if min(case.sizes.values()) < least:
            raise ProcessCrashed("its process was ended by SIGFPE")
        return found

    monkeypatch.setattr(Candidate, "compare_run", crashing)


def test_runs_in_which_a_version_crashes_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "g (float[N] x) => (float[N] y) { a = Identity(x) y = Sin(a) }"
    every = verify_commits(Request.of(model(text)))
    assert ("N=0|" in every.sizes, every.left_out) == (True, "")
    crash_below(1, monkeypatch)
    found = verify_commits(Request.of(model(text)))
    assert found.sizes == every.sizes.replace("0|", "")
    assert found.cases == every.cases - 1
    assert found.status == 0
    shown = [str(part) for part in render(found, "m")]
    assert shown[-2].startswith("one run is left out: onnxruntime crashes for the rewritten model")
    assert "at N=0, not for the original" in shown[-2]
    crash_below(100, monkeypatch)
    none = verify_commits(Request.of(model(text)))
    assert none.status == 2
    assert none.reason.startswith("10 runs are left out")


class SinIsCut(SinIsCos):
    """Replaces a Sin by a Reshape that fails for every size but 2."""

    def apply(self, patch: Patch, found: Node) -> None:
        two = patch.constant(np.array([2], np.int64), found.inputs[0])
        patch.replace(
            found.outputs[0], patch.node("Reshape", [*found.inputs, two], found.outputs)[0]
        )
        patch.remove(found)
        patch.toward_normal_form()


def test_a_run_that_fails_is_reported_with_its_sizes() -> None:
    phases = (Phase("wrong", (SinIsCut,), "Wrong."),)
    given = Assertions(minima={"N": 3})
    text = "g (float[N] x) => (float[N] y) { a = Sin(x) y = Tanh(a) }"
    bad = verify_commits(Request.of(model(text), given, phases=phases)).bad
    assert bad is not None
    assert "the original runs, this one fails" in bad.difference
    assert bad.sizes["N"] >= 3


def test_nothing_to_run() -> None:
    text = "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { z = Identity(x) y = Identity(z) }"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": 19]> {text}')
    found = verify_commits(Request.of(proto))
    assert "no values can be generated" in found.reason
    assert found.status == 2


class TestCutOuts:
    """A large model: most commits are judged by the nodes that they touched."""

    @pytest.fixture(autouse=True)
    def every_model_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verifying, "LARGE", 0)
        monkeypatch.setattr(cutting, "LARGEST_SHARE", 1.0)

    @staticmethod
    def loops(count: int) -> onnx.ModelProto:
        """A chain of loops; the third one has a Sin."""
        text, value = "", "x"
        for k in range(count):
            op = "Sin" if k == 2 else "Tanh"
            text += f"""y{k} = Loop (m, , {value}) <body = b{k} (int64 i{k}, bool g{k}, float[2] s{k})
                => (bool h{k}, float[2] n{k}) {{ h{k} = Identity(g{k}) u{k} = {op}(s{k})
                n{k} = Neg(u{k}) }}>
            """
            value = f"y{k}"
        return model(f"g (float[2] x, int64 m) => (float[2] y) {{ {text} y = Neg({value}) }}")

    def test_equal_commits(self) -> None:
        result = verify_commits(Request.of(self.loops(6)))
        assert result.bad is None
        assert result.commits >= 12
        assert len(result.cut_out) >= result.commits - 3
        assert "by the nodes that they touched" in str(render(result, "m")[-1])

    def test_the_bad_commit_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        phases = (*all_phases(), Phase("wrong", (SinIsCos,), "Wrong."))
        given = Request.of(self.loops(6), phases=phases)
        found = verify_commits(given)
        assert found.cut_out
        monkeypatch.setattr(verifying, "LARGE", 10**9)
        alone = verify_commits(given)
        assert found.bad is not None
        assert found.bad == alone.bad
        assert found.bad.rule == "SinIsCos"

    def test_a_bad_commit_that_cut_outs_do_not_see_is_found_by_the_whole_model(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cutting.CutOuts, "is_same_after", lambda self, patch: True)
        phases = (Phase("wrong", (SinIsCos,), "Wrong."), *all_phases())
        found = verify_commits(Request.of(self.loops(6), phases=phases))
        assert found.bad is not None
        assert (found.bad.number, found.bad.rule) == (1, "SinIsCos")

    @pytest.mark.parametrize("seed", [100, 101, 102, 104, 105, 107])
    def test_random_models(self, seed: int) -> None:
        """Every rule that is right is judged right, however many nodes it touches."""
        case = make_case(seed)
        result = verify_commits(Request.of(case.model))
        assert result.bad is None, result.bad

    def test_values_that_are_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cutting, "MOST_BYTES", 10)
        result = verify_commits(Request.of(self.loops(3)))
        assert result.bad is None
        assert not result.cut_out
