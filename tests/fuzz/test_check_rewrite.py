"""What the checks of random models leave open is as narrow as stated in docs/soundness.md."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

from looplift.rewrite.engine.rule import Phase, Rule
from looplift.rewrite.errors import ModelError
from looplift.rewrite.running.compare import Tolerances
from looplift.rewrite.running.runtime import (
    ExecutionError,
    ProcessCrashed,
    SerializedModel,
    Session,
)

from ..rules.test_promises import AbsToNeg
from . import check_rewrite as checking
from .check_rewrite import (
    OPEN,
    StacksWithoutSlices,
    check_rewrite,
    confirmed_outputs,
    differences,
    run_in_fork,
    unwritten_outputs,
)
from .contradictions import breaks_declarations, contradicts_initial_values

WRONG: tuple[type[Rule], ...] = (AbsToNeg,)


def _check(text: str, feeds: list[dict[str, Any]], tally: Counter[str] | None = None) -> list[str]:
    """The findings about a rule that is wrong for positive numbers."""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    return check_rewrite(model, feeds, tally, rules=[Phase("wrong", WRONG, "Wrong.")])


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def test_only_runs_that_break_a_declaration_are_left_out() -> None:
    text = "g (float[N] x) => (float[2] y) { a = Abs(x) y = Neg(a) }"
    tally: Counter[str] = Counter()
    assert _check(text, [{"x": _ones(3)}], tally) == []
    assert tally["runs whose outputs have other sizes than declared"] == 1
    assert len(_check(text, [{"x": _ones(3)}, {"x": _ones(2)}])) == 1


STACKS = """g (float[N] x, float[2] z) => (float[K,L] y, float[2] u, float[2] v) <float[2] two = {5, 6}> {
    s = SequenceConstruct(x, two) y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
    u = Neg(z) v = Exp(z) }"""


def test_a_run_that_the_reference_refuses_is_left_out() -> None:
    """onnxruntime stacks parts of sizes 0 and 2."""
    feeds: list[dict[str, Any]] = [{"x": _ones(0), "z": _ones(2)}]
    tally: Counter[str] = Counter()
    assert _check(STACKS, feeds, tally) == []
    assert tally["runs that break the specification"] == 1


def test_of_a_run_with_empty_inputs_all_that_is_defined_is_compared() -> None:
    """A stack of empty tensors is defined, and so are the other outputs."""
    text = """g (float[N] x, float[2] z) => (float[K,L] y, float[2] u) {
        s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0, new_axis = 1>(s)
        a = Abs(z) u = Neg(a) }"""
    found = _check(text, [{"x": _ones(0), "z": _ones(2)}])
    assert len(found) == 1
    assert "'u'" in found[0]


def test_memory_that_no_concat_wrote_is_left_out() -> None:
    """onnxruntime counts the elements of an empty operand, and writes none for them."""
    text = """g (float[N,2] x, float[0,K] e) => (float[A,B] y, float[A,B] u) {
        y = Concat<axis = 1>(e, x) a = Abs(x) u = Neg(a) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    feed = {"x": _ones(1, 2), "e": _ones(0, 2)}
    written = {"y": _ones(1, 4), "u": _ones(1, 2)}
    assert unwritten_outputs(model, feed, written) == ()  # the reference refuses it
    feed["e"] = _ones(0, 0)
    feed["x"] = _ones(0, 2)
    assert unwritten_outputs(model, feed, written) == {"y"}
    written["y"] = _ones(0, 2)
    assert unwritten_outputs(model, feed, written) == set()


def _differences(text: str, expected: Any, actual: Any) -> list[str]:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    session = Session(SerializedModel(model))
    return differences(model, session, {"x": _ones(0)}, [expected], [actual])


LOOP = """g (float[N] x) => (float[T,K] y) <int64 none = {0}> {
    f, y = Loop (none, "", x) <body = b (int64 i, bool c, float[K] s)
        => (bool d, float[K] t, float[K] r) { d = Identity(c) t = Neg(s) r = Neg(x) }> }"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ((0, 0), (0, 3), True),
        ((0, 3), (0, 0), False),
        ((0, 2), (0, 3), False),
        ((0, 2), (2, 0), False),
        ((0, 0), (0, 3, 1), False),
    ],
)
def test_sizes_of_a_scan_output_of_no_iterations(
    monkeypatch: pytest.MonkeyPatch, old: tuple[int, ...], new: tuple[int, ...], same: bool
) -> None:
    monkeypatch.setattr(checking, "explained_outputs", lambda *_: ())
    assert (not _differences(LOOP, _ones(*old), _ones(*new))) == same


def test_sizes_of_other_empty_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "explained_outputs", lambda *_: ())
    monkeypatch.setattr(checking, "confirmed_outputs", lambda *_: ())
    text = "g (float[N] x) => (float[T,K] y) <int64[1] a = {1}> { y = Unsqueeze(x, a) }"
    assert _differences(text, _ones(0, 0), _ones(0, 1))


def test_open_outputs_are_not_compared() -> None:
    assert _differences(LOOP, OPEN, _ones(7)) == []


def test_an_internal_error_is_a_finding_whatever_the_model_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal is none if the checker of onnx refuses the model, too."""
    error: Exception = KeyError("x")

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(checking, "rewrite", fails)
    monkeypatch.setattr(checking, "is_valid", lambda model: False)
    text = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
    assert _check(text, []) == ["rewrite raised KeyError: 'x'"]
    error = ModelError("wrong", where="here", remedy="none")
    assert _check(text, []) == []
    monkeypatch.setattr(checking, "is_valid", lambda model: True)
    assert len(_check(text, [])) == 1


class _Session:
    """Fails in one of several ways."""

    def run(self, feed: Mapping[str, Any], seconds: float | None = None) -> list[Any]:
        if feed["way"] == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if feed["way"] == "refuse":
            raise ExecutionError("refused")
        return [feed["way"]]


def test_runs_in_a_fork() -> None:
    assert run_in_fork(_Session(), {"way": "right"}, 1.0) == ["right"]
    with pytest.raises(ProcessCrashed):
        run_in_fork(_Session(), {"way": "crash"}, 1.0)
    with pytest.raises(ExecutionError, match="refused"):
        run_in_fork(_Session(), {"way": "refuse"}, 1.0)


def test_a_loop_that_declares_another_size_than_it_starts_with_is_contradictory() -> None:
    loop = """g (float[2] x, int64 n, float[N] z) => (float[K] y, float[M,K] ys) {
        y, ys = Loop(n, "", x) <body = b (int64 i, bool c, float[%s] s) => (bool d, float[K] r, float[K] t)
            { d = Identity(c) r = Concat<axis = 0>(s, x) t = Neg(r) }> }"""
    for declared, is_contradictory in (
        ("0", True), ("2, 1", True), ("N", True), ("2", False), ("W", False),
    ):  # fmt: skip
        text = '<ir_version: 8, opset_import: ["" : 17]> ' + loop % declared
        assert contradicts_initial_values(parser.parse_model(text)) is is_contradictory, declared


def test_elements_of_a_sequence_may_break_its_declaration() -> None:
    text = "g (float[N] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    assert breaks_declarations(model, {}, [[_ones(2), _ones(3)]])
    assert not breaks_declarations(model, {}, [[_ones(2)]])


def test_a_symbol_stands_for_the_size_of_an_input() -> None:
    text = """g (float[N] x, float[N,M] z) => (float[N] y) {
        n = Constant<value_ints = [2]>() y = Expand(x, n) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    feed = {"x": _ones(1), "z": _ones(1, 2)}
    assert breaks_declarations(model, feed, [_ones(2)])
    assert not breaks_declarations(model, feed, [_ones(1)])
    assert not breaks_declarations(model, {**feed, "z": _ones(3, 2)}, [_ones(2)])


def test_names_that_two_bodies_use_take_no_memory_to_check() -> None:
    """The inference of onnx takes the end of the slice for the shape of the other body."""
    head = "(int64 i, bool c, float[?] s) => (bool d, float[?] t)"
    text = f"""g (float[N] x, int64 n) => (float[?] y, float[?] z) {{
        y = Loop (n, "", x) <body = a {head}
            <int64[1] v = {{4611686018427387904}}, int64[1] one = {{1}}>
            {{ d = Identity(c) t = Slice(s, one, v) }}>
        z = Loop (n, "", x) <body = b {head}
            {{ d = Identity(c) v = Shape(s) e = ConstantOfShape(v) t = Add(e, s) }}> }}"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    assert not contradicts_initial_values(model)
    (body,) = (a.g for a in model.graph.node[0].attribute)
    assert numpy_helper.to_array(body.initializer[0]) == 2**62, "the model itself stays"


def test_slices_of_a_scan_are_not_carried_values() -> None:
    text = """g (float[3] x, float[4,2] xs) => (float[3] y) {
        y = Scan<num_scan_inputs = 1, body = b (float[3] s, float[2] e) => (float[3] r)
            { r = Neg(s) }>(x, xs) }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    assert not contradicts_initial_values(model)


def test_sizes_that_onnxruntime_knows_from_a_node_that_always_fails_are_open() -> None:
    text = """g (int64 n) => (float[?,?,?] ys)
        <float[2,1,1] block = {1, 2}, float[2,1] two = {1, 2}, int64[1] zero = {0},
         int64[1] one = {1}, int64[1] end = {9}> {
        ys = Loop(n, "") <body = b (int64 i, bool c) => (bool d, float[?,?] r) {
            d = Identity(c) k = Unsqueeze(i, zero)
            nought = Constant<value_ints = [0]>()
            starts = Concat<axis = 0>(zero, k, nought) ends = Concat<axis = 0>(end, k, end)
            s = Slice(block, starts, ends) t = Squeeze(s, one) r = Add(two, t) }> }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    assert check_rewrite(model, [{"n": np.array(0)}]) == []


def test_sizes_of_an_empty_stack_are_open_only_if_no_run_has_a_slice() -> None:
    """The declaration is false: the slices have one element."""
    text = """g (int64 n, float[1,3] x, int64[1] k, int64[1] e) => (float[T,3] ys)
        <int64[1] one = {1}, int64[1] step = {9}> {
        ys = Loop(n, "") <body = b (int64 i, bool c) => (bool d, float[3] r) {
            d = Identity(c) s = Slice(x, k, e, one, step) t = Squeeze(s, one) r = Identity(t) }> }"""
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    begin, end = np.array([0]), np.array([1])
    feed = {"n": np.array(0), "x": _ones(1, 3), "k": begin, "e": end}
    assert check_rewrite(model, [feed]) == []
    expected, actual = [_ones(0, 3)], [_ones(0, 1)]
    stacks = StacksWithoutSlices(model, [(feed, expected)])
    assert stacks.fill_in(expected, actual)[0] is expected[0]
    slices = [_ones(1, 1)]
    assert stacks.fill_in(expected, slices)[0] is slices[0]
    stacks = StacksWithoutSlices(model, [(feed, expected), (feed, [_ones(1, 3)])])
    assert stacks.fill_in(expected, actual)[0] is actual[0]


def test_an_output_is_right_if_the_reference_computes_it() -> None:
    text = "g (float[N] x) => (float[N] y) { y = Tanh(x) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    feed, tolerances = {"x": _ones(2)}, Tolerances("float32")
    given = [np.tanh(_ones(2))]
    right, wrong = ([given[0] + off] for off in (0, 1))
    assert confirmed_outputs(model, feed, ["y"], wrong, right, tolerances) == ["y"]
    assert confirmed_outputs(model, feed, ["y"], right, wrong, tolerances) == []


def test_elements_of_an_empty_run_that_the_reference_refuses_are_open() -> None:
    text = "g (float[N] x) => (float[N] y) { y = ai.onnx.unknown.F(x) }"
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    for size, shape, expected in ((0, (2,), ["y"]), (0, (3,), []), (1, (2,), [])):
        feed = {"x": _ones(size)}
        found = confirmed_outputs(model, feed, ["y"], [_ones(2)], [_ones(*shape)], Tolerances())
        assert found == expected
