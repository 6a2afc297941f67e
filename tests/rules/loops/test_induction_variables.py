"""Induction variables are computed from the iteration number."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from looplift.rules.loops.induction_variables import InductionVariableFromIteration

from ...equivalence import assert_equivalent, run_rules
from ...rewrite.fact_oracle import Feeds
from ...small_models import parse
from ..reasons import reason_of

FEEDS = Feeds(values={"m": [0, 1, 2, 7, -3], "z": [0, 5, -4]})


def _model(kind: str = "int64", step: str = "2", opset: int = 17, condition: str = "Identity(ci)",
           trip: str = "int64 m") -> onnx.ModelProto:  # fmt: skip
    return parse(
        f"""g ({trip}, {kind} z, float[3] x) => ({kind} k, float[3] y, {kind}[R] r)
            <{kind} step = {{{step}}}> {{
            k, y, r = Loop (m, , z, x) <body = b (int64 i, bool ci, {kind} t, float[3] s)
                => (bool co, {kind} t1, float[3] so, {kind} row) {{
                t1 = Add(step, t) co = {condition} f = Cast<to=1>(t) so = Add(s, f)
                row = Mul(t, t1) }}> }}""",
        opset,
    )


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize(("step", "opset"), [("1", 17), ("3", 17), ("-2", 17), ("3", 11), ("3", 9)])
def test_an_induction_variable_and_its_final_value(kind: str, step: str, opset: int) -> None:
    """Max takes no integers before opset 12."""
    model = _model(kind, step, opset)
    result, trace, _ = run_rules(model, [InductionVariableFromIteration])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    loop = next(node for node in result.graph.node if node.op_type == "Loop")
    assert len(loop.input) == 3
    assert_equivalent(model, result, FEEDS)


@pytest.mark.parametrize(("kind", "opset"), [("int64", 17), ("int32", 11)])
@pytest.mark.parametrize("shape", ["[1]", "[1,1]"])
def test_the_only_element_of_a_tensor(kind: str, opset: int, shape: str) -> None:
    model = parse(
        f"""g (int64 m, {kind}{shape} z, float[1,3] x) => ({kind}{shape} k, float[1,3] y)
            <{kind} step = {{-2}}> {{
            k, y = Loop (m, , z, x) <body = b (int64 i, bool ci, {kind}{shape} t, float[1,3] s)
                => (bool co, {kind}{shape} t1, float[1,3] so) {{
                t1 = Add(t, step) co = Identity(ci) f = Cast<to=1>(t) so = Add(s, f) }}> }}""",
        opset,
    )
    result, trace, _ = run_rules(model, [InductionVariableFromIteration])
    assert trace.defects() == []
    assert len(trace.commits()) == 1
    numbers = [np.full([1] * shape.count("1"), v) for v in (0, 5, -4)]
    assert_equivalent(model, result, Feeds(values={"m": [0, 1, 2, 7, -3], "z": numbers}))


GROWS = """g (int64 m, int64 z, float[3] x) => (int64[L] k, float[3] y) <int64[1] two = {2}> {
    k, y = Loop (m, , z, x) <body = b (int64 i, bool ci, int64 t, float[3] s)
        => (bool co, int64[1] t1, float[3] so) {
        t1 = Add(t, two) co = Identity(ci) so = Add(s, s) }> }"""
WIDE_STEP = """g (int64 m, int64 z, float[3] x) => (int64[L] k, float[3] y) <int64[1] two = {2}> {
    k, y = Loop (m, , z, x) <body = b (int64 i, bool ci, int64[L] t, float[3] s)
        => (bool co, int64[L] t1, float[3] so) {
        t1 = Add(t, two) co = Identity(ci) so = Add(s, s) }> }"""
WIDE_NUMBER = """g (int64 m, int64 z, float[3] x) => (float[3] y) <int64 two = {2}> {
    k, y = Loop (m, , z, x) <body = b (int64[1] i, bool ci, int64 t, float[3] s)
        => (bool co, int64 t1, float[3] so) {
        t1 = Add(t, two) f = Cast<to=1>(t) co = Identity(ci) so = Add(s, f) }> }"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_model(step="0"), "no carried integer"),
        (_model(trip="int64[1] m"), "trip count is not a scalar"),
        (_model(condition="Less(i, t1)"), "a condition may end the loop"),
        (parse(WIDE_STEP), "no carried integer"),
        (parse(GROWS), "no carried integer"),
        (parse(WIDE_NUMBER), "iteration number is not a scalar"),
    ],
    ids=["standing still", "trip", "condition", "step", "shape", "number"],
)
def test_near_misses(model: onnx.ModelProto, words: str) -> None:
    assert words in reason_of(InductionVariableFromIteration, model)
