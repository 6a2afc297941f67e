from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from looplift import Match, Phase, Rule
from looplift.commands.arguments import Assertions
from looplift.debug import trials
from looplift.debug.decisive import trip_inputs
from looplift.debug.forms import Answered, Forms
from looplift.debug.subject import Subject
from looplift.debug.trials import Trials, exposing
from looplift.debug.verify_steps import render, verify_steps
from looplift.plugins import all_phases
from looplift.rewrite.engine.patch import Patch
from looplift.rewrite.graph.ir import Node
from looplift.rewrite.running.runtime import (
    ExecutionError,
    IsolatedSession,
    ProcessCrashed,
    SerializedModel,
)

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


class SinIsCos(Rule):
    """Which it is not."""

    root = "Sin"

    def match(self, m: Match) -> dict[str, Node]:
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.outputs[0], patch.node("Cos", node.inputs, node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()


class SinIsNeg(SinIsCos):
    """Which it is not."""

    def apply(self, patch: Patch, node: Node) -> None:
        patch.replace(node.outputs[0], patch.node("Neg", node.inputs, node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()


class AbsOfNeg(SinIsCos):
    """Abs(x) is Abs(-x), once for each."""

    root = "Abs"

    def match(self, m: Match) -> dict[str, Node]:
        before = m.index.producer(m.node.inputs[0])
        m.need(before is None or before.op != "Neg", "it was done")
        return {"node": m.node}

    def apply(self, patch: Patch, node: Node) -> None:
        negated = patch.node("Neg", node.inputs, node.inputs)
        patch.replace(node.outputs[0], patch.node("Abs", negated, node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()


SIN_IS_NEG = (Phase("wrong", (SinIsNeg,), "Wrong."),)
ABS_HAS_NEGS = (Phase("right", (AbsOfNeg,), "Right."),)
WRONG = (*all_phases(), Phase("wrong", (SinIsCos,), "Wrong."))


def test_a_good_rewrite() -> None:
    found = verify_steps(Subject.of(model()))
    assert found.bad is None
    assert found.status == 0
    assert found.checked == found.steps + 1
    assert found.coverage == {"If of `y`": "True, False"}


def test_trip_counts() -> None:
    assert trip_inputs(model()) == ["m"]
    with Trials(Subject.of(model())) as trials:
        counts = {int(np.asarray(case.feed["m"])) for case in trials.cases}
    assert counts >= {0, 1, 2, 7}


def test_the_first_bad_step() -> None:
    told: list[tuple[int, int]] = []
    found = verify_steps(Subject.of(model(), phases=WRONG), progress=lambda *n: told.append(n))
    bad = found.bad
    assert bad is not None
    assert (bad.rule, bad.phase, bad.step) == ("SinIsCos", "wrong", found.steps)
    assert Path(bad.file).name == "test_verify_steps.py"
    assert bad.place == "body of Loop of `a`, in then_branch of If of `y`"
    assert (bad.tensor, bad.output) == ("y", "y")
    assert bad.expected is not None
    assert bad.actual is not None
    assert abs(bad.expected - bad.actual) > 1e-3
    assert "n" in bad.touched
    assert found.status == 1
    assert told[-1] == (found.steps, found.steps)


def test_the_first_tensor_that_differs() -> None:
    text = "g (float[N] x) => (float[N] y) { a = Abs(x) b = Sin(a) d = Neg(b) y = Tanh(d) }"
    bad = verify_steps(Subject.of(model(text), phases=WRONG)).bad
    assert bad is not None
    assert (bad.tensor, bad.output) == ("b", "y")
    assert bad.sizes["N"] > 0


class _Fragile(Forms):
    """As if onnxruntime's optimizer did not survive a Neg."""

    failure: type[ExecutionError] = ProcessCrashed

    def outputs(self, packed: SerializedModel, optimizes: bool) -> Answered:
        if optimizes and b"Neg" in packed.source:
            raise self.failure("its process was ended by SIGSEGV")
        return super().outputs(packed, optimizes)


class _Failing(_Fragile):
    """As if what the optimizer makes of a Neg failed."""

    failure = ExecutionError


@pytest.mark.parametrize("forms", [_Fragile, _Failing])
def test_an_optimizer_that_crashes_is_no_bad_step(
    forms: type[Forms], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "g (float[2] x) => (float[2] y) { a = Abs(x) b = Sin(a) y = Tanh(b) }"
    monkeypatch.setattr(trials, "Forms", forms)
    for phases, bad in ((ABS_HAS_NEGS, False), (SIN_IS_NEG, True)):
        found = verify_steps(Subject.of(model(text), phases=phases))
        assert (found.bad is not None) == bad
        assert found.status == 1
        assert (found.steps in found.crashes) == (not bad)
        told = " ".join(str(part) for part in render(found, "m"))
        assert ("optimizer fails: its process was ended by SIGSEGV" in told) == (not bad)


def test_an_optimizer_that_crashes_is_tried_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "Forms", _Fragile)
    abs_nodes = " ".join(f"a{k + 1} = Abs(a{k})" for k in range(12))
    text = f"g (float[2] x) => (float[2] y) {{ a0 = Identity(x) {abs_nodes} y = Sin(a12) }}"
    found = verify_steps(Subject.of(model(text), phases=ABS_HAS_NEGS))
    assert found.bad is None
    assert list(found.crashes) == [1, 3, 6, 11, 12]
    assert sorted([*found.crashes, *found.not_optimized]) == list(range(1, found.steps + 1))
    told = " ".join(str(part) for part in render(found, "m"))
    assert "steps 1 to 12 run with graph optimizations off, which were tried at 5 of them" in told


class _FragileSession(IsolatedSession):
    """As if the optimizer did not survive the original."""

    def __init__(self, packed: SerializedModel, *, optimizes: bool = True) -> None:
        if optimizes:
            raise ProcessCrashed("its process was ended by SIGSEGV")
        super().__init__(packed, optimizes=optimizes)


def test_an_optimizer_that_crashes_over_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "IsolatedSession", _FragileSession)
    for phases, bad in ((None, False), (WRONG, True)):
        found = verify_steps(Subject.of(model(), phases=phases))
        assert (found.bad is not None) == bad
        assert found.status == int(bad)
        told = " ".join(str(part) for part in render(found, "m"))
        assert "compared with graph optimizations off" in told
        assert "fails over the original: its process was ended by SIGSEGV" in told


class _EndsOverEmptyInputs(Forms):
    """As onnxruntime does for an LSTM, or anything else there that is run together."""

    def outputs(self, packed: SerializedModel, optimizes: bool) -> Answered:
        raise ProcessCrashed("its process was ended by SIGFPE")


def test_forms_that_end_over_an_empty_input_are_run_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "Forms", _EndsOverEmptyInputs)
    text = "g (float[N] x) => (float[N] y) { a = Identity(x) y = Sin(a) }"
    for phases, bad in ((None, False), (WRONG, True)):
        found = verify_steps(Subject.of(model(text), phases=phases))
        assert "N=0" in found.sizes
        assert (found.bad is not None) == bad
        assert found.crashes == {}


class SinIsCut(SinIsCos):
    """Which fails for every size but 2."""

    def apply(self, patch: Patch, node: Node) -> None:
        two = patch.constant(np.array([2], np.int64), node.inputs[0])
        patch.replace(node.outputs[0], patch.node("Reshape", [*node.inputs, two], node.outputs)[0])
        patch.remove(node)
        patch.toward_normal_form()


def test_a_run_that_fails_is_told_with_its_sizes() -> None:
    phases = (Phase("wrong", (SinIsCut,), "Wrong."),)
    given = Assertions(dims=("N>=3",))
    text = "g (float[N] x) => (float[N] y) { a = Sin(x) y = Tanh(a) }"
    bad = verify_steps(Subject.of(model(text), given, phases)).bad
    assert bad is not None
    assert "the original runs, this one fails" in bad.difference
    assert bad.sizes["N"] >= 3


def test_nothing_to_run() -> None:
    text = "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { z = Identity(x) y = Identity(z) }"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["": 19]> {text}')
    found = verify_steps(Subject.of(proto))
    assert "no values are made up" in found.reason
    assert found.status == 2


def test_exposing_leaves_the_model_as_it_is() -> None:
    proto = model()
    before = proto.SerializeToString()
    more = exposing(proto, ["near", "y", "x"])
    assert [info.name for info in more.graph.output] == ["y", "near"]
    assert proto.SerializeToString() == before
