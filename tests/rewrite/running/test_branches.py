from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from looplift.rewrite.facts.assertions import Assertions
from looplift.rewrite.running import verify as verifying
from looplift.rewrite.running.branches import BranchRecorder, with_outputs
from looplift.rewrite.running.runtime import IsolatedSession, ProcessCrashed, SerializedModel
from looplift.rewrite.running.verify import verify

from ...small_models import model

FIVES = """g (float[T] x) => (float[T] y) <int64 five = {5}> {
    size = Size(x)
    fits = Equal(size, five)
    y = If(fits) <
        then_branch = t () => (float[T] a) { a = Sin(x) },
        else_branch = e () => (float[T] b) { b = Exp(x) }
    >
}"""
NEVER_THEN = (
    "no run took then_branch of If of `y`, so none compared it: try other sizes (--size) or values "
    "(--seed)"
)


def test_a_branch_that_never_ran_is_noted() -> None:
    proto = model(FIVES)
    assert verify(proto, proto).notes() == [NEVER_THEN]
    both = verify(proto, proto, sizes={"T": [4, 5]})
    assert (both.verified, both.notes()) == (True, [])
    (note,) = verify(proto, proto, sizes={"T": [5]}).notes()
    assert note.startswith("no run took else_branch of If of `y`")


def test_a_condition_that_is_an_input() -> None:
    text = FIVES.replace("(float[T] x)", "(float[T] x, bool c)").replace("If(fits)", "If(c)")
    assert verify(model(text), model(text)).notes() == []
    never = verify(model(text), model(text), inputs={"c": np.array(False)}).notes()
    assert never == [NEVER_THEN]


def test_a_branch_that_is_known_before_the_run_is_not_noted() -> None:
    proto = model(FIVES.replace("float[T] x", "float[4] x"))
    assert verify(proto, proto).notes() == []
    asserted = Assertions.of(dims=["T=4"])
    assert verify(model(FIVES), model(FIVES), assumptions=asserted).notes() == []


def test_the_ifs_of_functions_are_left_out() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[T] x, bool c) => (float[T] y, float[T] z) {
            y = own.inner(x)
            z = If(c) <
                then_branch = t () => (float[T] a) { a = Sin(x) },
                else_branch = e () => (float[T] b) { b = Exp(x) }
            >
        }
        <domain: "own", opset_import: ["" : 20]>
        inner (x) => (y) {
            five = Constant<value_int = 5>()  size = Size(x)  fits = Equal(size, five)
            y = If(fits) <
                then_branch = t () => (float[T] a) { a = Sin(x) },
                else_branch = e () => (float[T] b) { b = Exp(x) }
            >
        }"""
    assert list(BranchRecorder.of(parser.parse_model(text)).conditions) == ["If of `z`"]


class _RefusesMoreOutputs(IsolatedSession):
    """Simulates an onnxruntime that fails if a condition is an output."""

    def __init__(self, packed: SerializedModel, threads: int, *, optimizes: bool, seconds: float):
        super().__init__(packed, threads, optimizes=optimizes, seconds=seconds)
        if "fits" in self.outputs:
            raise ProcessCrashed("its process was ended by SIGSEGV")


def test_a_model_that_does_not_run_with_more_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "IsolatedSession", _RefusesMoreOutputs)
    result = verify(model(FIVES), model(FIVES))
    assert (result.verified, result.notes()) == (True, [])


def test_exposing_leaves_the_model_as_it_is() -> None:
    proto = model(FIVES)
    before = proto.SerializeToString()
    more = with_outputs(proto, ["fits", "y", "x", "five", "fits"])
    assert [info.name for info in more.graph.output] == ["y", "fits"]
    assert proto.SerializeToString() == before
